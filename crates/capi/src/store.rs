//! Stores: options, making, opening, closing.
//!
//! Thread safety: see the crate. Invariant: a store is closed only when no process, transaction, stream or
//! cursor of it is left.

use std::ffi::{OsStr, c_char, c_int};
use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvfs_client::ServedStore;
use kvfs_fs::AtimePolicy;
use kvfs_open::{
    INLINE_DEFAULT, Memory, NewStore, OpenOptions, OpenedStore, StoreDir, make_store, own_device,
};
use kvfs_posix::Volume;
use kvfs_service::ErrorKind;

use crate::failure::{Failure, Result, call, end, refuse};
use crate::foreign::{Text, missing};

/// For `kvfs_store_open`: nothing is written.
pub const KVFS_RDONLY: c_int = 1;
/// For `kvfs_store_open`: a store is made where none is.
pub const KVFS_CREATE: c_int = 2;
/// For `kvfs_store_open`, with `KVFS_CREATE`: fails with EEXIST where one is.
pub const KVFS_EXCL: c_int = 4;

/// For `kvfs_options_set_atime`: access times change if they are older than the last change, or than a day.
pub const KVFS_ATIME_RELATIVE: c_int = 0;
/// For `kvfs_options_set_atime`: they never change.
pub const KVFS_ATIME_NEVER: c_int = 1;
/// For `kvfs_options_set_atime`: they change with every read.
pub const KVFS_ATIME_ALWAYS: c_int = 2;

/// How a store is made and opened.
#[derive(Debug)]
pub struct Options {
    /// `None`: as the machine has.
    memory: Option<u64>,
    /// Most that a new store takes; `None`: what the file system around it can give.
    capacity: Option<u64>,
    inline: u64,
    open: OpenOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self { memory: None, capacity: None, inline: INLINE_DEFAULT, open: OpenOptions::default() }
    }
}

/// An open store.
pub struct Store {
    pub(crate) inner: Arc<OpenVolume>,
}

/// What everything that belongs to an open store keeps.
pub(crate) enum OpenVolume {
    /// This process owns the store.
    Embedded(OwnVolume),
    /// A daemon does.
    Served(ServedStore),
}

/// The volume of a store that this process owns.
pub(crate) struct OwnVolume {
    pub(crate) volume: Volume,
    opened: OpenedStore,
    is_read_only: bool,
}

impl OpenVolume {
    /// The store in the directory `path`, or the one that is mounted there.
    fn open(path: &Path, options: &Options, is_read_only: bool) -> Result<Self> {
        let error = match OwnVolume::open(path, options, is_read_only) {
            Ok(own) => return Ok(Self::Embedded(own)),
            Err(error) => error,
        };
        let may_be_served = match error.kind() {
            ErrorKind::InUse | ErrorKind::Denied => true,
            ErrorKind::NotAStore => StoreDir::is_mounted_at(path),
            _ => false,
        };
        if !may_be_served || is_read_only {
            return Err(error.into());
        }
        match ServedStore::find(path) {
            Ok(store) => Ok(Self::Served(store)),
            // No daemon listens.
            Err(missing) if [NotFound, ConnectionRefused].contains(&missing.kind()) => Err(error.into()),
            Err(_) if error.kind() == ErrorKind::Denied => Err(error.into()),
            Err(failed) => {
                let errno = failed.raw_os_error().unwrap_or(libc::EACCES);
                Err(Failure::new(errno, format!("cannot use the daemon of {}: {failed}", path.display())))
            }
        }
    }

    /// For what the daemon of a store does not do for programs.
    ///
    /// # Errors
    /// ENOTSUP.
    pub(crate) fn own(&self) -> Result<&OwnVolume> {
        match self {
            Self::Embedded(own) => Ok(own),
            Self::Served(_) => {
                refuse(libc::ENOTSUP, "a daemon has the store open, and does not do this for programs")
            }
        }
    }

