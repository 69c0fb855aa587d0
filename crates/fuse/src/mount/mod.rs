//! Attaching a directory to a FUSE connection, and detaching it.
//!
//! Purpose: [`mount`] by system call for root, by `fusermount3` for other users; [`MountPoint`] detaches.
//! Thread safety: a `MountPoint` may be used from any thread, but never from a worker of the session that
//! serves it: an unmount writes dirty pages, which only workers can take.

mod connection;
mod detached;
mod error;
mod fusermount;
mod options;
mod place;
mod syscall;
mod table;

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use kvfs_locks::{Mutex, class};
use place::Place;
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::geteuid;

pub use connection::abort_of as abort_connection_of;
pub use error::MountError;
pub use options::{AtimeMode, MountOptions, is_of_kernel};
pub(crate) use table::names_above_mounts;
pub use table::{
    MOUNT_TABLE, Mount, PointState, on_top_of, open_place, set_read_ahead, state, table, table_in,
};

/// How a mount point is detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with [`MountError::Busy`] while files are open below.
    Clean,
    /// Disappears from the tree at once; the connection ends when the last user has gone.
    Lazy,
    /// Clean, and lazy if that fails.
    CleanOrLazy,
    /// Aborts the connection first: every request in progress fails. Also where it is detached already, or
    /// other mounts show it.
    Abort,
}

/// How it was attached, and so how it is detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Syscall,
    Fusermount,
}

/// How far a mount has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Attached,
    /// No more at its place; files that are open, and other mounts, may keep the connection.
    Detached,
    /// Without a connection: the number of its device may be that of another one.
    Ended,
}

/// An attached directory. Dropped, it is detached lazily.
#[derive(Debug)]
pub struct MountPoint {
    place: Place,
    method: Method,
    /// The number of its file system; `None`: the mount table does not tell.
    device: Option<(u32, u32)>,
    stage: Mutex<Stage, class::FuseMountAttached>,
}

/// Mounts a new connection on the directory `point`. Returns the descriptor that the session works on. The
/// mount answers once [`crate::Session::start`] has returned.
///
/// # Errors
/// No such directory, missing rights, no FUSE on this machine; each with what to do.
pub fn mount(point: &Path, options: &MountOptions) -> Result<(MountPoint, OwnedFd), MountError> {
    if state(point) == PointState::Stale {
        return Err(MountError::Stale { point: point.to_owned() });
    }
    let path =
        point.canonicalize().map_err(|source| MountError::Point { point: point.to_owned(), source })?;
    if !path.is_dir() {
        return Err(MountError::NotDirectory { point: path });
    }
    mount_at(Place::of(path)?, options)
}

/// As [`mount`], on the directory `name` in the directory of `parent`, at the path `point` as far as messages
/// and the mount table are concerned. No symbolic link is followed on the way, now or when it is unmounted;
/// but `fusermount3`, with no rights but its caller's, goes by the path.
///
/// # Errors
/// As [`mount`].
pub fn mount_beneath(
    parent: impl AsFd,
    name: &OsStr,
    point: PathBuf,
    options: &MountOptions,
) -> Result<(MountPoint, OwnedFd), MountError> {
    mount_at(Place::beneath(parent, name, point)?, options)
}

/// A detached copy of the mount on the directory `name` in the directory of `parent`, for another process to
/// attach. What is mounted on one of them is not seen on the other. Messages call it `point`.
///
/// # Errors
/// Nothing is mounted there, or rights are missing.
pub fn copy_beneath(parent: impl AsFd, name: &OsStr, point: PathBuf) -> Result<OwnedFd, MountError> {
    let place = Place::beneath(parent, name, point)?;
    let root = place.directory(None)?;
    let failed = |errno| MountError::Mount { point: place.path().to_owned(), errno };
    // Refused for what is not the root of a mount.
    rustix::mount::mount_change(place::by_descriptor(&root), MountPropagationFlags::PRIVATE)
        .map_err(failed)?;
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(&root, "", flags).map_err(failed)
}

fn mount_at(place: Place, options: &MountOptions) -> Result<(MountPoint, OwnedFd), MountError> {
    let (method, fd) = if geteuid().is_root() {
        let directory = place.directory(options.point_owner)?;
        (Method::Syscall, syscall::mount(&place::by_descriptor(&directory), place.path(), options)?)
    } else {
        (Method::Fusermount, fusermount::mount(place.path(), options)?)
    };
    let device = on_top_of(place.path()).ok().flatten().map(|mount| mount.device);
    Ok((MountPoint { place, method, device, stage: Mutex::new(Stage::Attached) }, fd))
}

/// Mounts a new connection on `directory`, which messages call `point`, by system call, where this process
/// may: as root, or in a user and a mount namespace of its own, where it ends with the namespace. Returns the
/// descriptor for the session that will serve it.
///
/// # Errors
/// Missing rights (also to `/dev/fuse`), no FUSE on this machine.
pub fn mount_in_namespace(
    directory: &OwnedFd,
    point: &Path,
    options: &MountOptions,
) -> Result<OwnedFd, MountError> {
    syscall::mount(&place::by_descriptor(directory), point, options)
}

