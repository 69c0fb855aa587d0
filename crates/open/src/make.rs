//! Making stores.
//!
//! Thread safety: functions. Invariant: what fails leaves nothing behind.

use std::path::Path;
use std::sync::Arc;

use kvfs_device::{Device, FileDevice};
use kvfs_fs::{FileSystem, MkfsOptions};
use kvfs_kvdb::{CreateOptions, Db, Options, Placement};
use kvfs_service::{ErrorKind, ServiceError, units::human_bytes};
use kvfs_store::Store;
use kvfs_store::clock::{Clock, SystemClock};

use crate::devices::{NewDevice, StoreDevices, check_blank, explain_target};
use crate::engines::{self, EngineKind, Objects};
use crate::error::{Error, Result, explain_device, explain_fs};
use crate::memory::MEMORY_BYTES_MIN;
use crate::store_dir::{StoreDir, open_target};

/// The smallest store that is of any use (bytes).
pub const CAPACITY_BYTES_MIN: u64 = 128 << 20;

/// Files up to this size live inside their row, unless told otherwise (bytes).
pub const INLINE_DEFAULT: u64 = 4096;

/// A store that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewStore<'a> {
    /// Its engine.
    pub engine: EngineKind,
    /// Most bytes that its first device may take; `None`: as it finds them.
    pub size: Option<u64>,
    /// Files up to this size live inside their row (bytes).
    pub inline: u64,
    /// Its devices beside the first one.
    pub others: &'a [NewDevice],
    /// Where content of files goes among them; `None`: to slow ones.
    pub placement: Option<Placement>,
    /// Where object storage holds it; `None`: nowhere.
    pub objects: Option<Objects<'a>>,
}

impl NewStore<'_> {
    /// On one device.
    pub fn of_size(size: Option<u64>) -> Self {
        let (engine, inline) = (EngineKind::Kvdb, INLINE_DEFAULT);
        Self { engine, size, inline, others: &[], placement: None, objects: None }
    }
}

/// Makes a store whose first device is what `find_device` gives, with its size: of an engine other than kvdb
/// there is none. Returns its capacity (bytes).
///
/// # Errors
/// The directory is no place for one; no space; a device can't be used; what `find_device` says.
pub fn make_store(
    path: &Path,
    new: NewStore<'_>,
    find_device: impl FnOnce(&StoreDir) -> Result<(FileDevice, u64)>,
) -> Result<u64> {
    in_new_directory(path, &new, |dir| {
        if new.engine == EngineKind::Kvdb {
            let (device, capacity) = find_device(dir)?;
            make_kvdb(dir, device, capacity, &new, true)
        } else {
            engines::make(dir, &new)
        }
    })
}

/// Checks what is asked for, and has the store made by `fill` in an empty directory: what fails leaves
/// nothing behind.
pub(crate) fn in_new_directory<T>(
    path: &Path,
    new: &NewStore<'_>,
    fill: impl FnOnce(&StoreDir) -> Result<T>,
) -> Result<T> {
    let &NewStore { size, inline, .. } = new;
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
    engines::check_objects(new)?;
    let dir = StoreDir::prepare(path)?;
    fill(&dir).map_err(|error| match remove_remains(&dir) {
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
pub fn own_device(dir: &StoreDir, size: Option<u64>) -> Result<(FileDevice, u64)> {
    let capacity = match size {
        Some(size) => size,
        None => dir.free_bytes()?,
    };
    let device = dir.device().create().map_err(|error| explain_device(dir.path(), &error))?;
    Ok((device, capacity))
}

/// A file or block device elsewhere that the directory names from now on, and its size. What it holds is
/// overwritten only if `force` says so.
///
/// # Errors
/// It holds something; it is in use, or can't be opened; I/O errors.
pub fn linked_device(dir: &StoreDir, new: &NewDevice) -> Result<(FileDevice, u64)> {
    let (device, file) = open_target(&new.path).map_err(|error| explain_target(new, &error))?;
    if !new.force {
        check_blank(&new.path, &file)?;
    }
    dir.device().link(&new.path, &file).map_err(|error| explain_device(dir.path(), &error))?;
    let failed = |error: &std::io::Error| Error::io("ask for free space at", &new.path, error);
    let capacity = match new.size_bytes {
        Some(size) if device.is_block_device() => size.min(device.len_bytes()),
        Some(size) => size,
        None if device.is_block_device() => device.len_bytes(),
        None => device.file_len_max().map_err(|error| failed(&error))?,
    };
    Ok((device, capacity))
}

/// Makes the engine's structures on `device`, and an empty file system there if `has_files` asks for it, and
/// takes in the others; its capacity (bytes).
pub(crate) fn make_kvdb(
    dir: &StoreDir,
    device: FileDevice,
    capacity_bytes: u64,
    wanted: &NewStore<'_>,
    has_files: bool,
) -> Result<u64> {
    if capacity_bytes < CAPACITY_BYTES_MIN {
        let (least, found) = (human_bytes(CAPACITY_BYTES_MIN), human_bytes(capacity_bytes));
        let message = format!("a store needs at least {least}; there are {found}");
        return Err(Error::new(ErrorKind::NoSpace, message));
    }
    let devices = StoreDevices::over(dir, device);
    let (device, _) = devices.for_engine();
    Db::create(Arc::clone(&device), &CreateOptions::with_new_uuid(capacity_bytes)?)
        .map_err(ServiceError::of_order)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = Db::open(device, Options::with_memory(MEMORY_BYTES_MIN), Arc::clone(&clock))?;
    dir.note_identity(&db.uuid())?;
    if has_files {
        let store: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
        let (uid, gid) = dir.beneficiary();
        let options = MkfsOptions { inline_len_max: wanted.inline as u32, uid, gid, mode: 0o755 };
        FileSystem::mkfs(&store, clock.as_ref(), &options).map_err(|error| explain_fs(dir, error))?;
    }
    let mut capacity = capacity_bytes;
    for new in wanted.others {
        let before = db.space().capacity_bytes;
        devices.add(&db, new)?;
        capacity += db.space().capacity_bytes - before;
    }
    if let Some(placement) = wanted.placement {
        db.keep_placement(placement)?;
    }
    db.close()?;
    Ok(capacity)
}

/// Removes what there is of a store that has not come to be, and the directory if that was made for it. What
/// says that it holds a store, or a copy that is none yet, goes last.
///
/// # Errors
/// I/O errors.
pub fn remove_remains(dir: &StoreDir) -> std::io::Result<()> {
    for other in dir.other_devices()? {
        other.remove()?;
    }
    dir.remove_identity()?;
    match dir.device().remove() {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    engines::remove(dir)?;
    if dir.is_new() { dir.remove() } else { Ok(()) }
}

#[cfg(test)]
mod tests;
