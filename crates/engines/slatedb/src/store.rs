//! The store: making, opening, batches, what it tells of itself.
//!
//! Thread safety: see the crate.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use kvfs_engine_common::Syncer;
use kvfs_engine_transactions::Base;
use kvfs_locks::{Mutex, class};
use kvfs_objects::ObjectPlace;
use kvfs_store::clock::SystemClock;
use kvfs_store::{
    Batch, BlockRange, Capabilities, Cursor, Durability, EngineStore, Extent, ExtentKind, Follow, KeyRange,
    Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction, NamedSnapshots, Op, Position, Read, Result,
    Snapshot, SpaceStats, Store, StoreError, TrackChanges, Verified,
};
use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::{Db, SstBlockSize, WriteBatch};
use slatedb_common::metrics::DefaultMetricsRecorder;

use crate::cache::BlockCache;
use crate::claim;
use crate::cursor::SlateCursor;
use crate::error::of_slatedb;
use crate::follower::{Follower, Opener};
use crate::health::{Direction, Health};
use crate::holder::{self, Holder};
use crate::keys;
use crate::meta::{self, Meta};
use crate::observed::{ObservedStore, Observer};
use crate::options::{SlateOptions, cache_bytes, parts_bytes};
use crate::pin::Pin;
use crate::reaper::Reaper;
use crate::runtime::Executor;
use crate::segments::{Gate, Segments, Sweeper};
use crate::shared::{Database, Parts, Shared};
use crate::space::Space;
use crate::stage::{Spaces, stage};
use crate::stats;
use crate::traffic::Traffic;
use crate::verify::verify;
use crate::view::View;
use crate::wait_limit::{WaitLimit, Waiter, is_unanswered};
use crate::write::Write;

/// What a store may come to, of which object storage tells no bound (bytes).
const CAPACITY_BYTES: u64 = 1 << 50;

/// A store on a database of `SlateDB`.
pub struct SlateStore {
    // Before what they work on.
    threads: Mutex<Option<Threads>, class::EngineSlatedbThreads>,
    shared: Arc<Shared>,
    cache: Arc<BlockCache>,
    recorder: Arc<DefaultMetricsRecorder>,
    uuid: [u8; 16],
    /// It is told when to show a newer state.
    follows: bool,
}

/// Those of a store that is written to.
struct Threads {
    syncer: Syncer,
    reaper: Reaper,
    sweeper: Sweeper,
    holder: Holder,
}

impl SlateStore {
    /// Claims the place for a new store: it is removed again where the store does not come to be.
    ///
    /// # Errors
    /// There are objects already; the place can't be reached or written to.
    pub fn claim(place: &ObjectPlace) -> Result<()> {
        let executor = Executor::start()?;
        let (service, prefix) = claim::connect(place)?;
        executor.wait(claim::make(place, &*service, &prefix))
    }

    /// Makes an empty store in the place, which the caller has claimed, and closes it.
    ///
    /// # Errors
    /// The place can't be reached or written to.
    pub fn create(place: &ObjectPlace, options: &SlateOptions, uuid: [u8; 16]) -> Result<()> {
        let (service, prefix) = claim::connect(place)?;
        Self::create_in(Objects { service, prefix, is_local: place.is_local() }, options, uuid)
    }

    /// As [`SlateStore::create`], in any `service`, where nothing is.
    ///
    /// # Errors
    /// It can't be reached or written to.
    pub fn create_over(service: Arc<dyn ObjectStore>, options: &SlateOptions, uuid: [u8; 16]) -> Result<()> {
        Self::create_in(Objects { service, prefix: Path::default(), is_local: false }, options, uuid)
    }

