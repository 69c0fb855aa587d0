//! Opening and making stores: device → engine → file system.

use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{Device, FileDevice, OpenError, WatchedDevice};
use kvfs_fs::{AtimePolicy, FileSystem, FsError, MkfsOptions, MountOptions};
use kvfs_kvdb::format::{SUPERBLOCK_ADDRS, SUPERBLOCK_BYTES, Superblock, SuperblockError};
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_service::{Opened, Service, UndoLimits};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{Store, StoreError};

use crate::control::{self, Client, Daemon};
use crate::engine::OpenEngine;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::store_dir::StoreDir;

/// How long a daemon may take to write everything out.
pub(crate) const CLOSE_TIME_MAX: Duration = Duration::from_mins(10);

/// How long a daemon may take to close after an unmount by others, before we take it for still in use.
const NOTICE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the kernel may take to end a process that had the store open, on a machine with other work.
const EXIT_TIME_MAX: Duration = Duration::from_secs(5);
const EXIT_POLL_PERIOD: Duration = Duration::from_millis(10);

/// What a mounted view takes while nothing is asked of it: three threads, tables, a connection (bytes).
const VIEW_BYTES: u64 = 256 << 10;

/// The memory ceiling and how it is divided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    bytes: u64,
}

impl Default for Memory {
    /// A quarter of RAM, at most 2 GiB.
    fn default() -> Self {
        let info = rustix::system::sysinfo();
        let ram = info.totalram.saturating_mul(u64::from(info.mem_unit));
        Self { bytes: (ram / 4).min(2 << 30) }
    }
}

impl Memory {
    /// Least that works (bytes).
    const BYTES_MIN: u64 = 64 << 20;

    pub(crate) fn new(bytes: Option<u64>) -> Result<Self> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        if bytes < Self::BYTES_MIN {
            return Err(CliError::new(Code::Usage, "--memory must be at least 64M"));
        }
        Ok(Self { bytes })
    }

    /// For the table of what the kernel knows.
    fn node_bytes(self) -> u64 {
        self.bytes / 16
    }

    /// For the content of small files between lookup and read.
    fn content_bytes(self) -> u64 {
        self.bytes / 32
    }

    /// For locks of transactions. What they take of it, the engine's caches give up meanwhile.
    fn lock_bytes(self) -> u64 {
        self.bytes / 4
    }

    /// For request buffers that wait for reuse.
    pub(crate) fn io_bytes(self) -> u64 {
        self.bytes / 16
    }

    /// For requests and answers of the key-value socket that are under way; one of the largest messages fits a user's half.
    pub(crate) fn message_bytes(self) -> usize {
        ((self.bytes / 16) as usize).clamp(2 * kvfs_rpc::MESSAGE_LEN_MAX + (2 << 20), 64 << 20)
    }

    /// How many views of transactions users other than root may have mounted in all: a sixteenth goes to their threads
    /// and tables.
    pub(crate) fn views_max(self) -> usize {
        ((self.bytes / 16 / VIEW_BYTES) as usize).clamp(16, 1024)
    }

    /// The ceiling (bytes).
    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// What the allocator loses to rounding and fragments, and what merges hold for a moment, is not
    /// accounted: room is left for it, as much as the daemon measures between these bounds (bytes).
    pub(crate) fn reserve_bounds(self) -> RangeInclusive<u64> {
        self.bytes / 8..=self.bytes / 8 * 5
    }

    /// The room for what is not accounted before anything was measured (bytes).
    pub(crate) fn reserve_bytes(self) -> u64 {
        self.bytes / 4
    }

    /// What the engine may take when `reserve` is left for what is not accounted (bytes).
    pub(crate) fn engine_bytes(self, reserve: u64) -> u64 {
        self.bytes - self.node_bytes() - self.content_bytes() - self.io_bytes() - reserve
    }
}

