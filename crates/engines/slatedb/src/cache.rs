//! Blocks, indexes and filters of tables in memory, within a bound that can change.
//!
//! Thread safety: a lock for each shard, held for one look. Invariant: the entries of a shard weigh at most
//! its share of the bound, or there is one.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use kvfs_locks::{Mutex, class};
use slatedb::Error;
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache};

use crate::weighed::Weighed;

/// A power of two.
const SHARDS: usize = 16;

/// What an entry takes beside its content (bytes).
const ENTRY_BYTES: usize = 160;

type Shard = Weighed<CachedKey, CachedEntry>;

fn weight(entry: &CachedEntry) -> usize {
    entry.size() + ENTRY_BYTES
}

/// See the module.
pub(crate) struct BlockCache {
    shards: Vec<Mutex<Shard, class::EngineSlatedbCacheShard>>,
    hasher: RandomState,
    bytes_max: AtomicUsize,
}

impl BlockCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let shard = || Mutex::new(Shard::new());
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        Self { shards, hasher: RandomState::new(), bytes_max: AtomicUsize::new(bytes_max) }
    }

    /// From now on.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
        for shard in &self.shards {
            shard.lock().shrink(bytes / SHARDS);
        }
    }

    /// The bound.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().weight() as u64).sum()
    }

    fn shard(&self, key: &CachedKey) -> &Mutex<Shard, class::EngineSlatedbCacheShard> {
        &self.shards[self.hasher.hash_one(key) as usize & (SHARDS - 1)]
    }

    fn find(&self, key: &CachedKey) -> Option<CachedEntry> {
        self.shard(key).lock().get(key).cloned()
    }
}

#[async_trait]
impl DbCache for BlockCache {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.find(key))
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.find(key))
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.find(key))
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.find(key))
    }

    async fn insert(&self, key: CachedKey, value: CachedEntry) {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed) / SHARDS;
        let mut shard = self.shard(&key).lock();
        let weight = weight(&value);
        shard.put(key, value, weight);
        shard.shrink(bytes_max);
    }

    async fn remove(&self, key: &CachedKey) {
        self.shard(key).lock().pop(key);
    }

    fn entry_count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().len() as u64).sum()
    }
}