    fn create_in(objects: Objects, options: &SlateOptions, uuid: [u8; 16]) -> Result<()> {
        let executor = Executor::start()?;
        let Objects { service, prefix, is_local } = objects;
        let (service, observer) = observed(service, options);
        let failed = |error: slatedb::Error| of_slatedb("making a store", &error);
        let making = async {
            let db = Db::builder(prefix, service)
                .with_settings(options.settings(is_local))
                .with_sst_block_size(BLOCK_SIZE)
                .build()
                .await
                .map_err(failed)?;
            let mut write = WriteBatch::new();
            write.put(keys::full(keys::META, meta::VERSION), meta::VERSION_NOW);
            write.put(keys::full(keys::META, meta::UUID), uuid);
            db.write(write).await.map_err(failed)?;
            db.close().await.map_err(failed)
        };
        executor.wait(open_within("making a store", options.timeout, &observer.health, making))
    }

    /// Whether a store was made at the place; that it can be reached, too.
    ///
    /// # Errors
    /// There is none; the place can't be reached.
    pub fn find(place: &ObjectPlace) -> Result<()> {
        let executor = Executor::start()?;
        let (service, prefix) = claim::connect(place)?;
        executor.wait(claim::check(place, &*service, &prefix))
    }

    /// Removes all objects of the place.
    ///
    /// # Errors
    /// The place can't be reached or written to.
    pub fn remove(place: &ObjectPlace) -> Result<()> {
        let executor = Executor::start()?;
        let (service, prefix) = claim::connect(place)?;
        executor.wait(claim::remove_objects(place, &*service, &prefix))
    }

    /// Opens the store at the place. Where `options` asks to read only it is opened as it is, and stays so.
    ///
    /// # Errors
    /// There is none, or one of another version; another mount has it open, and is not to be taken over; the place can't be reached;
    /// damage.
    pub fn open(place: &ObjectPlace, options: &SlateOptions) -> Result<Self> {
        let executor = Executor::start()?;
        let (claimed, prefix) = claim::connect(place)?;
        // The engine would try for ever to reach what is not there.
        executor.wait(claim::check(place, &*claimed, &prefix))?;
        let (service, prefix) = claim::connect_observed(place)?;
        Self::open_in(Objects { service, prefix, is_local: place.is_local() }, executor, options)
    }

    /// Opens the store, of which no claim is looked for, whose objects are in any `service`.
    ///
    /// # Errors
    /// As [`SlateStore::open`].
    pub fn open_over(service: Arc<dyn ObjectStore>, options: &SlateOptions) -> Result<Self> {
        Self::open_in(
            Objects { service, prefix: Path::default(), is_local: false },
            Executor::start()?,
            options,
        )
    }

    fn open_in(objects: Objects, executor: Executor, options: &SlateOptions) -> Result<Self> {
        let Objects { service, prefix, is_local } = objects;
        let cache = Arc::new(BlockCache::new(cache_bytes(options.memory_bytes)));
        let recorder = Arc::new(DefaultMetricsRecorder::new());
        let (service, observer) = observed(service, options);
        let holder_place = holder::Place::of(&service, &prefix);
        let opener = Opener { prefix, service, cache: Arc::clone(&cache), recorder: Arc::clone(&recorder) };
        let opener = Arc::new(opener);
        let segments = Segments::new(Arc::clone(&opener.service), &opener.prefix, options, executor.handle());
        let segments = Arc::new(segments);
        let opening = async {
            if options.read_only {
                let follower = Follower::new(opener.open().await?, Arc::clone(&opener));
                return Ok(Database::Reader(Box::new(follower)));
            }
            holder_place.wait(&options.claimant).await?;
            let gate = Gate::new(Arc::clone(&opener.service), Arc::clone(&segments));
            let builder = Db::builder(opener.prefix.clone(), Arc::new(gate))
                .with_settings(options.settings(is_local))
                .with_sst_block_size(BLOCK_SIZE)
                .with_db_cache(Arc::clone(&cache) as _, 0)
                .with_metrics_recorder(Arc::clone(&recorder) as _);
            let db = builder.build().await.map_err(|error| of_slatedb("opening a store", &error))?;
            Ok(Database::Writer(db))
        };
        let database =
            executor.wait(open_within("opening a store", options.timeout, &observer.health, opening))?;
        let newest = newest_of(&database)?;
        let backlog_bytes = options.backlog_bytes();
        let timeout = options.timeout;
        let parts = Parts { executor, observer, timeout, backlog_bytes, opener, segments };
        // To read what it holds before there is a store of it.
        let bare = Shared::new(database, parts, newest);
        let meta = Meta::read(&View::newest(&bare))?;
        let uuid = meta.uuid;
        if let Database::Writer(db) = &bare.database {
            bare.segments.begin(db.manifest().writer_epoch(), &meta)?;
        }
        let shared = Arc::new(bare.with(meta));
        let threads = if shared.is_read_only() {
            None
        } else {
            let syncing = Arc::clone(&shared);
            let syncer = Syncer::start(options.commit_interval, move || {
                syncing.sync_for(Waiter::Background, syncing.newest())
            })?;
            let holder = Holder::start(&shared, holder_place, options.claimant.clone())?;
            let sweeper = Sweeper::start(&shared, options.segments.kept)?;
            Some(Threads { syncer, reaper: Reaper::start(&shared)?, sweeper, holder })
        };
        let follows = options.read_only && options.follows;
        Ok(Self { threads: Mutex::new(threads), shared, cache, recorder, uuid, follows })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn view(&self) -> View<'_> {
        View::newest(&self.shared)
    }

