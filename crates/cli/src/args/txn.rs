//! The command line of `kvfs txn`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::units::{parse_duration, parse_size};

const TXN_EXAMPLES: &str = "\
Examples:
  kvfs txn run -- make install             all of it, or nothing
  kvfs txn run --retry 3 -- ./migrate.sh   again when somebody else was in the way
  id=$(kvfs txn begin | head -n 1)         a transaction that several commands share
  kvfs txn join $id -- cp song.mp3 music/
  kvfs txn diff $id
  kvfs txn commit $id
  kvfs txn list
  kvfs txn undo $id                        take a committed transaction back

Exit code 75: somebody else changed the same thing; nothing happened, and trying again makes sense.
Exit code 10: something was built on a transaction that was to be undone; nothing happened.";

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
    /// Of two transactions in each other's way the one with the greater value gives way
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(-20..=19), allow_hyphen_values = true)]
    pub(crate) nice: i32,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum TxnCommand {
    /// Run a command in a transaction: committed when it succeeds, else nothing happened
    #[command(after_help = "Examples:\n  kvfs txn run -- make install\n  \
        kvfs txn run -- sh -c 'cp song.mp3 music/ && kvfs kv put tags song.mp3 \"artist=…\"'\n\n\
        The command's exit status is passed on; 75: a conflict, and nothing happened.")]
    Run(RunArgs),
    /// Begin a transaction; prints its number, and the directory where its view is mounted
    #[command(after_help = "Example:\n  kvfs txn begin --isolation serializable --timeout 5m")]
    Begin(BeginArgs),
    /// Run a command inside an open transaction: it sees the view in the place of the mount
    #[command(after_help = "Example:\n  kvfs txn join 17 -- make install")]
    Join {
        /// Number of the transaction
        id: u64,
        /// Command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
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
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// What an open transaction would change
    #[command(
        after_help = "Examples:\n  kvfs txn diff 17\n  kvfs txn diff --stat 17\n  kvfs txn diff --content 17      as diff -u"
    )]
    Diff {
        /// Number of the transaction
        id: u64,
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
    #[command(
        after_help = "Examples:\n  kvfs txn undo 17\n  kvfs txn undo --dry-run 17        what it would change\n  \
        kvfs txn list --committed         which can be undone\n\n\
        What the transaction changed becomes what it was; what others did beside it stays. When any of it has\n\
        changed since, the paths and keys are listed, nothing happens, and the exit code is 10.\n\
        How many are kept, and for how long: `kvfs mount -o undo_count=N,undo_age=TIME`."
    )]
    Undo {
        /// Number of the transaction
        id: u64,
        /// Only show what it would change, and what is in the way
        #[arg(long)]
        dry_run: bool,
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// Lock keys or files for a transaction, until it ends; waits for others
    Lock(TxnLockArgs),
    /// The first process in the namespaces of `txn run`
    #[command(hide = true)]
    Init {
        /// Process that it is to end with
        #[arg(long)]
        parent: u32,
        /// Mount /proc anew
        #[arg(long)]
        proc: bool,
        /// Command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// `kvfs txn lock`.
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("mode").required(true),
    after_help = "Examples:
  kvfs txn lock 17 --shared kv:tags/song     keys that begin so, those that don't exist included
  kvfs txn lock 17 --exclusive music/a.mp3   a file (in part: --offset, --length)
  kvfs txn lock 17 --shared music            the names in a directory, not what is below

Lock early: what somebody changed after the transaction began is a conflict at once (exit code 75),
unless it is serializable."
)]
pub(crate) struct TxnLockArgs {
    /// Number of the transaction
    pub(crate) id: u64,
    /// Others may lock it likewise, and don't change it
    #[arg(long, group = "mode")]
    pub(crate) shared: bool,
    /// Nobody else locks or changes it
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
    /// Run it again, at most so many times, when somebody else was in the way
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) retry: u32,
    /// Show what has changed and ask before the commit
    #[arg(long)]
    pub(crate) review: bool,
    /// Don't wait until the commit survives a power cut
    #[arg(long = "async")]
    pub(crate) is_async: bool,
    /// Descriptor that is told of a conflict, because the exit status may be the command's own
    #[arg(long, hide = true)]
    pub(crate) conflict_to: Option<i32>,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
