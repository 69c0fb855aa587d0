//! `kvfs debug`, as clap sees it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `kvfs debug`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    kvfs debug locks ~/mnt                   of the daemon that serves it")]
pub(crate) struct DebugArgs {
    /// What to look at
    #[command(subcommand)]
    pub(crate) command: DebugCommand,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum DebugCommand {
    /// Which threads hold and wait for which locks in memory, and where in the code
    Locks(DebugLocksArgs),
}

const LOCKS_EXAMPLES: &str = "\
Examples:
  kvfs debug locks                         of the mount of the current directory
  kvfs debug locks ~/mnt
  kvfs debug locks ~/store --json | jq 'select(.state == \"waits\")'

A row is a thread that holds a lock, or waits for it. A thread takes only locks
of a greater rank than those it holds. SINCE is for how long it was seen so, by
looks a second apart. The daemon answers while operations hang; what is held
for more than a second is in its log, too. Locks of transactions: `kvfs locks`.

Only root and the store's owner may ask.";

/// `kvfs debug locks`.
#[derive(Debug, Args)]
#[command(after_help = LOCKS_EXAMPLES)]
pub(crate) struct DebugLocksArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(value_name = "DIR|STORE")]
    pub(crate) store: Option<PathBuf>,
    /// For machines: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}