    /// Makes a keyspace. The caller holds the list of them.
    fn make_space(&self, number: u32, name: &str, kind: KeyspaceKind) -> Result<Arc<Space>> {
        self.shared.check_writable()?;
        let space = Arc::new(Space::new(number, name, kind));
        let mut write = Write::default();
        write.put(keys::full(keys::META, &space.key()), space.value());
        let _order = self.shared.order.lock();
        let sequence = self.shared.newest() + 1;
        self.shared.commit(write, sequence, &[])?;
        space.set_made_at(sequence);
        Ok(space)
    }

    /// What tables take (bytes).
    fn table_bytes(&self) -> u64 {
        self.shared.manifest().all_sst_views().map(|view| view.sst.estimate_size()).sum()
    }
}

/// An opening during which nothing was answered for `timeout` fails, and one that has taken this many times as long: requests that are answered
/// may still lead nowhere, where a writer that has been taken over goes on compacting.
const OPENINGS_MAX: u32 = 10;

/// Where objects are.
struct Objects {
    service: Arc<dyn ObjectStore>,
    prefix: Path,
    /// They are files.
    is_local: bool,
}

/// The service, with what is noted of it; a request that stalls is made again.
fn observed(service: Arc<dyn ObjectStore>, options: &SlateOptions) -> (Arc<dyn ObjectStore>, Arc<Observer>) {
    let health = Health::new(service.to_string(), options.timeout, Arc::new(SystemClock::new()));
    let observer = Observer { health, traffic: Traffic::default(), request_time: options.request_time };
    let observer = Arc::new(observer);
    (Arc::new(ObservedStore::new(service, Arc::clone(&observer))), observer)
}

/// Drives an opening, which would try for ever.
async fn open_within<T>(
    what: &str,
    timeout: Option<Duration>,
    health: &Health,
    opening: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut opening = pin!(opening);
    for _ in 0..OPENINGS_MAX {
        let limit = WaitLimit::begin(timeout);
        let answers = health.answers();
        match select(&mut opening, pin!(limit.run_out())).await {
            Either::Left((opened, _)) => return opened,
            Either::Right(_) if health.answers() == answers => return Err(limit.error(what)),
            Either::Right(_) => {}
        }
    }
    let text =
        "it has taken too long; another mount that was taken over may still be at work there: try again";
    Err(StoreError::io(what, std::io::Error::new(std::io::ErrorKind::TimedOut, text)))
}

/// Of tables: what one request brings at least.
const BLOCK_SIZE: SstBlockSize = SstBlockSize::Block32Kib;

