//! What was evicted not long ago: hashes of keys, in the order of their eviction.

use std::collections::{HashMap, VecDeque};

/// A bounded memory of hashes. Two keys with the same hash are one; that costs a wrong guess, nothing else.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    /// Oldest first; entries whose number isn't in `stamps` any more are void.
    queue: VecDeque<(u64, u32)>,
    stamps: HashMap<u64, u32>,
    stamp_next: u32,
}

impl Ghosts {
    pub(super) fn len(&self) -> usize {
        self.stamps.len()
    }

    /// Remembers `hash`, and forgets the oldest ones down to `len_max`.
    pub(super) fn remember(&mut self, hash: u64, len_max: usize) {
        self.stamp_next = self.stamp_next.wrapping_add(1);
        self.stamps.insert(hash, self.stamp_next);
        self.queue.push_back((hash, self.stamp_next));
        // Void entries are dropped on the way, so the queue stays within twice the bound.
        while self.stamps.len() > len_max || self.queue.len() > 2 * len_max.max(1) {
            let Some((hash, stamp)) = self.queue.pop_front() else { return };
            if self.stamps.get(&hash) == Some(&stamp) {
                self.stamps.remove(&hash);
            }
        }
    }

    /// Whether `hash` was evicted not long ago; it is then forgotten.
    pub(super) fn recall(&mut self, hash: u64) -> bool {
        self.stamps.remove(&hash).is_some()
    }
}
