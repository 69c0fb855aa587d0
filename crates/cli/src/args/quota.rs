//! The command line of `kvfs quota`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::units::{parse_duration, parse_size};

const QUOTA_EXAMPLES: &str = "\
Examples:
  kvfs quota on -s ~/mnt                   count what everybody has; others work meanwhile
  kvfs quota set --user anna --bytes-soft 10G --bytes-hard 12G --grace 3d
  kvfs quota set --group staff --inodes-hard 1000000
  kvfs quota get --user anna
  kvfs quota report
  kvfs quota off                           limits are kept for the next time

Who has more than his soft limit for longer than the grace time, or would have more than his
hard limit, gets EDQUOT. Root is counted and not limited. Keys don't count.
With -s STORE all of it works on a store that is not mounted, too.";

/// Quotas of users and groups.
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

/// Of whom.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(crate) struct QuotaOf {
    /// Name or number of a user
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Name or number of a group
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Count everything from now on, and heed limits; open transactions and branches have to end first
    #[command(after_help = "Example:\n  kvfs quota on -s ~/mnt")]
    On,
    /// Count no more
    #[command(after_help = "Example:\n  kvfs quota off -s ~/mnt")]
    Off,
    /// Set limits; those that are not given stay, 0 is none
    #[command(after_help = "Examples:\n  kvfs quota set --user anna --bytes-hard 12G\n  \
        kvfs quota set --group 100 --inodes-soft 90000 --inodes-hard 100000 --grace 1d")]
    Set {
        /// Of whom
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
    /// What somebody has, and may have (default: yourself)
    #[command(after_help = "Examples:\n  kvfs quota get\n  kvfs quota get --group staff --json")]
    Get {
        /// Of whom
        #[command(flatten)]
        of: QuotaOf,
        /// For machines
        #[arg(long)]
        json: bool,
    },
    /// Everybody who has something, or a limit
    #[command(after_help = "Examples:\n  kvfs quota report\n  kvfs quota report --json")]
    Report {
        /// For machines
        #[arg(long)]
        json: bool,
    },
}
