//! Adaptive replacement (Megiddo and Modha, "ARC: A self-tuning, low overhead replacement cache", FAST 2003).
//!
//! Slots that were used once and slots that were used more often have a list each, and so have the keys that
//! were evicted from either. A miss on such a key says that its list is too short, and moves the target between
//! them. The capacity, which the paper has fixed, is what is there when something is evicted.

use super::Eviction;
use super::ghosts::Ghosts;
use super::list::{Chain, List};

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    hash: u64,
    is_frequent: bool,
}

/// Balances recency and frequency.
#[derive(Debug, Default)]
pub(super) struct Arc {
    chain: Chain,
    recent: List,
    frequent: List,
    recent_ghosts: Ghosts,
    frequent_ghosts: Ghosts,
    /// How many slots `recent` should have.
    recent_target: usize,
    entries: Vec<Entry>,
}

impl Arc {
    fn len(&self) -> usize {
        self.recent.len() + self.frequent.len()
    }

    /// Whether the key of a new slot was evicted not long ago; the lists' target follows.
    fn learn(&mut self, hash: u64) -> bool {
        let (recent, frequent) = (self.recent_ghosts.len(), self.frequent_ghosts.len());
        if self.recent_ghosts.recall(hash) {
            let step = (frequent / recent.max(1)).max(1);
            self.recent_target = (self.recent_target + step).min(self.len());
            true
        } else if self.frequent_ghosts.recall(hash) {
            let step = (recent / frequent.max(1)).max(1);
            self.recent_target = self.recent_target.saturating_sub(step);
            true
        } else {
            false
        }
    }
}

impl Eviction for Arc {
    fn insert(&mut self, slot: u32, hash: u64) {
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, Entry::default());
        }
        let is_frequent = self.learn(hash);
        self.entries[slot as usize] = Entry { hash, is_frequent };
        let list = if is_frequent { &mut self.frequent } else { &mut self.recent };
        list.push(&mut self.chain, slot);
    }

    fn hit(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.is_frequent {
            self.frequent.renew(&mut self.chain, slot);
        } else {
            entry.is_frequent = true;
            self.recent.remove(&mut self.chain, slot);
            self.frequent.push(&mut self.chain, slot);
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let len_max = self.len();
        let from_recent = self.frequent.len() == 0 || self.recent.len() > self.recent_target;
        let (list, ghosts) = if from_recent && self.recent.len() > 0 {
            (&mut self.recent, &mut self.recent_ghosts)
        } else {
            (&mut self.frequent, &mut self.frequent_ghosts)
        };
        let slot = list.pop_oldest(&mut self.chain)?;
        ghosts.remember(self.entries[slot as usize].hash, len_max);
        Some(slot)
    }
}
