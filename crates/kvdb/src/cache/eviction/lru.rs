//! Least recently used first.

use super::list::{Chain, List};
use super::{BlockInfo, Eviction};

/// Evicts the slot whose last use is longest ago.
#[derive(Debug, Default)]
pub(super) struct Lru {
    chain: Chain,
    list: List,
}

impl Eviction for Lru {
    fn insert(&mut self, slot: u32, block: BlockInfo) {
        self.chain.enter(slot, block.bytes);
        self.list.push(&mut self.chain, slot);
    }

    fn hit(&mut self, slot: u32) {
        self.list.renew(&mut self.chain, slot);
    }

    fn evict(&mut self) -> Option<u32> {
        self.list.pop_oldest(&mut self.chain)
    }

    fn remove(&mut self, slot: u32) {
        self.list.remove(&mut self.chain, slot);
    }

    fn ghosts(&self) -> usize {
        0
    }
}
