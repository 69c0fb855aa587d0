//! Opening: device → engine → file system.
//!
//! Thread safety: an open store is shared by all threads.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{AtimePolicy, FileSystem, MountOptions};
use kvfs_kvdb::{Db, Options, Placement, Policy};
use kvfs_service::{ErrorKind, UndoLimits};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{Store, StoreError, Verified};

use crate::devices::{StoreDevices, Unopened, is_about_missing};
use crate::engines::{self, EngineKind, PluggedEngine};
use crate::error::{Error, Result, explain_fs};
use crate::memory::Memory;
use crate::store_dir::StoreDir;

/// How a store is opened.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct OpenOptions {
    /// How much it may take.
    pub memory: Memory,
    /// Nothing is written.
    pub read_only: bool,
    /// What another mount writes to the store is shown as it becomes durable.
    pub follows: bool,
    /// A store whose slow devices are missing is opened, and nothing is written.
    pub degraded: bool,
    /// When access times change.
    pub atime: AtimePolicy,
    /// Those of directories never change.
    pub nodiratime: bool,
    /// Access times are kept in memory for up to a day.
    pub lazytime: bool,
    /// How long a change may stay in memory before it is written to the device.
    pub commit_interval: Option<Duration>,
    /// Writers wait while more than so much of what was written is not durable (bytes); `None`: the interval
    /// alone counts.
    pub dirty_bytes: Option<u64>,
    /// Access-control lists don't count, and are not shown.
    pub no_acls: bool,
    /// How many committed transactions can be taken back, and how long; `None`: what is kept stays.
    pub undo: Option<(usize, Duration)>,
    /// Merges read and write at most so many bytes each second; `None`: any.
    pub io_limit: Option<u64>,
    /// Which blocks leave the engine's cache first.
    pub cache_policy: Policy,
    /// On which tier of devices blocks of files go that have no wish; `None`: as the store keeps it.
    pub placement: Option<Placement>,
    /// How long a transaction may go without an operation, unless its begin says otherwise; `None`: for ever.
    pub txn_idle: Option<Duration>,
    /// How much of a store in object storage a local disk keeps at most (bytes); `None`: as its engine has
    /// it.
    pub cache_bytes: Option<u64>,
    /// A mount elsewhere counts this one as dead when it has not heard of it for so long; `None`: as its
    /// engine has it.
    pub lease: Option<Duration>,
    /// How long a call waits for object storage that does not answer, until it fails; zero: for ever; `None`:
    /// as its engine has it.
    pub timeout: Option<Duration>,
    /// What is synced is durable when a journal on the local disk has it, not object storage.
    pub journals_locally: bool,
    /// A store that another mount has open elsewhere is taken from it.
    pub takes_over: bool,
    /// Snapshots are shown to root and the store's owner alone.
    pub private_snapshots: bool,
}

/// The engine of an open store.
#[derive(Clone)]
#[expect(missing_docs, reason = "the variants' docs name their fields")]
pub enum OpenedEngine {
    /// kvdb, and where it keeps everything.
    Kvdb { db: Arc<Db>, devices: Arc<StoreDevices> },
    /// Another one.
    Plugged(Arc<PluggedEngine>),
}

impl OpenedEngine {
    /// Which devices of the store are missing, in words; `None`: none.
    pub fn missing(&self) -> Option<&str> {
        match self {
            Self::Kvdb { devices, .. } => devices.missing(),
            Self::Plugged(_) => None,
        }
    }

    /// It may take so many bytes of memory from now on.
    pub fn set_memory_bytes(&self, bytes: u64) {
        match self {
            Self::Kvdb { db, .. } => db.set_memory_bytes(bytes),
            Self::Plugged(plugged) => plugged.store.set_memory_bytes(bytes),
        }
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Kvdb { db, .. } => Arc::clone(db) as Arc<dyn Store>,
            Self::Plugged(plugged) => Arc::clone(&plugged.store) as Arc<dyn Store>,
        }
    }

    /// Reads everything, and verifies it.
    ///
    /// # Errors
    /// What keeps it from reading on. Damage is no error, but a finding.
    pub(crate) fn verify(&self) -> Result<Verified, StoreError> {
        match self {
            Self::Kvdb { db, .. } => {
                let checked = db.check()?;
                Ok(Verified { findings: checked.findings, counts: checked.counts })
            }
            Self::Plugged(plugged) => plugged.store.verify(),
        }
    }

    /// Writes everything out and gives back what is on devices or in files.
    ///
    /// # Errors
    /// I/O errors: it is closed all the same.
    pub fn close(&self) -> Result<(), StoreError> {
        match self {
            Self::Kvdb { db, .. } => db.close(),
            Self::Plugged(plugged) => plugged.store.close(),
        }
    }
}

