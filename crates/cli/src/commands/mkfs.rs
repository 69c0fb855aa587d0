//! `kvfs mkfs`.

mod contents;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use kvfs_device::Device;
use kvfs_open::{Error, StoreDir, explain_device, open_target, own_device};
use kvfs_service::ErrorKind;

use crate::args::MkfsArgs;
use crate::error::Result;
use crate::progress::Bar;
use crate::units::human_bytes;

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
    let made = kvfs_open::make_store(path, size, inline, |dir| match device {
        None => own_device(dir, size),
        Some(target) => use_target(dir, target, size, force),
    });
    Ok(made?)
}

/// A device outside the store directory: a link inside names it.
fn use_target(
    dir: &StoreDir,
    target: &Path,
    size: Option<u64>,
    force: bool,
) -> kvfs_open::Result<(Arc<dyn Device>, u64)> {
    let target = target.canonicalize().map_err(|error| Error::io("open", target, &error))?;
    let explain = |error| explain_device(&target, &error);
    let (device, file) = open_target(&target).map_err(explain)?;
    if !force {
        let found = contents::find(&file).map_err(|error| Error::io("read", &target, &error))?;
        if let Some(found) = found {
            let message = format!("{} holds {found}; --force overwrites it", target.display());
            return Err(Error::new(ErrorKind::InUse, message));
        }
    }
    dir.link_device(&target).map_err(|error| explain_device(dir.path(), &error))?;
    let capacity = match size {
        Some(size) if device.is_block_device() => size.min(device.len_bytes()),
        Some(size) => size,
        None if device.is_block_device() => device.len_bytes(),
        None => free_bytes(&file, &target)?.saturating_add(device.len_bytes()),
    };
    Ok((Arc::new(device), capacity))
}

/// What the file system around `file` can still give to us (bytes).
fn free_bytes(file: &File, path: &Path) -> kvfs_open::Result<u64> {
    let stat = rustix::fs::fstatvfs(file)
        .map_err(|error| Error::io("ask for free space at", path, &error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
