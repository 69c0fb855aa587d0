//! Three first-in-first-out queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! New slots pass through a small queue; those that were used meanwhile go on to the main one, the others leave, and
//! their keys are remembered for a while: a block that comes back goes to the main queue at once. A hit is a counter, no list
//! is touched.

use super::Eviction;
use super::ghosts::Ghosts;
use super::list::{Chain, List};

/// One slot in so many belongs to the small queue.
const SMALL_DIVISOR: usize = 10;
/// Uses that are counted, at most.
const USES_MAX: u8 = 3;
/// Uses in the small queue that lead to the main one.
const USES_TO_STAY: u8 = 2;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    hash: u64,
    uses: u8,
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
    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn evict_small(&mut self) -> Option<u32> {
        while let Some(slot) = self.small.pop_oldest(&mut self.chain) {
            let entry = &mut self.entries[slot as usize];
            if entry.uses < USES_TO_STAY {
                let hash = entry.hash;
                self.ghosts.remember(hash, self.len().max(1));
                return Some(slot);
            }
            entry.uses = 0;
            self.main.push(&mut self.chain, slot);
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
    fn insert(&mut self, slot: u32, hash: u64) {
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, Entry::default());
        }
        self.entries[slot as usize] = Entry { hash, uses: 0 };
        let queue = if self.ghosts.recall(hash) { &mut self.main } else { &mut self.small };
        queue.push(&mut self.chain, slot);
    }

    fn hit(&mut self, slot: u32) {
        let uses = &mut self.entries[slot as usize].uses;
        *uses = (*uses + 1).min(USES_MAX);
    }

    fn evict(&mut self) -> Option<u32> {
        if self.small.len() * SMALL_DIVISOR >= self.len() {
            self.evict_small().or_else(|| self.evict_main())
        } else {
            self.evict_main().or_else(|| self.evict_small())
        }
    }
}
