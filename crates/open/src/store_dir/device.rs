//! The devices of a store: `device`, which has superblocks, journal and manifest, and `device.1` and so on,
//! which hold more.
//!
//! Each may be a symbolic link, since it may be a block device. In a directory of another user that link is
//! this user's: what it leads to must be this user's, too, and is opened only after that has been looked at.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use kvfs_device::{FileDevice, OpenError};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::StoreDir;

/// The name of the first one in the directory.
pub(super) const FIRST: &str = "device";

/// What those of the others begin with; a number follows.
const OTHER: &str = "device.";

/// The place of a device in the directory of a store. There may be nothing yet.
#[derive(Debug, Clone)]
pub struct DevicePlace {
    store: StoreDir,
    name: Cow<'static, str>,
}

impl StoreDir {
    /// The place of the first one.
    pub fn device(&self) -> DevicePlace {
        DevicePlace { store: self.clone(), name: FIRST.into() }
    }

    /// The places of the others, in the order of their numbers. Each names something, which may have gone, or
    /// may be no device of the store any more.
    ///
    /// # Errors
    /// I/O errors.
    pub fn other_devices(&self) -> io::Result<Vec<DevicePlace>> {
        let mut numbers = Vec::new();
        let entries = rustix::fs::openat(&self.dir, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for entry in rustix::fs::Dir::new(entries)? {
            let entry = entry?;
            let number = entry.file_name().to_str().ok().and_then(|name| name.strip_prefix(OTHER));
            numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers.into_iter().map(|number| self.other_device(number)).collect())
    }

    /// A place for one more.
    ///
    /// # Errors
    /// I/O errors.
    pub fn place_for_device(&self) -> io::Result<DevicePlace> {
        let taken = self.other_devices()?;
        let mut places = (1..).map(|number| self.other_device(number));
        let is_free = |place: &DevicePlace| taken.iter().all(|other| other.name != place.name);
        places.find(is_free).ok_or_else(|| io::ErrorKind::QuotaExceeded.into())
    }

    fn other_device(&self, number: u32) -> DevicePlace {
        DevicePlace { store: self.clone(), name: format!("{OTHER}{number}").into() }
    }
}

impl DevicePlace {
    /// Opens and locks what is there.
    ///
    /// # Errors
    /// As [`FileDevice::open`]; it is not what the directory's owner may have there.
    pub fn open(&self, read_only: bool) -> Result<FileDevice, OpenError> {
        FileDevice::open_by(&reach(&self.handle()?), &self.path(), read_only)
    }

    /// What is there as a file to read, without its lock.
    ///
    /// # Errors
    /// As [`DevicePlace::open`].
    pub fn peek(&self) -> Result<File, OpenError> {
        let handle = self.handle()?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::open(reach(&handle), flags, Mode::empty());
        opened.map(File::from).map_err(|errno| OpenError::Io { path: self.path(), source: errno.into() })
    }

    /// Makes an empty device here.
    ///
    /// # Errors
    /// As [`FileDevice::create`].
    pub fn create(&self) -> Result<FileDevice, OpenError> {
        let path = self.path();
        let device = FileDevice::create_by(&self.store.by_descriptor(&self.name), &path, 0)?;
        self.give().map_err(|source| OpenError::Io { path, source })?;
        Ok(device)
    }

    /// Names a file or block device elsewhere here, if the directory's owner may have it here: by `path`,
    /// whose links are not resolved, since a disk may have other names after a restart than one that leads
    /// there for good. `opened` is what was opened there. Durable when this returns.
    ///
    /// # Errors
    /// Something is here; it is not what the directory's owner may have here; `path` leads elsewhere by now.
    pub fn link(&self, path: &Path, opened: &File) -> Result<(), OpenError> {
        let failed = |source| OpenError::Io { path: self.path(), source };
        let target = std::path::absolute(path).map_err(failed)?;
        // What only this process calls so.
        let is_passing = ["/proc", "/dev/fd", "/dev/stdin"].iter().any(|passing| target.starts_with(passing));
        let target = if is_passing { path.canonicalize().map_err(failed)? } else { target };
        let linked = rustix::fs::symlinkat(target, &self.store.dir, &*self.name);
        linked.map_err(|errno| failed(errno.into()))?;
        let check = || {
            if identity(&self.handle()?).and_then(|found| Ok(found == identity(opened)?)).map_err(failed)? {
                return Ok(());
            }
            let message = format!("{} leads elsewhere than a moment ago; try again", path.display());
            Err(failed(io::Error::other(message)))
        };
        let checked = self.give().map_err(failed).and_then(|()| check());
        let linked = checked.and_then(|()| self.store.sync().map_err(failed));
        if linked.is_err() {
            // The first error is the one to tell.
            let _ = self.remove();
        }
        linked
    }

