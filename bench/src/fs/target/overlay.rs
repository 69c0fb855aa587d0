//! A FUSE file system whose files lie on an ext4 of its own.

use super::{Disk, Target};
use crate::workload::ScenarioName;
use anyhow::Result;
use kvfs_bench::counters::Probe;
use kvfs_bench::daemon::Daemon;
use kvfs_bench::disk::{Device, EXT4};
use kvfs_bench::host;
use kvfs_bench::memory::MemoryPeak;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// What differs between them.
pub(crate) struct OverlayKind {
    pub(crate) name: &'static str,
    pub(crate) about: fn() -> String,
    /// Makes what is needed in an empty directory below.
    pub(crate) init: fn(lower: &Path) -> Result<()>,
    /// Serves the directory below on `dir`, in the foreground.
    pub(crate) serve: fn(lower: &Path, dir: &Path) -> Command,
}

/// A FUSE daemon over ext4.
pub(crate) struct Overlay {
    kind: &'static OverlayKind,
    lower: Disk,
    dir: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
    peak: Option<MemoryPeak>,
}

impl Overlay {
    /// Its mount points and its log are made in `run_dir`.
    pub(crate) fn new(kind: &'static OverlayKind, run_dir: &Path, device: Rc<Device>) -> Result<Self> {
        let dir = run_dir.join(kind.name);
        fs::create_dir(&dir)?;
        let lower = Disk::new(&EXT4, run_dir.join(format!("{}.ext4", kind.name)), device)?;
        let log = run_dir.join(format!("{}.log", kind.name));
        Ok(Self { kind, lower, dir, log, daemon: None, peak: None })
    }

    /// ext4 keeps a directory of its own at the top.
    fn lower_dir(&self) -> PathBuf {
        self.lower.dir().join("data")
    }

    fn serve(&mut self) -> Result<()> {
        let command = (self.kind.serve)(&self.lower_dir(), &self.dir);
        self.daemon = Some(Daemon::start(command, &self.dir, &self.log)?);
        Ok(())
    }
}

impl Target for Overlay {
    fn name(&self) -> &'static str {
        self.kind.name
    }

    fn about(&self) -> String {
        (self.kind.about)()
    }

    fn unfit_for(&self, scenario: ScenarioName) -> Option<&'static str> {
        match scenario {
            ScenarioName::Exec => Some("is not what `kvfs exec` is compared with"),
            _ => scenario.is_by_calls().then_some("is not what the library is compared with"),
        }
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        self.lower.mount_fresh()?;
        fs::create_dir(self.lower_dir())?;
        (self.kind.init)(&self.lower_dir())?;
        self.serve()
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn mount(&mut self) -> Result<()> {
        self.lower.mount()?;
        self.serve()
    }

    fn unmount(&mut self) -> Result<()> {
        if let Some(daemon) = self.daemon.take() {
            let peak = daemon.stop(|_| kvfs_bench::mount::unmount(&self.dir))?;
            self.peak = Some(self.peak.unwrap_or_default().max(peak));
        }
        self.lower.unmount()
    }

    fn probe(&self) -> Result<Probe> {
        let daemon = self.daemon.as_ref().map(Daemon::id);
        Ok(Probe { daemon, ..self.lower.probe()? })
    }

    /// Both: a daemon is not asked to sync what is below.
    fn sync(&self) -> Result<()> {
        host::sync_file_system(&self.dir)?;
        self.lower.sync()
    }

    fn memory_peak(&self) -> Option<MemoryPeak> {
        self.peak
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("after {}: {error:#}", self.kind.name);
        }
    }
}
