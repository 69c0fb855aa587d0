//! `kvfs mkfs`.

mod contents;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use kvfs_device::Device;

use crate::args::MkfsArgs;
use crate::error::{CliError, Code, Result};
use crate::open;
use crate::progress::Bar;
use crate::store_dir::{self, StoreDir};
use crate::units::human_bytes;

/// The smallest store that is of any use (bytes).
const CAPACITY_BYTES_MIN: u64 = 128 << 20;

/// Files up to this size live inside their row, unless told otherwise (bytes).
pub(crate) const INLINE_DEFAULT: u64 = 4096;

pub(crate) fn run(args: &MkfsArgs) -> Result<ExitCode> {
    let bar = Bar::new("making the store");
    let capacity = make_store(&args.store, args.device.as_deref(), args.size, args.inline, args.force)?;
    drop(bar);
    println!("made a store of at most {} in {}", human_bytes(capacity), args.store.display());
    Ok(ExitCode::SUCCESS)
}

/// Makes a store; leaves nothing behind when it fails. Returns its capacity (bytes).
pub(crate) fn make_store(
    path: &Path,
    device: Option<&Path>,
    size: Option<u64>,
    inline: u64,
    force: bool,
) -> Result<u64> {
    if inline > u64::from(kvfs_fs::INLINE_LEN_LIMIT) {
        let limit = human_bytes(u64::from(kvfs_fs::INLINE_LEN_LIMIT));
        return Err(CliError::new(Code::Usage, format!("--inline must be at most {limit}")));
    }
    if size.is_some_and(|size| size < CAPACITY_BYTES_MIN) {
        let least = human_bytes(CAPACITY_BYTES_MIN);
        return Err(CliError::new(Code::NoSpace, format!("a store needs at least {least}")));
    }
    let existed = path.exists();
    let dir = StoreDir::prepare(path)?;
    let made = fill_store(&dir, device, size, inline as u32, force);
    if made.is_err() {
        remove_remains(&dir, existed);
    }
    made
}

fn fill_store(
    dir: &StoreDir,
    device: Option<&Path>,
    size: Option<u64>,
    inline: u32,
    force: bool,
) -> Result<u64> {
    let (device, capacity): (Arc<dyn Device>, u64) = match device {
        None => {
            let capacity = match size {
                Some(size) => size,
                None => dir.free_bytes()?,
            };
            let device = dir.create_device().map_err(|error| open::explain_device(dir.path(), &error))?;
            (Arc::new(device), capacity)
        }
        Some(target) => use_target(dir, target, size, force)?,
    };
    if capacity < CAPACITY_BYTES_MIN {
        let (least, found) = (human_bytes(CAPACITY_BYTES_MIN), human_bytes(capacity));
        return Err(CliError::new(
            Code::NoSpace,
            format!("a store needs at least {least}; there are {found}"),
        ));
    }
    open::make(dir, device, capacity, inline)?;
    Ok(capacity)
}

/// A device outside the store directory: a link inside names it.
fn use_target(
    dir: &StoreDir,
    target: &Path,
    size: Option<u64>,
    force: bool,
) -> Result<(Arc<dyn Device>, u64)> {
    let target = target.canonicalize().map_err(|error| CliError::io("open", target, &error))?;
    let explain = |error| open::explain_device(&target, &error);
    let (device, file) = store_dir::open_target(&target).map_err(explain)?;
    if !force {
        let found = contents::find(&file).map_err(|error| CliError::io("read", &target, &error))?;
        if let Some(found) = found {
            let message = format!("{} holds {found}; --force overwrites it", target.display());
            return Err(CliError::new(Code::InUse, message));
        }
    }
    dir.link_device(&target).map_err(|error| open::explain_device(dir.path(), &error))?;
    let capacity = match size {
        Some(size) if device.is_block_device() => size.min(device.len_bytes()),
        Some(size) => size,
        None if device.is_block_device() => device.len_bytes(),
        None => free_bytes(&file, &target)?.saturating_add(device.len_bytes()),
    };
    Ok((Arc::new(device), capacity))
}

/// What the file system around `file` can still give to us (bytes).
fn free_bytes(file: &File, path: &Path) -> Result<u64> {
    let stat = rustix::fs::fstatvfs(file)
        .map_err(|error| CliError::io("ask for free space at", path, &error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn remove_remains(dir: &StoreDir, existed: bool) {
    let removed = match dir.remove_device() {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ if existed => Ok(()),
        _ => dir.clone().remove(),
    };
    if let Err(error) = removed {
        eprintln!("kvfs: could not clean up {}: {error}", dir.path().display());
    }
}