/// Makes a mount that is attached nowhere, for another process to attach: as root. Returns the mount, and the
/// descriptor for the session. The process that attaches it has no say in ids and permissions.
///
/// # Errors
/// Missing rights, no FUSE on this machine.
pub fn mount_detached(options: &MountOptions) -> Result<(OwnedFd, OwnedFd), MountError> {
    detached::mount(options)
}

/// Detaches whatever FUSE file system is mounted on `point`, for instance one that lost its daemon.
///
/// # Errors
/// Nothing is mounted there, it is in use, or rights are missing.
pub fn unmount(point: &Path, how: Unmount) -> Result<(), MountError> {
    if geteuid().is_root() {
        let place = Place::of(point.to_owned())?;
        return detach(&place.reach(), point, Method::Syscall, how);
    }
    detach(point, point, Method::Fusermount, how)
}

/// Changes what the kernel alone checks of the mount at `point`: `ro`, `rw`, `exec`, `suid`, `dev`, `sync`
/// and their opposites. Other options of the list are passed over, and stay as they are. Returns whether it
/// is read-only now.
///
/// # Errors
/// Nothing is mounted there, files are open for writing, rights are missing.
pub fn remount(point: &Path, list: &str) -> Result<bool, MountError> {
    let at = |source| MountError::Point { point: point.to_owned(), source };
    let not_mounted = || MountError::NotMounted { point: point.to_owned() };
    let mount = on_top_of(point).map_err(at)?.ok_or_else(not_mounted)?;
    let opened = mount.open().ok_or_else(not_mounted)?;
    let mut options = MountOptions::default();
    options.apply(&mount.all_options())?;
    let before = options.remount_flags();
    options.apply(list)?;
    if options.remount_flags() == before {
        return Ok(options.read_only);
    }
    match rustix::mount::mount_remount(place::by_descriptor(&opened), options.remount_flags(), "") {
        Ok(()) => Ok(options.read_only),
        Err(Errno::BUSY) => Err(MountError::Busy { point: point.to_owned() }),
        Err(Errno::PERM) => Err(MountError::NotPermitted { point: point.to_owned() }),
        Err(errno) => Err(MountError::Mount { point: point.to_owned(), errno }),
    }
}

impl MountPoint {
    /// Where it is.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Whether it is detached already, and the connection has not ended.
    pub fn is_detached(&self) -> bool {
        *self.stage.lock() == Stage::Detached
    }

    /// Detaches; [`Unmount::Abort`] also ends the connection. Does nothing if that is so already.
    ///
    /// # Errors
    /// It is in use, or rights are missing.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        let mut stage = self.stage.lock();
        let aborted = if how == Unmount::Abort && *stage != Stage::Ended { self.abort() } else { Ok(()) };
        if *stage != Stage::Attached {
            return aborted;
        }
        match detach(&self.place.reach(), self.place.path(), self.method, how) {
            Ok(()) | Err(MountError::NotMounted { .. }) => {
                *stage = Stage::Detached;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn abort(&self) -> Result<(), MountError> {
        let aborted = self.device.ok_or_else(|| Errno::NODEV.into()).and_then(connection::abort);
        aborted.map_err(|source| MountError::Abort { point: self.path().to_owned(), source })
    }

    /// Tells that the connection has ended, so that there is nothing left to detach.
    pub fn forget(&self) {
        *self.stage.lock() = Stage::Ended;
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(Unmount::Lazy) {
            tracing::warn!(%error, "mount point left behind");
        }
    }
}

/// Detaches what is mounted at `reach`; errors call it `point`.
fn detach(reach: &Path, point: &Path, method: Method, how: Unmount) -> Result<(), MountError> {
    match how {
        Unmount::CleanOrLazy => match detach(reach, point, method, Unmount::Clean) {
            Err(error @ MountError::Busy { .. }) => {
                tracing::warn!(%error, "unmounting lazily");
                detach(reach, point, method, Unmount::Lazy)
            }
            done => done,
        },
        Unmount::Clean | Unmount::Lazy | Unmount::Abort if method == Method::Fusermount => {
            fusermount::unmount(point, how != Unmount::Clean)
        }
        Unmount::Clean => unmount_by_syscall(reach, point, UnmountFlags::empty()),
        Unmount::Lazy => unmount_by_syscall(reach, point, UnmountFlags::DETACH),
        Unmount::Abort => {
            // FORCE aborts the connection even when it then reports that the mount is busy.
            match unmount_by_syscall(reach, point, UnmountFlags::FORCE) {
                Err(MountError::Busy { .. }) => unmount_by_syscall(reach, point, UnmountFlags::DETACH),
                done => done,
            }
        }
    }
}

fn unmount_by_syscall(reach: &Path, point: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let point_owned = || point.to_owned();
    loop {
        return match rustix::mount::unmount(reach, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::BUSY) => Err(MountError::Busy { point: point_owned() }),
            Err(Errno::INVAL | Errno::NOENT) => Err(MountError::NotMounted { point: point_owned() }),
            Err(Errno::PERM) => Err(MountError::NotPermitted { point: point_owned() }),
            Err(errno) => Err(MountError::Unmount { point: point_owned(), errno }),
        };
    }
}

#[cfg(test)]
mod tests;
