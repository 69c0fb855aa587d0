//! ext4, as it comes.

use super::Kind;

pub(crate) const EXT4: Kind = Kind {
    name: "ext4",
    durability: "data=ordered, commit interval 5 s",
    mkfs: "mkfs.ext4",
    mkfs_args: &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    mount_options: "nodiscard",
};
