//! Attaching a directory to a FUSE connection, and detaching it.
//!
//! Purpose: [`mount`] by system call for root, by `fusermount3` for everybody else; [`MountPoint`] detaches.
//! Thread safety: a `MountPoint` may be used from any thread, but never from a worker of the session that
//! serves it: an unmount writes dirty pages, which only workers can take.

mod error;
mod fusermount;
mod options;
mod syscall;
mod table;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::geteuid;

pub use error::MountError;
pub use options::{AtimeMode, MountOptions};
pub use table::{MOUNT_TABLE, Mount, PointState, set_read_ahead, state, table};

/// How a mount point is detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with [`MountError::Busy`] while files are open below.
    Clean,
    /// Disappears from the tree at once; the connection ends when the last user has gone.
    Lazy,
    /// Clean, and lazy if that fails.
    CleanOrLazy,
    /// Aborts the connection first: every request in progress fails.
    Abort,
}

/// How it was attached, and so how it is detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Syscall,
    Fusermount,
}

/// An attached directory. Dropped, it is detached lazily.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    method: Method,
    attached: Mutex<bool>,
}

/// Mounts a new connection on the directory `point`. Returns the descriptor that the session works on. The
/// mount answers once [`crate::Session::start`] has returned.
///
/// # Errors
/// No such directory, missing rights, no FUSE on this machine; each with what to do.
pub fn mount(point: &Path, options: &MountOptions) -> Result<(MountPoint, OwnedFd), MountError> {
    let point = check_point(point)?;
    let (method, fd) = if geteuid().is_root() {
        (Method::Syscall, syscall::mount(&point, options)?)
    } else {
        (Method::Fusermount, fusermount::mount(&point, options)?)
    };
    Ok((MountPoint { path: point, method, attached: Mutex::new(true) }, fd))
}

/// Mounts a new connection on `point` by system call, where this process may: as root, or in a user and a mount
/// namespace of its own, where it ends with the namespace. Returns the descriptor for whoever will serve it.
///
/// # Errors
/// Missing rights (also to `/dev/fuse`), no FUSE on this machine.
pub fn mount_in_namespace(point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    syscall::mount(point, options)
}

/// The mount point as an absolute path, after a look at what is there.
fn check_point(point: &Path) -> Result<PathBuf, MountError> {
    if state(point) == PointState::Stale {
        return Err(MountError::Stale { point: point.to_owned() });
    }
    let at = |source| MountError::Point { point: point.to_owned(), source };
    let path = point.canonicalize().map_err(at)?;
    if !path.metadata().map_err(at)?.is_dir() {
        return Err(MountError::NotDirectory { point: path });
    }
    Ok(path)
}

/// Detaches whatever FUSE file system is mounted on `point`, for instance one that lost its daemon.
///
/// # Errors
/// Nothing is mounted there, it is in use, or rights are missing.
pub fn unmount(point: &Path, how: Unmount) -> Result<(), MountError> {
    let method = if geteuid().is_root() { Method::Syscall } else { Method::Fusermount };
    detach(point, method, how)
}

impl MountPoint {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Detaches. Nothing to do when somebody else already has.
    ///
    /// # Errors
    /// It is in use, or rights are missing.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        let mut attached = self.attached.lock();
        if !*attached {
            return Ok(());
        }
        match detach(&self.path, self.method, how) {
            Ok(()) | Err(MountError::NotMounted { .. }) => {
                *attached = false;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Tells that the connection has ended, so that there is nothing left to detach.
    pub fn forget(&self) {
        *self.attached.lock() = false;
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(Unmount::Lazy) {
            tracing::warn!(%error, "mount point left behind");
        }
    }
}

fn detach(point: &Path, method: Method, how: Unmount) -> Result<(), MountError> {
    match how {
        Unmount::CleanOrLazy => match detach(point, method, Unmount::Clean) {
            Err(error @ MountError::Busy { .. }) => {
                tracing::warn!(%error, "unmounting lazily");
                detach(point, method, Unmount::Lazy)
            }
            done => done,
        },
        Unmount::Clean | Unmount::Lazy | Unmount::Abort if method == Method::Fusermount => {
            fusermount::unmount(point, how != Unmount::Clean)
        }
        Unmount::Clean => unmount_by_syscall(point, UnmountFlags::empty()),
        Unmount::Lazy => unmount_by_syscall(point, UnmountFlags::DETACH),
        Unmount::Abort => {
            // FORCE aborts the connection even when it then reports that the mount is busy.
            match unmount_by_syscall(point, UnmountFlags::FORCE) {
                Err(MountError::Busy { .. }) => unmount_by_syscall(point, UnmountFlags::DETACH),
                done => done,
            }
        }
    }
}

fn unmount_by_syscall(point: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let point_owned = || point.to_owned();
    loop {
        return match rustix::mount::unmount(point, flags | UnmountFlags::NOFOLLOW) {
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
