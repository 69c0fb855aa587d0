//! Opening and locking a file or block device.
//!
//! Thread safety: free functions. Invariant: what they return is locked.

use crate::SECTOR_BYTES;
use rustix::fs::{self, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Why a file or block device could not be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It is open in this or another process, or a file system on it is mounted.
    #[error("{} is in use: another process has it open or mounted; unmount or stop that first", path.display())]
    InUse {
        /// What was to be opened.
        path: PathBuf,
    },
    /// There is nothing at the path.
    #[error("{} does not exist", path.display())]
    NotFound {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The rights of the process do not suffice.
    #[error("no permission to open {}: {source}; check its owner and mode", path.display())]
    Permission {
        /// What was to be opened.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The medium can't be written to.
    #[error("{} can only be read: it lies on a read-only file system, or is a read-only device; mount it with -o ro", path.display())]
    ReadOnly {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The path names a directory, socket, pipe or character device.
    #[error("{} is neither a regular file nor a block device", path.display())]
    NotAFileOrBlockDevice {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Something is at the path where a file was to be made.
    #[error("{} exists already; remove it or choose another place", path.display())]
    Exists {
        /// What was to be made.
        path: PathBuf,
    },
    /// The file system has no room for the new file.
    #[error("no space for {} of {len_bytes} bytes: {source}", path.display())]
    NoSpace {
        /// What was to be made.
        path: PathBuf,
        /// How long it was to be (bytes).
        len_bytes: u64,
        /// What the operating system said.
        source: io::Error,
    },
    /// Any other error of the operating system.
    #[error("cannot open {}: {source}", path.display())]
    Io {
        /// What was to be opened.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl OpenError {
    fn of_errno(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::BUSY | Errno::WOULDBLOCK | Errno::TXTBSY => Self::InUse { path },
            Errno::NOENT => Self::NotFound { path },
            Errno::ROFS => Self::ReadOnly { path },
            Errno::ACCESS | Errno::PERM => Self::Permission { path, source: errno.into() },
            Errno::ISDIR | Errno::NXIO => Self::NotAFileOrBlockDevice { path },
            Errno::EXIST => Self::Exists { path },
            _ => Self::Io { path, source: errno.into() },
        }
    }

    /// The error of allocating a new file.
    pub(super) fn of_creation(path: &Path, len_bytes: u64, source: io::Error) -> Self {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::StorageFull {
            Self::NoSpace { path, len_bytes, source }
        } else {
            Self::Io { path, source }
        }
    }
}

/// What the device is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Reading, beside other readers.
    ReadOnly,
    /// Reading and writing, alone.
    ReadWrite,
}

/// An open, locked file or block device.
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) len_bytes: u64,
    pub(super) is_block_device: bool,
}

/// Opens what is at `reach` and locks it; errors call it `name`.
pub(super) fn open(reach: &Path, name: &Path, access: Access) -> Result<Opened, OpenError> {
    let of_errno = |errno| OpenError::of_errno(name, errno);
    let found = fs::stat(reach).map_err(of_errno)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    if access == Access::ReadWrite && kind == FileType::BlockDevice && is_read_only(found.st_rdev) {
        return Err(OpenError::ReadOnly { path: name.to_owned() });
    }
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    flags |= if access == Access::ReadOnly { OFlags::RDONLY } else { OFlags::RDWR };
    match kind {
        // O_EXCL on a block device claims it, and fails while a file system on it is mounted.
        FileType::BlockDevice if access == Access::ReadWrite => flags |= OFlags::EXCL,
        FileType::RegularFile | FileType::BlockDevice => {}
        // Not even opened: opening a tape rewinds it.
        _ => return Err(OpenError::NotAFileOrBlockDevice { path: name.to_owned() }),
    }
    let file = retry(|| fs::open(reach, flags, Mode::empty())).map_err(of_errno)?;
    lock(&file, access).map_err(of_errno)?;
    describe(name, file)
}

/// Whether the kernel refuses writes to a block device: some open all the same.
fn is_read_only(device: u64) -> bool {
    let (major, minor) = (fs::major(device), fs::minor(device));
    std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro")).is_ok_and(|text| text.starts_with(b"1"))
}

/// Makes a new, empty file at `reach` and locks it; errors call it `name`.
pub(super) fn create(reach: &Path, name: &Path) -> Result<Opened, OpenError> {
    let of_errno = |errno| OpenError::of_errno(name, errno);
    let flags = OFlags::CLOEXEC | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = retry(|| fs::open(reach, flags, Mode::RUSR | Mode::WUSR)).map_err(of_errno)?;
    lock(&file, Access::ReadWrite).map_err(of_errno)?;
    describe(name, file)
}

/// Makes the name of a new file survive a power cut.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = retry(|| fs::open(parent, OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty()))?;
    Ok(retry(|| fs::fsync(&directory))?)
}

fn lock(file: &OwnedFd, access: Access) -> Result<(), Errno> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    retry(|| fs::flock(file, operation))
}

/// Asks the open file for its kind and length: the name may lead elsewhere by now.
fn describe(path: &Path, file: OwnedFd) -> Result<Opened, OpenError> {
    let of_errno = |errno| OpenError::of_errno(path, errno);
    let found = fs::fstat(&file).map_err(of_errno)?;
    let (len_bytes, is_block_device) = match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => (found.st_size as u64, false),
        FileType::BlockDevice => (fs::seek(&file, SeekFrom::End(0)).map_err(of_errno)?, true),
        _ => return Err(OpenError::NotAFileOrBlockDevice { path: path.to_owned() }),
    };
    let sector = SECTOR_BYTES as u64;
    Ok(Opened { file, len_bytes: len_bytes / sector * sector, is_block_device })
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