/// An open store with its file system. Close it: dropping it leaves the journal to be replayed.
pub struct OpenedStore {
    /// Its main line.
    pub fs: Arc<FileSystem>,
    /// What is below it.
    pub engine: OpenedEngine,
    /// Nothing is written.
    pub is_read_only: bool,
    /// See [`OpenOptions::undo`].
    pub undo: UndoLimits,
}

impl OpenedStore {
    /// Opens everything; the journal is replayed.
    ///
    /// # Errors
    /// Another process has it open; devices are missing; damage; I/O errors.
    pub fn open(dir: &StoreDir, options: &OpenOptions) -> Result<Self> {
        let memory = options.memory;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (engine, undo) = match dir.engine_mark()? {
            None => {
                engines::check_options(EngineKind::Kvdb, options)?;
                open_kvdb(dir, options, &clock)?
            }
            Some(mark) => {
                let plugged = Arc::new(engines::open(dir, &mark, options)?);
                (OpenedEngine::Plugged(plugged), UndoLimits { count_max: 0, age_max: Duration::ZERO })
            }
        };
        let read_only = options.read_only || engine.missing().is_some();
        let mount = MountOptions {
            atime: options.atime,
            nodiratime: options.nodiratime,
            lazytime: options.lazytime,
            txn_idle: options.txn_idle,
            read_only,
            acls: !options.no_acls,
            node_bytes_max: memory.node_bytes(),
            content_bytes_max: memory.content_bytes(),
            private_snapshots: options.private_snapshots,
            owner_uid: dir.uid(),
            lock_bytes_max: memory.lock_bytes() as usize,
        };
        let fs = FileSystem::open(engine.store(), clock, mount).map_err(|error| explain_fs(dir, error))?;
        kvfs_fs::name_processes(&fs, command_of);
        Ok(Self { fs: Arc::new(fs), engine, is_read_only: read_only, undo })
    }

    /// Writes everything out and gives the device back.
    ///
    /// # Errors
    /// I/O errors: it is closed all the same.
    pub fn close(self) -> Result<(), StoreError> {
        let Self { fs, engine, .. } = self;
        drop(fs);
        engine.close()
    }
}

pub(crate) fn open_kvdb(
    dir: &StoreDir,
    options: &OpenOptions,
    clock: &Arc<dyn Clock>,
) -> Result<(OpenedEngine, UndoLimits)> {
    let &OpenOptions { memory, commit_interval, undo, io_limit, .. } = options;
    let mut engine = Options::with_memory(memory.engine_bytes(memory.reserve_bytes()));
    engine.read_only = options.read_only;
    if let Some(interval) = commit_interval {
        engine.commit_interval = interval;
    }
    engine.unsynced_bytes_max = options.dirty_bytes.unwrap_or(0);
    engine.cache_policy = options.cache_policy;
    engine.placement = options.placement;
    engine.merge_bytes_per_second = io_limit.unwrap_or(0);
    (engine.undo_count, engine.undo_age) = undo.unwrap_or((usize::MAX, Duration::MAX));
    let undo = UndoLimits { count_max: engine.undo_count, age_max: engine.undo_age };
    let (devices, db) = open_engine(dir, engine, options.degraded, clock)?;
    Ok((OpenedEngine::Kvdb { db, devices: Arc::new(devices) }, undo))
}

/// Opens the devices and the engine on them; `degraded`: to be read, where slow devices are missing.
fn open_engine(
    dir: &StoreDir,
    mut options: Options,
    degraded: bool,
    clock: &Arc<dyn Clock>,
) -> Result<(StoreDevices, Arc<Db>)> {
    loop {
        let mut devices = StoreDevices::open(dir, options.read_only)?;
        let (first, others) = devices.for_engine();
        match Db::open_joined(first, &others, options.clone(), Arc::clone(clock)) {
            Ok(db) => {
                devices.note_opened(&db)?;
                return Ok((devices, db));
            }
            Err(error)
                if degraded
                    && !options.read_only
                    && is_about_missing(&error)
                    && !devices.unopened().has_refused() =>
            {
                options.read_only = true;
            }
            Err(error) => return Err(explain_kvdb(dir, devices.unopened(), error)),
        }
    }
}

/// As [`Unopened::explain`]; where something is damaged, only a repair gets it open again.
fn explain_kvdb(dir: &StoreDir, unopened: &Unopened, error: StoreError) -> Error {
    let StoreError::Corrupt { place, detail } = error else { return unopened.explain(dir, error) };
    let store = dir.path().display();
    let message = format!(
        "cannot open the store {store}: corrupt data in {place}: {detail}; `kvfs check --repair` mends it"
    );
    Error::new(ErrorKind::Damaged, message)
}

/// What a process is called; `None`: there is none, or it may not be looked at.
fn command_of(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    // A program may call itself anything: on one line.
    let name = String::from_utf8_lossy(&name);
    Some(name.trim_end().replace(|c: char| c.is_control(), "?"))
}
