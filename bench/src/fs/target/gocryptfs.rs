//! gocryptfs: encrypts, over FUSE.

use super::OverlayKind;
use kvfs_bench::host;
use kvfs_bench::host::version;
use std::process::Command;

/// There is nothing to keep secret; the cheapest way from it to the key, which is no part of a timing.
const PASSWORD: [&str; 2] = ["-extpass", "echo benchmark"];

pub(crate) const GOCRYPTFS: OverlayKind = OverlayKind {
    name: "gocryptfs",
    about: || format!("{}; encryption over ext4, whose durability it has", version("gocryptfs", "--version")),
    init: |lower| {
        let args = ["-init", "-q", "-scryptn", "10", PASSWORD[0], PASSWORD[1]].map(str::as_ref);
        host::run("gocryptfs", &[args.as_slice(), &[lower.as_os_str()]].concat())?;
        Ok(())
    },
    serve: |lower, dir| {
        let mut command = Command::new("gocryptfs");
        command.args(["-fg", "-q", "-nosyslog"]).args(PASSWORD).arg(lower).arg(dir);
        command
    },
};
