//! The command line of `kvfs quota`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::TableForm;
use crate::units::{parse_duration, parse_size};

const QUOTA_EXAMPLES: &str = "\
Examples:
  kvfs quota on -s ~/mnt                   count all files from now on
  kvfs quota set --user anna --bytes-soft 10G --bytes-hard 12G --grace 3d
  kvfs quota set --group staff --inodes-hard 1000000
  kvfs quota project set ~/mnt/web 42      the tree is project 42 from now on
  kvfs quota set --project 42 --bytes-hard 20G
  kvfs quota get --user anna
  kvfs quota report
  kvfs quota report --exclusive            what would come free without each
  kvfs quota off                           limits are kept for the next time

A user with more than the soft limit for longer than the grace time, or with
more than the hard limit after a write, gets EDQUOT. Root is counted and not
limited. Keys don't count. Limits of projects keep root, too; what passes them
gets ENOSPC, and df in the tree shows them. With -s STORE all of it works on a
store that is not mounted, too.";

const PROJECT_EXAMPLES: &str = "\
Examples:
  kvfs quota project set ~/mnt/web 42      and all below it, now and later
  kvfs quota project set ~/mnt/web web     the number is in /etc/projid: web:42
  kvfs quota set --project web --bytes-hard 20G
  df -h ~/mnt/web                          20G in all
  kvfs quota project list                  which trees there are
  kvfs quota project clear ~/mnt/web

Files get the project of their directory when they are made. Into a tree nothing
of another project is moved or linked (EXDEV): mv copies then. What is moved out
keeps its project. Trees can be given to projects whether or not quotas are on.
chattr -p, lsattr -p and xfs_quota know these projects, too.";

/// Quotas of users, groups and projects (trees).
#[derive(Debug, Args)]
#[command(after_help = QUOTA_EXAMPLES)]
pub(crate) struct QuotaArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", global = true, value_name = "STORE|DIR")]
    pub(crate) store: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: QuotaCommand,
}

/// The user, group or project.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(crate) struct QuotaOf {
    /// Name or number of a user
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Name or number of a group
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Number of a project, or its name in /etc/projid
    #[arg(long, value_name = "PROJECT")]
    pub(crate) project: Option<String>,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Count everything from now on, and heed limits; open transactions and branches have to end first
    #[command(after_help = "Examples:\n  kvfs quota on -s ~/mnt\n  kvfs quota on --abort-open -s ~/mnt")]
    On {
        /// Abort open transactions instead of refusing
        #[arg(long)]
        abort_open: bool,
    },
    /// Count no more
    #[command(after_help = "Example:\n  kvfs quota off -s ~/mnt")]
    Off,
    /// Set limits; those that are not given stay, 0 is none
    #[command(after_help = "Examples:\n  kvfs quota set --user anna --bytes-hard 12G\n  \
        kvfs quota set --group 100 --inodes-soft 90000 --inodes-hard 100000 --grace 1d")]
    Set {
        /// The user, group or project
        #[command(flatten)]
        of: QuotaOf,
        /// Bytes, such as 10G, that may be overstepped for the grace time
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        bytes_soft: Option<u64>,
        /// Bytes that are never overstepped
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        bytes_hard: Option<u64>,
        /// Files, directories and all else, for the grace time
        #[arg(long, value_name = "N")]
        inodes_soft: Option<u64>,
        /// The same, never overstepped
        #[arg(long, value_name = "N")]
        inodes_hard: Option<u64>,
        /// How long soft limits may be overstepped, such as 12h (7d)
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        grace: Option<Duration>,
    },
    /// What a user, group or project has, and may have (default: yourself)
    #[command(after_help = "Examples:\n  kvfs quota get\n  kvfs quota get --group staff --json\n  \
        kvfs quota get --project 42 --exclusive")]
    Get {
        /// The user, group or project
        #[command(flatten)]
        of: QuotaOf,
        /// How many bytes would come free without it, too: not what clones share with others; for root and
        /// the store's owner, takes a while
        #[arg(long)]
        exclusive: bool,
        /// How it is shown
        #[command(flatten)]
        form: TableForm,
    },
    /// Give trees to projects, whose usage is counted and limited
    #[command(subcommand, after_help = PROJECT_EXAMPLES)]
    Project(ProjectCommand),
    /// Every user and group that has something, or a limit
    #[command(
        after_help = "Examples:\n  kvfs quota report\n  kvfs quota report --numeric\n  kvfs quota report --json\n  \
        kvfs quota report --exclusive"
    )]
    Report {
        /// How many bytes would come free without each, too: not what clones share with others; for root and
        /// the store's owner, takes a while
        #[arg(long)]
        exclusive: bool,
        /// How it is shown
        #[command(flatten)]
        form: TableForm,
    },
}

/// Subcommands of `kvfs quota project`.
#[derive(Debug, Subcommand)]
pub(crate) enum ProjectCommand {
    /// Give a directory, all below it, and what is made in it later, to a project
    #[command(after_help = "Example:\n  kvfs quota project set ~/mnt/web 42")]
    Set {
        /// Directory (or file) on a mount
        path: PathBuf,
        /// Number of the project, or its name in /etc/projid
        project: String,
    },
    /// Take a directory and all below it from its project
    #[command(after_help = "Example:\n  kvfs quota project clear ~/mnt/web")]
    Clear {
        /// Directory (or file) on a mount
        path: PathBuf,
    },
    /// Which project files and directories belong to
    #[command(after_help = "Example:\n  kvfs quota project get ~/mnt/web/index.html")]
    Get {
        /// Files or directories on a mount
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// The trees of projects; reads all that the store knows of its files
    #[command(after_help = "Examples:\n  kvfs quota project list -s ~/mnt\n  kvfs quota project list --json")]
    List {
        /// How it is shown
        #[command(flatten)]
        form: TableForm,
    },
}
