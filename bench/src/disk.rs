//! Kernel file systems, and the loop devices that they are made on.
//!
//! Thread safety: each value belongs to one thread.
//!
//! Invariants: a loop device is detached before its image is removed.

use crate::host;
use crate::image::{Image, Loop};
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What differs between them.
pub struct Kind {
    /// Of the file system, as `mount -t` has it.
    pub name: &'static str,
    /// What survives a power cut, in a few words.
    pub durability: &'static str,
    /// The program that makes one.
    pub mkfs: &'static str,
    /// Forces, quietly, nothing lazily initialised, nothing discarded: discard would give the image's blocks
    /// back.
    pub mkfs_args: &'static [&'static str],
    /// As `mount -o` has them.
    pub mount_options: &'static str,
}

impl Kind {
    /// Makes an empty file system on a device, whatever is there.
    pub fn make(&self, device: &str) -> Result<()> {
        host::run(self.mkfs, &[self.mkfs_args, &[device]].concat())?;
        Ok(())
    }

    /// Mounts the one on the device.
    pub fn mount(&self, device: &str, dir: &Path) -> Result<()> {
        let options = ["-t", self.name, "-o", self.mount_options, device].map(OsStr::new);
        host::run("mount", &[options.as_slice(), &[dir.as_os_str()]].concat())?;
        Ok(())
    }

    /// Version, options and what survives a power cut, in a few words.
    pub fn about(&self) -> String {
        let version = host::version(self.mkfs, "-V");
        format!("{version}; -o {}; {}", self.mount_options, self.durability)
    }
}

/// The one that most machines have.
pub const EXT4: Kind = Kind {
    name: "ext4",
    durability: "data=ordered, commit interval 5 s",
    mkfs: "mkfs.ext4",
    mkfs_args: &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    mount_options: "nodiscard",
};

/// With its defaults.
pub const XFS: Kind = Kind {
    name: "xfs",
    durability: "metadata log, written at the latest after 30 s",
    mkfs: "mkfs.xfs",
    mkfs_args: &["-q", "-f", "-K"],
    mount_options: "nodiscard",
};

/// With its defaults, too.
pub const BTRFS: Kind =
    Kind { name: "btrfs", durability: "copy on write, commit interval 30 s", mkfs: "mkfs.btrfs", ..XFS };

/// A device that several file systems are made on, one at a time.
pub struct Device {
    attached: Loop,
    // After the loop device, which is detached first.
    _image: Image,
}

impl Device {
    /// Attaches the image.
    pub fn new(image: Image) -> Result<Self> {
        Ok(Self { attached: Loop::attach(image.path())?, _image: image })
    }

    /// The block device.
    pub fn path(&self) -> &str {
        self.attached.device()
    }

    /// Its statistics in `/sys`.
    pub fn stat(&self) -> Result<PathBuf> {
        let name = Path::new(self.path()).file_name().context("a loop device has a name")?;
        Ok(Path::new("/sys/block").join(name).join("stat"))
    }
}
