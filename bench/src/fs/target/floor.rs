//! The floor: kvfs's own FUSE layer over memory, with no disk behind it.

use super::Target;
use crate::workload::ScenarioName;
use anyhow::{Context, Result};
use kvfs_bench::counters::Probe;
use kvfs_bench::daemon::Daemon;
use kvfs_bench::host;
use kvfs_bench::memory::MemoryPeak;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What no file system over FUSE can beat.
pub(crate) struct Floor {
    program: PathBuf,
    dir: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
    peak: Option<MemoryPeak>,
}

impl Floor {
    /// A floor served by `program` on a new directory `dir`.
    pub(crate) fn new(program: PathBuf, dir: PathBuf, log: PathBuf) -> Result<Self> {
        fs::create_dir(&dir)?;
        Ok(Self { program, dir, log, daemon: None, peak: None })
    }
}

impl Target for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn about(&self) -> String {
        "kvfs's FUSE layer over memory; nothing survives, fsync does nothing".into()
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    fn mount(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg(&self.dir);
        self.daemon = Some(Daemon::start(command, &self.dir, &self.log)?);
        Ok(())
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounting would lose the files, so only the kernel's caches go.
    fn make_cold(&mut self) -> Result<()> {
        host::sync_file_system(&self.dir)?;
        host::drop_caches()
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(daemon) = self.daemon.take() else { return Ok(()) };
        let peak = daemon.stop(|child| {
            let pid = Pid::from_raw(child.id().cast_signed()).context("the daemon has no process id")?;
            Ok(kill_process(pid, Signal::TERM)?)
        })?;
        self.peak = Some(self.peak.unwrap_or_default().max(peak));
        Ok(())
    }

    fn probe(&self) -> Result<Probe> {
        Ok(Probe { device_stat: None, daemon: self.daemon.as_ref().map(Daemon::id) })
    }

    fn unfit_for(&self, scenario: ScenarioName) -> Option<&'static str> {
        match scenario {
            ScenarioName::Million => Some("keeps everything in memory"),
            ScenarioName::Exec => Some("is not what `kvfs exec` is compared with"),
            _ => scenario.is_by_calls().then_some("is not what the library is compared with"),
        }
    }

    fn memory_peak(&self) -> Option<MemoryPeak> {
        self.peak
    }
}
