//! The store: opening, batches, what it tells of itself.
//!
//! Thread safety: see the crate.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use kvfs_store::{
    Batch, Capabilities, Cursor, Durability, EngineStore, Extent, ExtentKind, KeyRange, Keyspace,
    KeyspaceInfo, KeyspaceKind, MergeFunction, Op, Position, Read, Result, Seqno, Snapshot, SpaceStats,
    Store, StoreError, Verified,
};
use rocksdb::{Cache, ColumnFamilyDescriptor, Options, WriteBatch, WriteOptions};

use crate::cursor::RocksCursor;
use crate::error::of_rocksdb;
use crate::options::{RocksOptions, Tuning, cache_bytes};
use crate::pin::Pin;
use crate::room::Room;
use crate::shared::{Db, Shared};
use crate::space::Space;
use crate::stage::{Spaces, stage};
use crate::syncer::Syncer;
use crate::view::View;

/// The column family that every database has, for what is not of a keyspace.
const META: &str = "default";

/// In it: the seqno of the newest batch (little-endian), the identity of the store, and the version of all this.
const SEQNO: &[u8] = b"seqno";
const UUID: &[u8] = b"uuid";
const VERSION: &[u8] = b"version";
const VERSION_NOW: &[u8] = b"1";

/// A store on a database of `RocksDB`.
pub struct RocksStore {
    shared: Arc<Shared>,
    tuning: Tuning,
    /// The same; a change of its capacity asks for the only reference.
    cache: Mutex<Cache, class::EngineRocksdbCache>,
    room: Room,
    uuid: [u8; 16],
    /// `None`: nothing is written, or it was closed.
    syncer: Mutex<Option<Syncer>, class::EngineRocksdbSyncer>,
}

impl RocksStore {
    /// Makes an empty database in the directory `path`, which exists and is empty, and closes it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(path: &Path, options: &RocksOptions, uuid: [u8; 16]) -> Result<()> {
        let failed = |error: rocksdb::Error| of_rocksdb("making a database", &error);
        let db = Db::open(&Tuning::new(options)?.of_database(true), path).map_err(failed)?;
        let mut write = WriteBatch::default();
        write.put(VERSION, VERSION_NOW);
        write.put(UUID, uuid);
        write.put(SEQNO, 0_u64.to_le_bytes());
        db.write(write).and_then(|()| db.flush_wal(true)).map_err(failed)
    }

    /// Opens the database in the directory `path`; its log is replayed.
    ///
    /// # Errors
    /// There is none, or one of another version; another process has it open; damage; I/O errors.
    pub fn open(path: &Path, options: RocksOptions) -> Result<Self> {
        let tuning = Tuning::new(&options)?;
        let db = open_database(path, &tuning, options.read_only)?;
        let version = meta(&db, VERSION)?;
        if version.as_deref() != Some(VERSION_NOW) {
            let found = version.unwrap_or_default().escape_ascii().to_string();
            return Err(StoreError::corrupt("RocksDB", format!("the store has version \"{found}\", not 1")));
        }
        let uuid = of_length::<16>(meta(&db, UUID)?, "uuid")?;
        let newest = Seqno::from_le_bytes(of_length::<8>(meta(&db, SEQNO)?, "seqno")?);
        let room = Room::new(options.write_buffers_bytes());
        let spaces = spaces_of(path)?;
        let shared = Arc::new(Shared::new(db, spaces, newest, options.read_only, options.anchor));
        let syncer =
            if options.read_only { None } else { Some(Syncer::start(&shared, options.commit_interval)?) };
        let cache = Mutex::new(tuning.cache.clone());
        Ok(Self { shared, tuning, cache, room, uuid, syncer: Mutex::new(syncer) })
    }

    fn view(&self) -> View<'_> {
        View::newest(&self.shared)
    }

    /// Applies what is checked; the caller has been admitted.
    fn write(&self, batch: Batch) -> Result<Position> {
        let spaces = Spaces::of(&self.shared, &batch)?;
        let count = batch.len() as u64;
        let _order = self.shared.order.lock();
        let mut write = stage(&self.shared, &spaces, batch)?;
        let newest = self.shared.newest() + count;
        write.put(SEQNO, newest.to_le_bytes());
        if let Err(error) = self.shared.db.write_opt(write, &WriteOptions::default()) {
            return Err(self.shared.fail(&of_rocksdb("writing a batch", &error)));
        }
        self.shared.publish(newest);
        Ok(Position(newest))
    }

    /// The sum of a property of all column families.
    fn sum(&self, property: &str) -> u64 {
        let of_family = |name: &str| {
            let family = self.shared.db.cf_handle(name)?;
            self.shared.db.property_int_value_cf(&family, property).ok().flatten()
        };
        let spaces = self.shared.spaces.read().clone();
        let names = spaces.iter().map(|space| space.family.as_str()).chain([META]);
        names.filter_map(of_family).sum()
    }
}

