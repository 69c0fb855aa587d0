//! bindfs: a FUSE file system that passes everything through.

use super::OverlayKind;
use kvfs_bench::host::version;
use std::process::Command;

pub(crate) const BINDFS: OverlayKind = OverlayKind {
    name: "bindfs",
    about: || format!("{}; passthrough over ext4, whose durability it has", version("bindfs", "--version")),
    init: |_| Ok(()),
    serve: |lower, dir| {
        let mut command = Command::new("bindfs");
        command.arg("-f").arg(lower).arg(dir);
        command
    },
};
