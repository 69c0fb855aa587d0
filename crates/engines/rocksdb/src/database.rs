//! The database.
//!
//! Thread safety: see the crate. Invariants: the name of a column family has the kind before the name, so a
//! database tells its keyspaces by itself; what is of no keyspace is in the family `default`.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_engine_common::{Change, Changes, Database, DatabaseOptions, Reserve, Space};
use kvfs_locks::{Mutex, class};
use kvfs_store::{KeyRange, Keyspace, KeyspaceKind, Result, StoreError};
use rocksdb::{
    BoundColumnFamily, Cache, ColumnFamilyDescriptor, DBPinnableSlice, DBWithThreadMode, MultiThreaded,
    Options, ReadOptions, WriteBatch,
};

use crate::error::of_rocksdb;
use crate::options::{Tuning, cache_bytes, write_buffers_bytes};
use crate::reads::{RocksEntries, RocksSnapshot, Source};

pub(crate) type Db = DBWithThreadMode<MultiThreaded>;

/// The column family that every database has, for what is not of a keyspace.
const META: &str = "default";

/// Column families of other names are not ours.
const TUPLES: &str = "tuples:";
const BLOCKS: &str = "blocks:";

/// Kept free beside what memtables may come to (bytes); of a small file system at most an eighth.
const RESERVE_BYTES: u64 = 64 << 20;
const RESERVE_DIVISOR: u64 = 8;

/// See the module.
pub struct Rocks {
    pub(crate) db: Db,
    tuning: Tuning,
    /// The same; a change of its capacity asks for the only reference.
    cache: Mutex<Cache, class::EngineRocksdbCache>,
    /// Behind the database: it goes last.
    _anchor: Option<OwnedFd>,
}

/// Name and kind of the keyspace in this column family; `None`: it is none.
fn of_family(family: &str) -> Option<(&str, KeyspaceKind)> {
    let tuples = family.strip_prefix(TUPLES).map(|name| (name, KeyspaceKind::Tuple));
    tuples.or_else(|| family.strip_prefix(BLOCKS).map(|name| (name, KeyspaceKind::Block)))
}

fn list_families(path: &Path) -> Result<Vec<String>> {
    Db::list_cf(&Options::default(), path).map_err(|error| of_rocksdb("looking into a database", &error))
}

fn options_at(at: Option<&Arc<RocksSnapshot>>) -> ReadOptions {
    let mut options = ReadOptions::default();
    if let Some(at) = at {
        options.set_snapshot(at.borrow_dependent());
    }
    options
}

impl Rocks {
    /// The column family of a keyspace.
    fn family(&self, space: &Space<String>) -> Result<Arc<BoundColumnFamily<'_>>> {
        let family = self.db.cf_handle(space.handle());
        family.ok_or_else(|| StoreError::NoKeyspace(space.name().to_owned()))
    }

    fn meta_family(&self) -> Result<Arc<BoundColumnFamily<'_>>> {
        self.db.cf_handle(META).ok_or_else(|| StoreError::NoKeyspace(META.to_owned()))
    }

    /// The sum of a property of all column families.
    fn sum(&self, spaces: &[Arc<Space<String>>], property: &str) -> u64 {
        let of_family = |name: &str| {
            let family = self.db.cf_handle(name)?;
            self.db.property_int_value_cf(&family, property).ok().flatten()
        };
        let names = spaces.iter().map(|space| space.handle().as_str()).chain([META]);
        names.filter_map(of_family).sum()
    }
}

impl Database for Rocks {
    const NAME: &'static str = "rocksdb";
    const TITLE: &'static str = "RocksDB";
    const DELETES_RANGES: bool = true;
    const KEYS_DELETED_MAX: usize = 64;
    const COMPACTS_IN_PIECES: bool = false;

    /// The name of the column family.
    type Handle = String;
    type Snapshot = RocksSnapshot;
    type Entries = RocksEntries;

    fn create(path: &Path, options: &DatabaseOptions) -> Result<Self> {
        let tuning = Tuning::new(options)?;
        let db = Db::open(&tuning.of_database(true), path);
        let db = db.map_err(|error| of_rocksdb("making a database", &error))?;
        let cache = Mutex::new(tuning.cache.clone());
        Ok(Self { db, tuning, cache, _anchor: None })
    }

    fn open(path: &Path, options: DatabaseOptions) -> Result<Self> {
        let tuning = Tuning::new(&options)?;
        let families = list_families(path)?;
        let descriptor = |name: String| {
            let kind = of_family(&name).map_or(KeyspaceKind::Tuple, |(_, kind)| kind);
            ColumnFamilyDescriptor::new(name, tuning.of_family(kind))
        };
        let families = families.into_iter().map(descriptor);
        let database = tuning.of_database(false);
        let db = if options.read_only {
            Db::open_cf_descriptors_read_only(&database, path, families, false)
        } else {
            Db::open_cf_descriptors(&database, path, families)
        };
        let db = db.map_err(|error| of_rocksdb("opening a database", &error))?;
        let cache = Mutex::new(tuning.cache.clone());
        Ok(Self { db, tuning, cache, _anchor: options.anchor })
    }

    fn reserve(_path: &Path, options: &DatabaseOptions) -> Result<Reserve> {
        Ok(Reserve { bytes: 2 * write_buffers_bytes(options) + RESERVE_BYTES, divisor: RESERVE_DIVISOR })
    }

    fn spaces(&self) -> Result<Vec<(String, KeyspaceKind)>> {
        let families = list_families(self.db.path())?;
        let known = families.iter().filter_map(|family| of_family(family));
        Ok(known.map(|(name, kind)| (name.to_owned(), kind)).collect())
    }

