//! The command line of `kvfs txn`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::TableForm;
use crate::units::{parse_duration, parse_duration_or_ever, parse_size};

const TXN_EXAMPLES: &str = "\
Examples:
  kvfs txn run make install                all of it, or nothing
  kvfs txn run --retry 3 -- ./migrate.sh   again after a conflict
  id=$(kvfs txn begin | head -n 1)         one that several commands share
  kvfs txn join $id -- cp song.mp3 music/
  kvfs txn diff $id
  kvfs txn commit $id
  kvfs txn list
  kvfs txn undo $id                        take a committed transaction back

Exit code 75: another transaction changed the same thing; nothing happened, and
trying again makes sense.
Exit code 124: the time of `txn run --timeout` was over; nothing happened.
Exit code 10: something was built on a transaction that was to be undone;
nothing happened.";

/// Transactions over files and keys.
#[derive(Debug, Args)]
#[command(after_help = TXN_EXAMPLES)]
pub(crate) struct TxnArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", global = true, value_name = "STORE|DIR")]
    pub(crate) store: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: TxnCommand,
}

/// What a transaction sees of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationArg {
    /// Snapshot isolation: the state at its begin; no update is lost
    Si,
    /// As if transactions ran one after the other
    Serializable,
}

/// How a transaction is begun.
#[derive(Debug, Clone, Args)]
pub(crate) struct BeginArgs {
    /// What the transaction sees of others
    #[arg(long, value_enum, default_value = "si")]
    pub(crate) isolation: IsolationArg,
    /// Given up when it takes longer, such as 30s, 5m or 2h (default: never)
    #[arg(long, value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Given up when it goes without an operation for longer; 0: never (default: as the mount says, 8h)
    #[arg(long, value_parser = parse_duration_or_ever, value_name = "TIME")]
    pub(crate) idle_timeout: Option<Duration>,
    /// Of two transactions in each other's way the one with the greater value gives way
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(-20..=19), allow_hyphen_values = true)]
    pub(crate) nice: i32,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum TxnCommand {
    /// Run a command in a transaction: committed when it succeeds, else nothing happened
    #[command(after_help = "Examples:\n  \
        kvfs txn run make install\n  \
        kvfs txn run --timeout 5m -- make install\n  \
        kvfs txn run -- sh -c 'cp a.mp3 music/ && kvfs kv put tags a.mp3 \"artist=…\"'\n\
        \n\
        The command's exit status is passed on; 75: a conflict, and nothing happened;\n\
        124: the time of --timeout was over, and nothing happened. On a terminal a line\n\
        says what came of it (-q: none).")]
    Run(RunArgs),
    /// Begin a transaction; prints its number, and (to root and owner) its directory
    #[command(after_help = "Example:\n  kvfs txn begin --isolation serializable --timeout 5m")]
    Begin(BeginArgs),
    /// Run a command inside an open transaction: it sees the view in the place of the mount
    #[command(after_help = "Example:\n  kvfs txn join 17 -- make install")]
    Join {
        /// Number of the transaction
        id: u64,
        /// Command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Make everything that a transaction did take effect, at once
    #[command(after_help = "Example:\n  kvfs txn commit 17")]
    Commit {
        /// Number of the transaction
        id: u64,
        /// Don't wait until it survives a power cut
        #[arg(long = "async")]
        is_async: bool,
    },
    /// Drop a transaction: nothing of it ever happened
    #[command(after_help = "Example:\n  kvfs txn abort 17")]
    Abort {
        /// Number of the transaction
        id: u64,
    },
    /// Open transactions, or those that can be taken back
    #[command(after_help = "Examples:\n  kvfs txn list\n  kvfs txn list --json\n  kvfs txn list --committed")]
    List {
        /// Committed ones that `kvfs txn undo` can take back, with what keeping them costs
        #[arg(long)]
        committed: bool,
        /// How it is shown
        #[command(flatten)]
        form: TableForm,
    },
    /// What an open transaction would change
    #[command(after_help = "Examples:\n  \
        kvfs txn diff 17\n  \
        kvfs txn diff --stat 17\n  \
        kvfs txn diff --content 17      as diff -u\n  \
        kvfs txn diff 17 /etc kv:tags   only there\n\
        \n\
        Signs: + added, - removed, ~ changed, > renamed. With --json each line has what\n\
        was there before and after it: mode, owner, size, target, value (its first 256\n\
        bytes).")]
    Diff {
        /// Number of the transaction
        id: u64,
        /// Only what is at and below these: from the root of the store, or kv:KEYSPACE/PREFIX
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
        /// Counts only
        #[arg(long)]
        stat: bool,
        /// With the lines that differ in text files, against the main line as it is now
        #[arg(long, conflicts_with_all = ["stat", "json"])]
        content: bool,
        /// For machines: one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Take a committed transaction back, in a new transaction, unless something was built on it
    #[command(after_help = "Examples:\n  \
        kvfs txn undo 17\n  \
        kvfs txn undo --dry-run 17        what it would change\n  \
        kvfs txn list --committed         which can be undone\n  \
        kvfs txn undo 17 /etc kv:tags     only what it did there\n  \
        kvfs txn undo 17 --skip /etc/a    all but that\n\
        \n\
        What the transaction changed becomes what it was; what others did beside it\n\
        stays. When any of it has changed since, the paths and keys are listed, nothing\n\
        happens, and the exit code is 10.\n\
        --force overwrites what has changed since; files of other users for root only.\n\
        A file that was moved elsewhere since stays there, and a new one with what it\n\
        had before comes back; a directory is moved back.\n\
        How many are kept, and for how long: `kvfs mount -o undo_count=N,undo_age=TIME`.")]
    Undo {
        /// Number of the transaction
        id: u64,
        /// Only what it changed at and below these: from the root of the store, or kv:KEYSPACE/PREFIX
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
        /// Not what it changed at and below this; may be given several times
        #[arg(long, value_name = "PATH")]
        skip: Vec<String>,
        /// Also where something has changed since
        #[arg(long)]
        force: bool,
        /// Only show what it would change, and what is in the way
        #[arg(long)]
        dry_run: bool,
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// Lock keys or files for a transaction, until it ends; waits for others
    Lock(TxnLockArgs),
    /// The process between `txn run` and its command
    #[command(hide = true)]
    Init {
        /// Process that it is to end with
        #[arg(long)]
        parent: u32,
        /// End what the command leaves behind
        #[arg(long)]
        kill_children: bool,
        /// Command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// `kvfs txn lock`.
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("mode").required(true),
    after_help = "Examples:\n  \
        kvfs txn lock 17 --shared kv:tags/song     keys that begin so, now or later\n  \
        kvfs txn lock 17 --exclusive music/a.mp3   a file, or part of it (--offset)\n  \
        kvfs txn lock 17 --shared music            names in a directory, not below it\n\
        \n\
        Lock early: what another transaction changed after this one began is a conflict\n\
        at once (exit code 75), unless this one is serializable."
)]
pub(crate) struct TxnLockArgs {
    /// Number of the transaction
    pub(crate) id: u64,
    /// Others may lock it likewise, and don't change it
    #[arg(long, group = "mode")]
    pub(crate) shared: bool,
    /// No other transaction locks or changes it
    #[arg(long, group = "mode")]
    pub(crate) exclusive: bool,
    /// First byte of a file, such as 64K
    #[arg(long, value_parser = parse_size, default_value = "0", value_name = "BYTES")]
    pub(crate) offset: u64,
    /// Number of bytes (default: to the end, and what is appended)
    #[arg(long, value_parser = parse_size, default_value = "0", hide_default_value = true, value_name = "BYTES")]
    pub(crate) length: u64,
    /// kv:KEYSPACE/PREFIX, or a path on the mount
    #[arg(required = true, value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
}

/// `kvfs txn run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// How it is begun
    #[command(flatten)]
    pub(crate) begin: BeginArgs,
    /// Run it again, at most so many times, after a conflict with another writer
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) retry: u32,
    /// Show what has changed and ask before the commit, if anything has changed
    #[arg(long)]
    pub(crate) review: bool,
    /// End what the command leaves running in the background, instead of waiting for it
    #[arg(long)]
    pub(crate) kill_children: bool,
    /// Don't wait until the commit survives a power cut
    #[arg(long = "async")]
    pub(crate) is_async: bool,
    /// Descriptor that is told of a conflict, because the exit status may be the command's own
    #[arg(long, hide = true)]
    pub(crate) conflict_to: Option<i32>,
    /// Command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
