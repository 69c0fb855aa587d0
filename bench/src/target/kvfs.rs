//! kvfs, used by its command line.

use super::Target;
use super::fuse::Daemon;
use crate::image::Image;
use crate::memory::MemoryPeak;
use anyhow::{Context, Result};
use kvfs_bench::host;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// How kvfs is to be run.
pub(crate) struct KvfsOptions {
    /// The `kvfs` binary.
    pub(crate) program: PathBuf,
    /// Largest size of the store (bytes).
    pub(crate) size_bytes: u64,
    /// `--memory` of the daemon (bytes); `None` leaves it to its default.
    pub(crate) memory_bytes: Option<u64>,
    /// More arguments of `kvfs mkfs`.
    pub(crate) mkfs_args: Vec<String>,
    /// More arguments of `kvfs mount`.
    pub(crate) mount_args: Vec<String>,
}

/// What a store is kept in.
pub(crate) enum Backing {
    /// A file of its own, which grows as the store fills.
    Growing,
    /// A file that was written in full before, as under ext4.
    Image(Rc<Image>),
}

/// The file system that this is all about.
pub(crate) struct Kvfs {
    options: KvfsOptions,
    backing: Backing,
    store: PathBuf,
    dir: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
    peak: Option<MemoryPeak>,
}

impl Kvfs {
    /// A kvfs with its store at `store`, mounted on a new directory `dir`.
    pub(crate) fn new(
        options: KvfsOptions,
        backing: Backing,
        store: PathBuf,
        dir: PathBuf,
        log: PathBuf,
    ) -> Result<Self> {
        fs::create_dir(&dir)?;
        Ok(Self { options, backing, store, dir, log, daemon: None, peak: None })
    }

    fn make_store(&self) -> Result<()> {
        self.remove_store()?;
        let mut args = vec![OsString::from("mkfs"), self.store.clone().into_os_string()];
        match &self.backing {
            Backing::Growing => {
                args.extend(["--size".into(), self.options.size_bytes.to_string().into()]);
            }
            Backing::Image(image) => args.extend(["--device".into(), image.path().into()]),
        }
        args.extend(self.options.mkfs_args.iter().map(OsString::from));
        host::run(&self.options.program, &args)?;
        Ok(())
    }

    fn remove_store(&self) -> Result<()> {
        if self.store.exists() {
            let removed = fs::remove_dir_all(&self.store);
            removed.with_context(|| format!("cannot remove the store {}", self.store.display()))?;
        }
        Ok(())
    }

    fn mount(&mut self) -> Result<()> {
        let mut command = Command::new(&self.options.program);
        command.args(["mount", "--foreground"]);
        if let Some(memory_bytes) = self.options.memory_bytes {
            command.args(["--memory", &memory_bytes.to_string()]);
        }
        command.args(&self.options.mount_args).arg(&self.store).arg(&self.dir);
        self.daemon = Some(Daemon::start(command, &self.dir, &self.log)?);
        Ok(())
    }
}

impl Target for Kvfs {
    fn name(&self) -> &'static str {
        "kvfs"
    }

    fn durability(&self) -> &'static str {
        "prefix of the history, commit interval 1 s"
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        self.make_store()?;
        self.mount()
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn make_cold(&mut self) -> Result<()> {
        self.unmount()?;
        host::drop_caches()?;
        self.mount()
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(daemon) = self.daemon.take() else { return Ok(()) };
        let peak = daemon.stop(|_| {
            host::run(&self.options.program, &["umount".as_ref(), self.dir.as_os_str()])?;
            Ok(())
        })?;
        self.peak = Some(self.peak.unwrap_or_default().max(peak));
        Ok(())
    }

    fn memory_peak(&self) -> Option<MemoryPeak> {
        self.peak
    }
}

impl Drop for Kvfs {
    fn drop(&mut self) {
        if let Err(error) = self.unmount().and_then(|()| self.remove_store()) {
            eprintln!("after kvfs: {error:#}");
        }
    }
}