    fn handle(_keyspace: Keyspace, name: &str, kind: KeyspaceKind) -> String {
        let prefix = match kind {
            KeyspaceKind::Tuple => TUPLES,
            KeyspaceKind::Block => BLOCKS,
        };
        format!("{prefix}{name}")
    }

    fn make_space(&self, space: &Space<String>) -> Result<()> {
        let made = self.db.create_cf(space.handle(), &self.tuning.of_family(space.kind()));
        made.map_err(|error| of_rocksdb("making a keyspace", &error))
    }

    fn meta(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.db.get(key).map_err(|error| of_rocksdb("reading what the store is", &error))?;
        Ok(found.map(Bytes::from))
    }

    fn get(
        self: &Arc<Self>,
        at: Option<&Arc<RocksSnapshot>>,
        space: &Space<String>,
        key: &[u8],
    ) -> Result<Option<Bytes>> {
        let found = self.db.get_pinned_cf_opt(&self.family(space)?, key, &options_at(at));
        let found = found.map_err(|error| of_rocksdb("reading a key", &error))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn multi_get(
        self: &Arc<Self>,
        at: Option<&Arc<RocksSnapshot>>,
        space: &Space<String>,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Bytes>>> {
        let found = self.db.batched_multi_get_cf_opt(&self.family(space)?, keys, false, &options_at(at));
        let value = |found: Result<Option<DBPinnableSlice<'_>>, rocksdb::Error>| {
            let found = found.map_err(|error| of_rocksdb("reading keys", &error))?;
            Ok(found.map(|value| Bytes::copy_from_slice(&value)))
        };
        found.into_iter().map(value).collect()
    }

    fn entries(
        self: &Arc<Self>,
        at: Option<&Arc<RocksSnapshot>>,
        space: &Space<String>,
        range: &KeyRange,
    ) -> Result<RocksEntries> {
        let source = Source { rocks: Arc::clone(self), at: at.cloned() };
        RocksEntries::try_new(source, |source| {
            let mut options = options_at(source.at.as_ref());
            if !range.start.is_empty() {
                options.set_iterate_lower_bound(range.start.to_vec());
            }
            if let Some(end) = &range.end {
                options.set_iterate_upper_bound(end.to_vec());
            }
            let rocks = &source.rocks;
            Ok(rocks.db.raw_iterator_cf_opt(&rocks.family(space)?, options))
        })
    }

    fn snapshot(self: &Arc<Self>) -> Result<RocksSnapshot> {
        Ok(RocksSnapshot::newest(self))
    }

    fn write(&self, changes: &Changes<String>) -> Result<()> {
        let mut write = WriteBatch::default();
        let mut family: Option<(&str, Arc<BoundColumnFamily<'_>>)> = None;
        for change in &changes.changes {
            let (Change::Put { space, .. }
            | Change::Delete { space, .. }
            | Change::DeleteRange { space, .. }) = change;
            if family.as_ref().is_none_or(|(name, _)| name != space.handle()) {
                family = Some((space.handle(), self.family(space)?));
            }
            let Some((_, family)) = &family else { continue };
            match change {
                Change::Put { key, value, .. } => write.put_cf(family, key, value),
                Change::Delete { key, .. } => write.delete_cf(family, key),
                Change::DeleteRange { range, .. } => {
                    write.delete_range_cf(family, &range.start[..], range.end.as_deref().unwrap_or_default());
                }
            }
        }
        for (key, value) in &changes.meta {
            match value {
                Some(value) => write.put(key, value),
                None => write.delete(key),
            }
        }
        self.db.write(write).map_err(|error| of_rocksdb("writing a batch", &error))
    }

    fn sync(&self) -> Result<()> {
        self.db.flush_wal(true).map_err(|error| of_rocksdb("syncing the log", &error))
    }

    fn close(&self, spaces: &[Arc<Space<String>>]) -> Result<()> {
        let families = spaces.iter().map(|space| self.family(space)).chain([self.meta_family()]);
        for family in families {
            let flushed = self.db.flush_cf(&family?);
            flushed.map_err(|error| of_rocksdb("writing tables", &error))?;
        }
        self.db.cancel_all_background_work(true);
        Ok(())
    }

    fn set_memory_bytes(&self, bytes: u64) {
        self.cache.lock().set_capacity(cache_bytes(bytes));
    }

    fn used_bytes(&self, spaces: &[Arc<Space<String>>]) -> u64 {
        self.sum(spaces, "rocksdb.total-sst-files-size") + self.sum(spaces, "rocksdb.cur-size-all-mem-tables")
    }

    fn stats(&self, spaces: &[Arc<Space<String>>]) -> Vec<(String, u64)> {
        let of_database = |property: &str| self.db.property_int_value(property).ok().flatten().unwrap_or(0);
        let sum = |property: &str| self.sum(spaces, property);
        let cache = self.cache.lock().clone();
        let stats = [
            ("background_errors", of_database("rocksdb.background-errors")),
            ("cache_bytes", cache.get_usage() as u64),
            ("cache_pinned_bytes", cache.get_pinned_usage() as u64),
            ("compaction_pending_bytes", sum("rocksdb.estimate-pending-compaction-bytes")),
            ("compactions_running", of_database("rocksdb.num-running-compactions")),
            ("flushes_running", of_database("rocksdb.num-running-flushes")),
            ("keys_estimated", sum("rocksdb.estimate-num-keys")),
            ("memtables_bytes", sum("rocksdb.cur-size-all-mem-tables")),
            ("readers_bytes", sum("rocksdb.estimate-table-readers-mem")),
            ("snapshots", of_database("rocksdb.num-snapshots")),
            ("tables_bytes", sum("rocksdb.total-sst-files-size")),
            ("write_stopped", of_database("rocksdb.is-write-stopped")),
        ];
        stats.map(|(name, value)| (name.to_owned(), value)).into()
    }
}
