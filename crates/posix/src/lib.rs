//! The calls of POSIX on a kvfs file system, inside a process: no mount, no FUSE, no kernel in between.
//!
//! Purpose: [`kvfs_fs`] works by node; this crate is what a kernel is to it: paths with symbolic links,
//! permissions, descriptors, offsets and flags, working directories, advisory locks. A [`Volume`] is an open
//! file system, a [`Process`] one of its users with a table of descriptors; the methods of a process are
//! named as the calls are. Where POSIX has several calls for one thing, a [`Place`] says which is meant:
//! [`Process::stat`] of `"path"` is `stat`, of `Place::from("path").no_follow()` `lstat`, of `(fd, "path")`
//! `fstatat`, of a descriptor `fstat`.
//!
//! Thread safety: everything is `&self`; any number of threads and processes on one volume.
//!
//! Invariants: a call that fails left no trace; each error has the errno of Linux ([`PosixError::errno`]).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
//! use kvfs_kvdb::Db;
//! use kvfs_posix::{Identity, Volume};
//! use kvfs_store::{Store, clock::SystemClock};
//! use rustix::fs::OFlags;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("store");
//! let db = Db::builder().capacity_bytes(1 << 30).open(&path)?;
//! let (store, clock) = (Arc::clone(&db) as Arc<dyn Store>, Arc::new(SystemClock::new()));
//! FileSystem::mkfs(&store, &*clock, &MkfsOptions::default())?;
//! let volume = Volume::over(Arc::new(FileSystem::open(store, clock, MountOptions::default())?))?;
//!
//! let process = volume.process(&Identity::root());
//! process.mkdir("/notes", 0o755)?;
//! process.chdir("/notes")?;
//! let file = process.open("today", OFlags::CREATE | OFlags::RDWR, 0o644)?;
//! process.write(file, b"by path and descriptor\n")?;
//! process.fsync(file)?;
//! let mut buffer = [0; 64];
//! let len = process.pread(file, &mut buffer, 3)?;
//! assert_eq!(&buffer[..len], b"path and descriptor\n");
//! assert_eq!(process.stat("/notes/today")?.size, 23);
//! drop(process);
//!
//! volume.unmount()?;
//! drop(volume);
//! db.close()?;
//! # Ok(())
//! # }
//! ```

mod bounds;
mod descriptors;
mod error;
mod held;
mod identity;
mod keys;
pub mod linux;
mod locks;
mod open_file;
mod place;
mod process;
mod volume;
mod walk;

pub use bounds::Bounds;
pub use descriptors::DESCRIPTORS_MAX;
pub use error::{PosixError, Result};
pub use identity::Identity;
pub use keys::ProcessKeys;
pub use locks::RangeLock;
pub use open_file::{FileIdentity, SharedFile};
pub use place::{Fd, Place};
pub use process::{
    Access, Directory, DirectoryEntry, NewMode, Process, ProcessTrees, Truncation, Whence, close_all,
    close_hidden, end_range_locks, fork_for, interrupt, write_memory,
};
pub use volume::{Observer, SnapshotView, Transaction, View, Volume, WeakView};
pub use walk::{LINKS_MAX, PATH_LEN_MAX};
