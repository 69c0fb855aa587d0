//! XFS, as it comes.

use super::Kind;

pub(crate) const XFS: Kind = Kind {
    name: "xfs",
    durability: "metadata log, written at the latest after 30 s",
    mkfs: "mkfs.xfs",
    mkfs_args: &["-q", "-f", "-K"],
    mount_options: "nodiscard",
};
