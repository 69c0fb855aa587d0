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
mod key;
mod memory;
mod pages;
mod replay;
mod shard;
#[cfg(test)]
mod tests;
mod trace;

pub use eviction::{Policy, UnknownPolicy};
pub(crate) use key::CacheKey;
pub(crate) use kvfs_memory::Charge;
pub(crate) use memory::{Accountant, Pool};
pub(crate) use pages::Pages;
pub(crate) use pages::{Loaded, Page, PageRef};
pub use replay::CacheReplay;
pub use trace::{CacheAccess, CacheEvent, CacheTrace, CacheTraceInfo};

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use kvfs_store::Tier;

use crate::format::ZoneId;

use shard::Shard;
use trace::Recorder;

/// The verified bytes of a tuple block (without the padding) or a 4 KiB data block.
#[derive(Debug)]
pub(crate) struct CachedBlock {
    bytes: Bytes,
    /// Memory behind `bytes`.
    bytes_held: u64,
    /// Given back when the cache lets go of the block, though readers may hold it.
    charge: Charge,
}

impl CachedBlock {
    /// The block.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What is charged for it, bookkeeping included (bytes).
    fn bytes_charged(&self) -> u64 {
        self.charge.bytes()
    }
}

/// Shards of the cache.
const SHARDS: usize = 32;

/// Map, slab and policy entries that come with each block, what is remembered of one that is gone, and what
/// the allocator rounds up (bytes, about).
const OVERHEAD_BYTES: u64 = 320;

/// A count for each class of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TierCounts([u64; Tier::ALL.len()]);

impl TierCounts {
    fn add(&mut self, tier: Tier) {
        self.0[tier as usize] += 1;
    }

    /// For that class.
    pub(crate) fn of(self, tier: Tier) -> u64 {
        self.0[tier as usize]
    }

    /// For all classes.
    pub(crate) fn total(self) -> u64 {
        self.0.iter().sum()
    }
}

impl std::ops::AddAssign for TierCounts {
    fn add_assign(&mut self, other: Self) {
        for (own, more) in self.0.iter_mut().zip(other.0) {
            *own += more;
        }
    }
}

/// Counters of a [`BlockCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CacheStats {
    /// Lookups that found their block.
    pub hits: TierCounts,
    /// Lookups that did not.
    pub misses: TierCounts,
    /// Blocks that came in.
    pub insertions: u64,
    /// Blocks that were pushed out.
    pub evictions: u64,
    /// Blocks that are there.
    pub blocks: usize,
    /// Blocks that are remembered though they are gone.
    pub ghosts: usize,
}

/// A sharded cache of verified blocks with a pluggable eviction policy.
pub(crate) struct BlockCache {
    accountant: Arc<Accountant>,
    policy: Policy,
    shards: Vec<Mutex<Shard, class::KvdbCacheShards>>,
    /// The shard that gives next when the inserting one has nothing left.
    next_victim: AtomicUsize,
    insertions: AtomicU64,
    evictions: AtomicU64,
    /// Whether there is a recorder: what a lookup looks at.
    is_traced: AtomicBool,
    recorder: Mutex<Option<io::Result<Recorder>>, class::KvdbCacheRecorder>,
}

