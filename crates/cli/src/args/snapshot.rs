//! The command line of `kvfs snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::repository::PlaceArgs;
use crate::units::parse_size;

const SNAPSHOT_EXAMPLES: &str = "\
Examples:
  kvfs snapshot create before-upgrade      of all files and keys
  kvfs snapshot list
  kvfs snapshot diff before-upgrade        what has changed since
  kvfs snapshot restore --dry-run before-upgrade
  kvfs snapshot restore before-upgrade     all as it was, in one transaction
  kvfs snapshot delete before-upgrade      and its space comes back
  kvfs snapshot send monday | kvfs snapshot receive --create -s /backup/store
  kvfs snapshot push monday s3://bucket/kvfs

With -s STORE they work on a store that is not mounted, too.";

const SEND_EXAMPLES: &str = "\
Examples:
  kvfs snapshot send monday | kvfs snapshot receive --create -s /backup/store
  kvfs snapshot send --from monday tuesday | ssh box kvfs snapshot receive -s /b
  kvfs snapshot send -s ~/store monday >monday.kvfs
  kvfs snapshot send --resume TOKEN | ssh box kvfs snapshot receive -s /b

The token comes from `kvfs snapshot receive --resume-token` where the stream was
broken off.";

const RECEIVE_EXAMPLES: &str = "\
Examples:
  kvfs snapshot receive --create -s ~/copy <monday.kvfs
  kvfs snapshot receive -s ~/copy tuesday.kvfs
  kvfs snapshot receive -s ~/copy --status
  token=$(ssh box kvfs snapshot receive -s /copy --resume-token)
  kvfs snapshot send --resume $token | ssh box kvfs snapshot receive -s /copy
  kvfs snapshot receive -s ~/copy --abandon

What has arrived is kept in the directory of the store until the stream is whole
and verified, so it takes its size there and again in the store. A store that
has changed since the snapshot from which the stream leads is left alone, unless
--rollback gives these changes up; reading it is no change.
Exit codes: 4 no stream, or one of another version; 5 damaged on the way; 1 cut
off, or it does not fit this store: nothing has changed.";

/// What to send.
#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The snapshot to send
    #[arg(required_unless_present = "resume")]
    pub(crate) name: Option<String>,
    /// Send only what leads from this snapshot to it; the receiving store has this one
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    pub(crate) from: Option<String>,
    /// Go on where another sending was broken off
    #[arg(long, value_name = "TOKEN", conflicts_with = "name")]
    pub(crate) resume: Option<String>,
    /// Tell on standard error, for machines, what was sent
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to receive, and how.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command")]
pub(crate) struct ReceiveArgs {
    /// File to read (default: standard input)
    #[arg(conflicts_with_all = ["status", "resume_token", "abandon"])]
    pub(crate) file: Option<PathBuf>,
    /// Into which store
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Give up what was changed since the snapshot from which the stream leads
    #[arg(long)]
    pub(crate) rollback: bool,
    /// Only tell what has arrived of a stream that was broken off; exit code 1: nothing
    #[arg(long, conflicts_with_all = ["create", "rollback", "abandon"])]
    pub(crate) status: bool,
    /// Only print the token for `kvfs snapshot send --resume`; exit code 1: nothing has arrived
    #[arg(long, conflicts_with_all = ["create", "rollback", "abandon", "status"])]
    pub(crate) resume_token: bool,
    /// Drop what has arrived of a stream that was broken off
    #[arg(long, conflicts_with_all = ["create", "rollback"])]
    pub(crate) abandon: bool,
}

/// The store that a snapshot arrives in.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// Make the store when it is missing
    #[arg(long)]
    pub(crate) create: bool,
    /// Size limit when --create makes the store
    #[arg(long, value_parser = parse_size, requires = "create")]
    pub(crate) size: Option<u64>,
    /// Ceiling for memory, such as 512M (default: a quarter of RAM, at most 2G)
    #[arg(long, value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

const PUSH_EXAMPLES: &str = "\
Examples:
  kvfs repository create /mnt/backup/kvfs                a directory, or
  kvfs repository create --encrypt s3://bucket/kvfs      in object storage
  kvfs snapshot create monday && kvfs snapshot push monday /mnt/backup/kvfs
  kvfs snapshot push -s ~/store monday s3://bucket/kvfs

A snapshot there is complete by itself; what it shares with others there, of
whatever store, is written once. A push that was broken off is gone on with by
the same command: what is there is not written again. Pushing what is there
already does nothing, but where something of it is missing, or was found to be
damaged by `repository verify --mark-damaged`: that is written anew.
Exit code 75: a `repository prune` beside it has taken something away that it
relies on (`prune --now`; any, if it took more than half a day): push again.";

