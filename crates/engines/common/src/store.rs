//! The store: opening, batches, what it tells of itself.
//!
//! Thread safety: see the crate.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use kvfs_engine_transactions::Base;
use kvfs_locks::{Mutex, class};
use kvfs_store::{
    Batch, Capabilities, Cursor, Durability, EngineStore, KeyRange, Keyspace, KeyspaceInfo, KeyspaceKind,
    MergeFunction, Op, Position, Read, Result, Seqno, Snapshot, SpaceStats, Store, StoreError, Verified,
};

use crate::changes::Changes;
use crate::cursor::StoreCursor;
use crate::database::{Database, DatabaseOptions};
use crate::paged;
use crate::pin::Pin;
use crate::reclaim::{self, Reclaimer};
use crate::room::Room;
use crate::shared::Shared;
use crate::space::Space;
use crate::stage::{Spaces, stage};
use crate::syncer::Syncer;
use crate::view::View;

/// In no keyspace: the seqno of the newest batch (little-endian), the identity of the store, and the version
/// of all this.
pub(crate) const SEQNO: &[u8] = b"seqno";
const UUID: &[u8] = b"uuid";
const VERSION: &[u8] = b"version";
const VERSION_NOW: &[u8] = b"1";

/// A store on a database.
pub struct DatabaseStore<D: Database> {
    shared: Arc<Shared<D>>,
    room: Room,
    /// Held while what deleted keys hold is given back.
    reclaimer: Mutex<Reclaimer, class::EngineReclaimer>,
    uuid: [u8; 16],
    /// `None`: nothing is written, or it was closed.
    syncer: Mutex<Option<Syncer>, class::EngineSyncer>,
}

impl<D: Database> DatabaseStore<D> {
    /// Makes an empty database in the directory `path`, which exists and is empty, and closes it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(path: &Path, options: &DatabaseOptions, uuid: [u8; 16]) -> Result<()> {
        let db = D::create(path, options)?;
        let value = |value: &[u8]| Some(Bytes::copy_from_slice(value));
        let meta =
            vec![(VERSION, value(VERSION_NOW)), (UUID, value(&uuid)), (SEQNO, value(&0_u64.to_le_bytes()))];
        db.write(&Changes { changes: Vec::new(), meta })?;
        db.sync()
    }

    /// Opens the database in the directory `path`; its log is replayed.
    ///
    /// # Errors
    /// There is none, or one of another version; another process has it open; damage; I/O errors.
    pub fn open(path: &Path, options: DatabaseOptions) -> Result<Self> {
        let room = Room::new(path.to_owned(), D::reserve(path, &options)?);
        let (read_only, commit_interval) = (options.read_only, options.commit_interval);
        let db = Arc::new(D::open(path, options)?);
        let version = db.meta(VERSION)?;
        if version.as_deref() != Some(VERSION_NOW) {
            let found = version.unwrap_or_default().escape_ascii().to_string();
            return Err(StoreError::corrupt(D::TITLE, format!("the store has version \"{found}\", not 1")));
        }
        let uuid = meta::<D, 16>(&db, UUID, "uuid")?;
        let spaces = spaces_of(&*db)?;
        paged::recover(&db, &room, &spaces)?;
        let newest = Seqno::from_le_bytes(meta::<D, 8>(&db, SEQNO, "seqno")?);
        let shared = Arc::new(Shared::new(db, spaces, newest, read_only));
        let syncer = if read_only {
            None
        } else {
            let shared = Arc::clone(&shared);
            Some(Syncer::start(commit_interval, move || shared.sync_rest())?)
        };
        Ok(Self { shared, room, reclaimer: Mutex::default(), uuid, syncer: Mutex::new(syncer) })
    }

    /// What it is on.
    pub fn database(&self) -> &Arc<D> {
        &self.shared.db
    }

    fn view(&self) -> View<'_, D> {
        View::newest(&self.shared)
    }

    /// A new keyspace, or that which another thread has made meanwhile. It takes its turn, as a batch does.
    fn make_space(&self, name: &str, kind: KeyspaceKind) -> Result<Arc<Space<D::Handle>>> {
        let shared = &*self.shared;
        shared.check_writable()?;
        let _order = shared.order.lock();
        shared.check_writable()?;
        if let Some(space) = shared.space_by_name(name) {
            return Ok(space);
        }
        // Others are made under the order lock alone.
        let keyspace = Keyspace(shared.spaces.read().len() as u32);
        let space = Arc::new(Space::new(keyspace, name, kind, D::handle(keyspace, name, kind)));
        shared.db.make_space(&space).map_err(|error| shared.fail(&error))?;
        shared.spaces.write().push(Arc::clone(&space));
        Ok(space)
    }
}

fn spaces_of<D: Database>(db: &D) -> Result<Vec<Arc<Space<D::Handle>>>> {
    let space = |(number, (name, kind)): (u32, (String, KeyspaceKind))| {
        let keyspace = Keyspace(number);
        Arc::new(Space::new(keyspace, &name, kind, D::handle(keyspace, &name, kind)))
    };
    Ok((0..).zip(db.spaces()?).map(space).collect())
}

