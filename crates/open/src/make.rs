//! Making stores.
//!
//! Thread safety: functions. Invariant: what fails leaves nothing behind.

use std::path::Path;
use std::sync::Arc;

use kvfs_device::Device;
use kvfs_fs::{FileSystem, MkfsOptions};
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_service::{ErrorKind, units::human_bytes};
use kvfs_store::Store;
use kvfs_store::clock::{Clock, SystemClock};

use crate::error::{Error, Result, explain_device, explain_fs};
use crate::memory::MEMORY_BYTES_MIN;
use crate::store_dir::StoreDir;

/// The smallest store that is of any use (bytes).
pub const CAPACITY_BYTES_MIN: u64 = 128 << 20;

/// Files up to this size live inside their row, unless told otherwise (bytes).
pub const INLINE_DEFAULT: u64 = 4096;

/// Makes a store of `size` bytes at most on what `find_device` gives, with its size. Returns its capacity (bytes).
///
/// # Errors
/// The directory is no place for one; no space; what `find_device` says.
pub fn make_store(
    path: &Path,
    size: Option<u64>,
    inline: u64,
    find_device: impl FnOnce(&StoreDir) -> Result<(Arc<dyn Device>, u64)>,
) -> Result<u64> {
    if inline > u64::from(kvfs_fs::INLINE_LEN_LIMIT) {
        let limit = human_bytes(u64::from(kvfs_fs::INLINE_LEN_LIMIT));
        return Err(Error::new(
            ErrorKind::Usage,
            format!("the length of files beside their names (--inline) must be at most {limit}"),
        ));
    }
    if size.is_some_and(|size| size < CAPACITY_BYTES_MIN) {
        let least = human_bytes(CAPACITY_BYTES_MIN);
        return Err(Error::new(ErrorKind::NoSpace, format!("a store needs at least {least}")));
    }
    let existed = path.exists();
    let dir = StoreDir::prepare(path)?;
    let made = find_device(&dir).and_then(|(device, capacity)| {
        fill(&dir, device, capacity, inline as u32)?;
        Ok(capacity)
    });
    made.map_err(|error| match remove_remains(&dir, existed) {
        Ok(()) => error,
        Err(left) => {
            let message = format!("{error}; what is left at {} could not be removed: {left}", path.display());
            Error::new(error.kind(), message)
        }
    })
}

/// A file in the directory, and its size: the one given, or what the file system around it can give.
///
/// # Errors
/// There is no space; I/O errors.
pub fn own_device(dir: &StoreDir, size: Option<u64>) -> Result<(Arc<dyn Device>, u64)> {
    let capacity = match size {
        Some(size) => size,
        None => dir.free_bytes()?,
    };
    let device = dir.create_device().map_err(|error| explain_device(dir.path(), &error))?;
    Ok((Arc::new(device), capacity))
}

/// Makes the engine's structures and an empty file system on `device`.
fn fill(dir: &StoreDir, device: Arc<dyn Device>, capacity_bytes: u64, inline: u32) -> Result<()> {
    if capacity_bytes < CAPACITY_BYTES_MIN {
        let (least, found) = (human_bytes(CAPACITY_BYTES_MIN), human_bytes(capacity_bytes));
        let message = format!("a store needs at least {least}; there are {found}");
        return Err(Error::new(ErrorKind::NoSpace, message));
    }
    Db::create(Arc::clone(&device), &CreateOptions::with_new_uuid(capacity_bytes)?)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = Db::open(device, Options::with_memory(MEMORY_BYTES_MIN), Arc::clone(&clock))?;
    let store: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
    let (uid, gid) = dir.beneficiary();
    let options = MkfsOptions { inline_len_max: inline, uid, gid, mode: 0o755 };
    FileSystem::mkfs(&store, clock.as_ref(), &options).map_err(|error| explain_fs(dir, error))?;
    drop(store);
    db.close()?;
    Ok(())
}

fn remove_remains(dir: &StoreDir, existed: bool) -> std::io::Result<()> {
    match dir.remove_device() {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ if existed => Ok(()),
        _ => dir.remove(),
    }
}
