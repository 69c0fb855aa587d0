//! A file system to work on.

use std::sync::Arc;

use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_posix::{Identity, PosixError, Process, Volume};
use kvfs_store::Store;
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::model::ModelStore;
use rustix::io::Errno;

/// An empty one, on a store in memory.
pub(crate) fn volume() -> Volume {
    over(Arc::new(ModelStore::new()))
}

/// An empty one on this store.
pub(crate) fn over(store: Arc<dyn Store>) -> Volume {
    with(store, MountOptions::default())
}

/// As [`over`], with these options.
pub(crate) fn with(store: Arc<dyn Store>, options: MountOptions) -> Volume {
    at(store, options, Arc::new(SystemClock::new()))
}

/// As [`with`], by this clock.
pub(crate) fn at(store: Arc<dyn Store>, options: MountOptions, clock: Arc<dyn Clock>) -> Volume {
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes a file system");
    let fs = FileSystem::open(store, clock, options).expect("opens");
    Volume::over(Arc::new(fs)).expect("starts a thread")
}

/// Root on an empty one.
pub(crate) fn root() -> Process {
    volume().process(&Identity::root())
}

/// A user in groups of his own number and of `groups`.
pub(crate) fn user(volume: &Volume, uid: u32, groups: &[u32]) -> Process {
    volume.process(&Identity { uid, gid: uid, groups: groups.to_vec() })
}

/// What it was refused with.
pub(crate) fn errno<T>(outcome: Result<T, PosixError>) -> Option<Errno> {
    outcome.err().map(|error| error.errno())
}
