//! The file systems under test: kvfs by its command line, those of the kernel on a loop device.
//!
//! Thread safety: a target belongs to one thread.
//!
//! Invariants: dropping a target unmounts it, ends its daemon and removes its store, also after an error.

use anyhow::{Context, Result};
use kvfs_bench::counters::{Probe, device_stat_under};
use kvfs_bench::daemon::Daemon;
use kvfs_bench::disk::{Device, Kind};
use kvfs_bench::host;
use kvfs_bench::memory::MemoryPeak;
use kvfs_bench::mount::{is_mounted, remove_store, unmount, unmount_lazily};
use kvfs_bench::results::TargetInfo;
use kvfs_bench::slow_disk::SlowDisk;
use rustix::process::{Pid, Signal};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// How far the resident set of the daemon may pass its `--memory`.
const MEMORY_SLACK_BYTES: u64 = 64 << 20;

/// A block device, by its class.
pub(crate) enum Disk {
    Fast(Device),
    Slow(SlowDisk),
}

impl Disk {
    /// As `kvfs mkfs --device` has it.
    fn class(&self) -> &'static str {
        match self {
            Self::Fast(_) => "fast",
            Self::Slow(_) => "slow",
        }
    }

    fn path(&self) -> &str {
        match self {
            Self::Fast(device) => device.path(),
            Self::Slow(disk) => disk.device(),
        }
    }

    /// Its statistics in `/sys`.
    fn stat(&self) -> Result<PathBuf> {
        let name = Path::new(self.path()).file_name().context("a loop device has a name")?;
        Ok(Path::new("/sys/block").join(name).join("stat"))
    }
}

/// What differs between them.
pub(crate) enum System {
    Kernel(&'static Kind),
    Kvfs(Box<Kvfs>),
}

/// What kvfs needs beside its devices.
pub(crate) struct Kvfs {
    program: PathBuf,
    store: PathBuf,
    log: PathBuf,
    /// Largest size (bytes) of a store in a file of its own; `None`: on the devices.
    grows_to: Option<u64>,
    /// `--memory` from the next mount on (bytes); `None` leaves it to its default.
    memory_bytes: Option<u64>,
    daemon: Option<Daemon>,
    peak: Option<MemoryPeak>,
}

impl System {
    pub(crate) fn kvfs(program: PathBuf, run_dir: &Path, name: &str, grows_to: Option<u64>) -> Self {
        let path = |end: &str| run_dir.join(format!("{}{end}", file_name(name)));
        let (store, log) = (path(".store"), path(".log"));
        Self::Kvfs(Box::new(Kvfs {
            program,
            store,
            log,
            grows_to,
            memory_bytes: None,
            daemon: None,
            peak: None,
        }))
    }
}

/// A name of a target without spaces.
fn file_name(name: &str) -> String {
    name.replace(' ', "-")
}

/// One file system that the databases lie on.
pub(crate) struct Target {
    name: &'static str,
    system: System,
    /// At least one.
    devices: Vec<Rc<Disk>>,
    dir: PathBuf,
}

impl Target {
    /// Its mount point is made in `run_dir`.
    pub(crate) fn new(
        name: &'static str,
        system: System,
        devices: Vec<Rc<Disk>>,
        run_dir: &Path,
    ) -> Result<Self> {
        let dir = run_dir.join(file_name(name));
        fs::create_dir(&dir)?;
        Ok(Self { name, system, devices, dir })
    }

    /// Its column in the tables.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Where it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether some of it lies on a slow device.
    pub(crate) fn is_slow(&self) -> bool {
        self.devices.iter().any(|disk| matches!(**disk, Disk::Slow(_)))
    }

    /// Whether a daemon serves it, which can be killed.
    pub(crate) fn has_daemon(&self) -> bool {
        matches!(self.system, System::Kvfs(_))
    }

    /// Its description and what was measured of its memory.
    pub(crate) fn describe(&self) -> Result<TargetInfo> {
        let name = self.name.to_owned();
        Ok(match &self.system {
            System::Kernel(kind) => {
                let about = format!("{}{}", kind.about(), self.classes());
                TargetInfo { name, about, ..TargetInfo::default() }
            }
            System::Kvfs(kvfs) => {
                let version = host::version(&kvfs.program.to_string_lossy(), "--version");
                let place = if kvfs.grows_to.is_some() { "in a file that grows" } else { "on loop devices" };
                let default = (host::memory_total_bytes()? / 4).min(2 << 30);
                TargetInfo {
                    name,
                    about: format!(
                        "{version}; store {place}{}; prefix of the history, commit interval 1 s",
                        self.classes()
                    ),
                    resident_bytes_max: kvfs.peak.map(|peak| peak.resident_bytes_max),
                    anonymous_bytes_max: kvfs.peak.map(|peak| peak.anonymous_bytes_max),
                    memory_limit_bytes: Some(default + MEMORY_SLACK_BYTES),
                }
            }
        })
    }