fn open_database(path: &Path, tuning: &Tuning, read_only: bool) -> Result<Db> {
    let families = list_families(path)?;
    let descriptor = |name: String| {
        let kind = Space::of_family(&name).map_or(KeyspaceKind::Tuple, |(_, kind)| kind);
        ColumnFamilyDescriptor::new(name, tuning.of_family(kind))
    };
    let families = families.into_iter().map(descriptor);
    let options = tuning.of_database(false);
    let db = if read_only {
        Db::open_cf_descriptors_read_only(&options, path, families, false)
    } else {
        Db::open_cf_descriptors(&options, path, families)
    };
    db.map_err(|error| of_rocksdb("opening a database", &error))
}

fn list_families(path: &Path) -> Result<Vec<String>> {
    Db::list_cf(&Options::default(), path).map_err(|error| of_rocksdb("looking into a database", &error))
}

fn spaces_of(path: &Path) -> Result<Vec<Arc<Space>>> {
    let families = list_families(path)?;
    let known = families.iter().filter_map(|family| Space::of_family(family));
    let space = |(number, (name, kind)): (u32, (&str, KeyspaceKind))| {
        Arc::new(Space::new(Keyspace(number), name, kind))
    };
    Ok((0..).zip(known).map(space).collect())
}

fn meta(db: &Db, key: &[u8]) -> Result<Option<Vec<u8>>> {
    db.get(key).map_err(|error| of_rocksdb("reading what the store is", &error))
}

fn of_length<const LEN: usize>(value: Option<Vec<u8>>, what: &str) -> Result<[u8; LEN]> {
    let value = value.unwrap_or_default();
    value
        .try_into()
        .map_err(|_| StoreError::corrupt("RocksDB", format!("the {what} of the store is missing")))
}

impl Read for RocksStore {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.view().get(&*self.shared.space(keyspace)?, key)
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.view().multi_get(keyspace, keys)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(RocksCursor::new(Pin::newest(&self.shared), keyspace, range)?))
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.view().read_blocks(keyspace, prefix, first, buf)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.view().next_extent(keyspace, prefix, from, kind)
    }
}

