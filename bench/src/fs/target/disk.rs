//! A kernel file system on a loop device with direct I/O.

use super::{Target, is_mounted, unmount, unmount_lazily, version};
use crate::workload::ScenarioName;
use anyhow::{Context, Result};
use kvfs_bench::counters::Probe;
use kvfs_bench::host;
use kvfs_bench::image::{Image, Loop};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What differs between them.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) durability: &'static str,
    pub(crate) mkfs: &'static str,
    /// Forces, quietly, nothing lazily initialised, nothing discarded: discard would give the image's blocks back.
    pub(crate) mkfs_args: &'static [&'static str],
    pub(crate) mount_options: &'static str,
}

pub(crate) const EXT4: Kind = Kind {
    name: "ext4",
    durability: "data=ordered, commit interval 5 s",
    mkfs: "mkfs.ext4",
    mkfs_args: &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    mount_options: "nodiscard",
};

pub(crate) const XFS: Kind = Kind {
    name: "xfs",
    durability: "metadata log, written at the latest after 30 s",
    mkfs: "mkfs.xfs",
    mkfs_args: &["-q", "-f", "-K"],
    mount_options: "nodiscard",
};

pub(crate) const BTRFS: Kind =
    Kind { name: "btrfs", durability: "copy on write, commit interval 30 s", mkfs: "mkfs.btrfs", ..XFS };

/// A device that several file systems are made on, one at a time.
pub(crate) struct Device {
    attached: Loop,
    // After the loop device, which is detached first.
    _image: Image,
}

impl Device {
    pub(crate) fn new(image: Image) -> Result<Self> {
        Ok(Self { attached: Loop::attach(image.path())?, _image: image })
    }

    pub(crate) fn path(&self) -> &str {
        self.attached.device()
    }

    /// Its statistics in `/sys`.
    pub(crate) fn stat(&self) -> Result<PathBuf> {
        let name = Path::new(self.path()).file_name().context("a loop device has a name")?;
        Ok(Path::new("/sys/block").join(name).join("stat"))
    }
}

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
        let version = version(self.kind.mkfs, "-V");
        format!("{version}; -o {}; {}", self.kind.mount_options, self.kind.durability)
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        host::run(self.kind.mkfs, &[self.kind.mkfs_args, &[self.device.path()]].concat())?;
        self.mount()
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn mount(&mut self) -> Result<()> {
        let Kind { name, mount_options, .. } = self.kind;
        let options = ["-t", name, "-o", mount_options, self.device.path()].map(OsStr::new);
        host::run("mount", &[options.as_slice(), &[self.dir.as_os_str()]].concat())?;
        Ok(())
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
