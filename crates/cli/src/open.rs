//! Opening stores beside daemons that have them open.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_kvdb::format::{SUPERBLOCK_ADDRS, SUPERBLOCK_BYTES, Superblock, SuperblockError};
use kvfs_open::{OpenOptions, OpenedEngine, OpenedStore};
use kvfs_service::{Opened, Service, UndoLimits};
use kvfs_store::clock::{Clock, SystemClock};

use crate::control::{self, Client, Daemon};
use crate::engine;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::store_dir::StoreDir;

/// How long a daemon may take to write everything out.
pub(crate) const CLOSE_TIME_MAX: Duration = Duration::from_mins(10);

/// How long a daemon may take to close after an unmount by others, before we take it for still in use.
pub(crate) const NOTICE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the kernel may take to end a process that had the store open, on a machine with other work.
const EXIT_TIME_MAX: Duration = Duration::from_secs(5);
const EXIT_POLL_PERIOD: Duration = Duration::from_millis(10);

/// An open store with its file system. Close it: dropping it leaves the journal to be replayed.
pub(crate) struct OpenStore {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) engine: OpenedEngine,
    is_read_only: bool,
    /// See [`OpenOptions::undo`].
    undo: UndoLimits,
}

impl OpenStore {
    /// Opens everything; the journal is replayed.
    pub(crate) fn open_with(dir: &StoreDir, options: &OpenOptions) -> Result<Self> {
        let OpenedStore { fs, engine, is_read_only, undo } = OpenedStore::open(dir, options)?;
        Ok(Self { fs, engine, is_read_only, undo })
    }

    /// For the requests of callers.
    pub(crate) fn into_service(self) -> Service {
        let Self { fs, engine, is_read_only, undo } = self;
        Service::new(Opened { fs, engine: engine::for_service(engine, is_read_only), undo })
    }

    /// Writes everything out and gives the device back.
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.into_service().close()?)
    }
}

/// Waits for a daemon that is closing the store.
pub(crate) fn wait_closed(store: &StoreDir, client: Client) -> Result<()> {
    has_closed(store, client).map(drop)
}

/// The same. False: it is not known how that has ended.
fn has_closed(store: &StoreDir, client: Client) -> Result<bool> {
    match client.await_closed().and_then(|mut closing| closing.wait(CLOSE_TIME_MAX)) {
        Ok(true) => Ok(true),
        Ok(false) => Err(CliError::new(
            Code::InUse,
            format!("{} was unmounted, and its daemon still has it open", store.path().display()),
        )),
        // However that daemon ended: opening the store tells what is left.
        Err(error) => {
            tracing::debug!(%error, "the daemon that closed the store");
            Ok(false)
        }
    }
}

/// A store that was to be opened.
pub(crate) enum Unmounted {
    Opened(OpenStore),
    /// Another daemon serves it without a mount; what to say of that.
    Served(CliError),
}

/// Opens a store to mount it; says where it is mounted or served already.
pub(crate) fn open_unmounted(store: &StoreDir, options: &OpenOptions) -> Result<OpenStore> {
    match open_unless_served(store, options)? {
        Unmounted::Opened(open) => Ok(open),
        Unmounted::Served(error) => Err(error),
    }
}

/// As [`open_unmounted`]: to be served without a mount is no failure.
pub(crate) fn open_unless_served(store: &StoreDir, options: &OpenOptions) -> Result<Unmounted> {
    let mut clock = SystemClock::new();
    loop {
        match OpenStore::open_with(store, options) {
            Err(error) if error.code == Code::InUse => {}
            done => return done.map(Unmounted::Opened),
        }
        let is_closed = match control::connect(store) {
            Ok(Daemon::Closing(client)) => has_closed(store, client)?,
            Ok(Daemon::Serving { dir, .. }) if dir.as_os_str().is_empty() => {
                let path = store.path().display();
                let message =
                    format!("{path} is served without a mount already; `kvfs umount {path}` ends that");
                return Ok(Unmounted::Served(CliError::new(Code::InUse, message)));
            }
            Ok(Daemon::Serving { client, dir }) => {
                if mounts::of_store(store.path())?.is_some() {
                    return Err(in_use(store, &dir));
                }
                // Unmounted, and its daemon is about to notice; or lazily, and still in use.
                match client.await_closed().and_then(|mut closing| closing.wait(NOTICE_TIME_MAX)) {
                    Ok(false) => {
                        let (store, dir) = (store.path().display(), dir.display());
                        let message = format!("{store}: files of the former mount on {dir} are still in use");
                        return Err(CliError::new(Code::InUse, message));
                    }
                    closed => closed.is_ok(),
                }
            }
            _ => false,
        };
        if is_closed {
            // Others may have waited for that, too, and be quicker.
            clock = SystemClock::new();
            continue;
        }
        if let Some(dir) = mounts::of_store(store.path())? {
            return Err(in_use(store, &dir));
        }
        // A daemon that begins listens in a moment; one that ends leaves the store.
        if clock.monotonic() >= EXIT_TIME_MAX {
            return OpenStore::open_with(store, options).map(Unmounted::Opened);
        }
        std::thread::park_timeout(EXIT_POLL_PERIOD);
    }
}

/// Opens a store that no daemon serves any more. A process that ends or was killed is gone for other
/// processes before the kernel has closed its files, so what is in use now may be free in a moment.
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

/// As [`open_behind_exit`], for a command that does something and ends: what it would do to a store in memory
/// would be lost.
pub(crate) fn open_for_command(store: &StoreDir, options: &OpenOptions) -> Result<OpenStore> {
    check_lasts(store)?;
    open_behind_exit(store, options)
}

/// Refuses a store that holds something only while it is mounted or served, and is not now.
pub(crate) fn check_lasts(store: &StoreDir) -> Result<()> {
    if !store.engine()?.is_volatile() {
        return Ok(());
    }
    let path = store.path().display();
    let message = format!(
        "{path} keeps everything in memory, and only while it is mounted: `kvfs mount {path} DIR` first (engine memory)"
    );
    Err(CliError::new(Code::NotMounted, message))
}

/// The store is mounted already.
fn in_use(store: &StoreDir, dir: &Path) -> CliError {
    CliError::new(Code::InUse, format!("{} is mounted on {} already", store.path().display(), dir.display()))
}

/// Whether the directory `path` holds a device that bears the signature of a store, whatever its state, or
/// the mark of an engine.
pub(crate) fn is_store(path: &Path) -> bool {
    let Ok(store) = StoreDir::open(path) else { return false };
    if matches!(store.engine_mark(), Ok(Some(_))) {
        return true;
    }
    let Ok(device) = store.device().peek() else { return false };
    SUPERBLOCK_ADDRS.into_iter().any(|addr| {
        let mut slot = [0; SUPERBLOCK_BYTES];
        let read = device.read_exact_at(&mut slot, addr);
        read.is_ok() && !matches!(Superblock::decode(&slot), Err(SuperblockError::NotKvfs { .. }))
    })
}
