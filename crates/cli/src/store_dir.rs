//! A store as people see it: a directory that holds or names the device, and the sockets.
//!
//! ```text
//! STORE/device         sparse file that grows, or a symbolic link to a file or block device
//! STORE/control.sock   while mounted: the daemon's socket for the `kvfs` command
//! STORE/kv.sock        while mounted: its socket for keys and transactions
//! STORE/files.sock     while served: its socket for programs without a mount
//! STORE/views/ID       while mounted: the view of an open transaction
//! STORE/receiving      what has arrived of a stream that `kvfs snapshot receive` takes
//! STORE/kvfs.log       what the daemon had to say in the background
//! ```
//!
//! Purpose: [`StoreDir`] is the only way to the files of a store. What the directory may be, and its device,
//! is the business of [`kvfs_open::StoreDir`]; here is what a daemon and the command have beside it.
//!
//! Thread safety: immutable, cheap to clone. Invariants: no symbolic link in the directory is followed but
//! that of the device; a file is used only if it is a regular one with one name, of the directory's owner or
//! of this process's user.

mod files;
mod sockets;
mod views;

use std::ops::Deref;
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::Result;

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct StoreDir(kvfs_open::StoreDir);

impl StoreDir {
    /// An existing store, by its directory, or by its URL in object storage.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if kvfs_open::is_url(path) {
            return Ok(Self(kvfs_open::StoreDir::open(&kvfs_open::directory_of_url(path)?)?));
        }
        Ok(Self(kvfs_open::StoreDir::open(path)?))
    }

    /// A directory for a new store: made when missing, refused when it holds anything.
    pub(crate) fn prepare(path: &Path) -> Result<Self> {
        Ok(Self(kvfs_open::StoreDir::prepare(path)?))
    }

    /// Whether there is something at `path` other than an empty directory.
    pub(crate) fn is_occupied(path: &Path) -> bool {
        kvfs_open::StoreDir::is_occupied(path)
    }
}

impl Deref for StoreDir {
    type Target = kvfs_open::StoreDir;

    fn deref(&self) -> &kvfs_open::StoreDir {
        &self.0
    }
}

fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
