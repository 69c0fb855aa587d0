//! The database.
//!
//! Thread safety: see the crate. Invariant: a record in number 0 tells each keyspace, so a database tells
//! them by itself.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_engine_common::{Change, Changes, Database, DatabaseOptions, Reserve, Space, file_system_bytes};
use kvfs_locks::{Mutex, class};
use kvfs_store::{KeyRange, Keyspace, KeyspaceKind, Result, StoreError};

use crate::error::of_leveldb;
use crate::keys::{self, PREFIX_BYTES, join};
use crate::logs::Logs;
use crate::reads::{LevelEntries, LevelSnapshot};
use crate::recovery::cut_logs;
use crate::sys::{RawBatch, RawDb, RawSnapshot, Tuning};

/// A memtable, at most and at least (bytes); there may be two.
const WRITE_BUFFER_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// It is at most this part of the file system: the tables that come of it are compacted together, into new
/// files.
const WRITE_BUFFER_DIVISOR: u64 = 128;

/// A table file, at most (bytes). A compaction rewrites about a dozen at once.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Table files that are open at once.
const OPEN_FILES_MAX: i32 = 512;

/// So many tables of a memtable's size may wait for their compaction before writers do.
const WAITING_TABLES: u64 = 12;

/// Kept free beside them, for a compaction (bytes); of a small file system at most a quarter.
const RESERVE_BYTES: u64 = 128 << 20;
const RESERVE_DIVISOR: u64 = 4;

const LEVELS: u32 = 7;

/// Behind all keys.
const BEHIND: [u8; PREFIX_BYTES] = [0xff; PREFIX_BYTES];

/// Of the memory that it may take, half is for cached blocks, a quarter for two memtables; the rest is for
/// what iterators and open tables hold.
fn write_buffer_bytes(path: &Path, options: &DatabaseOptions) -> Result<u64> {
    let bytes = (options.memory_bytes / 8).min(file_system_bytes(path)? / WRITE_BUFFER_DIVISOR);
    Ok(bytes.clamp(*WRITE_BUFFER_BYTES.start(), *WRITE_BUFFER_BYTES.end()))
}

fn tuning(path: &Path, options: &DatabaseOptions, creates: bool) -> Result<Tuning> {
    let write_buffer_bytes = write_buffer_bytes(path, options)?;
    Ok(Tuning {
        creates,
        cache_bytes: (options.memory_bytes / 2) as usize,
        write_buffer_bytes: write_buffer_bytes as usize,
        file_bytes: write_buffer_bytes.min(FILE_BYTES_MAX) as usize,
        open_files: OPEN_FILES_MAX,
    })
}

/// See the module.
pub struct Level {
    raw: Arc<RawDb>,
    logs: Logs,
    /// Held while it compacts.
    compacting: Mutex<(), class::EngineLeveldbCompacting>,
    /// What was cut off from logs when it was opened.
    cut_bytes: u64,
}

impl Level {
    fn new(path: &Path, raw: RawDb, cut_bytes: u64) -> Self {
        Self { raw: Arc::new(raw), logs: Logs::new(path), compacting: Mutex::default(), cut_bytes }
    }

    /// Compacts the keys from `start` to `end`. `LevelDB` goes on with another log before, whatever is in
    /// this one. An empty batch is: after a power cut an empty log is one that was lost, unless it is the
    /// last.
    fn compact_keys(&self, start: &[u8], end: &[u8]) -> Result<()> {
        let _compacting = self.compacting.lock();
        self.write_batch(RawBatch::new())?;
        self.raw.compact(start, end);
        Ok(())
    }

    fn write_batch(&self, mut batch: RawBatch) -> Result<()> {
        self.raw.write(&mut batch).map_err(|error| of_leveldb("writing a batch", &error))
    }
}

impl Database for Level {
    const NAME: &'static str = "leveldb";
    const TITLE: &'static str = "LevelDB";
    const DELETES_RANGES: bool = false;
    const KEYS_DELETED_MAX: usize = 4096;
    const COMPACTS_IN_PIECES: bool = true;

    /// Its number.
    type Handle = Keyspace;
    type Snapshot = LevelSnapshot;
    type Entries = LevelEntries;

    fn create(path: &Path, options: &DatabaseOptions) -> Result<Self> {
        let raw = RawDb::open(path, &tuning(path, options, true)?, None);
        let raw = raw.map_err(|error| of_leveldb("making a database", &error))?;
        Ok(Self::new(path, raw, 0))
    }

    fn open(path: &Path, options: DatabaseOptions) -> Result<Self> {
        let cut_bytes = cut_logs(path)?;
        let raw = RawDb::open(path, &tuning(path, &options, false)?, options.anchor);
        let raw = raw.map_err(|error| of_leveldb("opening a database", &error))?;
        Ok(Self::new(path, raw, cut_bytes))
    }

    fn reserve(path: &Path, options: &DatabaseOptions) -> Result<Reserve> {
        let bytes = WAITING_TABLES * write_buffer_bytes(path, options)? + RESERVE_BYTES;
        Ok(Reserve { bytes, divisor: RESERVE_DIVISOR })
    }