impl Store for RocksStore {
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        let mut spaces = self.shared.spaces.write();
        let known = spaces.iter().find(|space| space.name == name).cloned();
        let space = if let Some(space) = known {
            space.expect_kind(kind, "open_keyspace as another kind")?;
            space
        } else {
            self.shared.check_writable()?;
            let space = Arc::new(Space::new(Keyspace(spaces.len() as u32), name, kind));
            let made = self.shared.db.create_cf(&space.family, &self.tuning.of_family(kind));
            made.map_err(|error| self.shared.fail(&of_rocksdb("making a keyspace", &error)))?;
            spaces.push(Arc::clone(&space));
            space
        };
        if let Some(merge) = merge {
            space.merge_by(merge);
        }
        Ok(space.keyspace)
    }

    fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let mut infos: Vec<_> = self.shared.spaces.read().iter().map(|space| space.info()).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(Pin::newest(&self.shared)))
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        batch.check_limits()?;
        self.shared.check_writable()?;
        let deletes = batch.ops().iter().any(|op| matches!(op, Op::Delete { .. } | Op::DeleteRange { .. }));
        self.room.admit(&self.shared.path, batch.whole_bytes() as u64, deletes)?;
        let position = self.write(batch)?;
        if durability == Durability::Synced {
            self.shared.sync(position)?;
        }
        Ok(position)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.shared.sync(position)
    }

    fn position(&self) -> Position {
        Position(self.shared.newest())
    }

    fn engine_name(&self) -> &'static str {
        "rocksdb"
    }

    fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: true, range_delete_constant: false }
    }

    fn space(&self) -> SpaceStats {
        let used_bytes =
            self.sum("rocksdb.total-sst-files-size") + self.sum("rocksdb.cur-size-all-mem-tables");
        // Where the file system does not say, nothing is promised.
        let (free, available) = self
            .room
            .look(&self.shared.path)
            .map_or((0, 0), |free| (free.bytes, free.bytes.saturating_sub(free.reserve_bytes)));
        SpaceStats { capacity_bytes: used_bytes + free, used_bytes, available_bytes: available }
    }

    fn stats(&self) -> Vec<(String, u64)> {
        let of_database =
            |property: &str| self.shared.db.property_int_value(property).ok().flatten().unwrap_or(0);
        let cache = self.cache.lock().clone();
        let stats = [
            ("rocksdb.background_errors", of_database("rocksdb.background-errors")),
            ("rocksdb.batches", self.shared.batches.load(Ordering::Relaxed)),
            ("rocksdb.cache_bytes", cache.get_usage() as u64),
            ("rocksdb.cache_pinned_bytes", cache.get_pinned_usage() as u64),
            ("rocksdb.compaction_pending_bytes", self.sum("rocksdb.estimate-pending-compaction-bytes")),
            ("rocksdb.compactions_running", of_database("rocksdb.num-running-compactions")),
            ("rocksdb.flushes_running", of_database("rocksdb.num-running-flushes")),
            ("rocksdb.keys_estimated", self.sum("rocksdb.estimate-num-keys")),
            ("rocksdb.memtables_bytes", self.sum("rocksdb.cur-size-all-mem-tables")),
            ("rocksdb.readers_bytes", self.sum("rocksdb.estimate-table-readers-mem")),
            ("rocksdb.snapshots", of_database("rocksdb.num-snapshots")),
            ("rocksdb.syncs", self.shared.syncs()),
            ("rocksdb.tables_bytes", self.sum("rocksdb.total-sst-files-size")),
            ("rocksdb.write_stopped", of_database("rocksdb.is-write-stopped")),
        ];
        stats.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

impl EngineStore for RocksStore {
    fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure()
    }

    fn set_memory_bytes(&self, bytes: u64) {
        self.cache.lock().set_capacity(cache_bytes(bytes));
    }

    fn set_commit_interval(&self, interval: Duration) {
        if let Some(syncer) = &*self.syncer.lock() {
            syncer.set_interval(interval);
        }
    }

    fn verify(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        let pin = Pin::newest(&self.shared);
        let (mut keys, mut bytes) = (0, 0);
        let spaces = self.shared.spaces.read().clone();
        for space in &spaces {
            // Every block that is read is compared with its checksum.
            let walked = pin.view().walk(space, &KeyRange::all(), &mut |key, value| {
                keys += 1;
                bytes += (key.len() + value.len()) as u64;
                Ok(true)
            });
            match walked {
                Err(error @ StoreError::Corrupt { .. }) => {
                    verified.findings.push(format!("keyspace \"{}\": {error}", space.name));
                }
                walked => walked?,
            }
        }
        verified.counts = vec![
            ("keyspaces".to_owned(), spaces.len() as u64),
            ("keys".to_owned(), keys),
            ("bytes of keys and values".to_owned(), bytes),
        ];
        Ok(verified)
    }

    fn close(&self) -> Result<()> {
        drop(self.syncer.lock().take());
        if self.shared.is_read_only {
            return Ok(());
        }
        let synced = self.shared.sync(self.position());
        let flushed = synced.and_then(|()| self.flush());
        self.shared.close();
        self.shared.db.cancel_all_background_work(true);
        flushed
    }
}

impl RocksStore {
    /// Memtables become tables, so that the next opening has nothing to replay.
    fn flush(&self) -> Result<()> {
        let spaces = self.shared.spaces.read().clone();
        for name in spaces.iter().map(|space| space.family.as_str()).chain([META]) {
            let Some(family) = self.shared.db.cf_handle(name) else { continue };
            let flushed = self.shared.db.flush_cf(&family);
            flushed.map_err(|error| self.shared.fail(&of_rocksdb("writing tables", &error)))?;
        }
        Ok(())
    }
}
