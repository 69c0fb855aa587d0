//! A kernel file system on a loop device with direct I/O.

use super::Target;
use crate::workload::ScenarioName;
use anyhow::Result;
use kvfs_bench::counters::Probe;
use kvfs_bench::disk::{Device, EXT4, Kind};
use kvfs_bench::mount::{is_mounted, unmount, unmount_lazily};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A kernel file system that kvfs is compared with.
pub(crate) struct Disk {
    kind: &'static Kind,
    dir: PathBuf,
    device: Rc<Device>,
}

impl Disk {
    /// A file system that is made on `device` and mounted on a new directory `dir`.
    pub(crate) fn new(kind: &'static Kind, dir: PathBuf, device: Rc<Device>) -> Result<Self> {
        fs::create_dir(&dir)?;
        Ok(Self { kind, dir, device })
    }
}

impl Target for Disk {
    fn name(&self) -> &'static str {
        self.kind.name
    }

    fn about(&self) -> String {
        self.kind.about()
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        self.kind.make(self.device.path())?;
        self.mount()
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn mount(&mut self) -> Result<()> {
        self.kind.mount(self.device.path(), &self.dir)
    }

    fn unmount(&mut self) -> Result<()> {
        if is_mounted(&self.dir)? { unmount(&self.dir) } else { Ok(()) }
    }

    fn unfit_for(&self, scenario: ScenarioName) -> Option<&'static str> {
        match scenario {
            ScenarioName::Large => Some("it is compared with itself, and ext4 has fewer inodes"),
            ScenarioName::Exec if self.kind.name != EXT4.name => Some("`kvfs exec` is compared with ext4"),
            _ => None,
        }
    }

    fn probe(&self) -> Result<Probe> {
        Ok(Probe { device_stat: Some(self.device.stat()?), daemon: None })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.unmount().is_err() {
            unmount_lazily(&self.dir);
        }
    }
}