    fn spaces(&self) -> Result<Vec<(String, KeyspaceKind)>> {
        let mut spaces = Vec::new();
        while let Some(record) = self.read(&keys::space(Keyspace(spaces.len() as u32)))? {
            let damaged = || StoreError::corrupt("LevelDB", "the record of a keyspace can't be read");
            spaces.push(keys::parse_space(&record).ok_or_else(damaged)?);
        }
        Ok(spaces)
    }

    fn handle(keyspace: Keyspace, _name: &str, _kind: KeyspaceKind) -> Keyspace {
        keyspace
    }

    fn make_space(&self, space: &Space<Keyspace>) -> Result<()> {
        let mut batch = RawBatch::new();
        batch.put(&keys::space(*space.handle()), &keys::space_record(space.name(), space.kind()));
        // The fences before and behind it.
        batch.put(&keys::prefix(*space.handle()), &[]);
        batch.put(&keys::prefix_behind(*space.handle()), &[]);
        self.write_batch(batch)?;
        self.sync()
    }

    fn meta(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(&keys::meta(key))
    }

    fn get(
        self: &Arc<Self>,
        at: Option<&Arc<LevelSnapshot>>,
        space: &Space<Keyspace>,
        key: &[u8],
    ) -> Result<Option<Bytes>> {
        let key = join(keys::prefix(*space.handle()), key);
        let found = self.raw.get(at.map(|at| &*at.0), &key, Bytes::copy_from_slice);
        found.map_err(|error| of_leveldb("reading a key", &error))
    }

    fn entries(
        self: &Arc<Self>,
        at: Option<&Arc<LevelSnapshot>>,
        space: &Space<Keyspace>,
        range: &KeyRange,
    ) -> Result<LevelEntries> {
        Ok(LevelEntries::new(&self.raw, at.map(|at| &**at), *space.handle(), range))
    }

    fn snapshot(self: &Arc<Self>) -> Result<LevelSnapshot> {
        Ok(LevelSnapshot(Arc::new(RawSnapshot::newest(&self.raw))))
    }

    fn write(&self, changes: &Changes<Keyspace>) -> Result<()> {
        let mut batch = RawBatch::new();
        let mut whole = Vec::new();
        for change in &changes.changes {
            let (space, key, value) = match change {
                Change::Put { space, key, value } => (space, key, Some(value)),
                Change::Delete { space, key } => (space, key, None),
                Change::DeleteRange { .. } => unreachable!("it deletes no ranges"),
            };
            whole.clear();
            whole.extend_from_slice(&keys::prefix(*space.handle()));
            whole.extend_from_slice(key);
            match value {
                Some(value) => batch.put(&whole, value),
                None => batch.delete(&whole),
            }
        }
        for (key, value) in &changes.meta {
            match value {
                Some(value) => batch.put(&keys::meta(key), value),
                None => batch.delete(&keys::meta(key)),
            }
        }
        self.write_batch(batch)
    }

    fn sync(&self) -> Result<()> {
        self.logs.sync(|| self.write_batch(RawBatch::new()))
    }

    fn compact(&self, space: &Space<Keyspace>, range: &KeyRange) -> Result<()> {
        let keyspace = *space.handle();
        let end = range.end.as_ref();
        let end = end
            .map_or_else(|| keys::prefix_behind(keyspace).to_vec(), |end| join(keys::prefix(keyspace), end));
        self.compact_keys(&join(keys::prefix(keyspace), &range.start), &end)
    }

    fn close(&self, _spaces: &[Arc<Space<Keyspace>>]) -> Result<()> {
        // No table has such keys; only the memtable is written out.
        self.compact_keys(&BEHIND, &BEHIND)
    }

    /// Its cache stays as large as it was made.
    fn set_memory_bytes(&self, _bytes: u64) {}

    fn used_bytes(&self, _spaces: &[Arc<Space<Keyspace>>]) -> u64 {
        self.raw.table_bytes(&[], &BEHIND) + self.memory_bytes()
    }

    fn stats(&self, _spaces: &[Arc<Space<Keyspace>>]) -> Vec<(String, u64)> {
        let mut stats = vec![
            ("log_cut_bytes".to_owned(), self.cut_bytes),
            ("memory_bytes".to_owned(), self.memory_bytes()),
            ("tables_bytes".to_owned(), self.raw.table_bytes(&[], &BEHIND)),
        ];
        for level in 0..LEVELS {
            let count = self.raw.property(&format!("leveldb.num-files-at-level{level}"));
            stats.push((format!("tables_level{level}"), count.unwrap_or(0)));
        }
        stats
    }
}

impl Level {
    fn read(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.raw.get(None, key, Bytes::copy_from_slice);
        found.map_err(|error| of_leveldb("reading what the store is", &error))
    }

    /// Of cached blocks and memtables.
    fn memory_bytes(&self) -> u64 {
        self.raw.property("leveldb.approximate-memory-usage").unwrap_or(0)
    }
}
