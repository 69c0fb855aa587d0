//! The command line of `kvfs snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const SNAPSHOT_EXAMPLES: &str = "\
Examples:
  kvfs snapshot create before-upgrade      of all files and keys, in constant time
  kvfs snapshot list
  kvfs snapshot diff before-upgrade        what has changed since
  kvfs snapshot restore --dry-run before-upgrade
  kvfs snapshot restore before-upgrade     everything as it was, in one transaction
  kvfs snapshot delete before-upgrade      and its space comes back

With -s STORE they work on a store that is not mounted, too.";

/// Named snapshots of all files and keys.
#[derive(Debug, Args)]
#[command(after_help = SNAPSHOT_EXAMPLES)]
pub(crate) struct SnapshotArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", global = true, value_name = "STORE|DIR")]
    pub(crate) store: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Give the state of now a name; what open transactions have written is not in it
    #[command(after_help = "Examples:\n  kvfs snapshot create before-upgrade\n  \
        kvfs snapshot create --flush nightly\n\n\
        It holds everything written before, by whatever program. What programs have written into\n\
        shared mappings (mmap) and not synced is the kernel's: --flush takes it along, and the\n\
        kernel reads cached files anew afterwards.")]
    Create {
        /// Name: up to 255 bytes, no slash
        name: String,
        /// First have the kernel write out dirty pages of shared mappings
        #[arg(long)]
        flush: bool,
    },
    /// Snapshots, oldest first
    #[command(after_help = "Examples:\n  kvfs snapshot list\n  kvfs snapshot list --json")]
    List {
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// Take a name away; the space that only this snapshot holds comes back
    #[command(after_help = "Example:\n  kvfs snapshot delete before-upgrade")]
    Delete {
        /// Name
        name: String,
    },
    /// What differs between a snapshot and now, or another snapshot
    #[command(after_help = "Examples:\n  kvfs snapshot diff monday\n  kvfs snapshot diff monday tuesday\n  \
        kvfs snapshot diff --stat monday\n\n\
        Signs: + added, - removed, ~ changed, > renamed")]
    Diff {
        /// The state before
        before: String,
        /// The state after (default: now)
        after: Option<String>,
        /// Counts only
        #[arg(long)]
        stat: bool,
        /// For machines: one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Bring all files and keys back to a snapshot, in one transaction, with files open
    #[command(after_help = "Examples:\n  kvfs snapshot restore --dry-run before-upgrade\n  \
        kvfs snapshot restore before-upgrade\n\n\
        Who has a file open that is removed keeps it. Exit code 75: somebody changed the same\n\
        files meanwhile; nothing happened, and trying again makes sense.")]
    Restore {
        /// Name
        name: String,
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
        /// For machines
        #[arg(long)]
        json: bool,
    },
}
