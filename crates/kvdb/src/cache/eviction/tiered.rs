//! Blocks of slow devices are worth more: a miss on one costs as much as many on a fast one.
//!
//! nDiskFS (2020) has a list of blocks for each class of devices and weighs the age of their oldest ones.
//! Here each class has the three queues of [`S3Fifo`], and the bytes are shared between the two by what more
//! of them would save: blocks that had to go a short while ago are remembered for each class, and one that is
//! asked for again says that its class has too little. It moves the share by a step in proportion to what the
//! miss costs, so the share rests where the next byte saves as much time in either class. Where all blocks
//! are of one class this is S3-FIFO, and nothing more is remembered.

use kvfs_store::Tier;

use super::ghosts::{GhostBound, Ghosts};
use super::s3_fifo::S3Fifo;
use super::{BlockInfo, Eviction};

/// A read of a hard disk takes so many times as long as one of an SSD: 8 ms and 0.1. Devices that are nearer
/// to each other gain less by it, and lose next to nothing (docs/decisions/cache-policies.md).
const SLOW_COST: u64 = 80;
/// A miss on a slow device moves the share by one part in so many of all bytes.
const STEP_DIVISOR: u64 = 256;
/// Of each class as much is remembered as one part in so many of all: what a little more room would have
/// kept.
const GHOST_DIVISOR: u64 = 8;

/// Shares the cache between classes of devices.
#[derive(Debug)]
pub(super) struct Tiered {
    queues: [S3Fifo; Tier::ALL.len()],
    ghosts: [Ghosts; Tier::ALL.len()],
    /// Of each slot.
    tiers: Vec<Tier>,
    /// How much there should be of slow devices (bytes).
    slow_target: u64,
}

impl Default for Tiered {
    /// Blocks of slow devices stay until it has been seen what that costs.
    fn default() -> Self {
        Self {
            queues: Default::default(),
            ghosts: Default::default(),
            tiers: Vec::new(),
            slow_target: u64::MAX,
        }
    }
}

impl Tiered {
    pub(super) fn bytes_of(&self, tier: Tier) -> u64 {
        self.queues[tier as usize].bytes()
    }

    fn bytes(&self) -> u64 {
        Tier::ALL.into_iter().map(|tier| self.bytes_of(tier)).sum()
    }

    fn queue_of(&mut self, slot: u32) -> &mut S3Fifo {
        &mut self.queues[self.tiers[slot as usize] as usize]
    }

    /// The share follows when the block was evicted a short while ago.
    fn learn(&mut self, block: BlockInfo) {
        if !self.ghosts[block.tier as usize].recall(block.hash) {
            return;
        }
        let bytes = self.bytes();
        let step = (bytes / STEP_DIVISOR).max(SLOW_COST);
        let target = self.slow_target.min(bytes);
        self.slow_target = match block.tier {
            Tier::Slow => (target + step).min(bytes),
            Tier::Fast => target.saturating_sub(step / SLOW_COST),
        };
    }

    /// Which class gives.
    fn victim_tier(&self) -> Tier {
        let is_over = self.bytes_of(Tier::Slow) > self.slow_target;
        if is_over || self.bytes_of(Tier::Fast) == 0 { Tier::Slow } else { Tier::Fast }
    }
}

impl Eviction for Tiered {
    fn insert(&mut self, slot: u32, block: BlockInfo) {
        if self.tiers.len() <= slot as usize {
            self.tiers.resize(slot as usize + 1, block.tier);
        }
        self.learn(block);
        self.tiers[slot as usize] = block.tier;
        self.queue_of(slot).insert(slot, block);
    }

    fn hit(&mut self, slot: u32) {
        self.queue_of(slot).hit(slot);
    }

    fn evict(&mut self) -> Option<u32> {
        let (tier, bytes) = (self.victim_tier(), self.bytes());
        let has_both = self.bytes_of(tier) < bytes;
        let len: usize = self.queues.iter().map(S3Fifo::len).sum();
        let slot = self.queues[tier as usize].evict()?;
        if has_both {
            let bound = GhostBound {
                len_max: (len / GHOST_DIVISOR as usize).max(1),
                bytes_max: bytes / GHOST_DIVISOR,
            };
            let block = self.queues[tier as usize].info(slot);
            self.ghosts[tier as usize].remember(block, bound);
        }
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        self.queue_of(slot).remove(slot);
    }

    fn ghosts(&self) -> usize {
        let of_queues: usize = self.queues.iter().map(Eviction::ghosts).sum();
        of_queues + self.ghosts.iter().map(Ghosts::len).sum::<usize>()
    }
}