const PULL_EXAMPLES: &str = "\
Examples:
  kvfs snapshot pull --create -s ~/restored /mnt/backup/kvfs monday
  kvfs snapshot pull --create -s ~/restored s3://bucket/kvfs     the newest one

It takes effect when all of it has arrived and is verified, and then as a whole,
in a store that is new or empty and not mounted. A pull that was broken off is
gone on with by the same command; what has arrived of it is kept in the
directory of the store, or dropped with `kvfs snapshot receive --abandon`.";

/// What to push, and where.
#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// The snapshot
    pub(crate) name: String,
    /// Where to
    #[command(flatten)]
    pub(crate) repository: PlaceArgs,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to pull, and where to.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Where from
    #[command(flatten)]
    pub(crate) repository: PlaceArgs,
    /// Name of the snapshot, or the first eight digits of its id or more (default: the newest one)
    pub(crate) name: Option<String>,
    /// Into which store
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

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
    #[command(after_help = "Examples:\n  \
        kvfs snapshot create before-upgrade\n  \
        kvfs snapshot create --flush nightly\n\
        \n\
        It holds everything written before, by whatever program. What programs have\n\
        written into shared mappings (mmap) and not synced is the kernel's: --flush\n\
        takes it along, and the kernel reads cached files anew afterwards.\n\
        \n\
        A snapshot shows files to the users that their permission bits allowed then,\n\
        also when these have changed since; with --private it shows them to root and\n\
        the store's owner alone.")]
    Create {
        /// Name: up to 255 bytes, no slash
        name: String,
        /// Show it to root and the store's owner alone
        #[arg(long)]
        private: bool,
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
    /// Show a snapshot to root and the store's owner alone, or again to all users
    #[command(after_help = "Examples:\n  kvfs snapshot set --private before-upgrade\n  \
        kvfs snapshot set --public before-upgrade")]
    Set {
        /// Name
        name: String,
        /// To root and the store's owner
        #[arg(long, conflicts_with = "public", required_unless_present = "public")]
        private: bool,
        /// To all users, as far as the permissions in it let them
        #[arg(long)]
        public: bool,
    },
    /// Take a name away; the space that only this snapshot holds comes back
    #[command(after_help = "Example:\n  kvfs snapshot delete before-upgrade")]
    Delete {
        /// Name
        name: String,
    },
    /// What differs between a snapshot and now, or another snapshot
    #[command(after_help = "Examples:\n  kvfs snapshot diff monday\n  kvfs snapshot diff monday tuesday\n  \
        kvfs snapshot diff --stat monday\n  kvfs snapshot diff monday -- /etc kv:tags\n\n\
        Signs: + added, - removed, ~ changed, > renamed")]
    Diff {
        /// The state before
        before: String,
        /// The state after (default: now)
        after: Option<String>,
        /// Only what is at and below these: from the root of the store, or kv:KEYSPACE/PREFIX
        #[arg(value_name = "PATH", last = true)]
        paths: Vec<String>,
        /// Counts only
        #[arg(long)]
        stat: bool,
        /// For machines: one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Write a snapshot, or what leads to it from another one, to standard output
    #[command(after_help = SEND_EXAMPLES)]
    Send(SendArgs),
    /// Take a stream of `send` into a store that is not mounted, wholly or not at all
    #[command(after_help = RECEIVE_EXAMPLES)]
    Receive(ReceiveArgs),
    /// Write a snapshot to a repository: a directory, or a prefix in object storage
    #[command(after_help = PUSH_EXAMPLES)]
    Push(PushArgs),
    /// Take a snapshot of a repository into a store that is not mounted, wholly or not at all
    #[command(after_help = PULL_EXAMPLES)]
    Pull(PullArgs),
    /// Bring all files and keys back to a snapshot, or some files, in one transaction, with files open
    #[command(after_help = "Examples:\n  \
        kvfs snapshot restore --dry-run before-upgrade\n  \
        kvfs snapshot restore before-upgrade\n  \
        kvfs snapshot restore monday /docs/report.txt /music    only these\n\
        \n\
        A process that has a removed file open keeps it. Exit code 75: the same files\n\
        were changed meanwhile; nothing happened, and trying again makes sense.")]
    Restore {
        /// Name
        name: String,
        /// Only these files and directories, as `snapshot diff` shows them: from the root of the store
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
        /// For machines
        #[arg(long)]
        json: bool,
    },
}
