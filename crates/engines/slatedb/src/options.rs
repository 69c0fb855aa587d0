//! How a store is opened.
//!
//! Thread safety: plain values. Invariant: of the memory that the engine may take, three eighths are for
//! cached blocks, indexes and filters, one for parts of segments, a quarter for what is not in tables yet;
//! the rest is for what compactions, scans and requests hold.

use std::path::PathBuf;
use std::time::Duration;

use kvfs_store::BLOCK_BYTES;
use kvfs_store::clock::{Clock, SystemClock};
use slatedb::Settings;
use slatedb::config::{
    CompactorOptions, GarbageCollectorDirectoryOptions, GarbageCollectorOptions, ObjectStoreCacheOptions,
};

use crate::holder::Claimant;
use crate::journal::JournalOptions;

/// A memtable, at most and at least (bytes).
const MEMTABLE_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;

/// What is not in tables yet, in memtables.
const MEMTABLES: u64 = 4;

/// Tables of one memtable each that wait for a compaction, at most; a read may have to look at all of them.
const FRESH_TABLES_MAX: usize = 32;

/// How often the manifest is looked at, which another mount may have changed.
const MANIFEST_POLL: Duration = Duration::from_secs(1);

/// How often garbage is collected, unless told otherwise.
const COLLECTION_INTERVAL: Duration = Duration::from_mins(5);

/// Manifests, which writers that are cut off for a while must not make a second time.
const MANIFEST_AGE_MIN: Duration = Duration::from_hours(24);

/// What nothing refers to any more: a store that is open to be read, without notice to the writer, reads what
/// it has opened for at least so long.
const KEPT: Duration = Duration::from_hours(1);

/// Tables, which may be on their way into a state.
const TABLE_AGE_MIN: Duration = Duration::from_mins(5);

/// The log behind what tables have.
const LOG_AGE_MIN: Duration = Duration::from_mins(5);

/// How much of an object a local copy has at least (bytes).
const CACHE_PART_BYTES: usize = 1 << 20;

/// Files of the local cache that are open at once.
const CACHE_FILES_MAX: usize = 256;

/// How long calls wait for object storage that does not answer, unless told otherwise.
const TIMEOUT: Duration = Duration::from_mins(1);

/// What such a limit can be. A shorter one would make errors of what the network does every day: between two
/// attempts are up to two seconds.
pub const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_hours(24);

/// A request of which nothing has come for so long is made again, unless told otherwise.
const REQUEST_TIME: Duration = Duration::from_secs(30);

/// What of a large file goes to objects of its own.
#[derive(Debug, Clone, Copy)]
pub struct SegmentOptions {
    /// So many blocks of a file at least, one behind the other in one batch.
    pub run_blocks_min: usize,
    /// Blocks that such an object has at most; fewer where memory is small.
    pub blocks_max: u16,
}

impl Default for SegmentOptions {
    /// From 128 KiB on, which is what cp(1) writes at a time, objects of 8 MiB.
    fn default() -> Self {
        Self { run_blocks_min: 32, blocks_max: 2048 }
    }
}

/// Where memory is small, so much of it is in a segment at most (a part), and in the smallest one (blocks).
const SEGMENT_MEMORY: u64 = 64;
const SEGMENT_BLOCKS_MIN: u64 = 256;

/// Below the directory of the local cache.
const TABLES_DIRECTORY: &str = "tables";
const PARTS_DIRECTORY: &str = "segments";

/// Part of the local cache that is for parts of segments.
const PARTS_OF_CACHE: u64 = 2;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct SlateOptions {
    /// What it may take (bytes).
    pub memory_bytes: u64,
    /// Nothing is written; the store stays as it is at the opening, whatever another mount does.
    pub read_only: bool,
    /// One that is only read shows newer states when it is told to ([`kvfs_store::Follow`]).
    pub follows: bool,
    /// How long a batch may wait until it is durable where nothing syncs it.
    pub commit_interval: Duration,
    /// A call that needs object storage while that does not answer fails after so long, and may be made
    /// again; `None`: never.
    pub timeout: Option<Duration>,
    /// A request of which nothing has come for so long has failed, and is made again.
    pub request_time: Duration,
    /// Who opens it, unless it is only read.
    pub claimant: Claimant,
    /// Where parts of objects are kept on a local disk, and how much (bytes); `None`: nowhere. One store at a
    /// time may use it.
    pub cache: Option<(PathBuf, u64)>,
    /// What of large files lies beside tables.
    pub segments: SegmentOptions,
    /// How long tables and objects of large files are kept that nothing refers to any more, for readers
    /// elsewhere.
    pub kept: Duration,
    /// How often what no state refers to is looked for.
    pub collection_interval: Duration,
    /// On a local disk, for one opening at a time; `None`: there is none, whatever the store says.
    pub journal: Option<JournalOptions>,
    /// The time of day of the machine (since 1970-01-01 UTC), asked for at the opening.
    pub wall: fn() -> Duration,
}

