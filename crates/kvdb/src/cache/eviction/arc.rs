//! Adaptive replacement (Megiddo and Modha, "ARC: A self-tuning, low overhead replacement cache", FAST 2003).
//!
//! Slots that were used once (the paper's T1) and slots that were used more often (T2) have a list each, and
//! so have the keys that were evicted from either (B1, B2). A miss on such a key says that its list is too
//! short, and moves the target between them (p). The paper's pages are all alike; here lists, ghosts and
//! target are measured in bytes, and a step of the target is as large as the block that was missed. The
//! capacity, which the paper has fixed, is what is there when something is evicted.

use super::ghosts::{GhostBound, Ghosts};
use super::list::{Chain, List};
use super::{BlockInfo, Eviction};

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
    /// How much `recent` should have (bytes).
    recent_target: u64,
    /// The block that came in last was evicted from `frequent` before.
    was_frequent: bool,
    entries: Vec<Entry>,
}

impl Arc {
    fn bytes(&self) -> u64 {
        self.recent.bytes() + self.frequent.bytes()
    }

    /// Whether the block was evicted not long ago; the lists' target follows.
    fn learn(&mut self, block: BlockInfo) -> bool {
        let (recent, frequent) = (self.recent_ghosts.bytes(), self.frequent_ghosts.bytes());
        let step = |own: u64, other: u64| u64::from(block.bytes) * (other / own.max(1)).max(1);
        self.was_frequent = false;
        if self.recent_ghosts.recall(block.hash) {
            self.recent_target = (self.recent_target + step(recent, frequent)).min(self.bytes());
            true
        } else if self.frequent_ghosts.recall(block.hash) {
            self.recent_target = self.recent_target.saturating_sub(step(frequent, recent));
            self.was_frequent = true;
            true
        } else {
            false
        }
    }

    /// The paper's REPLACE: which list gives.
    fn gives_recent(&self) -> bool {
        let recent = self.recent.bytes();
        let is_over = recent > self.recent_target || (self.was_frequent && recent == self.recent_target);
        !self.recent.is_empty() && (is_over || self.frequent.is_empty())
    }

    /// Of used once there are at most as many as there is room, gone ones included; of all at most twice as
    /// many.
    fn trim_ghosts(&mut self, (len, bytes): (usize, u64)) {
        let recent = GhostBound {
            len_max: len.saturating_sub(self.recent.len()),
            bytes_max: bytes.saturating_sub(self.recent.bytes()),
        };
        self.recent_ghosts.trim(recent);
        let frequent = GhostBound {
            len_max: (2 * len)
                .saturating_sub(self.recent.len() + self.frequent.len() + self.recent_ghosts.len())
                .min(len),
            bytes_max: (2 * bytes).saturating_sub(self.bytes() + self.recent_ghosts.bytes()),
        };
        self.frequent_ghosts.trim(frequent);
    }
}

impl Eviction for Arc {
    fn insert(&mut self, slot: u32, block: BlockInfo) {
        self.chain.enter(slot, block.bytes);
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, Entry::default());
        }
        let is_frequent = self.learn(block);
        self.entries[slot as usize] = Entry { hash: block.hash, is_frequent };
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
        let capacity = (self.recent.len() + self.frequent.len(), self.bytes());
        let (list, ghosts) = if self.gives_recent() {
            (&mut self.recent, &mut self.recent_ghosts)
        } else {
            (&mut self.frequent, &mut self.frequent_ghosts)
        };
        let slot = list.pop_oldest(&mut self.chain)?;
        let block = BlockInfo::gone(self.entries[slot as usize].hash, self.chain.bytes_of(slot));
        ghosts.remember(block, GhostBound { len_max: capacity.0, bytes_max: capacity.1 });
        self.trim_ghosts(capacity);
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        let is_frequent = self.entries[slot as usize].is_frequent;
        let list = if is_frequent { &mut self.frequent } else { &mut self.recent };
        list.remove(&mut self.chain, slot);
    }

    fn ghosts(&self) -> usize {
        self.recent_ghosts.len() + self.frequent_ghosts.len()
    }
}
