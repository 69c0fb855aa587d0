//! Directories to work in, and stores that are mounted there.
//!
//! Thread safety: each value belongs to one thread; what is below a mount is everyone's.
//!
//! Invariants: what was mounted is unmounted when it is dropped, also after an error; a directory is removed
//! only if nothing is mounted in it.

use crate::host;
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where an invocation makes everything. Removed at the end.
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// A new directory in `parent`.
    pub fn new(parent: &Path, name: &str) -> Result<Self> {
        let path = parent.canonicalize()?.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let device = |path: &Path| fs::symlink_metadata(path).map(|found| found.dev());
        let is_own = |entry: std::io::Result<fs::DirEntry>| {
            entry.and_then(|entry| Ok(device(&entry.path())? == device(&self.0)?)).unwrap_or(false)
        };
        let is_unmounted = fs::read_dir(&self.0).is_ok_and(|mut entries| entries.all(is_own));
        if !is_unmounted {
            eprintln!("{} stays: something is mounted there", self.0.display());
        } else if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}

/// How a store is made and mounted; `None` leaves it to kvfs.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountOptions {
    /// Largest size of the store (bytes).
    pub size_bytes: Option<u64>,
    /// Ceiling of the daemon's memory (bytes).
    pub memory_bytes: Option<u64>,
    /// Those of `-o`.
    pub options: Option<&'static str>,
}

/// Removes the directory of a store, if it is there.
pub fn remove_store(store: &Path) -> Result<()> {
    if store.exists() {
        fs::remove_dir_all(store).with_context(|| format!("cannot remove the store {}", store.display()))?;
    }
    Ok(())
}

/// A new store and its mount.
pub struct Mounted {
    program: PathBuf,
    store: PathBuf,
    dir: PathBuf,
    /// Of `kvfs mount`.
    options: Vec<OsString>,
    is_up: bool,
}

impl Mounted {
    /// Makes a store in `work`, and mounts it there.
    pub fn new(program: &Path, work: &Path, options: &MountOptions) -> Result<Self> {
        let (program, store, dir) = (program.to_owned(), work.join("store"), work.join("mnt"));
        fs::create_dir_all(&dir)?;
        let mut args: Vec<OsString> = vec!["--create".into()];
        for (option, bytes) in [("--size", options.size_bytes), ("--memory", options.memory_bytes)] {
            if let Some(bytes) = bytes {
                args.extend([option.into(), bytes.to_string().into()]);
            }
        }
        if let Some(options) = options.options {
            args.extend(["-o".into(), options.into()]);
        }
        let mut mounted = Self { program, store, dir, options: args, is_up: false };
        mounted.mount()?;
        Ok(mounted)
    }

    /// Makes a store on these devices, `fast:PATH` or `slow:PATH`, and mounts it; `options` are those of
    /// `kvfs mount`.
    pub fn on_devices(program: &Path, work: &Path, devices: &[String], options: &[&str]) -> Result<Self> {
        let (program, store, dir) = (program.to_owned(), work.join("store"), work.join("mnt"));
        fs::create_dir_all(&dir)?;
        let mut args: Vec<OsString> = vec!["mkfs".into(), "--force".into()];
        args.extend(devices.iter().flat_map(|device| ["--device".into(), device.into()]));
        args.push(store.clone().into());
        host::run(&program, &args)?;
        let options = options.iter().map(Into::into).collect();
        let mut mounted = Self { program, store, dir, options, is_up: false };
        mounted.mount()?;
        Ok(mounted)
    }

    /// Unmounts it, calls `meanwhile`, and mounts it again.
    pub fn mount_again(&mut self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        self.unmount()?;
        meanwhile()?;
        self.mount()
    }

    /// Its output is the daemon's, too, and stays open as long as that lives.
    fn mount(&mut self) -> Result<()> {
        let mut command = std::process::Command::new(&self.program);
        command.arg("mount").args(&self.options).args([&self.store, &self.dir]);
        let status = command.status().with_context(|| format!("cannot run {}", self.program.display()))?;
        anyhow::ensure!(status.success(), "kvfs mount: {status}");
        self.is_up = true;
        Ok(())
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes out everything that was changed.
    pub fn sync(&self) -> Result<()> {
        host::make_durable(&self.dir)
    }

    /// Holds all of the store as it is.
    pub fn hold_snapshot(&self, name: &str) -> Result<()> {
        let args = ["snapshot".as_ref(), "create".as_ref(), "--store".as_ref(), self.store.as_os_str()];
        host::run(&self.program, &[args.as_slice(), &[name.as_ref()]].concat())?;
        Ok(())
    }

    /// The counters of its engine by name.
    pub fn stats(&self) -> Result<HashMap<String, u64>> {
        let args = ["stats".as_ref(), "--json".as_ref(), self.dir.as_os_str()];
        let text = host::run(&self.program, &args)?;
        serde_json::from_str(&text).context("kvfs stats --json says other things")
    }

    /// Capacity and what programs may still write (bytes), as `df` shows them.
    pub fn space(&self) -> Result<(u64, u64)> {
        let found = rustix::fs::statvfs(&self.dir).context("cannot ask the mount for its space")?;
        Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
    }

    /// Unmounts it, and removes the store.
    pub fn remove(mut self) -> Result<()> {
        self.unmount()?;
        remove_store(&self.store)
    }

    fn unmount(&mut self) -> Result<()> {
        if self.is_up {
            self.is_up = false;
            host::run(&self.program, &["umount".as_ref(), self.dir.as_os_str()])?;
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{} stays mounted: {error:#}", self.dir.display());
        }
    }
}

/// Whether something is mounted on `dir`.
pub fn is_mounted(dir: &Path) -> Result<bool> {
    let parent = dir.parent().context("a mount point needs a parent")?;
    match fs::metadata(dir) {
        Ok(found) => Ok(found.dev() != fs::metadata(parent)?.dev()),
        // A FUSE mount whose daemon has died; it still has to be unmounted.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot stat {}", dir.display())),
    }
}

/// Unmounts by system call, patiently: something may still be looking at the mount.
pub fn unmount(dir: &Path) -> Result<()> {
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
pub fn unmount_lazily(dir: &Path) {
    if is_mounted(dir).unwrap_or(false)
        && let Err(error) = host::run("umount", &["--lazy".as_ref(), dir.as_os_str()])
    {
        eprintln!("{} stays mounted: {error:#}", dir.display());
    }
}
