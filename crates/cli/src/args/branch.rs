//! The command line of `kvfs branch`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::TableForm;

const BRANCH_EXAMPLES: &str = "\
Examples:
  kvfs branch create try                   of all files and keys as they are now
  kvfs branch create fix ~/mnt/project     of one directory
  kvfs branch create other --of try        of another branch; merged into that
  kvfs branch mount try ~/try              work in it for as long as you like
  kvfs branch diff try
  kvfs umount ~/try                        it stays, also over crashes
  kvfs branch merge try                    it appears on the main line at once
  kvfs branch delete try                   or nothing of it happened

With -s STORE all but `mount` work on a store that is not mounted, too.";

/// Branches of all files and keys, or of one directory.
#[derive(Debug, Args)]
#[command(after_help = BRANCH_EXAMPLES)]
pub(crate) struct BranchArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", global = true, value_name = "STORE|DIR")]
    pub(crate) store: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: BranchCommand,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum BranchCommand {
    /// Make a branch of the state of now, or of a snapshot; what open transactions have written is not
    /// in it
    #[command(after_help = "Examples:\n  \
        kvfs branch create try\n  \
        kvfs branch create --flush try\n  \
        kvfs branch create fix ~/mnt/project\n  \
        kvfs branch create -s ~/store fix /project     not mounted, or from its root\n  \
        kvfs branch create old --from last-week\n  \
        kvfs branch create other --of try\n\
        \n\
        A branch of a directory shows that directory as its root: where it is mounted\n\
        nothing leads out of it, and `diff` and `merge --prefer` take paths from there.\n\
        It has no keys.\n\
        \n\
        A branch of a branch begins with all that is in that one, without a copy, and\n\
        is merged into that one, which stays until its branches are merged or deleted:\n\
        so of several ways to go on one is kept.")]
    Create {
        /// Name: up to 255 bytes, no slash
        name: String,
        /// Of this directory: on the mount, or with -s from the root of the store (default: of all
        /// files and keys)
        dir: Option<PathBuf>,
        /// As it is in this snapshot; a merge then looks for what was changed since it was taken
        #[arg(long, value_name = "SNAPSHOT", conflicts_with = "flush")]
        from: Option<String>,
        /// Of this branch, which may be mounted
        #[arg(long, value_name = "BRANCH", conflicts_with_all = ["dir", "from"])]
        of: Option<String>,
        /// First have the kernel write out dirty pages of shared mappings
        #[arg(long)]
        flush: bool,
    },
    /// Your branches, oldest first; root's list shows all
    #[command(after_help = "Examples:\n  kvfs branch list\n  kvfs branch list --json")]
    List {
        /// How it is shown
        #[command(flatten)]
        form: TableForm,
    },
    /// Mount a branch on a directory
    #[command(after_help = "Example:\n  \
        kvfs branch mount try ~/try\n\
        \n\
        KVFS_TXN=N puts `kvfs kv` into it, with the number that `list --json` shows.\n\
        \n\
        What is done in it is safe every 30 seconds, when it is unmounted, and when the\n\
        store is. An fsync inside makes nothing safer.")]
    Mount {
        /// Name
        name: String,
        /// Existing, empty directory
        dir: PathBuf,
    },
    /// Unmount a branch by name; `kvfs umount DIR` and umount(8) do the same
    #[command(after_help = "Example:\n  kvfs branch umount try")]
    Umount {
        /// Name
        name: String,
    },
    /// What a merge would change; of a branch of a branch, what has changed since it was made
    #[command(after_help = "Examples:\n  kvfs branch diff try\n  kvfs branch diff --stat try\n\n\
        Signs: + added, - removed, ~ changed, > renamed")]
    Diff {
        /// Name
        name: String,
        /// Only what is at and below these: from the root of the branch, or kv:KEYSPACE/PREFIX
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
        /// Counts only
        #[arg(long)]
        stat: bool,
        /// For machines: one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Bring all that was done in a branch to the main line at once, or into the branch that it is one of;
    /// the branch ends
    #[command(after_help = "Examples:\n  \
        kvfs branch merge try\n  \
        kvfs branch merge try --prefer branch             where both changed\n  \
        kvfs branch merge try --prefer main /etc kv:tags  there only\n  \
        kvfs branch merge try --prefer branch /a /b --prefer main /c\n\
        \n\
        Exit code 75: what the branch has changed was changed outside of it, too. The\n\
        paths and keys are named, nothing has happened, and the branch is as it was,\n\
        mounted where it was.\n\
        \n\
        --prefer main leaves these as they are outside, with all that depends on it;\n\
        --prefer branch overwrites them. Files of other users are overwritten for root\n\
        only. Where it is merged into a branch, main stands for that.")]
    Merge {
        /// Name
        name: String,
        /// Which side stays where both have changed something: everywhere, or at and below PATHs
        /// (from the root of the branch, or kv:KEYSPACE/PREFIX)
        #[arg(long, num_args = 1.., value_names = ["branch|main", "PATH"])]
        prefer: Vec<String>,
    },
    /// Drop a branch and all that was done in it
    #[command(after_help = "Example:\n  kvfs branch delete try")]
    Delete {
        /// Name
        name: String,
    },
}
