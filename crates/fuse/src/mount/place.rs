//! Where something is mounted: a name in a directory that is held by descriptor.
//!
//! Purpose: a process with rights mounts and unmounts in directories of users without. A path that was
//! checked leads elsewhere as soon as one of its directories is replaced by a symbolic link; a descriptor
//! does not.
//!
//! Thread safety: immutable. Invariant: the descriptor is that of the directory around the mount point, so
//! that the mount itself is not kept busy.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::MountError;

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// See the module.
#[derive(Debug)]
pub(super) struct Place {
    parent: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl Place {
    /// The place of an absolute path without symbolic links.
    pub(super) fn of(path: PathBuf) -> Result<Self, MountError> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => (parent.to_owned(), name.to_owned()),
            _ => (path.clone(), OsString::from(".")),
        };
        let failed = |source: io::Error| MountError::Point { point: path.clone(), source };
        let opened = rustix::fs::open(&parent, DIRECTORY, Mode::empty());
        let opened = opened.map_err(|errno| failed(errno.into()))?;
        let found = std::fs::read_link(by_descriptor(&opened)).map_err(failed)?;
        if found != parent {
            let message = format!("{} was replaced by a symbolic link meanwhile", parent.display());
            return Err(failed(io::Error::other(message)));
        }
        Ok(Self { parent: opened, name, path })
    }

    /// The place `name` in `parent`, whose path is `path`.
    pub(super) fn beneath(parent: impl AsFd, name: &OsStr, path: PathBuf) -> Result<Self, MountError> {
        match parent.as_fd().try_clone_to_owned() {
            Ok(parent) => Ok(Self { parent, name: name.to_owned(), path }),
            Err(source) => Err(MountError::Point { point: path, source }),
        }
    }

    /// The directory to mount on; it must belong to `owner`, if there is one.
    pub(super) fn directory(&self, owner: Option<u32>) -> Result<OwnedFd, MountError> {
        let failed =
            |errno: rustix::io::Errno| MountError::Point { point: self.path.clone(), source: errno.into() };
        let directory =
            rustix::fs::openat(&self.parent, &self.name, DIRECTORY, Mode::empty()).map_err(failed)?;
        if let Some(owner) = owner {
            let found = rustix::fs::fstat(&directory).map_err(failed)?.st_uid;
            if found != owner {
                return Err(MountError::ForeignPoint { point: self.path.clone(), found, owner });
            }
        }
        Ok(directory)
    }

    /// What messages call it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A path that leads to what is mounted here, whatever has happened to the directories above.
    pub(super) fn reach(&self) -> PathBuf {
        by_descriptor(&self.parent).join(&self.name)
    }
}

/// The path of a descriptor of this process.
pub(super) fn by_descriptor(descriptor: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(descriptor.as_raw_fd().to_string())
}
