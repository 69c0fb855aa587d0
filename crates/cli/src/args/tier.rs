//! `kvfs tier`, as clap sees it, and how devices are named on the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use kvfs_open::NewDevice;
use kvfs_store::Tier;

use crate::units::parse_size;

const EXAMPLES: &str = "\
Examples:
  kvfs tier list ~/mnt
  kvfs tier add ~/mnt slow:/dev/sdb        a hard disk, while mounted
  kvfs tier add ~/mnt slow:/hdd/more.img,size=500G fast:/dev/nvme1n1
  kvfs tier status ~/mnt                   what moves, how fast, and why not
  kvfs tier drain ~/mnt /dev/sdb           by its path, or its number
  kvfs tier remove ~/mnt 1
  kvfs tier placement ~/mnt sequential-to-slow
  kvfs tier limit ~/mnt 50M                what moves, each second; 0: no limit
  kvfs tier placement ~/mnt hot-cold+endurance:20G

Journal, names and small files are on fast devices, the data of larger files on
slow ones, each as long as there is room. The first device has the journal, and
stays. A drain goes on in the background, after a restart, too: Ctrl-C only ends
the waiting. While a slow device is missing, the store is mounted read-only.
A file becomes a device with all its space at once, holes included, where its
file system can set space aside; without room for it nothing is changed.

A placement says where content goes for which `kvfs set` says nothing:
  static               to slow devices
  sequential-to-slow   what is written in a row of 1 MiB or more to slow ones,
                       the rest to fast ones
  hot-cold             the same, and what is often read is moved to fast ones
  endurance:SIZE       to slow ones while more than SIZE a day is written to
                       fast ones, journal and names included
Several are asked in turn: hot-cold+endurance:20G. The store keeps it; the mount
option placement= is for one mount.
Only root and the user that has mounted the store may change this.";

/// `kvfs tier`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TierArgs {
    #[command(subcommand)]
    pub(crate) command: TierCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TierCommand {
    /// Which devices the store has
    #[command(after_help = "Example:\n  kvfs tier list ~/mnt")]
    List(TierListArgs),
    /// What each holds, what moves, how fast, and why nothing does
    #[command(after_help = "Examples:\n  kvfs tier status ~/mnt\n  kvfs tier status --json ~/mnt")]
    Status(TierListArgs),
    /// Take files or block devices into the store
    #[command(
        after_help = "Examples:\n  kvfs tier add ~/mnt slow:/dev/sdb\n  touch /hdd/more.img && kvfs tier add ~/mnt slow:/hdd/more.img,size=500G\n\nA file gets all its space at once, holes included; without room nothing is\nchanged. Where its file system can't set space aside, there is a warning."
    )]
    Add(TierAddArgs),
    /// Move everything away from devices, and put nothing there
    #[command(
        after_help = "Examples:\n  kvfs tier drain ~/mnt /dev/sdb\n  kvfs tier drain --no-wait ~/mnt 1        by its number"
    )]
    Drain(TierDrainArgs),
    /// Fill devices again that were to be drained
    #[command(after_help = "Example:\n  kvfs tier refill ~/mnt /dev/sdb")]
    Refill(TierDevicesArgs),
    /// Drain devices, and let go of them
    #[command(after_help = "Example:\n  kvfs tier remove ~/mnt /dev/sdb")]
    Remove(TierDevicesArgs),
    /// How content is placed for which `kvfs set` says nothing, and what moves
    #[command(
        after_help = "Examples:\n  kvfs tier placement ~/mnt                  how it is now\n  kvfs tier placement ~/mnt hot-cold+endurance:20G"
    )]
    Placement(TierPlacementArgs),
    /// Limit how much is moved between tiers each second, until the unmount
    #[command(
        after_help = "Examples:\n  kvfs tier limit ~/mnt 50M\n  kvfs tier limit ~/mnt 0                  no limit"
    )]
    Limit(TierLimitArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TierLimitArgs {
    /// A directory on the mount
    #[arg(value_name = "DIR")]
    pub(crate) target: PathBuf,
    /// Such as 50M; 0: no limit
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub(crate) bytes_per_second: u64,
}

#[derive(Debug, Args)]
pub(crate) struct TierPlacementArgs {
    /// Store, or a directory on its mount
    #[arg(value_name = "STORE|DIR")]
    pub(crate) target: PathBuf,
    /// From now on: static, sequential-to-slow, hot-cold, endurance:SIZE, or several joined by +
    #[arg(value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TierListArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(value_name = "STORE|DIR")]
    pub(crate) target: Option<PathBuf>,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TierAddArgs {
    /// Store, or a directory on its mount
    #[arg(value_name = "STORE|DIR")]
    pub(crate) target: PathBuf,
    /// fast:PATH or slow:PATH; behind a file ,size=SIZE: so long it becomes, as it must where it is
    /// empty
    #[arg(required = true, value_name = "TIER:PATH", value_parser = device_parser())]
    pub(crate) devices: Vec<DeviceArg>,
    /// Overwrite a file or block device that holds anything
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TierDevicesArgs {
    /// Store, or a directory on its mount
    #[arg(value_name = "STORE|DIR")]
    pub(crate) target: PathBuf,
    /// Numbers or paths, as `kvfs tier list` shows them
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct TierDrainArgs {
    #[command(flatten)]
    pub(crate) what: TierDevicesArgs,
    /// Return at once; it goes on in the background
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// A device that is to become one of a store's: `slow:/dev/sdb`, `fast:/ssd/file,size=20G`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceArg {
    pub(crate) tier: Tier,
    pub(crate) path: PathBuf,
    /// Bytes.
    pub(crate) size: Option<u64>,
}

impl DeviceArg {
    pub(crate) fn to_new(&self) -> NewDevice {
        NewDevice { path: self.path.clone(), tier: self.tier, size_bytes: self.size, force: false }
    }

    /// A path without a tier is a fast device.
    fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let tiers = [(Tier::Fast, b"fast:".as_slice()), (Tier::Slow, b"slow:")];
        let named = tiers.into_iter().find_map(|(tier, prefix)| Some((tier, bytes.strip_prefix(prefix)?)));
        let (tier, rest) = named.unwrap_or((Tier::Fast, bytes));
        let size_at = rest.windows(6).rposition(|window| window == b",size=");
        let (path, size) = match size_at {
            Some(at) => (&rest[..at], Some(String::from_utf8_lossy(&rest[at + 6..]))),
            None => (rest, None),
        };
        if path.is_empty() {
            return Err("a path is missing: fast:PATH or slow:PATH".to_owned());
        }
        let size = size.map(|size| parse_size(&size)).transpose()?;
        Ok(Self { tier, path: OsStr::from_bytes(path).into(), size })
    }
}

/// For arguments of the form of [`DeviceArg`].
pub(crate) fn device_parser() -> impl TypedValueParser<Value = DeviceArg> {
    OsStringValueParser::new().try_map(|text| DeviceArg::parse(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DeviceArg, String> {
        DeviceArg::parse(OsStr::new(text))
    }

    #[test]
    fn devices_are_named_by_tier_path_and_size() {
        let device = |tier, path: &str, size| Ok(DeviceArg { tier, path: path.into(), size });
        assert_eq!(parse("/dev/sdb"), device(Tier::Fast, "/dev/sdb", None));
        assert_eq!(parse("slow:/dev/sdb"), device(Tier::Slow, "/dev/sdb", None));
        assert_eq!(parse("fast:a:b,c,size=2G"), device(Tier::Fast, "a:b,c", Some(2 << 30)));
        for wrong in ["", "slow:", "slow:/x,size=", "slow:/x,size=y", "fast:,size=1G"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
