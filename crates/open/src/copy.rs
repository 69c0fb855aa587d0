//! A store copied into a new one, of the same or another engine.
//!
//! Purpose: what `kvfs copy` promises. The new store is made without a file system, filled (`kvfs_fs::copy`),
//! closed, opened again to be read, compared with the old one record by record, and verified; only then it is
//! a store.
//!
//! Thread safety: a function. Invariants: until everything is verified and durable the directory has a mark
//! that no program opens a store by; what fails leaves nothing behind; the new store has a uuid of its own.

use std::path::Path;
use std::sync::Arc;

use kvfs_device::FileDevice;
use kvfs_fs::check::CheckReport;
use kvfs_fs::copy::{Copied, CopyError};
use kvfs_fs::{FileSystem, FsError, check, copy};
use kvfs_kvdb::Placement;
use kvfs_service::{ErrorKind, ServiceError, units::human_bytes};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{Store, StoreError};

use crate::engines::{self, EngineKind};
use crate::error::{Error, Result};
use crate::make::{NewStore, in_new_directory, make_kvdb};
use crate::memory::Memory;
use crate::open::{OpenOptions, OpenedEngine, open_kvdb};
use crate::store_dir::StoreDir;

/// How a store is copied.
pub struct CopyOrder<'a> {
    /// The new one; its inline length is that of the old one.
    pub new: NewStore<'a>,
    /// What the new one may take meanwhile.
    pub memory: Memory,
    /// Asked all the time; false: the copy is given up.
    pub goes_on: &'a dyn Fn() -> bool,
    /// Told what the new store can't have of the old one, a sentence each, before anything is copied.
    pub tell_left: &'a dyn Fn(&[String]),
}

/// What has come of it.
#[derive(Debug)]
pub struct CopiedStore {
    /// What was copied.
    pub copied: Copied,
    /// How much the new store may come to (bytes).
    pub capacity_bytes: u64,
    /// What the new one does not have, as it was told.
    pub left: Vec<String>,
    /// What was seen of its file system. Contradictions in it are those of the old one.
    pub files: CheckReport,
}

