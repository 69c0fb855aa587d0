//! Making a store, and opening one.
//!
//! Thread safety: see the crate. Invariant: a store that is opened to be written to has everything that a
//! journal of this machine holds, or is refused.

use std::sync::Arc;

use kvfs_engine_common::Syncer;
use kvfs_locks::Mutex;
use kvfs_objects::ObjectPlace;
use kvfs_store::Result;
use kvfs_store::clock::SystemClock;
use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::{Db, GarbageCollectorBuilder, SstBlockSize, WriteBatch};
use slatedb_common::metrics::DefaultMetricsRecorder;

use super::{SlateStore, Threads};
use crate::cache::BlockCache;
use crate::claim;
use crate::error::of_slatedb;
use crate::follower::{Follower, Opener};
use crate::forward::{self, Forward};
use crate::health::Health;
use crate::holder::{self, Holder, Holding};
use crate::journal;
use crate::keys;
use crate::meta::{self, Meta};
use crate::observed::{ObservedStore, Observer};
use crate::options::{SlateOptions, cache_bytes};
use crate::reaper::Reaper;
use crate::retention::Retention;
use crate::runtime::Executor;
use crate::segments::{Gate, Segments, Sweeper};
use crate::shared::{Database, Parts, Shared};
use crate::traffic::Traffic;
use crate::view::View;
use crate::wait_limit::{Waiter, while_answered};

impl SlateStore {
    /// Claims the place for a new store of that UUID: the claim is removed again where the store does not
    /// come to be.
    ///
    /// # Errors
    /// There are objects already; the place can't be reached or written to.
    pub fn claim(place: &ObjectPlace, uuid: [u8; 16]) -> Result<()> {
        let executor = Executor::start()?;
        let (service, prefix) = claim::connect(place)?;
        executor.wait(claim::make(Some(place), &*service, &prefix, uuid))
    }

    /// As [`SlateStore::claim`], in any `service`.
    ///
    /// # Errors
    /// As [`SlateStore::claim`].
    pub fn claim_over(service: &Arc<dyn ObjectStore>, uuid: [u8; 16]) -> Result<()> {
        Executor::start()?.wait(claim::make(None, &**service, &Path::default(), uuid))
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
        let Objects { service, prefix, .. } = objects;
        let (service, observer) = observed(service, options);
        let failed = |error: slatedb::Error| of_slatedb("making a store", &error);
        let making = async {
            let db = Db::builder(prefix, service)
                .with_settings(options.settings())
                .with_system_clock(Arc::new(Forward::from((options.wall)())))
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
        executor.wait(while_answered("making a store", &observer.health, making))
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
    /// There is none, or one of another version; another mount has it open, and is not to be taken over; the
    /// place can't be reached; damage.
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
        // To wait for the lease of another mount is no request: each look at its record is.
        let holder = async {
            if options.read_only {
                Ok(false)
            } else {
                holder_place.wait(&options.claimant, &observer.health).await
            }
        };
        let is_cut_off = executor.wait(holder)?;
        let opening = async {
            if options.read_only {
                let follower = Follower::new(opener.open().await?, Arc::clone(&opener));
                return Ok(Database::Reader(Box::new(follower)));
            }
            if is_cut_off {
                journal::expect_here(&opener, options.journal.as_ref()).await?;
            }
            let (clock, ahead) = forward::for_opening(&opener, options.wall).await?;
            let gate = Arc::new(Gate::new(Arc::clone(&opener.service), Arc::clone(&segments)));
            let collector = GarbageCollectorBuilder::new(opener.prefix.clone(), Arc::clone(&gate) as _)
                .with_options(options.collection(is_local, ahead))
                .with_gc_filter(Arc::new(Retention::begin(options, Arc::new(SystemClock::new()))));
            let builder = Db::builder(opener.prefix.clone(), gate)
                .with_settings(options.settings())
                .with_gc_builder(collector)
                .with_system_clock(Arc::new(clock))
                .with_sst_block_size(BLOCK_SIZE)
                .with_db_cache(Arc::clone(&cache) as _, 0)
                .with_metrics_recorder(Arc::clone(&recorder) as _);
            let db = builder.build().await.map_err(|error| of_slatedb("opening a store", &error))?;
            Ok(Database::Writer(db))
        };
        let database = executor.wait(while_answered("opening a store", &observer.health, opening))?;
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
        let shared = Arc::new(bare.with(meta.clone()));
        let threads = if options.read_only {
            if !options.follows {
                journal::expect_applied(shared.newest(), &meta, options.journal.as_ref())?;
            }
            None
        } else {
            let (claimant, journal) = (&options.claimant, options.journal.as_ref());
            let found = journal::find(&shared, &meta, journal, claimant.takes_over)?;
            let has_journal = journal.is_some_and(|journal| journal.is_written);
            // Before the journal of before is applied, which may take longer than a lease.
            let holding = Holding { claimant: claimant.clone(), has_journal };
            let holder = Holder::start(&shared, holder_place, holding)?;
            let journal = journal::begin(&shared, &meta, &found, journal, claimant)?;
            if let Some(journal) = journal {
                shared.set_journal(journal);
            }
            let syncing = Arc::clone(&shared);
            let syncer = Syncer::start(options.commit_interval, move || {
                syncing.sync_for(Waiter::Background, syncing.newest())
            })?;
            let sweeper = Sweeper::start(&shared, options.kept)?;
            Some(Threads { syncer, reaper: Reaper::start(&shared)?, sweeper, holder })
        };
        let follows = options.read_only && options.follows;
        Ok(Self { threads: Mutex::new(threads), shared, cache, recorder, uuid, follows })
    }
}

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
