//! How a database is opened.
//!
//! Thread safety: plain values. Invariant: of the memory that the engine may take, half is for cached blocks,
//! indexes and filters, a quarter for memtables; the rest is for what compactions and iterators hold.

use kvfs_engine_common::DatabaseOptions;
use kvfs_store::{KeyspaceKind, Result};
use rocksdb::{BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, LogLevel, Options};

use crate::error::of_rocksdb;

/// For memtables of all column families, at most and at least (bytes).
const WRITE_BUFFERS_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=512 << 20;

/// Table files that are open at once.
const OPEN_FILES_MAX: i32 = 512;

pub(crate) fn write_buffers_bytes(options: &DatabaseOptions) -> u64 {
    (options.memory_bytes / 4).clamp(*WRITE_BUFFERS_BYTES.start(), *WRITE_BUFFERS_BYTES.end())
}

/// For cached blocks, of so much memory (bytes).
pub(crate) fn cache_bytes(memory_bytes: u64) -> usize {
    (memory_bytes / 2) as usize
}

/// The options of databases and column families that share a cache.
pub(crate) struct Tuning {
    pub(crate) cache: Cache,
    write_buffers_bytes: u64,
    io_limit: Option<u64>,
}

impl Tuning {
    pub(crate) fn new(options: &DatabaseOptions) -> Result<Self> {
        let cache = Cache::new_lru_cache(cache_bytes(options.memory_bytes));
        let cache = cache.map_err(|error| of_rocksdb("making a cache", &error))?;
        Ok(Self { cache, write_buffers_bytes: write_buffers_bytes(options), io_limit: options.io_limit })
    }

    /// Of the database. `create`: there is none.
    pub(crate) fn of_database(&self, create: bool) -> Options {
        let mut options = self.of_family(KeyspaceKind::Tuple);
        options.create_if_missing(create);
        options.set_error_if_exists(create);
        options.set_db_write_buffer_size(self.write_buffers_bytes as usize);
        options.set_max_total_wal_size(self.write_buffers_bytes * 2);
        // After a power cut: what is whole of the log, up to the first record that is not.
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        options.set_max_open_files(OPEN_FILES_MAX);
        options.set_max_background_jobs(2);
        options.set_bytes_per_sync(1 << 20);
        options.set_log_level(LogLevel::Warn);
        options.set_keep_log_file_num(2);
        options.set_max_log_file_size(1 << 20);
        if let Some(limit) = self.io_limit {
            options.set_ratelimiter(limit as i64, 100_000, 10);
        }
        options
    }

    /// Of a column family. What is compressible in content of files is left as it is: kvfs compresses by
    /// directory, which this engine does not do.
    pub(crate) fn of_family(&self, kind: KeyspaceKind) -> Options {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&self.cache);
        table.set_bloom_filter(10.0, false);
        table.set_format_version(5);
        // Counted as the blocks are, so that the cache is the bound.
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table.set_block_size(match kind {
            KeyspaceKind::Tuple => 8 << 10,
            KeyspaceKind::Block => 32 << 10,
        });
        let mut options = Options::default();
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size((self.write_buffers_bytes / 4) as usize);
        options.set_max_write_buffer_number(3);
        options.set_level_compaction_dynamic_level_bytes(true);
        options
    }
}