/// Copies an open store, which nothing changes meanwhile, to a new one at `path`, whose first device is what
/// `find_device` gives.
///
/// # Errors
/// The directory is no place for a store; the engine keeps nothing; no space; the old store can't be read;
/// what `find_device` says. Nothing is left behind.
pub fn copy_store(
    (fs, engine): (&FileSystem, &OpenedEngine),
    path: &Path,
    order: &CopyOrder<'_>,
    find_device: impl FnOnce(&StoreDir) -> Result<(FileDevice, u64)>,
) -> Result<CopiedStore> {
    let kind = order.new.engine;
    if kind.is_volatile() {
        let message = format!(
            "a store of engine {} is empty at each mount, so a copy would be gone at once; copy files to where it is mounted",
            kind.name()
        );
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let inline = u64::from(kvfs_fs::inline_len_max(fs));
    let placement = order.new.placement.or_else(|| kept_placement(engine, &order.new));
    let new = NewStore { inline, placement, ..order.new };
    in_new_directory(path, &new, |dir| {
        dir.begin_copy()?;
        let capacity_bytes = if kind == EngineKind::Kvdb {
            let (device, capacity) = find_device(dir)?;
            make_kvdb(dir, device, capacity, &new, false)?
        } else {
            engines::make_engine(dir, &new, false)?;
            engines::capacity_bytes(dir, kind)?
        };
        let (left, copied) = fill(fs, dir, &new, order)?;
        let files = verify(fs, dir, &new, order)?;
        dir.end_copy((kind != EngineKind::Kvdb).then(|| engines::mark_of(&new)))?;
        Ok(CopiedStore { copied, capacity_bytes, left, files })
    })
}

/// A store of several devices goes on placing content as the old one did.
fn kept_placement(engine: &OpenedEngine, new: &NewStore<'_>) -> Option<Placement> {
    match engine {
        OpenedEngine::Kvdb { db, .. } if new.engine == EngineKind::Kvdb && !new.others.is_empty() => {
            Some(db.placement())
        }
        _ => None,
    }
}

fn open(dir: &StoreDir, new: &NewStore<'_>, memory: Memory, read_only: bool) -> Result<OpenedEngine> {
    let options = OpenOptions { memory, read_only, ..OpenOptions::default() };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    match new.engine {
        EngineKind::Kvdb => Ok(open_kvdb(dir, &options, &clock)?.0),
        _ => Ok(OpenedEngine::Plugged(Arc::new(engines::open(dir, &engines::mark_of(new), &options)?))),
    }
}

fn fill(
    fs: &FileSystem,
    dir: &StoreDir,
    new: &NewStore<'_>,
    order: &CopyOrder<'_>,
) -> Result<(Vec<String>, Copied)> {
    let engine = open(dir, new, order.memory, false)?;
    let store = engine.store();
    let explain = |error| explain(fs, dir, &*engine.store(), error);
    let left = copy::left_behind(fs, &*store).map_err(|error| explain(CopyError::Source(error)))?;
    (order.tell_left)(&left);
    let copied = copy::copy(fs, &*store, order.goes_on).map_err(explain)?;
    engine.close().map_err(|error| explain(CopyError::Target(error)))?;
    Ok((left, copied))
}

/// Reads what is on the device now.
fn verify(fs: &FileSystem, dir: &StoreDir, new: &NewStore<'_>, order: &CopyOrder<'_>) -> Result<CheckReport> {
    let engine = open(dir, new, order.memory, true)?;
    let store: Arc<dyn Store> = engine.store();
    let explain = |error| explain(fs, dir, &*engine.store(), error);
    copy::compare(fs, &*store, order.goes_on).map_err(explain)?;
    let verified = engine.verify().map_err(|error| explain(CopyError::Target(error)))?;
    if !verified.findings.is_empty() {
        return Err(explain(CopyError::Differs(verified.findings.join("; "))));
    }
    let files = check::check(&store).map_err(|error| explain(of_new(error)))?;
    if !(order.goes_on)() {
        return Err(explain(CopyError::Stopped));
    }
    engine.close().map_err(|error| explain(CopyError::Target(error)))?;
    Ok(files)
}

/// What went wrong with the file system of the new store.
fn of_new(error: FsError) -> CopyError {
    match error {
        FsError::Store(cause) => CopyError::Target((*cause).clone()),
        error => CopyError::Differs(error.to_string()),
    }
}

/// What a copy that came to nothing means to the user.
fn explain(fs: &FileSystem, dir: &StoreDir, new: &dyn Store, error: CopyError) -> Error {
    let path = dir.path().display();
    match error {
        CopyError::Target(StoreError::Full) => {
            let (capacity, used) = (new.space().capacity_bytes, fs.store().space().used_bytes);
            let message = format!(
                "{path} is too small: it may hold {}, and the old store takes {}, of which some may be garbage",
                human_bytes(capacity),
                human_bytes(used)
            );
            Error::new(ErrorKind::NoSpace, message)
        }
        CopyError::Target(error) => {
            let base = ServiceError::from(error);
            Error::new(base.kind(), format!("cannot copy to {path}: {base}"))
        }
        CopyError::Source(error) => {
            let base = ServiceError::from(error);
            let can_be_mended =
                base.kind() == ErrorKind::Damaged && fs.store().engine_name() == EngineKind::Kvdb.name();
            let remedy = if can_be_mended {
                "; what is undamaged can be copied by `kvfs check --repair --copy-to NEWSTORE STORE`"
            } else {
                ""
            };
            Error::new(base.kind(), format!("cannot read what is to be copied: {base}{remedy}"))
        }
        CopyError::Differs(what) => {
            Error::new(ErrorKind::Damaged, format!("{path} is not what was written to it: {what}"))
        }
        error => Error::new(ErrorKind::Failed, format!("the copy to {path} was given up: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_of_the_new_store_is_told_of_the_new_store() {
        let damaged = FsError::Store(Arc::new(StoreError::corrupt("a block", "checksum")));
        assert!(matches!(of_new(damaged), CopyError::Target(StoreError::Corrupt { .. })));
        assert!(matches!(of_new(FsError::NoSpace), CopyError::Differs(_)));
    }
}
