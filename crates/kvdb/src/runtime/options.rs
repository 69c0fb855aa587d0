//! How a store is made and opened.

use std::time::Duration;

use kvfs_store::{Compression, Result, StoreError};

use crate::cache::Policy;
use crate::compaction::MergeOptions;
use crate::journal::JOURNAL_PART_BYTES;
use crate::space::Placement;

/// Fixed at creation; see `docs/FORMAT.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// Zone size (bytes), a power of two of at least 64 KiB.
    pub zone_bytes: u32,
    /// Most bytes that the store may take on the device; rounded down to whole zones.
    pub capacity_bytes: u64,
    /// Size of the journal area (bytes), rounded up to whole zones; `None`: chosen from the capacity.
    pub journal_bytes: Option<u64>,
    /// Identity of the store; random in production.
    pub uuid: [u8; 16],
}

impl CreateOptions {
    /// Size of a zone in a store of 4 GiB or more, unless told otherwise (bytes; thesis 3.2).
    pub const ZONE_BYTES_DEFAULT: u32 = 8 << 20;
    /// Size of a zone in the smallest stores, unless told otherwise (bytes): what the longest value fits
    /// into.
    const ZONE_BYTES_SMALL: u32 = 2 << 20;
    /// A store has about so many zones at least, so that those of the reserve are a small share.
    const ZONES_MIN: u64 = 512;

    /// Options for a store of `capacity_bytes`.
    pub fn new(capacity_bytes: u64, uuid: [u8; 16]) -> Self {
        let wanted = (capacity_bytes / Self::ZONES_MIN).min(Self::ZONE_BYTES_DEFAULT.into()) as u32;
        let zone_bytes = (1 << wanted.max(1).ilog2()).max(Self::ZONE_BYTES_SMALL);
        Self { zone_bytes, capacity_bytes, journal_bytes: None, uuid }
    }

    /// Options for a store of `capacity_bytes` that is no other one's copy.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn with_new_uuid(capacity_bytes: u64) -> Result<Self> {
        Ok(Self::new(capacity_bytes, new_uuid()?))
    }

    /// Zones of the journal area: what was asked for, else an eighth of the capacity between
    /// 2 zones and 512 MiB, so that a small store keeps most of its space for data.
    pub fn journal_zones(&self) -> u32 {
        let zone = u64::from(self.zone_bytes);
        let wanted = self.journal_bytes.unwrap_or((self.capacity_bytes / 8).min(512 << 20));
        wanted.div_ceil(zone).max(2) as u32
    }
}

/// An identity that nothing else has.
///
/// # Errors
/// The kernel gives no random bytes.
pub(crate) fn new_uuid() -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    let filled = rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty());
    let error = match filled {
        Ok(count) if count == uuid.len() => return Ok(uuid),
        Ok(_) => std::io::ErrorKind::UnexpectedEof.into(),
        Err(error) => error.into(),
    };
    Err(StoreError::io("asking the kernel for random bytes, for an identity", error))
}

/// Where the work is done that no caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// Threads of the store: commit interval, flush, compaction.
    Threads,
    /// No thread: a writer does it when it cannot go on without it; tests call
    /// `Db::flush` and `Db::compact` themselves and so replay exactly.
    Manual,
}

/// Chosen at each open.
#[derive(Debug, Clone)]
pub struct Options {
    /// Ceiling for everything that the engine keeps in memory (bytes).
    pub memory_bytes: u64,
    /// A memtable is sealed when it has grown to this (bytes).
    pub memtable_bytes: u64,
    /// Private write sets may take so much memory together (bytes); beyond it the largest one spills to the
    /// device.
    pub private_bytes: u64,
    /// A transaction that has written this much (bytes) commits by way of runs of its own, although it would
    /// fit one batch: that costs two more flushes of the device, and spares the journal everything that it
    /// wrote.
    pub batch_commit_bytes_max: u64,
    /// Consecutive blocks of one operation that are at least so many bytes go to their final place at once,
    /// and not through the journal; `usize::MAX`: none do.
    pub bind_bytes_min: usize,
    /// The journal's area is allocated in parts of so many bytes, as the log comes to them.
    pub journal_part_bytes: u64,
    /// Longest time that an applied batch stays unsynced.
    pub commit_interval: Duration,
    /// Writers wait while more than so much of what was written is not durable (bytes); from half of it on it
    /// is synced in the background. 0: the interval alone counts.
    pub unsynced_bytes_max: u64,
    /// Target payload of a tuple block (bytes).
    pub tuple_block_bytes: usize,
    /// Which blocks leave the cache first.
    pub cache_policy: Policy,
    /// On which tier blocks of files go that have no wish; `None`: as the store keeps it
    /// ([`Db::keep_placement`](crate::Db::keep_placement)).
    pub placement: Option<Placement>,
    /// So many of the last committed transactions can be taken back; 0: none.
    pub undo_count: usize,
    /// None that was committed longer ago than this can be taken back.
    pub undo_age: Duration,
    /// How runs are merged.
    pub merge: MergeOptions,
    /// Merges that run at once; 0: half as many as there are CPUs, at least 2, at most 4. With more than one,
    /// one of them is kept for small merges.
    pub merge_threads: usize,
    /// Merges read and write at most so many bytes each second, all together; 0: any. No caller that waits
    /// for a merge is held up by this.
    pub merge_bytes_per_second: u64,
    /// Threads or none.
    pub background: Background,
    /// How a keyspace is to be stored that is made now, unless it is told otherwise.
    pub compression: Compression,
    /// Refuse every write; nothing is written to the device.
    pub read_only: bool,
}

/// On two CPUs, too: the second thread does only what is small, and would else wait behind what is large.
const MERGE_THREADS_MIN: usize = 2;
/// More would take the device and the CPUs from the callers that wait for them.
const MERGE_THREADS_MAX: usize = 4;

impl Default for Options {
    fn default() -> Self {
        Self::with_memory(1 << 30)
    }
}

impl Options {
    /// Threads that merge.
    pub(crate) fn merge_threads(&self) -> usize {
        if self.merge_threads > 0 {
            return self.merge_threads;
        }
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (cpus / 2).clamp(MERGE_THREADS_MIN, MERGE_THREADS_MAX)
    }

    /// Defaults under a memory ceiling: the active and all sealed memtables together take at most a
    /// quarter of it, what transactions have written an eighth, the rest is cache, index and filters.
    pub fn with_memory(memory_bytes: u64) -> Self {
        Self {
            memory_bytes,
            memtable_bytes: (memory_bytes / 16).clamp(1 << 20, 64 << 20),
            private_bytes: (memory_bytes / 8).max(1 << 20),
            batch_commit_bytes_max: 8 << 20,
            bind_bytes_min: 128 << 10,
            journal_part_bytes: JOURNAL_PART_BYTES,
            commit_interval: Duration::from_secs(1),
            unsynced_bytes_max: 0,
            tuple_block_bytes: 16 << 10,
            cache_policy: Policy::default(),
            placement: None,
            undo_count: 0,
            undo_age: Duration::MAX,
            merge: MergeOptions::default(),
            merge_threads: 0,
            merge_bytes_per_second: 0,
            background: Background::Threads,
            compression: Compression::None,
            read_only: false,
        }
    }
}