impl SlateOptions {
    /// With so much memory; everything else as it is by default.
    pub fn with_memory(memory_bytes: u64) -> Self {
        let (claimant, commit_interval) = (Claimant::default(), Duration::from_secs(1));
        Self {
            memory_bytes,
            read_only: false,
            follows: false,
            commit_interval,
            timeout: Some(TIMEOUT),
            request_time: REQUEST_TIME,
            claimant,
            cache: None,
            segments: SegmentOptions::default(),
            kept: KEPT,
            collection_interval: COLLECTION_INTERVAL,
            journal: None,
            wall: || SystemClock::new().wall(),
        }
    }

    /// Blocks that a segment has at most.
    pub(crate) fn segment_blocks(&self) -> u16 {
        let blocks = (self.memory_bytes / SEGMENT_MEMORY / BLOCK_BYTES as u64).max(SEGMENT_BLOCKS_MIN);
        self.segments.blocks_max.min(u16::try_from(blocks).unwrap_or(u16::MAX))
    }

    /// Where parts of segments are kept on the local disk, and how much (bytes).
    pub(crate) fn parts_dir(&self) -> Option<(PathBuf, u64)> {
        let (dir, bytes) = self.cache.as_ref()?;
        Some((dir.join(PARTS_DIRECTORY), bytes / PARTS_OF_CACHE))
    }

    fn memtable_bytes(&self) -> usize {
        (self.memory_bytes / 4 / MEMTABLES).clamp(*MEMTABLE_BYTES.start(), *MEMTABLE_BYTES.end()) as usize
    }

    /// What is not in tables yet, at most (bytes).
    pub(crate) fn backlog_bytes(&self) -> u64 {
        self.memtable_bytes() as u64 * MEMTABLES
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            // The log is written when a sync or the commit interval asks for it.
            flush_interval: None,
            manifest_poll_interval: MANIFEST_POLL,
            l0_sst_size_bytes: self.memtable_bytes(),
            // Writers are held up before (`backlog.rs`), where they can give up.
            max_unflushed_bytes: self.backlog_bytes() as usize * 4,
            l0_flush_parallelism: 2,
            l0_max_ssts: FRESH_TABLES_MAX,
            l0_max_ssts_per_key: FRESH_TABLES_MAX,
            compactor_options: Some(CompactorOptions {
                poll_interval: MANIFEST_POLL,
                max_concurrent_compactions: 2,
                ..CompactorOptions::default()
            }),
            // It has a builder of its own.
            garbage_collector_options: None,
            object_store_cache_options: self.cache_options(),
            ..Settings::default()
        }
    }

    /// Of garbage. `is_local`: the objects are files. `ahead`: by so much the time that `SlateDB` has is
    /// later than that of the machine.
    pub(crate) fn collection(&self, is_local: bool, ahead: Duration) -> GarbageCollectorOptions {
        let older_than = |min_age| {
            let interval = Some(self.collection_interval);
            Some(GarbageCollectorDirectoryOptions { interval, min_age, ..Default::default() })
        };
        GarbageCollectorOptions {
            // Their age is by the clock of the storage.
            manifest_options: older_than(MANIFEST_AGE_MIN + ahead),
            wal_options: older_than(LOG_AGE_MIN + ahead),
            compactions_options: older_than(MANIFEST_AGE_MIN + ahead),
            // These have it in their names, by the time that SlateDB had; how long they are kept when nothing
            // refers to them, `Retention` says.
            compacted_options: older_than(TABLE_AGE_MIN),
            // They would look at the manifest of each named snapshot, and do nothing: fences are kept, and
            // there are no clones.
            wal_fence_options: None,
            detach_options: None,
            // Files can't be overwritten under a condition.
            boundary_files_enabled: !is_local,
            ..GarbageCollectorOptions::default()
        }
    }

    fn cache_options(&self) -> ObjectStoreCacheOptions {
        let Some((path, bytes)) = &self.cache else { return ObjectStoreCacheOptions::default() };
        ObjectStoreCacheOptions {
            root_folder: Some(path.join(TABLES_DIRECTORY)),
            max_cache_size_bytes: Some((bytes - bytes / PARTS_OF_CACHE) as usize),
            part_size_bytes: CACHE_PART_BYTES,
            max_open_file_handles: CACHE_FILES_MAX,
            cache_on_flush: true,
            cache_on_compaction: true,
            ..ObjectStoreCacheOptions::default()
        }
    }
}

/// For cached blocks, of so much memory (bytes).
pub(crate) fn cache_bytes(memory_bytes: u64) -> usize {
    (memory_bytes / 8 * 3) as usize
}

/// For cached parts of segments (bytes).
pub(crate) fn parts_bytes(memory_bytes: u64) -> usize {
    (memory_bytes / 8) as usize
}
