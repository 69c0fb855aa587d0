//! What was evicted not long ago: hashes of keys, in the order of their eviction.

use std::collections::{HashMap, VecDeque};

use super::BlockInfo;
use crate::cache::key::MixedState;

/// How much is remembered.
#[derive(Debug, Clone, Copy)]
pub(super) struct GhostBound {
    /// Hashes, at most: they take memory.
    pub(super) len_max: usize,
    /// What the blocks had together, at most: blocks that came back later than this would not have fitted.
    pub(super) bytes_max: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ghost {
    stamp: u32,
    bytes: u32,
}

/// A bounded memory of hashes. Two keys with the same hash are one; that costs a wrong guess, nothing else.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    /// Oldest first; entries whose number isn't in `known` any more are void.
    queue: VecDeque<(u64, u32)>,
    known: HashMap<u64, Ghost, MixedState>,
    bytes: u64,
    stamp_next: u32,
}

impl Ghosts {
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// What the blocks had that are remembered.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Remembers a block that goes, and forgets the oldest ones down to the bound.
    pub(super) fn remember(&mut self, block: BlockInfo, bound: GhostBound) {
        self.stamp_next = self.stamp_next.wrapping_add(1);
        let ghost = Ghost { stamp: self.stamp_next, bytes: block.bytes };
        let replaced = self.known.insert(block.hash, ghost);
        self.bytes += u64::from(ghost.bytes);
        self.bytes -= replaced.map_or(0, |ghost| u64::from(ghost.bytes));
        self.queue.push_back((block.hash, ghost.stamp));
        self.trim(bound);
    }

    /// Forgets the oldest ones down to the bound.
    pub(super) fn trim(&mut self, bound: GhostBound) {
        // Void entries are dropped on the way, so the queue stays within twice the bound.
        let queue_max = 2 * bound.len_max.max(1);
        while self.known.len() > bound.len_max || self.bytes > bound.bytes_max || self.queue.len() > queue_max
        {
            let Some((hash, stamp)) = self.queue.pop_front() else { return };
            if self.known.get(&hash).is_some_and(|ghost| ghost.stamp == stamp) {
                self.recall(hash);
            }
        }
    }

    /// Whether the block was evicted not long ago; it is then forgotten.
    pub(super) fn recall(&mut self, hash: u64) -> bool {
        let ghost = self.known.remove(&hash);
        self.bytes -= ghost.map_or(0, |ghost| u64::from(ghost.bytes));
        ghost.is_some()
    }
}