    fn sync(&self) -> Result<()> {
        match self {
            Self::Embedded(own) => own.volume.sync()?,
            Self::Served(store) => store.process()?.sync()?,
        }
        Ok(())
    }

    fn close(self) -> Result<()> {
        match self {
            Self::Embedded(own) => own.close(),
            Self::Served(_) => Ok(()),
        }
    }
}

impl OwnVolume {
    fn open(path: &Path, options: &Options, is_read_only: bool) -> kvfs_open::Result<Self> {
        let dir = StoreDir::open(path)?;
        dir.check_owner(None)?;
        let memory = Memory::new(options.memory)?;
        let open = OpenOptions { memory, read_only: is_read_only, ..options.open };
        let opened = OpenedStore::open(&dir, &open)?;
        match Volume::over(Arc::clone(&opened.fs)) {
            Ok(volume) => Ok(Self { volume, opened, is_read_only }),
            Err(error) => {
                opened.close()?;
                Err(kvfs_open::Error::io("start a thread for", path, &error))
            }
        }
    }

    fn close(self) -> Result<()> {
        let Self { volume, opened, is_read_only } = self;
        let unmounted = if is_read_only { Ok(()) } else { volume.unmount() };
        drop(volume);
        let closed = opened.close();
        unmounted?;
        Ok(closed?)
    }
}

fn as_path(text: &Text) -> Result<&Path> {
    match text.bytes()? {
        [] => refuse(libc::ENOENT, "an empty path"),
        path => Ok(Path::new(OsStr::from_bytes(path))),
    }
}

fn make(path: &Path, options: &Options) -> Result<()> {
    let new = NewStore { inline: options.inline, ..NewStore::of_size(options.capacity) };
    make_store(path, new, |dir| own_device(dir, options.capacity))?;
    Ok(())
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Options as they are by default. Free them with `kvfs_options_free`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_options_new() -> Option<Box<Options>> {
    call(|| Ok(Some(Box::default())))
}

/// Frees options; a store that was opened with them does not need them. NULL: nothing happens.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_options_free(options: Option<Box<Options>>) {
    end(options);
}

/// How much memory the store may take: at least 64 MiB; 0, the default: a quarter of the machine's, at most 2
/// GiB.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_options_set_memory(options: Option<&mut Options>, bytes: u64) -> c_int {
    set(options, |options| options.memory = (bytes > 0).then_some(bytes))
}

/// How large a new store may become: at least 128 MiB; 0, the default: what the file system around it can
/// give. Its file grows as it is needed.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_options_set_capacity(options: Option<&mut Options>, bytes: u64) -> c_int {
    set(options, |options| options.capacity = (bytes > 0).then_some(bytes))
}

/// Files of a new store up to this size lie beside their names. Default: 4096.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_options_set_inline(options: Option<&mut Options>, bytes: u64) -> c_int {
    set(options, |options| options.inline = bytes)
}

/// How long a change may wait until it is durable where nothing syncs it. 0: as it is by default.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_options_set_commit_interval(
    options: Option<&mut Options>,
    milliseconds: u64,
) -> c_int {
    set(options, |options| {
        options.open.commit_interval = (milliseconds > 0).then(|| Duration::from_millis(milliseconds));
    })
}

/// When access times change: `KVFS_ATIME_RELATIVE` (default), `KVFS_ATIME_NEVER`, `KVFS_ATIME_ALWAYS`.
/// EINVAL: none of them.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_options_set_atime(options: Option<&mut Options>, policy: c_int) -> c_int {
    call(|| {
        options.ok_or_else(missing)?.open.atime = match policy {
            KVFS_ATIME_RELATIVE => AtimePolicy::Relatime,
            KVFS_ATIME_NEVER => AtimePolicy::Noatime,
            KVFS_ATIME_ALWAYS => AtimePolicy::Strict,
            _ => return refuse(libc::EINVAL, "no policy of access times"),
        };
        Ok(0)
    })
}

