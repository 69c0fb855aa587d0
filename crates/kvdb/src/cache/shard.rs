//! One shard of the block cache: its blocks, their policy, and what was counted.
//!
//! Thread safety: behind the shard's lock. Invariant: map, slots and policy know the same blocks.

use std::collections::HashMap;
use std::sync::Arc;

use kvfs_store::Tier;

use super::eviction::{BlockInfo, Eviction, Policy};
use super::key::{CacheKey, MixedState};
use super::{CachedBlock, TierCounts};

struct Slot {
    key: CacheKey,
    block: Arc<CachedBlock>,
}

/// See the module.
pub(super) struct Shard {
    slots: Vec<Option<Slot>>,
    slots_free: Vec<u32>,
    map: HashMap<CacheKey, u32, MixedState>,
    eviction: Box<dyn Eviction>,
    /// Lookups that found their block.
    pub(super) hits: TierCounts,
    /// Lookups that did not.
    pub(super) misses: TierCounts,
}

impl Shard {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            slots: Vec::new(),
            slots_free: Vec::new(),
            map: HashMap::default(),
            eviction: policy.eviction(),
            hits: TierCounts::default(),
            misses: TierCounts::default(),
        }
    }

    /// The block under `key`, marked as used.
    pub(super) fn get(&mut self, key: CacheKey, tier: Tier) -> Option<Arc<CachedBlock>> {
        let Some(&slot) = self.map.get(&key) else {
            self.misses.add(tier);
            return None;
        };
        self.hits.add(tier);
        self.eviction.hit(slot);
        self.slots[slot as usize].as_ref().map(|slot| Arc::clone(&slot.block))
    }

    /// The block under `key`, if it is there; nothing is marked or counted.
    pub(super) fn peek(&self, key: CacheKey) -> Option<&Arc<CachedBlock>> {
        let slot = *self.map.get(&key)?;
        self.slots[slot as usize].as_ref().map(|slot| &slot.block)
    }

    /// Puts a block in whose key is not there.
    pub(super) fn insert(&mut self, key: CacheKey, tier: Tier, block: Arc<CachedBlock>) {
        let bytes = u32::try_from(block.bytes_charged()).unwrap_or(u32::MAX);
        let entry = Some(Slot { key, block });
        let slot = if let Some(slot) = self.slots_free.pop() {
            self.slots[slot as usize] = entry;
            slot
        } else {
            self.slots.push(entry);
            (self.slots.len() - 1) as u32
        };
        self.map.insert(key, slot);
        self.eviction.insert(slot, BlockInfo { hash: key.mixed(), bytes, tier });
    }

    /// Takes out the block that is worth least.
    pub(super) fn evict(&mut self) -> Option<Arc<CachedBlock>> {
        let slot = self.eviction.evict()?;
        self.take(slot)
    }

    /// Takes out all blocks whose key is as said; `take` gets each. O(blocks of the shard).
    pub(super) fn remove_if(&mut self, is_gone: impl Fn(&CacheKey) -> bool, take: impl Fn(&CachedBlock)) {
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].as_ref().is_some_and(|slot| is_gone(&slot.key)) {
                self.eviction.remove(slot);
                if let Some(block) = self.take(slot) {
                    take(&block);
                }
            }
        }
    }

    /// Bytes charged for the blocks that there are. O(slots).
    pub(super) fn bytes(&self) -> u64 {
        self.slots.iter().flatten().map(|slot| slot.block.bytes_charged()).sum()
    }

    /// How many blocks there are.
    pub(super) fn blocks(&self) -> usize {
        self.map.len()
    }

    /// How many blocks are remembered though they are gone.
    pub(super) fn ghosts(&self) -> usize {
        self.eviction.ghosts()
    }

    fn take(&mut self, slot: u32) -> Option<Arc<CachedBlock>> {
        self.slots_free.push(slot);
        let entry = self.slots[slot as usize].take()?;
        self.map.remove(&entry.key);
        Some(entry.block)
    }
}