fn meta<D: Database, const LEN: usize>(db: &D, key: &[u8], what: &str) -> Result<[u8; LEN]> {
    let value = db.meta(key)?.unwrap_or_default();
    let missing = |_| StoreError::corrupt(D::TITLE, format!("the {what} of the store is missing"));
    value[..].try_into().map_err(missing)
}

impl<D: Database> Read for DatabaseStore<D> {
    kvfs_store::pass_on!(view(): multi_get, read_blocks, next_extent);

    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.view().get(&*self.shared.space(keyspace)?, key)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(StoreCursor::new(&self.view(), keyspace, range)?))
    }
}

impl<D: Database> Store for DatabaseStore<D> {
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        let space = if let Some(space) = self.shared.space_by_name(name) {
            space
        } else {
            self.make_space(name, kind)?
        };
        space.expect_kind(kind, "open_keyspace as another kind")?;
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
        Ok(Arc::new(Pin::newest(&self.shared)?))
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.apply_in_steps(batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.shared.sync(position)
    }

    fn position(&self) -> Position {
        Position(self.shared.newest())
    }

    fn engine_name(&self) -> &'static str {
        D::NAME
    }

    fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: true, range_delete_constant: false, blind_patches: false }
    }

    fn space(&self) -> SpaceStats {
        let spaces = self.shared.spaces.read().clone();
        let used_bytes = self.shared.db.used_bytes(&spaces);
        // Where the file system does not say, nothing is promised.
        let (free, available) = self
            .room
            .look()
            .map_or((0, 0), |free| (free.bytes, free.bytes.saturating_sub(free.reserve_bytes)));
        SpaceStats { capacity_bytes: used_bytes + free, used_bytes, available_bytes: available }
    }

    fn stats(&self) -> Vec<(String, u64)> {
        let spaces = self.shared.spaces.read().clone();
        let mut stats = self.shared.db.stats(&spaces);
        stats.push(("batches".to_owned(), self.shared.batches.load(Ordering::Relaxed)));
        stats.push(("syncs".to_owned(), self.shared.syncs()));
        stats.sort();
        stats.into_iter().map(|(name, value)| (format!("{}.{name}", D::NAME), value)).collect()
    }
}

impl<D: Database> Base for DatabaseStore<D> {
    /// Refuses what finds no room.
    fn admit(&self, batch: &Batch, _durability: Durability) -> Result<()> {
        self.shared.check_writable()?;
        let deletes = batch.ops().iter().any(Op::is_deletion);
        let bytes = batch.whole_bytes() as u64;
        match self.room.admit(bytes, deletes) {
            // Deleted keys take room until they are compacted, for which the database sees no reason by
            // itself.
            Err(StoreError::Full) if D::COMPACTS_IN_PIECES => {
                reclaim::make_room(&self.shared, &mut self.reclaimer.lock(), &self.room, bytes, deletes)
            }
            admitted => admitted,
        }
    }

    fn apply_admitted(&self, batch: Batch) -> Result<Position> {
        let shared = &*self.shared;
        let spaces = Spaces::of(shared, &batch)?;
        let count = batch.len() as u64;
        let _order = shared.order.lock();
        // What had the turn before may have failed: nothing is written behind that.
        shared.check_writable()?;
        let mut staged = stage(shared, &spaces, batch)?;
        let newest = shared.newest() + count;
        staged.changes.meta.push((SEQNO, Some(Bytes::copy_from_slice(&newest.to_le_bytes()))));
        let written = if staged.ranges.is_empty() {
            shared.db.write(&staged.changes)
        } else {
            paged::apply(shared, &self.room, staged)
        };
        written.map_err(|error| shared.fail(&error))?;
        shared.publish(newest);
        Ok(Position(newest))
    }
}

impl<D: Database> EngineStore for DatabaseStore<D> {
    fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure()
    }

    fn set_memory_bytes(&self, bytes: u64) {
        self.shared.db.set_memory_bytes(bytes);
    }

    fn set_commit_interval(&self, interval: Duration) {
        if let Some(syncer) = &*self.syncer.lock() {
            syncer.set_interval(interval);
        }
    }

    fn verify(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        let pin = Pin::newest(&self.shared)?;
        let (mut keys, mut bytes) = (0, 0);
        let spaces = self.shared.spaces.read().clone();
        for space in &spaces {
            // Every block that is read is compared with its checksum.
            let walked = pin.view().walk(space, &KeyRange::all(), &mut |key, value| {
                kvfs_store::progress::check_wanted()?;
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
        let spaces = self.shared.spaces.read().clone();
        let closed = self.shared.db.close(&spaces).map_err(|error| self.shared.fail(&error));
        self.shared.close();
        synced.and(closed)
    }
}
