//! The command line of `kvfs top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::units::parse_duration;

const TOP_EXAMPLES: &str = "\
Examples:
  kvfs top ~/mnt                           until q or Ctrl-C
  kvfs top --delay 5s ~/mnt
  kvfs top --once ~/mnt | head             one screen as text

Rates and latencies are those of the time between two screens. What the kernel
answers from its caches is not seen. `kvfs stats` has the sums since the mount.";

/// `kvfs top`.
#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES)]
pub(crate) struct TopArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    pub(crate) target: Option<PathBuf>,
    /// The same
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", conflicts_with = "target")]
    pub(crate) store: Option<PathBuf>,
    /// Time between two screens
    #[arg(long, short = 'd', value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub(crate) delay: Duration,
    /// One screen as text, as where standard output is no terminal
    #[arg(long)]
    pub(crate) once: bool,
}