fn set(options: Option<&mut Options>, change: impl FnOnce(&mut Options)) -> c_int {
    call(|| {
        change(options.ok_or_else(missing)?);
        Ok(0)
    })
}

/// Makes a store in the directory `path`, which is made, too, when it is missing; `options` may be NULL.
///
/// EBUSY: the directory is not empty, or on a mounted store. ENOSPC: a store needs more. EACCES: other users
/// may write to the directory. EINVAL: options that no store can have. What fails leaves nothing behind.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_store_format(path: Text, options: Option<&Options>) -> c_int {
    call(|| {
        make(as_path(&path)?, options.unwrap_or(&Options::default()))?;
        Ok(0)
    })
}

/// Opens the store in the directory `path`: a store that `kvfs mkfs` or `kvfs_store_format` has made.
/// `flags`: 0, or of `KVFS_RDONLY`, `KVFS_CREATE`, `KVFS_EXCL`. `options` may be NULL. Close it with
/// `kvfs_store_close`.
///
/// If a daemon has the store open, mounted or not, that daemon does what this program calls, as the user that
/// the program runs as (`kvfs_store_is_served`). `path` may also be the directory where it is mounted, empty
/// or not: with `KVFS_CREATE`, too, none is made there. `options` are then the daemon's, and there are files,
/// keys and transactions: calls for snapshots fail with ENOTSUP. All fail with ENOTCONN when the daemon is
/// gone.
///
/// EBUSY: another program has it open, or a daemon, and it is to be read only (`KVFS_RDONLY`). ENOENT:
/// nothing is there. EINVAL: something else is there. EACCES: it is another user's, or other users may write
/// to its directory. EIO: it is damaged.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_store_open(path: Text, flags: c_int, options: Option<&Options>) -> Option<Box<Store>> {
    call(|| {
        if flags & !(KVFS_RDONLY | KVFS_CREATE | KVFS_EXCL) != 0 {
            return refuse(libc::EINVAL, "flags that mean nothing");
        }
        let (path, by_default) = (as_path(&path)?, Options::default());
        let (options, is_read_only) = (options.unwrap_or(&by_default), flags & KVFS_RDONLY != 0);
        if flags & KVFS_CREATE != 0 {
            if is_read_only {
                return refuse(libc::EINVAL, "a store is not made to be read only");
            }
            let is_there = StoreDir::is_occupied(path) || StoreDir::is_mounted_at(path);
            if is_there && flags & KVFS_EXCL != 0 {
                return refuse(libc::EEXIST, "something is there already");
            }
            if !is_there {
                make(path, options)?;
            }
        }
        let inner = Arc::new(OpenVolume::open(path, options, is_read_only)?);
        Ok(Some(Box::new(Store { inner })))
    })
}

/// Returns 1 if a daemon has the store open and does the calls of this program, 0 if this process has it open
/// itself.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_store_is_served(store: Option<&Store>) -> c_int {
    call(|| Ok(matches!(*store.ok_or_else(missing)?.inner, OpenVolume::Served(_)).into()))
}

/// Writes everything out and closes the store.
///
/// EBUSY: processes, transactions, directory streams or cursors of it are left; the store stays open. With
/// any other error it is closed, and what was not durable may be lost.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_store_close(store: Option<Box<Store>>) -> c_int {
    call(|| {
        let store = store.ok_or_else(missing)?;
        if Arc::strong_count(&store.inner) > 1 {
            // The caller keeps it.
            let _ = Box::into_raw(store);
            return refuse(
                libc::EBUSY,
                "processes, transactions, directory streams or cursors of the store are left",
            );
        }
        // No other thread may use a store that is being closed.
        let inner = Arc::into_inner(store.inner).ok_or_else(missing)?;
        inner.close()?;
        Ok(0)
    })
}

/// Everything done so far in the store survives a power cut when this returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_store_sync(store: Option<&Store>) -> c_int {
    call(|| {
        store.ok_or_else(missing)?.inner.sync()?;
        Ok(0)
    })
}
