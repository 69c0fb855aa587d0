//! Stores on databases: a directory with the engine's name beside the mark.
//!
//! Thread safety: functions. Invariants: the database is reached by a descriptor of its directory; a store in
//! another user's directory is refused, since what this user puts there would lead a library that opens files
//! by their path anywhere.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvfs_engine_common::{Database, DatabaseOptions, DatabaseStore};
use kvfs_engine_transactions::Transacted;
use kvfs_fs::MkfsOptions;
use kvfs_kvdb::CreateOptions;
use kvfs_service::ErrorKind;
use kvfs_store::{EngineStore, Store};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::make_files;
use crate::error::{Error, Result, explain_open};
use crate::memory::MEMORY_BYTES_MIN;
use crate::open::OpenOptions;
use crate::store_dir::StoreDir;

/// As kvdb has it.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn open<D: Database>(dir: &StoreDir, options: &OpenOptions) -> Result<Arc<dyn EngineStore>> {
    check_own(dir, D::NAME)?;
    let memory = options.memory;
    let (path, anchor) = reach(dir, D::NAME)?;
    let memory_bytes = memory.engine_bytes(memory.reserve_bytes());
    let database = DatabaseOptions {
        memory_bytes,
        read_only: options.read_only,
        commit_interval: options.commit_interval.unwrap_or(COMMIT_INTERVAL),
        io_limit: options.io_limit,
        anchor: Some(anchor),
    };
    let store = DatabaseStore::<D>::open(&path, database).map_err(|error| explain_open(dir, error))?;
    Ok(Arc::new(Transacted::new(store, memory_bytes)))
}

/// Makes the database, and an empty file system in it (`None`: nothing).
pub(super) fn make<D: Database>(dir: &StoreDir, files: Option<&MkfsOptions>) -> Result<()> {
    check_own(dir, D::NAME)?;
    let failed = |errno: Errno| Error::io("make a store in", dir.path(), &errno.into());
    rustix::fs::mkdirat(dir.directory(), D::NAME, Mode::from_raw_mode(0o700)).map_err(failed)?;
    let uuid = CreateOptions::with_new_uuid(0)?.uuid;
    let (path, anchor) = reach(dir, D::NAME)?;
    DatabaseStore::<D>::create(&path, &DatabaseOptions::with_memory(MEMORY_BYTES_MIN), uuid)?;
    let Some(files) = files else { return Ok(()) };
    let database = DatabaseOptions { anchor: Some(anchor), ..DatabaseOptions::with_memory(MEMORY_BYTES_MIN) };
    let store = Arc::new(DatabaseStore::<D>::open(&path, database)?);
    make_files(&(Arc::clone(&store) as Arc<dyn Store>), dir, files)?;
    Ok(store.close()?)
}

/// Removes the database, if there is one.
pub(super) fn remove(dir: &StoreDir, name: &str) -> io::Result<()> {
    let (path, anchor) = match open_directory(dir, name) {
        Err(Errno::NOENT) => return Ok(()),
        opened => {
            let opened = opened?;
            (path_of(&opened), opened)
        }
    };
    for entry in std::fs::read_dir(&path)? {
        std::fs::remove_file(entry?.path())?;
    }
    drop(anchor);
    Ok(rustix::fs::unlinkat(dir.directory(), name, AtFlags::REMOVEDIR)?)
}

fn check_own(dir: &StoreDir, name: &str) -> Result<()> {
    if !dir.is_foreign() {
        return Ok(());
    }
    let path = dir.path().display();
    let message = format!(
        "{path} belongs to user {}, and its engine, {name}, opens files by their path: only that user can use it; a store of \
         engine kvdb can be used by root, too",
        dir.uid()
    );
    Err(Error::new(ErrorKind::Denied, message))
}

/// A path to the database that leads through a descriptor, which must stay open.
fn reach(dir: &StoreDir, name: &str) -> Result<(PathBuf, OwnedFd)> {
    let failed = |errno: Errno| Error::io("open the database in", dir.path(), &errno.into());
    let opened = open_directory(dir, name).map_err(failed)?;
    Ok((path_of(&opened), opened))
}

fn open_directory(dir: &StoreDir, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir.directory(), name, flags, Mode::empty())
}

fn path_of(directory: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string())
}