/// How a store is opened.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct OpenOptions {
    pub(crate) memory: Memory,
    pub(crate) read_only: bool,
    pub(crate) atime: AtimePolicy,
    /// Those of directories never change.
    pub(crate) nodiratime: bool,
    /// Access times are kept in memory for up to a day.
    pub(crate) lazytime: bool,
    pub(crate) commit_interval: Option<Duration>,
    /// Access-control lists don't count, and are not shown.
    pub(crate) no_acls: bool,
    /// How many committed transactions can be taken back, and how long; `None`: what is kept stays.
    pub(crate) undo: Option<(usize, Duration)>,
    /// Merges read and write at most so many bytes each second; `None`: any.
    pub(crate) io_limit: Option<u64>,
    /// How long a transaction may go without an operation, unless its begin says otherwise; `None`: for ever.
    pub(crate) txn_idle: Option<Duration>,
    /// Snapshots are shown to root and the store's owner alone.
    pub(crate) private_snapshots: bool,
}

/// An open store with its file system. Close it: dropping it leaves the journal to be replayed.
pub(crate) struct OpenStore {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) engine: OpenEngine,
    /// See [`OpenOptions::undo`].
    undo: UndoLimits,
}

impl OpenStore {
    /// Opens everything; the journal is replayed.
    pub(crate) fn open_with(dir: &StoreDir, options: &OpenOptions) -> Result<Self> {
        let &OpenOptions { memory, read_only, commit_interval, undo, io_limit, .. } = options;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let device = open_device(dir, read_only)?;
        let mut engine = Options::with_memory(memory.engine_bytes(memory.reserve_bytes()));
        engine.read_only = read_only;
        if let Some(interval) = commit_interval {
            engine.commit_interval = interval;
        }
        engine.merge_bytes_per_second = io_limit.unwrap_or(0);
        (engine.undo_count, engine.undo_age) = undo.unwrap_or((usize::MAX, Duration::MAX));
        let undo = UndoLimits { count_max: engine.undo_count, age_max: engine.undo_age };
        let watched = Arc::new(WatchedDevice::over(Arc::clone(&device)));
        let db = Db::open(Arc::clone(&watched) as _, engine, Arc::clone(&clock))
            .map_err(|error| explain_open(dir, error))?;
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
        let store: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
        let fs = FileSystem::open(store, clock, mount).map_err(|error| explain_fs(dir, &error))?;
        let engine = OpenEngine { db, device, watched, is_read_only: read_only };
        Ok(Self { fs: Arc::new(fs), engine, undo })
    }

    /// For the requests of callers.
    pub(crate) fn into_service(self) -> Service {
        let Self { fs, engine, undo } = self;
        Service::new(Opened { fs, engine: Box::new(engine), undo })
    }

    /// Writes everything out and gives the device back.
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.into_service().close()?)
    }
}

/// Waits for a daemon that is closing the store.
pub(crate) fn wait_closed(store: &StoreDir, client: Client) -> Result<()> {
    match client.await_closed().and_then(|closing| closing.wait(CLOSE_TIME_MAX)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(CliError::new(
            Code::InUse,
            format!("{} was unmounted, and its daemon is still writing to it", store.path().display()),
        )),
        // However that daemon ended: opening the store tells what is left.
        Err(error) => {
            tracing::debug!(%error, "the daemon that closed the store");
            Ok(())
        }
    }
}

/// Opens a store to mount it; says where it is mounted already.
pub(crate) fn open_unmounted(store: &StoreDir, options: &OpenOptions) -> Result<OpenStore> {
    match OpenStore::open_with(store, options) {
        Err(error) if error.code == Code::InUse => {}
        done => return done,
    }
    match control::connect(store) {
        Ok(Daemon::Closing(client)) => {
            wait_closed(store, client)?;
            open_behind_exit(store, options)
        }
        Ok(Daemon::Serving { client, dir }) => {
            if mounts::of_store(store.path())?.is_some() {
                return Err(in_use(store, &dir));
            }
            // Unmounted, and its daemon is about to notice; or lazily, and still in use.
            if let Ok(false) = client.await_closed().and_then(|closing| closing.wait(NOTICE_TIME_MAX)) {
                let (store, dir) = (store.path().display(), dir.display());
                let message = format!("{store}: files of the former mount on {dir} are still in use");
                return Err(CliError::new(Code::InUse, message));
            }
            open_behind_exit(store, options)
        }
        _ => match mounts::of_store(store.path())? {
            Some(dir) => Err(in_use(store, &dir)),
            None => open_behind_exit(store, options),
        },
    }
}

