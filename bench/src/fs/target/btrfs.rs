//! Btrfs, as it comes.

use super::Kind;

pub(crate) const BTRFS: Kind = Kind {
    name: "btrfs",
    durability: "copy on write, commit interval 30 s",
    mkfs: "mkfs.btrfs",
    mkfs_args: &["-q", "-f", "-K"],
    mount_options: "nodiscard",
};