impl BlockCache {
    /// An empty cache.
    pub(crate) fn new(accountant: Arc<Accountant>, policy: Policy) -> Arc<Self> {
        Arc::new(Self {
            accountant,
            policy,
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(policy))).collect(),
            next_victim: AtomicUsize::new(0),
            insertions: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            is_traced: AtomicBool::new(false),
            recorder: Mutex::new(None),
        })
    }

    /// Which blocks go first.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// The block under `key`, marked as used; `tier` is the class of the device that has it.
    pub(crate) fn get(&self, key: CacheKey, tier: Tier) -> Option<Arc<CachedBlock>> {
        let found = self.shards[shard_of(key)].lock().get(key, tier);
        if self.is_traced() {
            let (event, bytes) =
                found.as_ref().map_or((CacheEvent::Miss, 0), |block| (CacheEvent::Hit, block.bytes_held));
            self.trace(CacheAccess::new(event, key, tier, bytes));
        }
        found
    }

    /// Whether there is a block under `key`; it does not count as used.
    pub(crate) fn holds(&self, key: CacheKey) -> bool {
        self.shards[shard_of(key)].lock().peek(key).is_some()
    }

    /// Puts a verified block in; when another thread was first, its block stays, and is returned unless it
    /// has another length. Evicts until
    /// the cache is within its budget again, the new block itself if need be. It is charged to the caller's
    /// place: `bytes` must be alone in its allocation of `bytes_held` bytes, or less is charged than is held.
    #[track_caller]
    pub(crate) fn insert(
        &self,
        key: CacheKey,
        tier: Tier,
        bytes: Bytes,
        bytes_held: u64,
    ) -> Arc<CachedBlock> {
        let charge = self.accountant.charge(Pool::BlockCache, bytes_held + OVERHEAD_BYTES);
        let block = Arc::new(CachedBlock { bytes, bytes_held, charge });
        let shard_index = shard_of(key);
        {
            let mut shard = self.shards[shard_index].lock();
            if let Some(present) = shard.peek(key) {
                let is_same = present.bytes.len() == block.bytes.len();
                return if is_same { Arc::clone(present) } else { block };
            }
            shard.insert(key, tier, Arc::clone(&block));
        }
        if self.is_traced() {
            self.trace(CacheAccess::new(CacheEvent::Insert, key, tier, bytes_held));
        }
        self.insertions.fetch_add(1, Ordering::Relaxed);
        self.evict_down_to(self.accountant.cache_budget(), shard_index);
        block
    }

    /// Gives back what is held of zones in lives that have ended: it can't be asked for any more, yet a
    /// policy would keep what was popular. Each of `ended` is a zone and the number of that life. O(blocks in
    /// the cache).
    pub(crate) fn forget(&self, ended: &[(ZoneId, u32)]) {
        if ended.is_empty() {
            return;
        }
        let is_gone = |key: &CacheKey| ended.contains(&(key.zone, key.generation));
        for shard in &self.shards {
            shard.lock().remove_if(is_gone, |block| block.charge.release());
        }
        for &(zone, generation) in ended.iter().filter(|_| self.is_traced()) {
            let key = CacheKey { zone, generation, offset: 0 };
            self.trace(CacheAccess::new(CacheEvent::Forget, key, Tier::Fast, 0));
        }
    }

    /// Records all accesses from now on, in at most about so many bytes.
    ///
    /// # Errors
    /// A trace is being recorded already; those of `out`.
    pub(crate) fn start_trace(&self, out: Box<dyn Write + Send>, bytes_max: u64) -> io::Result<()> {
        let mut recorder = self.recorder.lock();
        if recorder.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a trace is being recorded already"));
        }
        *recorder = Some(Ok(Recorder::new(out, bytes_max)?));
        self.is_traced.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// None is under way; what went wrong when it was written.
    pub(crate) fn stop_trace(&self) -> io::Result<CacheTraceInfo> {
        self.is_traced.store(false, Ordering::Relaxed);
        let recorder = self.recorder.lock().take();
        let none = || io::Error::new(io::ErrorKind::NotFound, "no trace is being recorded");
        recorder.ok_or_else(none)?.and_then(Recorder::finish)
    }

    /// Ends the trace, if there is one: the store is being closed.
    pub(crate) fn end_trace(&self) {
        if self.recorder.lock().is_none() {
            return;
        }
        match self.stop_trace() {
            Ok(info) => tracing::info!(?info, "the trace of the block cache is complete"),
            Err(error) => tracing::warn!(%error, "the trace of the block cache is incomplete"),
        }
    }

    fn is_traced(&self) -> bool {
        self.is_traced.load(Ordering::Relaxed)
    }

    /// One that is full, or can't be written, gets no more; [`BlockCache::stop_trace`] tells.
    #[cold]
    fn trace(&self, access: CacheAccess) {
        let mut recorder = self.recorder.lock();
        let Some(Ok(trace)) = &mut *recorder else { return };
        let added = trace.add(&access);
        if !matches!(added, Ok(true)) {
            self.is_traced.store(false, Ordering::Relaxed);
        }
        if let Err(error) = added {
            *recorder = Some(Err(error));
        }
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

    /// Bytes charged for the blocks that are there, one by one. O(blocks).
    pub(crate) fn bytes_of_blocks(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// Counters since the start.
    pub(crate) fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            insertions: self.insertions.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
            ..CacheStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.hits += shard.hits;
            stats.misses += shard.misses;
            stats.blocks += shard.blocks();
            stats.ghosts += shard.ghosts();
        }
        stats
    }

    /// Takes victims from the shards in turn, beginning at `first`. One block of each at a time, so
    /// that no shard is emptied for the sake of the others.
    fn evict_down_to(&self, bytes: u64, first: usize) {
        let mut shard = first;
        let mut shards_empty = 0;
        while self.bytes() > bytes && shards_empty < SHARDS {
            let victim = self.shards[shard].lock().evict();
            if let Some(block) = victim {
                block.charge.release();
                self.evictions.fetch_add(1, Ordering::Relaxed);
                shards_empty = 0;
            } else {
                shards_empty += 1;
            }
            shard = (shard + 1) % SHARDS;
        }
    }
}

/// Neighbours go to different shards. The bits are none that the shard's map uses.
fn shard_of(key: CacheKey) -> usize {
    (key.mixed() >> 40) as usize % SHARDS
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        self.shrink_to(0);
        self.end_trace();
    }
}