/// Opens a store that no daemon serves any more. A process that ends or was killed is gone for other processes before the
/// kernel has closed its files, so what is in use now may be free in a moment.
pub(crate) fn open_behind_exit(store: &StoreDir, options: &OpenOptions) -> Result<OpenStore> {
    let clock = SystemClock::new();
    loop {
        match OpenStore::open_with(store, options) {
            Err(error) if error.code == Code::InUse && clock.monotonic() < EXIT_TIME_MAX => {
                std::thread::park_timeout(EXIT_POLL_PERIOD);
            }
            done => return done,
        }
    }
}

/// The store is mounted already.
fn in_use(store: &StoreDir, dir: &Path) -> CliError {
    CliError::new(Code::InUse, format!("{} is mounted on {} already", store.path().display(), dir.display()))
}

/// Whether the directory `path` holds a device that bears the signature of a store, whatever its state.
pub(crate) fn is_store(path: &Path) -> bool {
    let Ok(store) = StoreDir::open(path) else { return false };
    let Ok(device) = store.peek_device() else { return false };
    SUPERBLOCK_ADDRS.into_iter().any(|addr| {
        let mut slot = [0; SUPERBLOCK_BYTES];
        let read = device.read_exact_at(&mut slot, addr);
        read.is_ok() && !matches!(Superblock::decode(&slot), Err(SuperblockError::NotKvfs { .. }))
    })
}

/// Makes the engine's structures and an empty file system on `device`.
pub(crate) fn make(dir: &StoreDir, device: Arc<dyn Device>, capacity_bytes: u64, inline: u32) -> Result<()> {
    Db::create(Arc::clone(&device), &CreateOptions::with_new_uuid(capacity_bytes)?)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = Db::open(device, Options::with_memory(Memory::BYTES_MIN), Arc::clone(&clock))?;
    let store: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
    let (uid, gid) = dir.beneficiary();
    let options = MkfsOptions { inline_len_max: inline, uid, gid, mode: 0o755 };
    FileSystem::mkfs(&store, clock.as_ref(), &options).map_err(|error| explain_fs(dir, &error))?;
    drop(store);
    db.close()?;
    Ok(())
}

fn open_device(dir: &StoreDir, read_only: bool) -> Result<Arc<FileDevice>> {
    match dir.open_device(read_only) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error) => Err(explain_device(dir.path(), &error)),
    }
}

/// What a device that can't be opened means to the user.
pub(crate) fn explain_device(store: &Path, error: &OpenError) -> CliError {
    let code = match error {
        OpenError::InUse { .. } => Code::InUse,
        OpenError::NotFound { .. } => Code::NotAStore,
        OpenError::Permission { .. } | OpenError::ReadOnly { .. } => Code::Denied,
        _ => Code::Failed,
    };
    CliError::new(code, format!("cannot open the store {}: {error}", store.display()))
}

pub(crate) fn explain_open(dir: &StoreDir, error: StoreError) -> CliError {
    let superblock = match &error {
        StoreError::Io { source, .. } => source.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    };
    let (code, message) = match superblock {
        // A store directory whose device holds something else: overwritten, as far as can be told.
        Some(SuperblockError::NotKvfs { blank: false }) => (
            Code::Damaged,
            "neither superblock bears the signature of a kvfs store; it was overwritten, or never was one; \
             restore it from a backup"
                .to_owned(),
        ),
        Some(cause @ (SuperblockError::NotKvfs { .. } | SuperblockError::OtherVersion { .. })) => {
            (Code::NotAStore, cause.to_string())
        }
        Some(_) | None => {
            let base = CliError::from(error);
            (base.code, base.message)
        }
    };
    CliError::new(code, format!("cannot open the store {}: {message}", dir.path().display()))
}

fn explain_fs(dir: &StoreDir, error: &FsError) -> CliError {
    let code = match error {
        FsError::Format(_) => Code::NotAStore,
        FsError::NoSpace => Code::NoSpace,
        FsError::Corrupt { .. } => Code::Damaged,
        FsError::Store(cause) => CliError::from((**cause).clone()).code,
        _ => Code::Failed,
    };
    CliError::new(code, format!("the file system in {}: {error}", dir.path().display()))
}
