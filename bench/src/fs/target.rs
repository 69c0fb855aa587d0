//! The file systems under test, behind one trait: a file for each, and what they share in `disk` and
//! `overlay`.
//!
//! Thread safety: a target belongs to one thread.
//!
//! Invariants: dropping a target unmounts it and ends its daemon, also after an error.

mod aged;
mod bindfs;
mod disk;
mod exec;
mod exec_client;
mod floor;
mod gocryptfs;
mod kvfs;
mod library;
mod overlay;

pub(crate) use aged::Aged;
pub(crate) use bindfs::BINDFS;
pub(crate) use disk::Disk;
pub(crate) use exec::Exec;
pub(crate) use exec_client::ExecClient;
pub(crate) use floor::Floor;
pub(crate) use gocryptfs::GOCRYPTFS;
pub(crate) use kvfs::{Backing, Kvfs, KvfsOptions};
pub(crate) use library::Library;
pub(crate) use overlay::{Overlay, OverlayKind};

use crate::workload::ScenarioName;
use anyhow::Result;
use kvfs_bench::calls::{Calls, System};
use kvfs_bench::counters::Probe;
use kvfs_bench::host;
use kvfs_bench::memory::MemoryPeak;
use kvfs_bench::programs::Programs;
use std::path::Path;

/// One file system that the workloads run on.
pub(crate) trait Target {
    /// Its column in the table.
    fn name(&self) -> &'static str;

    /// Version, options and what survives a power cut, in a few words.
    fn about(&self) -> String;

    /// Makes an empty file system and mounts it; where that is not possible, mounts the one that there is.
    fn mount_fresh(&mut self) -> Result<()>;

    /// Where it is mounted.
    fn dir(&self) -> &Path;

    /// Mounts what was unmounted.
    fn mount(&mut self) -> Result<()>;

    /// Unmounts, drops the kernel's caches and mounts again.
    fn make_cold(&mut self) -> Result<()> {
        self.unmount()?;
        host::drop_caches()?;
        self.mount()
    }

    /// Unmounts and ends the daemon.
    fn unmount(&mut self) -> Result<()>;

    /// Where its device and its daemon are counted; while mounted.
    fn probe(&self) -> Result<Probe>;

    /// Writes out everything that was changed.
    fn sync(&self) -> Result<()> {
        host::sync_file_system(self.dir())
    }

    /// The most memory that the daemon has taken so far; `None` for a kernel file system and
    /// before the daemon has ended once.
    fn memory_peak(&self) -> Option<MemoryPeak> {
        None
    }

    /// What the daemon may take, for those that have a ceiling (bytes).
    fn memory_limit_bytes(&self) -> Option<u64> {
        None
    }

    /// Another ceiling from the next mount on; `None` is the usual one. Most have none.
    fn set_memory(&mut self, _memory_bytes: Option<u64>) {}

    /// The calls of workloads that the library can do, too, beneath `dir`; while mounted.
    fn calls(&self, dir: &Path) -> Result<Box<dyn Calls>> {
        Ok(Box::new(System::new(dir)?))
    }

    /// How programs are run that work beneath `dir`; while mounted.
    fn programs(&self, dir: &Path) -> Programs {
        Programs::on_mount(dir)
    }

    /// Why a scenario cannot be run on it.
    fn unfit_for(&self, _scenario: ScenarioName) -> Option<&'static str> {
        None
    }

    /// Holds the state of now, so that its space is not given back while later changes are made; false where
    /// there is nothing of the kind.
    fn hold_snapshot(&mut self) -> Result<bool> {
        Ok(false)
    }
}
