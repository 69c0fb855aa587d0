//! kvfs on a mount whose daemon serves programs under `kvfs exec` as well: the programs go past the kernel.

use super::exec::WORK;
use super::{Kvfs, Target};
use crate::workload::ScenarioName;
use anyhow::Result;
use kvfs_bench::counters::Probe;
use kvfs_bench::memory::MemoryPeak;
use kvfs_bench::programs::Programs;
use std::path::Path;

/// See the module.
pub(crate) struct ExecClient(Kvfs);

impl ExecClient {
    /// Beside this mount.
    pub(crate) fn new(mount: Kvfs) -> Self {
        Self(mount)
    }
}

impl Target for ExecClient {
    fn name(&self) -> &'static str {
        "exec client"
    }

    fn about(&self) -> String {
        format!("{}; programs under `kvfs exec` beside a mount", self.0.about())
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.0.mount_fresh()
    }

    fn dir(&self) -> &Path {
        self.0.dir()
    }

    fn mount(&mut self) -> Result<()> {
        self.0.mount()
    }

    fn unmount(&mut self) -> Result<()> {
        self.0.unmount()
    }

    fn probe(&self) -> Result<Probe> {
        self.0.probe()
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn programs(&self, _: &Path) -> Programs {
        Programs::under_exec(self.0.program(), self.0.store(), Path::new(WORK))
    }

    fn memory_peak(&self) -> Option<MemoryPeak> {
        self.0.memory_peak()
    }

    fn memory_limit_bytes(&self) -> Option<u64> {
        self.0.memory_limit_bytes()
    }

    fn unfit_for(&self, scenario: ScenarioName) -> Option<&'static str> {
        (scenario != ScenarioName::Exec).then_some("is for programs alone")
    }
}