    /// Removes what is here: the device, or the link to it. Durable when this returns.
    ///
    /// # Errors
    /// I/O errors.
    pub fn remove(&self) -> io::Result<()> {
        rustix::fs::unlinkat(&self.store.dir, &*self.name, AtFlags::empty())?;
        self.store.sync()
    }

    /// Where the device really is, without symbolic links; where this place is, if it leads nowhere.
    pub fn target(&self) -> PathBuf {
        let target = self.handle().ok().and_then(|handle| std::fs::read_link(reach(&handle)).ok());
        target.or_else(|| self.link_target()).unwrap_or_else(|| self.path())
    }

    /// Whether the device lies elsewhere.
    pub(crate) fn is_link(&self) -> bool {
        self.link_target().is_some()
    }

    /// What the link names, whether that is there or not.
    fn link_target(&self) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let target = rustix::fs::readlinkat(&self.store.dir, &*self.name, Vec::new()).ok()?;
        Some(std::ffi::OsString::from_vec(target.into_bytes()).into())
    }

    /// What messages call it.
    fn path(&self) -> PathBuf {
        self.store.path.join(&*self.name)
    }

    /// Which file or block device is here; `None`: none that can be reached.
    ///
    /// # Errors
    /// It is not what the directory's owner may have here.
    pub(crate) fn look(&self) -> Result<Option<Identity>, OpenError> {
        let Ok(handle) = self.find() else { return Ok(None) };
        self.check_owner(&handle)?;
        Ok(identity(&handle).ok())
    }

    /// Leads to the device, if the directory's owner may have it here; nothing is opened yet.
    fn handle(&self) -> Result<OwnedFd, OpenError> {
        let handle = self.find()?;
        self.check_owner(&handle)?;
        Ok(handle)
    }

    fn find(&self) -> Result<OwnedFd, OpenError> {
        let path = || self.path();
        let failed = |errno: Errno| match errno {
            Errno::NOENT => OpenError::NotFound { path: path() },
            Errno::ACCESS | Errno::PERM => OpenError::Permission { path: path(), source: errno.into() },
            _ => OpenError::Io { path: path(), source: errno.into() },
        };
        let dir = &self.store.dir;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let named = rustix::fs::openat(dir, &*self.name, flags | OFlags::NOFOLLOW, Mode::empty());
        let named = named.map_err(failed)?;
        let found = rustix::fs::fstat(&named).map_err(failed)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            return rustix::fs::openat(dir, &*self.name, flags, Mode::empty()).map_err(failed);
        }
        Ok(named)
    }

    fn check_owner(&self, handle: &OwnedFd) -> Result<(), OpenError> {
        let owner = self.store.owner;
        let failed = |errno: Errno| OpenError::Io { path: self.path(), source: errno.into() };
        let uid = rustix::fs::fstat(handle).map_err(failed)?.st_uid;
        if owner.is_foreign() && uid != owner.uid {
            let message = format!(
                "it belongs to user {uid}, and the store to user {}, whose link may not lead other users there; \
                 `chown` it, or the directory",
                owner.uid
            );
            let source = io::Error::new(io::ErrorKind::PermissionDenied, message);
            return Err(OpenError::Permission { path: self.path(), source });
        }
        Ok(())
    }

    /// What this process has made in another user's directory is that user's.
    fn give(&self) -> io::Result<()> {
        let owner = self.store.owner;
        if !owner.is_foreign() {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chownat(&self.store.dir, &*self.name, Some(uid), Some(gid), flags)?)
    }
}

/// A file or block device for a store, locked, and the same as a file to look into; `target` is what messages
/// call it.
///
/// # Errors
/// As [`FileDevice::open`].
pub(crate) fn open_target(target: &Path) -> Result<(FileDevice, File), OpenError> {
    let failed = |errno: Errno| match errno {
        Errno::NOENT => OpenError::NotFound { path: target.to_owned() },
        _ => OpenError::Io { path: target.to_owned(), source: errno.into() },
    };
    let handle = rustix::fs::open(target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    let device = FileDevice::open_by(&reach(&handle), target, false)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(reach(&handle), flags, Mode::empty()).map_err(failed)?;
    Ok((device, file.into()))
}

/// Which file or block device something is: whether a block device, and its numbers.
pub(crate) type Identity = (bool, u64, u64);

/// Which it is, by whatever name it was opened.
fn identity(file: impl AsFd) -> io::Result<Identity> {
    let found = rustix::fs::fstat(file)?;
    let is_block_device = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice;
    Ok(if is_block_device { (true, found.st_rdev, 0) } else { (false, found.st_dev, found.st_ino) })
}

fn reach(handle: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(handle.as_raw_fd().to_string())
}
