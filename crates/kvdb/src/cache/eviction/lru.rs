//! Least recently used first.

use super::Eviction;
use super::list::{Chain, List};

/// Evicts the slot whose last use is longest ago.
#[derive(Debug, Default)]
pub(super) struct Lru {
    chain: Chain,
    list: List,
}

impl Eviction for Lru {
    fn insert(&mut self, slot: u32, _hash: u64) {
        self.list.push(&mut self.chain, slot);
    }

    fn hit(&mut self, slot: u32) {
        self.list.renew(&mut self.chain, slot);
    }

    fn evict(&mut self) -> Option<u32> {
        self.list.pop_oldest(&mut self.chain)
    }
}