fn newest_of(database: &Database) -> Result<u64> {
    match database {
        Database::Writer(db) => {
            let snapshot = db.snapshot().map_err(|error| of_slatedb("opening a store", &error))?;
            Ok(snapshot.seq())
        }
        Database::Reader(follower) => Ok(follower.current().sequence),
    }
}

impl Drop for SlateStore {
    fn drop(&mut self) {
        // Its threads are waited for.
        self.shared.end_background();
    }
}

impl Read for SlateStore {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        let space = self.shared.space(keyspace)?;
        match space.kind {
            KeyspaceKind::Tuple => self.view().get(&space, key),
            // What it refers to stays while the position is held.
            KeyspaceKind::Block => Pin::newest(&self.shared)?.get(keyspace, key),
        }
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        // Each look-up would have a position of its own.
        Pin::newest(&self.shared)?.multi_get(keyspace, keys)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(SlateCursor::new(Pin::newest(&self.shared)?, keyspace, range)?))
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        Pin::newest(&self.shared)?.read_blocks(keyspace, prefix, first, buf)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        Pin::newest(&self.shared)?.next_extent(keyspace, prefix, from, kind)
    }

    fn will_need(&self, keyspace: Keyspace, ranges: Vec<BlockRange>) {
        // One that is not there is found out when it is read.
        if let Ok(space) = self.shared.space(keyspace) {
            self.view().will_need(&space, ranges);
        }
    }
}

impl Store for SlateStore {
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        let space = {
            let mut spaces = self.shared.spaces.write();
            let known = spaces.iter().find(|space| space.name == name).cloned();
            if let Some(space) = known {
                space.expect_kind(kind, "open_keyspace as another kind")?;
                space
            } else {
                let number = spaces.last().map_or(keys::META, |space| space.number) + 1;
                let space = self.make_space(number, name, kind)?;
                spaces.push(Arc::clone(&space));
                space
            }
        };
        // Also of one whose maker has waited for this in vain.
        self.shared.sync(space.made_at())?;
        if let Some(merge) = merge {
            space.merge_by(merge);
        }
        Ok(space.keyspace())
    }

    fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let mut infos: Vec<_> = self.shared.spaces.read().iter().map(|space| space.info()).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(self.shared.pins.add(Pin::newest(&self.shared)?))
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.apply_in_steps(batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.shared.sync(keys::sequence(position.0))
    }

    fn position(&self) -> Position {
        Position(keys::seqno(self.shared.newest()))
    }

    fn engine_name(&self) -> &'static str {
        "slatedb"
    }

    fn follow(&self) -> Option<&dyn Follow> {
        self.follows.then_some(self)
    }

    fn snapshots(&self) -> Option<&dyn NamedSnapshots> {
        Some(self)
    }

    fn changes(&self) -> Option<&dyn TrackChanges> {
        Some(self)
    }

    fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: true, range_delete_constant: false, blind_patches: false }
    }

    fn space(&self) -> SpaceStats {
        let used_bytes = self.table_bytes() + self.shared.segments_bytes();
        let available_bytes = CAPACITY_BYTES.saturating_sub(used_bytes);
        SpaceStats { capacity_bytes: CAPACITY_BYTES, used_bytes, available_bytes }
    }

    fn stats(&self) -> Vec<(String, u64)> {
        let own = [
            ("slatedb.batches", self.shared.batches.load(Ordering::Relaxed)),
            ("slatedb.cache_bytes", self.cache.bytes() + self.shared.segments.parts().bytes()),
            ("slatedb.deleted_ranges", self.view().dead.len() as u64),
            ("slatedb.outages", self.shared.observer.health.outages()),
            ("slatedb.segments_bytes", self.shared.segments_bytes()),
            ("slatedb.segments_received_bytes", self.shared.segments.received_bytes()),
            ("slatedb.segments_unsent_bytes", self.shared.segments.pending_bytes()),
            ("slatedb.snapshots", self.shared.named_snapshots().len() as u64),
            ("slatedb.syncs", self.shared.syncs()),
            ("slatedb.tables_bytes", self.table_bytes()),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value)).into_iter();
        let traffic = self.shared.observer.traffic.figures(self.table_bytes() + self.shared.segments_bytes());
        let mut all: Vec<_> = own.chain(traffic).chain(stats::of_slatedb(&self.recorder)).collect();
        all.sort();
        all
    }
}

