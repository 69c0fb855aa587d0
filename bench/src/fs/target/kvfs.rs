//! kvfs, used by its command line.

use super::Target;
use crate::workload::ScenarioName;
use anyhow::Result;
use kvfs_bench::counters::{Probe, device_stat_under};
use kvfs_bench::daemon::Daemon;
use kvfs_bench::disk::Device;
use kvfs_bench::host;
use kvfs_bench::host::version;
use kvfs_bench::image::Image;
use kvfs_bench::memory::MemoryPeak;
use kvfs_bench::mount::remove_store;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// How far the resident set of the daemon may pass its `--memory`.
const MEMORY_SLACK_BYTES: u64 = 64 << 20;

/// How kvfs is to be run.
pub(crate) struct KvfsOptions {
    /// The `kvfs` binary.
    pub(crate) program: PathBuf,
    /// Largest size of the store (bytes).
    pub(crate) size_bytes: u64,
    /// `--memory` of the daemon (bytes); `None` leaves it to its default.
    pub(crate) memory_bytes: Option<u64>,
    /// And what that is (bytes).
    pub(crate) default_memory_bytes: u64,
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
    Image(Image),
    /// The loop device that the kernel's file systems are made on.
    Device(Rc<Device>),
}

/// The file system that this is all about.
pub(crate) struct Kvfs {
    options: KvfsOptions,
    backing: Backing,
    store: PathBuf,
    dir: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
    /// Other than usual.
    memory_bytes: Option<u64>,
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
        Ok(Self { options, backing, store, dir, log, daemon: None, memory_bytes: None, peak: None })
    }

    /// Where the store is.
    pub(super) fn store(&self) -> &Path {
        &self.store
    }

    /// The `kvfs` binary.
    pub(super) fn program(&self) -> &Path {
        &self.options.program
    }

    /// What a daemon may take that is begun without `--memory` (bytes).
    pub(super) fn default_memory_limit_bytes(&self) -> u64 {
        self.options.default_memory_bytes + MEMORY_SLACK_BYTES
    }

    /// An empty store in place of the one that is there.
    pub(super) fn make_store(&self) -> Result<()> {
        remove_store(&self.store)?;
        let mut args = vec![OsString::from("mkfs"), self.store.clone().into_os_string()];
        match &self.backing {
            Backing::Growing => {
                args.extend(["--size".into(), self.options.size_bytes.to_string().into()]);
            }
            Backing::Image(image) => args.extend(["--device".into(), image.path().into(), "--force".into()]),
            Backing::Device(device) => {
                args.extend(["--device".into(), device.path().into(), "--force".into()]);
            }
        }
        args.extend(self.options.mkfs_args.iter().map(OsString::from));
        host::run(&self.options.program, &args)?;
        Ok(())
    }
}

impl Target for Kvfs {
    fn name(&self) -> &'static str {
        "kvfs"
    }

    fn about(&self) -> String {
        let version = version(&self.options.program.to_string_lossy(), "--version");
        let backing = match &self.backing {
            Backing::Growing => "store in a file that grows",
            Backing::Image(_) => "store in a file written before",
            Backing::Device(_) => "store on the loop device",
        };
        format!("{version}; {backing}; prefix of the history, commit interval 1 s")
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        self.make_store()?;
        self.mount()
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn mount(&mut self) -> Result<()> {
        let mut command = Command::new(&self.options.program);
        command.args(["mount", "--foreground"]);
        if let Some(memory_bytes) = self.memory_bytes.or(self.options.memory_bytes) {
            command.args(["--memory", &memory_bytes.to_string()]);
        }
        command.args(&self.options.mount_args).arg(&self.store).arg(&self.dir);
        self.daemon = Some(Daemon::start(command, &self.dir, &self.log)?);
        Ok(())
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

    fn probe(&self) -> Result<Probe> {
        let device_stat = match &self.backing {
            Backing::Device(device) => Some(device.stat()?),
            Backing::Image(image) => device_stat_under(image.path())?,
            Backing::Growing => device_stat_under(&self.store)?,
        };
        Ok(Probe { device_stat, daemon: self.daemon.as_ref().map(Daemon::id) })
    }

    fn sync(&self) -> Result<()> {
        host::make_durable(&self.dir)
    }

    fn memory_peak(&self) -> Option<MemoryPeak> {
        self.peak
    }

    fn memory_limit_bytes(&self) -> Option<u64> {
        Some(self.options.memory_bytes.unwrap_or(self.options.default_memory_bytes) + MEMORY_SLACK_BYTES)
    }

    fn set_memory(&mut self, memory_bytes: Option<u64>) {
        self.memory_bytes = memory_bytes;
    }

    fn unfit_for(&self, scenario: ScenarioName) -> Option<&'static str> {
        (scenario == ScenarioName::Large).then_some("it is the library's")
    }

    fn hold_snapshot(&mut self) -> Result<bool> {
        let args = ["snapshot", "create", "--store"].map(OsString::from);
        let args = [&args, [self.store.clone().into_os_string(), "before-ageing".into()].as_slice()].concat();
        host::run(&self.options.program, &args)?;
        Ok(true)
    }
}

impl Drop for Kvfs {
    fn drop(&mut self) {
        if let Err(error) = self.unmount().and_then(|()| remove_store(&self.store)) {
            eprintln!("after kvfs: {error:#}");
        }
    }
}
