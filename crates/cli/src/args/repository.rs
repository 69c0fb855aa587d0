//! The command line of `kvfs repository`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  kvfs repository create --encrypt s3://bucket/kvfs
  kvfs snapshot push monday s3://bucket/kvfs
  kvfs repository list s3://bucket/kvfs
  kvfs repository verify --data s3://bucket/kvfs
  kvfs repository prune --keep-daily 7 --keep-weekly 8 s3://bucket/kvfs
  kvfs snapshot pull --create -s ~/restored s3://bucket/kvfs monday

A repository is a directory, or a prefix in object storage (s3://, gs://, az://)
where kvfs is built with the feature `cloud`; credentials come from the usual
variables, such as AWS_ACCESS_KEY_ID, or from the machine. Any number of stores
and machines may push to one at once.

Where a passphrase is named, also by KVFS_PASSPHRASE_FILE, a repository that is
not encrypted is refused: it may have been put in the place of one that is. With
--unencrypted it is used.";

const PRUNE_EXAMPLES: &str = "\
Examples:
  kvfs repository prune --dry-run --keep-last 3 --keep-daily 7 /mnt/backup/kvfs
  kvfs repository prune --keep-daily 7 --keep-monthly 12 /mnt/backup/kvfs
  kvfs repository prune /mnt/backup/kvfs     only what nothing refers to

A snapshot stays where one rule keeps it; stores do not count against each
other, and the newest one of each stays in any case. Days begin at midnight UTC.

What no snapshot refers to any more is marked, and goes with the first `prune`
a day later: a push on another machine may be about to refer to it. What was
written less than a week ago, or since a week before a push began that is still
under way, is not marked yet; a push that was killed counts for two days. With
--now all of it goes at once, and so do marks that are damaged; then nothing
else may push or prune meanwhile, or what is pushed may lack something. Where a
snapshot is damaged so that it is not known what it needs, nothing goes: `kvfs
repository delete` takes it away by its id.";

const PASSPHRASE_EXAMPLES: &str = "\
Examples:
  kvfs repository passphrase s3://bucket/kvfs
  kvfs repository passphrase --passphrase-file old --new-passphrase-file new \\
    /mnt/backup/kvfs

What is there stays as it is, and so does the key that the passphrase keeps:
who knows the former passphrase and has a copy of the object `kvfs-repository`
as it was still reads all, also what comes later. Against such a reader a new
repository helps.";

/// Where a repository is, and what opens it.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Directory, or URL such as `s3://bucket/prefix`
    pub(crate) repository: String,
    /// Server that speaks S3, such as `http://localhost:9000`
    #[arg(long, value_name = "URL", hide = cfg!(not(feature = "cloud")))]
    pub(crate) endpoint: Option<String>,
    /// File with the passphrase of an encrypted repository (default: `KVFS_PASSPHRASE_FILE`, or asked for on
    /// the terminal)
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// It is not to be encrypted: use no passphrase, whatever `KVFS_PASSPHRASE_FILE` says
    #[arg(long, conflicts_with = "passphrase_file")]
    pub(crate) unencrypted: bool,
}

/// Places to which snapshots are pushed, and what is there.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RepositoryArgs {
    /// What to do
    #[command(subcommand)]
    pub(crate) command: RepositoryCommand,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum RepositoryCommand {
    /// Make a repository where nothing is yet
    #[command(after_help = "Examples:\n  \
        kvfs repository create /mnt/backup/kvfs\n  \
        kvfs repository create --encrypt s3://bucket/kvfs\n\
        \n\
        Without its passphrase what is in an encrypted repository is lost: there is\n\
        no other way to it. How large its objects are, and when they were written,\n\
        can be seen by who sees the place.")]
    Create {
        /// Where
        #[command(flatten)]
        place: PlaceArgs,
        /// Encrypt all that goes there with a key that a passphrase keeps
        #[arg(long, conflicts_with = "unencrypted")]
        encrypt: bool,
    },
    /// Snapshots, oldest first; exit code 5: one of them is damaged
    #[command(after_help = "Examples:\n  kvfs repository list /mnt/backup/kvfs\n  \
        kvfs repository list --json s3://bucket/kvfs")]
    List {
        /// Where
        #[command(flatten)]
        place: PlaceArgs,
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// Look whether all that snapshots need is there; exit code 5: not all of it
    #[command(after_help = "Examples:\n  kvfs repository verify /mnt/backup/kvfs\n  \
        kvfs repository verify --data s3://bucket/kvfs     reads all of it\n\
        \n\
        A push relies on what is there, also where it is damaged, unless that is marked\n\
        with --mark-damaged: then the next push writes its content anew. A snapshot that\n\
        the store still has is mended by pushing it again; remove the others. One whose\n\
        manifest is damaged is removed by its id.")]
    Verify {
        /// Where
        #[command(flatten)]
        place: PlaceArgs,
        /// Read all of it, and compare it with what was written
        #[arg(long)]
        data: bool,
        /// Let no push rely on what was read and is damaged
        #[arg(long, requires = "data")]
        mark_damaged: bool,
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// Take snapshots away; their space comes back with `prune`
    #[command(after_help = "Example:\n  kvfs repository delete /mnt/backup/kvfs monday tuesday")]
    Delete {
        /// Where
        #[command(flatten)]
        place: PlaceArgs,
        /// Names, or the first eight digits of ids or more
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Give an encrypted repository another passphrase; nothing else is written anew
    #[command(after_help = PASSPHRASE_EXAMPLES)]
    Passphrase {
        /// Where
        #[command(flatten)]
        place: PlaceArgs,
        /// File with the new one (default: asked for on the terminal, twice)
        #[arg(long, value_name = "FILE")]
        new_passphrase_file: Option<PathBuf>,
    },
    /// Take away what is not to be kept, and what nothing refers to
    #[command(after_help = PRUNE_EXAMPLES)]
    Prune(PruneArgs),
}

/// What to keep.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Where
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// The last N snapshots of each store
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) keep_last: usize,
    /// The last one of each of the last N hours that have any
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) keep_hourly: usize,
    /// The same of days
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) keep_daily: usize,
    /// The same of weeks, which begin on Monday
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) keep_weekly: usize,
    /// The same of months
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) keep_monthly: usize,
    /// The same of years
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) keep_yearly: usize,
    /// Remove what nothing refers to at once: nothing is being pushed there
    #[arg(long)]
    pub(crate) now: bool,
    /// Only tell what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}
