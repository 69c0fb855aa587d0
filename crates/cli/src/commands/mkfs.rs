//! `kvfs mkfs`.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use kvfs_device::{Device, FileDevice};

use crate::args::MkfsArgs;
use crate::error::{CliError, Code, Result};
use crate::open;
use crate::progress::Bar;
use crate::store_dir::StoreDir;
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
                None => free_bytes(dir.path())?,
            };
            let path = dir.device_path();
            let device =
                FileDevice::create(&path, 0).map_err(|error| open::explain_device(dir.path(), &error))?;
            (Arc::new(device), capacity)
        }
        Some(target) => open_target(dir, target, size, force)?,
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
fn open_target(
    dir: &StoreDir,
    target: &Path,
    size: Option<u64>,
    force: bool,
) -> Result<(Arc<dyn Device>, u64)> {
    let target = target.canonicalize().map_err(|error| CliError::io("open", target, &error))?;
    let device = FileDevice::open(&target, false).map_err(|error| open::explain_device(&target, &error))?;
    if !force && !begins_empty(&device, &target)? {
        return Err(CliError::new(
            Code::InUse,
            format!("{} already holds something; --force overwrites it", target.display()),
        ));
    }
    std::os::unix::fs::symlink(&target, dir.device_path())
        .map_err(|error| CliError::io("name the device in", dir.path(), &error))?;
    let block = std::fs::metadata(&target).is_ok_and(|meta| meta.file_type().is_block_device());
    let capacity = match size {
        Some(size) if block => size.min(device.len_bytes()),
        Some(size) => size,
        None if block => device.len_bytes(),
        None => free_bytes(target.parent().unwrap_or(&target))?.saturating_add(device.len_bytes()),
    };
    Ok((Arc::new(device), capacity))
}

/// Whether the first 128 KiB, where file systems keep their superblocks, are zeros.
fn begins_empty(device: &FileDevice, path: &Path) -> Result<bool> {
    let mut head = kvfs_device::AlignedBuf::zeroed((128 << 10).min(device.len_bytes() as usize));
    device.read_at(head.as_mut(), 0).map_err(|error| CliError::io("read", path, &error))?;
    Ok(head.as_ref().iter().all(|&byte| byte == 0))
}

/// What the file system under `path` can still give to us (bytes).
fn free_bytes(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path)
        .map_err(|error| CliError::io("ask for free space at", path, &error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn remove_remains(dir: &StoreDir, existed: bool) {
    let removed = std::fs::remove_file(dir.device_path());
    let removed = if existed { removed } else { std::fs::remove_dir(dir.path()) };
    if let Err(error) = removed
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("kvfs: could not clean up {}: {error}", dir.path().display());
    }
}
