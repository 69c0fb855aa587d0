//! Three first-in-first-out queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
//! 2023).
//!
//! New slots pass through a small queue; those that were used meanwhile go on to the main one, the others
//! leave, and their keys are remembered for a while: a block that comes back goes to the main queue at once.
//! A hit is a counter, no list is touched. Queues and ghosts are measured in bytes.

use super::ghosts::{GhostBound, Ghosts};
use super::list::{Chain, List};
use super::{BlockInfo, Eviction};

/// One byte in so many belongs to the small queue.
const SMALL_DIVISOR: u64 = 10;
/// Uses that are counted, at most.
const USES_MAX: u8 = 3;
/// Uses in the small queue that lead to the main one.
const USES_TO_STAY: u8 = 2;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    hash: u64,
    uses: u8,
    is_main: bool,
}

/// Evicts from a small probationary queue first.
#[derive(Debug, Default)]
pub(super) struct S3Fifo {
    chain: Chain,
    small: List,
    main: List,
    ghosts: Ghosts,
    entries: Vec<Entry>,
}

impl S3Fifo {
    /// Of all blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.small.bytes() + self.main.bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// What is known of the block that is, or was just now, in `slot`.
    pub(super) fn info(&self, slot: u32) -> BlockInfo {
        BlockInfo::gone(self.entries[slot as usize].hash, self.chain.bytes_of(slot))
    }

    /// As much as belongs to the main queue.
    fn ghost_bound(&self) -> GhostBound {
        let bytes = self.bytes();
        GhostBound { len_max: self.len(), bytes_max: bytes - bytes / SMALL_DIVISOR }
    }

    fn push_main(&mut self, slot: u32) {
        self.entries[slot as usize].is_main = true;
        self.main.push(&mut self.chain, slot);
    }

    fn evict_small(&mut self) -> Option<u32> {
        let bound = self.ghost_bound();
        while let Some(slot) = self.small.pop_oldest(&mut self.chain) {
            let uses = &mut self.entries[slot as usize].uses;
            if *uses < USES_TO_STAY {
                self.ghosts.remember(self.info(slot), bound);
                return Some(slot);
            }
            *uses = 0;
            self.push_main(slot);
        }
        None
    }

    /// Ends: each round takes a use away.
    fn evict_main(&mut self) -> Option<u32> {
        while let Some(slot) = self.main.pop_oldest(&mut self.chain) {
            let entry = &mut self.entries[slot as usize];
            if entry.uses == 0 {
                return Some(slot);
            }
            entry.uses -= 1;
            self.main.push(&mut self.chain, slot);
        }
        None
    }
}

impl Eviction for S3Fifo {
    fn insert(&mut self, slot: u32, block: BlockInfo) {
        self.chain.enter(slot, block.bytes);
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, Entry::default());
        }
        self.entries[slot as usize] = Entry { hash: block.hash, uses: 0, is_main: false };
        if self.ghosts.recall(block.hash) {
            self.push_main(slot);
        } else {
            self.small.push(&mut self.chain, slot);
        }
    }

    fn hit(&mut self, slot: u32) {
        let uses = &mut self.entries[slot as usize].uses;
        *uses = (*uses + 1).min(USES_MAX);
    }

    fn evict(&mut self) -> Option<u32> {
        if self.small.bytes() * SMALL_DIVISOR >= self.bytes() {
            self.evict_small().or_else(|| self.evict_main())
        } else {
            self.evict_main().or_else(|| self.evict_small())
        }
    }

    fn remove(&mut self, slot: u32) {
        let list = if self.entries[slot as usize].is_main { &mut self.main } else { &mut self.small };
        list.remove(&mut self.chain, slot);
    }

    fn ghosts(&self) -> usize {
        self.ghosts.len()
    }
}
