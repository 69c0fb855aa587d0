//! kvfs as a library: the store is open in this process, and calls are function calls.

use super::{Kvfs, Target};
use crate::workload::ScenarioName;
use anyhow::{Context, Result};
use kvfs_bench::calls::{self, Calls};
use kvfs_bench::counters::Probe;
use kvfs_open::{Memory, OpenOptions, OpenedStore, StoreDir};
use kvfs_posix::{Identity, Volume};
use std::path::Path;

/// Where workloads work, in the store.
const WORK: &str = "/work";

/// An open store.
struct Open {
    volume: Volume,
    store: OpenedStore,
}

/// See the module. Its store is made as that of the mount, and opened with what the mount has.
pub(crate) struct Library {
    /// Never mounted.
    mount: Kvfs,
    memory: Memory,
    open: Option<Open>,
}

impl Library {
    /// On a store of its own; `memory_bytes` as for the daemon.
    pub(crate) fn new(mount: Kvfs, memory_bytes: Option<u64>) -> Result<Self> {
        Ok(Self { mount, memory: Memory::new(memory_bytes)?, open: None })
    }

    fn volume(&self) -> Result<&Volume> {
        Ok(&self.open.as_ref().context("the store is closed")?.volume)
    }
}

impl Target for Library {
    fn name(&self) -> &'static str {
        "library"
    }

    fn about(&self) -> String {
        format!("{}; in the process of the benchmark, without a mount", self.mount.about())
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount.make_store()?;
        self.mount()?;
        Ok(self.volume()?.process(&Identity::root()).mkdir(WORK, 0o755)?)
    }

    /// Of the machine: nothing is mounted.
    fn dir(&self) -> &Path {
        self.mount.dir()
    }

    fn mount(&mut self) -> Result<()> {
        let options = OpenOptions { memory: self.memory, ..OpenOptions::default() };
        let store = OpenedStore::open(&StoreDir::open(self.mount.store())?, &options)?;
        let volume = Volume::over(store.fs.clone())?;
        self.open = Some(Open { volume, store });
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(Open { volume, store }) = self.open.take() else { return Ok(()) };
        volume.unmount()?;
        drop(volume);
        Ok(store.close()?)
    }

    fn probe(&self) -> Result<Probe> {
        self.mount.probe()
    }

    fn sync(&self) -> Result<()> {
        Ok(self.volume()?.sync()?)
    }

    fn calls(&self, _dir: &Path) -> Result<Box<dyn Calls>> {
        Ok(Box::new(calls::Library::new(self.volume()?, WORK)?))
    }

    fn unfit_for(&self, scenario: ScenarioName) -> Option<&'static str> {
        (!scenario.is_by_calls()).then_some("programs work on mounts")
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("after the library: {error:#}");
        }
    }
}
