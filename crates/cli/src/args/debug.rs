//! `kvfs debug`, as clap sees it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `kvfs debug`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    kvfs debug locks ~/mnt                   of the daemon that serves it\n  \
    kvfs debug leaks ~/mnt                   what memory it has taken, and where")]
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
    /// Which memory the engine has taken and not given back, and where in the code
    Leaks(DebugLeaksArgs),
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

const LEAKS_EXAMPLES: &str = "\
Examples:
  kvfs debug leaks                         of the mount of the current directory
  kvfs debug leaks ~/mnt
  kvfs debug leaks ~/mnt --json | jq 'select(.age_seconds_max > 3600)'

A row is a place in the code: how much was charged there and is not given back
yet, in how many charges, how much it was at most, and how long the oldest is
there, at most (up to twice as long as it is). Most of it is in use. A leak is
what grows from one look to the next, or is old in a pool whose users have gone,
such as `io` while nothing reads, writes or merges. Pools that hold more than
their owners account for are marked: `memtable`, while no transaction is open,
and `block_cache`. By size: `kvfs stats --memory`.

A debug build also looks when the store is closed: what is charged then is in
its log, with the place, and ends it.

Only root and the store's owner may ask.";

/// `kvfs debug leaks`.
#[derive(Debug, Args)]
#[command(after_help = LEAKS_EXAMPLES)]
pub(crate) struct DebugLeaksArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(value_name = "DIR|STORE")]
    pub(crate) store: Option<PathBuf>,
    /// For machines: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}