    /// Of its devices, where not all are fast.
    fn classes(&self) -> String {
        if !self.is_slow() {
            return String::new();
        }
        let classes: Vec<&str> = self.devices.iter().map(|disk| disk.class()).collect();
        format!("; {} (8 ms a seek, 150 MB/s)", classes.join(" + "))
    }

    /// Makes an empty file system and mounts it; `memory_bytes` is the daemon's from then on.
    pub(crate) fn mount_fresh(&mut self, memory_bytes: Option<u64>) -> Result<()> {
        self.unmount()?;
        match &mut self.system {
            System::Kernel(kind) => kind.make(self.devices[0].path())?,
            System::Kvfs(kvfs) => {
                kvfs.memory_bytes = memory_bytes;
                kvfs.make_store(&self.devices)?;
            }
        }
        self.mount()
    }

    /// Mounts what was unmounted, or whose daemon was killed.
    pub(crate) fn mount(&mut self) -> Result<()> {
        match &mut self.system {
            System::Kernel(kind) => kind.mount(self.devices[0].path(), &self.dir),
            System::Kvfs(kvfs) => kvfs.mount(&self.dir),
        }
    }

    /// Unmounts, and ends the daemon.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        match &mut self.system {
            System::Kernel(_) if is_mounted(&self.dir)? => unmount(&self.dir),
            System::Kernel(_) => Ok(()),
            System::Kvfs(kvfs) => kvfs.unmount(&self.dir),
        }
    }

    /// Kills the daemon, and returns at once.
    pub(crate) fn kill_daemon(&self) -> Result<()> {
        let System::Kvfs(kvfs) = &self.system else { return Ok(()) };
        let daemon = kvfs.daemon.as_ref().context("the daemon is not there to be killed")?;
        let pid = Pid::from_raw(daemon.id().cast_signed()).context("a process has a number")?;
        Ok(rustix::process::kill_process(pid, Signal::KILL)?)
    }

    /// Mounts anew after [`Self::kill_daemon`]. Nothing may use the old mount any more.
    pub(crate) fn mount_after_kill(&mut self) -> Result<()> {
        if let System::Kvfs(kvfs) = &mut self.system {
            // Waits for its end, and takes the mount away.
            kvfs.daemon = None;
        }
        self.mount()
    }

    /// Where its first device and its daemon are counted; while mounted.
    pub(crate) fn probe(&self) -> Result<Probe> {
        let stat = self.devices[0].stat()?;
        Ok(match &self.system {
            System::Kernel(_) => Probe { device_stat: Some(stat), daemon: None },
            System::Kvfs(kvfs) => {
                let device_stat =
                    if kvfs.grows_to.is_some() { device_stat_under(&kvfs.store)? } else { Some(stat) };
                Probe { device_stat, daemon: kvfs.daemon.as_ref().map(Daemon::id) }
            }
        })
    }

    /// Writes out everything that was changed.
    pub(crate) fn sync(&self) -> Result<()> {
        host::make_durable(&self.dir)
    }

    /// Its counters by name; empty for those of the kernel.
    pub(crate) fn stats(&self) -> Result<HashMap<String, u64>> {
        let System::Kvfs(kvfs) = &self.system else { return Ok(HashMap::new()) };
        let args = ["stats".as_ref(), "--json".as_ref(), self.dir.as_os_str()];
        let text = host::run(&kvfs.program, &args)?;
        serde_json::from_str(&text).context("kvfs stats --json says other things")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("after {}: {error:#}", self.name);
            unmount_lazily(&self.dir);
        }
        if let System::Kvfs(kvfs) = &self.system
            && let Err(error) = remove_store(&kvfs.store)
        {
            eprintln!("after {}: {error:#}", self.name);
        }
    }
}

impl Kvfs {
    fn make_store(&self, devices: &[Rc<Disk>]) -> Result<()> {
        remove_store(&self.store)?;
        let mut args = vec![OsString::from("mkfs"), self.store.clone().into_os_string()];
        match (self.grows_to, devices) {
            (Some(bytes), _) => args.extend(["--size".into(), bytes.to_string().into()]),
            (None, [device]) => args.extend(["--device".into(), device.path().into()]),
            (None, devices) => {
                for device in devices {
                    let device = format!("{}:{}", device.class(), device.path());
                    args.extend(["--device".into(), device.into()]);
                }
            }
        }
        if self.grows_to.is_none() {
            args.push("--force".into());
        }
        host::run(&self.program, &args)?;
        Ok(())
    }

    fn mount(&mut self, dir: &Path) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["mount", "--foreground"]);
        if let Some(bytes) = self.memory_bytes {
            command.args(["--memory", &bytes.to_string()]);
        }
        command.arg(&self.store).arg(dir);
        self.daemon = Some(Daemon::start(command, dir, &self.log)?);
        Ok(())
    }

    fn unmount(&mut self, dir: &Path) -> Result<()> {
        let Some(daemon) = self.daemon.take() else { return Ok(()) };
        let peak = daemon.stop(|_| {
            host::run(&self.program, &["umount".as_ref(), dir.as_os_str()])?;
            Ok(())
        })?;
        self.peak = Some(self.peak.unwrap_or_default().max(peak));
        Ok(())
    }
}
