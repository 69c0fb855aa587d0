//! The block cache, the pages of metadata, and the memory accountant.
//!
//! Purpose: keeps verified blocks of runs in memory over a device that is read past the kernel's
//! cache. What it may hold is what the other pools of the [`Accountant`] leave.
//!
//! Thread safety: sharded by key; a call locks one shard at a time for O(1).
//!
//! Invariants: a cached block was verified when it came in and never changes. A key carries the
//! generation of its zone, so a block of a zone that was freed and filled anew is never found.

mod eviction;
mod memory;
mod pages;
#[cfg(test)]
mod tests;

pub(crate) use eviction::Eviction;
pub use eviction::Policy;
pub(crate) use memory::{Accountant, Charge, Pool};
pub(crate) use pages::Pages;
pub(crate) use pages::{Loaded, Page, PageRef};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::format::ZoneId;

/// Where a block lies, and in which life of its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey {
    /// Zone.
    pub zone: ZoneId,
    /// How often the zone was freed before.
    pub generation: u32,
    /// Byte offset in the zone.
    pub offset: u32,
}

impl CacheKey {
    /// Neighbours are far from each other.
    fn mixed(self) -> u64 {
        let place = u64::from(self.zone.0) << 32 | u64::from(self.offset >> 12);
        place.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Spreads keys over shards; neighbours go to different ones.
    fn shard(self) -> usize {
        (self.mixed() >> 32) as usize % SHARDS
    }

    /// What a policy remembers of a block that is gone.
    fn hash(self) -> u64 {
        self.mixed() ^ u64::from(self.generation)
    }
}

/// The verified bytes of a tuple block (without the padding) or a 4 KiB data block.
#[derive(Debug, Clone)]
pub(crate) struct CachedBlock {
    bytes: Bytes,
    /// Memory behind `bytes`.
    bytes_held: u64,
}

impl CachedBlock {
    /// Wraps verified bytes. `bytes` must be alone in its allocation of `bytes_held` bytes, or the
    /// accountant is told less than is held.
    pub(crate) fn new(bytes: Bytes, bytes_held: u64) -> Self {
        Self { bytes, bytes_held }
    }

    /// The block.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Shards of the cache.
const SHARDS: usize = 32;

/// Map, slab and policy entries that come with each block, what is remembered of one that is gone, and what the allocator
/// rounds up (bytes, about).
const OVERHEAD_BYTES: u64 = 320;

struct Slot {
    key: CacheKey,
    block: Arc<CachedBlock>,
}

struct Shard {
    slots: Vec<Option<Slot>>,
    slots_free: Vec<u32>,
    map: HashMap<CacheKey, u32>,
    eviction: Box<dyn Eviction>,
}

impl Shard {
    fn evict_one(&mut self) -> Option<Arc<CachedBlock>> {
        let slot = self.eviction.evict()?;
        self.slots_free.push(slot);
        let entry = self.slots[slot as usize].take()?;
        self.map.remove(&entry.key);
        Some(entry.block)
    }
}

/// Counters of a [`BlockCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CacheStats {
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Blocks that came in.
    pub insertions: u64,
    /// Blocks that were pushed out.
    pub evictions: u64,
}

/// A sharded cache of verified blocks with a pluggable eviction policy.
pub(crate) struct BlockCache {
    accountant: Arc<Accountant>,
    shards: Vec<Mutex<Shard>>,
    /// The shard that gives next when the inserting one has nothing left.
    next_victim: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
    insertions: AtomicU64,
    evictions: AtomicU64,
}

impl BlockCache {
    /// An empty cache.
    pub(crate) fn new(accountant: Arc<Accountant>, policy: Policy) -> Arc<Self> {
        let shard = || Shard {
            slots: Vec::new(),
            slots_free: Vec::new(),
            map: HashMap::new(),
            eviction: policy.eviction(),
        };
        Arc::new(Self {
            accountant,
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            next_victim: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            insertions: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        })
    }

    /// The block under `key`, marked as used.
    pub(crate) fn get(&self, key: CacheKey) -> Option<Arc<CachedBlock>> {
        let mut guard = self.shards[key.shard()].lock();
        let shard = &mut *guard;
        let found = shard.map.get(&key).and_then(|&slot| {
            shard.eviction.hit(slot);
            shard.slots[slot as usize].as_ref().map(|s| Arc::clone(&s.block))
        });
        drop(guard);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Puts a verified block in; when another thread was first, its block stays and is returned.
    /// Evicts until the cache is within its budget again, the new block itself if need be.
    pub(crate) fn insert(&self, key: CacheKey, block: CachedBlock) -> Arc<CachedBlock> {
        let bytes = block.bytes_held + OVERHEAD_BYTES;
        let block = Arc::new(block);
        let shard_index = key.shard();
        {
            let mut guard = self.shards[shard_index].lock();
            let shard = &mut *guard;
            if let Some(&slot) = shard.map.get(&key)
                && let Some(present) = &shard.slots[slot as usize]
            {
                return Arc::clone(&present.block);
            }
            let entry = Some(Slot { key, block: Arc::clone(&block) });
            let slot = if let Some(slot) = shard.slots_free.pop() {
                shard.slots[slot as usize] = entry;
                slot
            } else {
                shard.slots.push(entry);
                (shard.slots.len() - 1) as u32
            };
            shard.map.insert(key, slot);
            shard.eviction.insert(slot, key.hash());
            self.accountant.charge(Pool::BlockCache, bytes);
        }
        self.insertions.fetch_add(1, Ordering::Relaxed);
        self.evict_down_to(self.accountant.cache_budget(), shard_index);
        block
    }

    /// Evicts until at most `bytes` are held.
    pub(crate) fn shrink_to(&self, bytes: u64) {
        let start = self.next_victim.fetch_add(1, Ordering::Relaxed) % SHARDS;
        self.evict_down_to(bytes, start);
    }

    /// Whether so many bytes more can be held without anything else going.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.bytes() + bytes <= self.accountant.cache_budget()
    }

    /// Bytes held, bookkeeping included.
    pub(crate) fn bytes(&self) -> u64 {
        self.accountant.used(Pool::BlockCache)
    }

    /// Counters since the start.
    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            insertions: self.insertions.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }

    /// Takes victims from the shards in turn, beginning at `first`. One block of each at a time, so
    /// that no shard is emptied for the sake of the others.
    fn evict_down_to(&self, bytes: u64, first: usize) {
        let mut shard = first;
        let mut shards_empty = 0;
        while self.bytes() > bytes && shards_empty < SHARDS {
            let victim = self.shards[shard].lock().evict_one();
            if let Some(block) = victim {
                self.accountant.discharge(Pool::BlockCache, block.bytes_held + OVERHEAD_BYTES);
                self.evictions.fetch_add(1, Ordering::Relaxed);
                shards_empty = 0;
            } else {
                shards_empty += 1;
            }
            shard = (shard + 1) % SHARDS;
        }
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}
