//! `kvfs defrag`, as clap sees it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::units::parse_size;

const EXAMPLES: &str = "\
Examples:
  kvfs defrag ~/mnt                        while mounted, beside everything else
  kvfs defrag --dry-run ~/mnt              what that would do
  kvfs defrag --limit 50M ~/mnt            leaves the disk to others
  kvfs defrag --policy rewrite ~/store     all data in long stretches

Ctrl-C ends it behind the piece that is being copied, a second one at once
(unmounted; while mounted, a low --limit delays that). What is done stays, and
another run goes on. Nothing is lost when it is cut off. It needs no free space.
Only root and the owner of the store may do this. `kvfs stats` says when it
would pay. Exit codes: 0 done; 1 ended early.";

/// Which zones are emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// Those of which a tenth or more is dead, or whose data is in many short stretches
    Sparse,
    /// All that hold data
    Rewrite,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DefragArgs {
    /// Store, or a directory on its mount
    #[arg(value_name = "STORE|DIR")]
    pub(crate) target: PathBuf,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Which zones are emptied
    #[arg(long, value_enum, default_value = "sparse")]
    pub(crate) policy: PolicyArg,
    /// Most bytes to be copied each second, such as 50M (default: as much as other work leaves)
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) limit: Option<u64>,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}