impl Base for SlateStore {
    /// Waits for the reaper, and for room.
    fn admit(&self, batch: &Batch, durability: Durability) -> Result<()> {
        self.shared.check_writable()?;
        let mut limit = self.shared.wait_limit();
        if batch.ops().iter().any(|op| matches!(op, Op::DeleteRange { .. })) {
            self.shared.wait_for_reaper(&limit)?;
        }
        if durability == Durability::Synced && self.shared.observer.health.is_failing(Direction::Writes) {
            // One that fails for want of an answer should not have been applied.
            self.shared.sync(self.shared.newest())?;
        }
        self.shared.wait_for_room(&mut limit)
    }

    fn apply_admitted(&self, batch: Batch) -> Result<Position> {
        let mut limit = self.shared.wait_limit();
        if batch.is_empty() {
            return Ok(self.position());
        }
        let spaces = Spaces::of(&self.shared, &batch)?;
        let count = batch.len() as u64;
        let _order = loop {
            self.shared.wait_for_room(&mut limit)?;
            let order = self.shared.order.lock();
            // Its holder may have waited for what it reads.
            limit.check("writing")?;
            if self.shared.has_room()? {
                break order;
            }
        };
        let seqno = keys::seqno(self.shared.newest()) + count;
        let sequence = keys::sequence(seqno);
        let staged = stage(&self.shared, &spaces, batch)?.into_write(sequence);
        self.shared.commit(staged.write, sequence, &staged.dead)?;
        self.shared.segments.suspect(staged.suspects);
        Ok(Position(seqno))
    }
}

impl Follow for SlateStore {
    fn find_newer(&self) -> Result<bool> {
        match &self.shared.database {
            Database::Writer(_) => Ok(false),
            Database::Reader(follower) => follower.find_newer(&self.shared),
        }
    }

    fn show_newer(&self) {
        if let Database::Reader(follower) = &self.shared.database {
            self.shared.show_newer(follower);
        }
    }

    fn stop_following(&self) {
        if let Database::Reader(follower) = &self.shared.database {
            follower.stop();
        }
    }
}

impl EngineStore for SlateStore {
    fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure()
    }

    fn set_memory_bytes(&self, bytes: u64) {
        self.cache.set_bytes_max(cache_bytes(bytes));
        self.shared.segments.parts().set_bytes_max(parts_bytes(bytes));
    }

    fn set_commit_interval(&self, interval: Duration) {
        if let Some(threads) = &*self.threads.lock() {
            threads.syncer.set_interval(interval);
        }
    }

    fn verify(&self) -> Result<Verified> {
        verify(&self.shared)
    }

    fn close(&self) -> Result<()> {
        let threads = self.threads.lock().take();
        // The record of the holder goes when nothing is written any more.
        let _holder = threads.map(|Threads { syncer, reaper, sweeper, holder }| {
            self.shared.end_background();
            drop((syncer, reaper, sweeper));
            holder
        });
        let synced = self.shared.sync(self.shared.newest());
        self.shared.close();
        if synced.as_ref().is_err_and(is_unanswered) {
            // The database would wait for as long as this has.
            return synced;
        }
        let limit = self.shared.wait_limit();
        let closed = self.shared.wait(async {
            let close = pin!(async {
                match &self.shared.database {
                    Database::Writer(db) => {
                        db.close().await.map_err(|error| of_slatedb("closing a store", &error))
                    }
                    Database::Reader(follower) => follower.close().await,
                }
            });
            match select(close, pin!(limit.run_out())).await {
                Either::Left((closed, _)) => closed,
                Either::Right(_) => Err(limit.error("closing a store")),
            }
        });
        synced.and(closed)
    }
}
