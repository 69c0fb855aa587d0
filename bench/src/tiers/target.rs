//! What is measured: kvfs on two devices, kvfs and ext4 on one.
//!
//! Thread safety: each value belongs to one thread. Invariant: what was mounted is unmounted when it is
//! dropped.

use anyhow::{Context, Result};
use kvfs_bench::disk::EXT4;
use kvfs_bench::host;
use kvfs_bench::mount::Mounted;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum TargetName {
    /// kvfs on a small fast and a large slow device, placement=hot-cold
    Kvfs,
    /// kvfs on a large fast device
    AllFast,
    /// kvfs on a slow device
    AllSlow,
    /// ext4 on the fast device
    Ext4Fast,
    /// ext4 on the slow device
    Ext4Slow,
}

impl TargetName {
    pub(crate) const ALL: [Self; 5] =
        [Self::Kvfs, Self::AllFast, Self::AllSlow, Self::Ext4Fast, Self::Ext4Slow];

    /// In results and goals.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Kvfs => "kvfs",
            Self::AllFast => "all fast",
            Self::AllSlow => "all slow",
            Self::Ext4Fast => "ext4 fast",
            Self::Ext4Slow => "ext4 slow",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Kvfs => "a small fast and a large slow device, placement=hot-cold",
            Self::AllFast => "kvfs on a large fast device",
            Self::AllSlow => "kvfs on a slow device",
            Self::Ext4Fast => "data=ordered, commit interval 5 s, on a fast device",
            Self::Ext4Slow => "likewise, on a slow device",
        }
    }
}

/// The block devices.
pub(crate) struct Devices<'a> {
    pub(crate) fast: &'a str,
    pub(crate) fast_whole: &'a str,
    pub(crate) slow: &'a str,
}

/// What `kvfs tier placement --json` says, as far as it is asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct Migration {
    pub(crate) left_bytes: u64,
    pub(crate) moved_bytes: u64,
    #[serde(default)]
    pub(crate) moving: bool,
}

/// A fresh file system that is mounted.
pub(crate) enum Target {
    Kvfs { program: PathBuf, mounted: Mounted },
    Ext4(Ext4),
}

impl Target {
    pub(crate) fn new(
        name: TargetName,
        program: &Path,
        work: &Path,
        devices: &Devices<'_>,
        memory_bytes: u64,
    ) -> Result<Self> {
        let kvfs = |devices: &[String], options: &[&str]| {
            let memory = memory_bytes.to_string();
            let options = [options, &["--memory", &memory]].concat();
            let mounted = Mounted::on_devices(program, work, devices, &options)?;
            Ok(Self::Kvfs { program: program.to_owned(), mounted })
        };
        let (fast, whole, slow) = (
            format!("fast:{}", devices.fast),
            format!("fast:{}", devices.fast_whole),
            format!("fast:{}", devices.slow),
        );
        match name {
            TargetName::Kvfs => {
                kvfs(&[fast, format!("slow:{}", devices.slow)], &["-o", "placement=hot-cold"])
            }
            TargetName::AllFast => kvfs(&[whole], &[]),
            TargetName::AllSlow => kvfs(&[slow], &[]),
            TargetName::Ext4Fast => Ext4::new(devices.fast_whole, work).map(Self::Ext4),
            TargetName::Ext4Slow => Ext4::new(devices.slow, work).map(Self::Ext4),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        match self {
            Self::Kvfs { mounted, .. } => mounted.dir(),
            Self::Ext4(ext4) => &ext4.dir,
        }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        host::make_durable(self.dir())
    }

    /// Nothing is cached behind it.
    pub(crate) fn mount_again(&mut self) -> Result<()> {
        match self {
            Self::Kvfs { mounted, .. } => mounted.mount_again(host::drop_caches),
            Self::Ext4(ext4) => {
                ext4.unmount()?;
                host::drop_caches()?;
                ext4.mount()
            }
        }
    }

    /// What moves between the tiers.
    pub(crate) fn migration(&self) -> Result<Migration> {
        let Self::Kvfs { program, mounted } = self else { return Ok(Migration::default()) };
        let words = ["tier".as_ref(), "placement".as_ref(), "--json".as_ref(), mounted.dir().as_os_str()];
        serde_json::from_str(&host::run(program, &words)?).context("kvfs tier placement says other things")
    }

    /// Where the content of `path` wishes to lie from now on.
    pub(crate) fn wish(&self, path: &Path, tier: &str) -> Result<()> {
        let Self::Kvfs { program, .. } = self else { return Ok(()) };
        let wish = format!("tier={tier}");
        host::run(program, &["set".as_ref(), path.as_os_str(), wish.as_ref()]).map(drop)
    }

    pub(crate) fn remove(self) -> Result<()> {
        match self {
            Self::Kvfs { mounted, .. } => mounted.remove(),
            Self::Ext4(mut ext4) => ext4.unmount(),
        }
    }
}

/// A kernel file system on a block device.
pub(crate) struct Ext4 {
    device: String,
    dir: PathBuf,
    is_up: bool,
}

impl Ext4 {
    fn new(device: &str, work: &Path) -> Result<Self> {
        EXT4.make(device)?;
        let dir = work.join("mnt");
        fs::create_dir_all(&dir)?;
        let mut ext4 = Self { device: device.to_owned(), dir, is_up: false };
        ext4.mount()?;
        Ok(ext4)
    }

    fn mount(&mut self) -> Result<()> {
        EXT4.mount(&self.device, &self.dir)?;
        self.is_up = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        if self.is_up {
            host::run("umount", &[&self.dir])?;
            self.is_up = false;
        }
        Ok(())
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{} stays mounted: {error:#}", self.dir.display());
        }
    }
}
