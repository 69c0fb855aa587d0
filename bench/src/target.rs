//! The file systems under test, behind one trait.
//!
//! Thread safety: a target belongs to one thread.
//!
//! Invariants: dropping a target unmounts it and ends its daemon, also after an error.

mod ext4;
mod floor;
mod fuse;
mod kvfs;

pub(crate) use ext4::Ext4;
pub(crate) use floor::Floor;
pub(crate) use kvfs::{Backing, Kvfs, KvfsOptions};

use crate::memory::MemoryPeak;
use anyhow::{Context, Result, bail};
use kvfs_bench::host;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// One file system that the workloads run on.
pub(crate) trait Target {
    /// Its column in the table.
    fn name(&self) -> &'static str;

    /// What survives a power cut, in a few words.
    fn durability(&self) -> &'static str;

    /// Makes an empty file system and mounts it.
    fn mount_fresh(&mut self) -> Result<()>;

    /// Where it is mounted.
    fn dir(&self) -> &Path;

    /// Unmounts, drops the kernel's caches and mounts again.
    fn make_cold(&mut self) -> Result<()>;

    /// Unmounts and ends the daemon.
    fn unmount(&mut self) -> Result<()>;

    /// The most memory that the daemon has taken so far; `None` for a kernel file system and
    /// before the daemon has ended once.
    fn memory_peak(&self) -> Option<MemoryPeak>;
}

/// Whether something is mounted on `dir`.
fn is_mounted(dir: &Path) -> Result<bool> {
    let parent = dir.parent().context("a mount point needs a parent")?;
    match fs::metadata(dir) {
        Ok(found) => Ok(found.dev() != fs::metadata(parent)?.dev()),
        // A FUSE mount whose daemon has died; it still has to be unmounted.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot stat {}", dir.display())),
    }
}

/// Unmounts by system call, patiently: something may still be looking at the mount.
fn unmount(dir: &Path) -> Result<()> {
    let mut last_error = None;
    let limit = Duration::from_secs(20);
    let unmounted = host::wait_until(limit, || match host::run("umount", &[dir]) {
        Ok(_) => Ok(true),
        Err(error) => {
            last_error = Some(error);
            Ok(false)
        }
    })?;
    match last_error {
        Some(error) if !unmounted => bail!("{} stays mounted: {error:#}", dir.display()),
        _ => Ok(()),
    }
}

/// The last resort of every target: takes the mount out of sight whatever uses it.
fn unmount_lazily(dir: &Path) {
    if is_mounted(dir).unwrap_or(false)
        && let Err(error) = host::run("umount", &["--lazy".as_ref(), dir.as_os_str()])
    {
        eprintln!("{} stays mounted: {error:#}", dir.display());
    }
}
