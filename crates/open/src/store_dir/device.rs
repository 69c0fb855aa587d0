//! The device of a store.
//!
//! It may be a symbolic link, since it may be a block device. In a directory of another user that link is this user's:
//! what it leads to must be this user's, too, and is opened only after that has been looked at.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use kvfs_device::{FileDevice, OpenError};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::StoreDir;

/// Its name in the directory.
pub(super) const NAME: &str = "device";

impl StoreDir {
    /// Opens and locks the device.
    ///
    /// # Errors
    /// As [`FileDevice::open`]; it is not what the directory's owner may have there.
    pub fn open_device(&self, read_only: bool) -> Result<FileDevice, OpenError> {
        let (handle, name) = (self.device_handle()?, self.device_name());
        FileDevice::open_by(&reach(&handle), &name, read_only)
    }

    /// The device as a file to read, without its lock.
    ///
    /// # Errors
    /// As [`StoreDir::open_device`].
    pub fn peek_device(&self) -> Result<File, OpenError> {
        let handle = self.device_handle()?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::open(reach(&handle), flags, Mode::empty());
        opened
            .map(File::from)
            .map_err(|errno| OpenError::Io { path: self.device_name(), source: errno.into() })
    }

    /// Makes an empty device.
    ///
    /// # Errors
    /// As [`FileDevice::create`].
    pub fn create_device(&self) -> Result<FileDevice, OpenError> {
        let name = self.device_name();
        let device = FileDevice::create_by(&self.by_descriptor(NAME), &name, 0)?;
        self.give(NAME).map_err(|source| OpenError::Io { path: name, source })?;
        Ok(device)
    }

    /// Names a file or block device elsewhere as the device, if the directory's owner may have it there.
    ///
    /// # Errors
    /// There is one; it is not what the directory's owner may have there.
    pub fn link_device(&self, target: &Path) -> Result<(), OpenError> {
        let failed = |source| OpenError::Io { path: self.device_name(), source };
        let linked = rustix::fs::symlinkat(target, &self.dir, NAME);
        linked.map_err(|errno| failed(errno.into()))?;
        self.give(NAME).map_err(failed)?;
        self.device_handle().map(drop)
    }

    /// Removes the device, or the link to it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn remove_device(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, NAME, AtFlags::empty())?)
    }

    /// Where the device really is, without symbolic links.
    pub fn device_place(&self) -> PathBuf {
        let place = self.device_handle().ok().and_then(|handle| std::fs::read_link(reach(&handle)).ok());
        place.unwrap_or_else(|| self.device_name())
    }

    /// What messages call it.
    fn device_name(&self) -> PathBuf {
        self.path.join(NAME)
    }

    /// Leads to the device; nothing is opened yet.
    fn device_handle(&self) -> Result<OwnedFd, OpenError> {
        let path = || self.device_name();
        let failed = |errno: Errno| match errno {
            Errno::NOENT => OpenError::NotFound { path: path() },
            Errno::ACCESS | Errno::PERM => OpenError::Permission { path: path(), source: errno.into() },
            _ => OpenError::Io { path: path(), source: errno.into() },
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let named =
            rustix::fs::openat(&self.dir, NAME, flags | OFlags::NOFOLLOW, Mode::empty()).map_err(failed)?;
        let found = rustix::fs::fstat(&named).map_err(failed)?;
        let handle = if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            rustix::fs::openat(&self.dir, NAME, flags, Mode::empty()).map_err(failed)?
        } else {
            named
        };
        let uid = rustix::fs::fstat(&handle).map_err(failed)?.st_uid;
        if self.owner.is_foreign() && uid != self.owner.uid {
            let message = format!(
                "it belongs to user {uid}, and the store to user {}, whose link may not lead other users there; \
                 `chown` it, or the directory",
                self.owner.uid
            );
            let source = io::Error::new(io::ErrorKind::PermissionDenied, message);
            return Err(OpenError::Permission { path: path(), source });
        }
        Ok(handle)
    }

    /// What this process has made in another user's directory is that user's.
    fn give(&self, name: &str) -> io::Result<()> {
        if !self.owner.is_foreign() {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(self.owner.uid), Gid::from_raw(self.owner.gid));
        Ok(rustix::fs::chownat(&self.dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// A file or block device for a new store, locked, and the same as a file to look into; `target` is what messages
/// call it.
///
/// # Errors
/// As [`FileDevice::open`].
pub fn open_target(target: &Path) -> Result<(FileDevice, File), OpenError> {
    let failed = |errno: Errno| OpenError::Io { path: target.to_owned(), source: errno.into() };
    let handle = rustix::fs::open(target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    let device = FileDevice::open_by(&reach(&handle), target, false)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(reach(&handle), flags, Mode::empty()).map_err(failed)?;
    Ok((device, file.into()))
}

fn reach(handle: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(handle.as_raw_fd().to_string())
}
