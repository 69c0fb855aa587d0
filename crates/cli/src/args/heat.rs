//! The command line of `kvfs heat`.

use std::path::PathBuf;

use clap::Args;

const HEAT_EXAMPLES: &str = "\
Examples:
  kvfs heat ~/mnt                          in the terminal
  kvfs heat --png heat.png ~/mnt
  kvfs heat --json ~/mnt | jq '.devices[] | {id, hot_bytes, content_bytes}'

A cell is 256 KiB of a device, or more where they would be too many: each label
says how much. Its colour is how often what lies there was lately read, the mean
over its bytes. Reads that the kernel's page cache answers are not seen. Counts
are halved from time to time, so what was hot cools down.

With the placement hot-cold reads are counted from the mount on, else from the
first `kvfs heat` on, until the unmount. In JSON a cell is null where nothing
is, and -1 where no content of files is. NO_COLOR=1 takes colours away.

Only root and the store's owner may ask.";

/// `kvfs heat`.
#[derive(Debug, Args)]
#[command(after_help = HEAT_EXAMPLES)]
pub(crate) struct HeatArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    pub(crate) target: Option<PathBuf>,
    /// The same
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", conflicts_with = "target")]
    pub(crate) store: Option<PathBuf>,
    /// Write a picture to this file
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) png: Option<PathBuf>,
    /// Cells in a row (default: as wide as the terminal; 128 in a file)
    #[arg(long, short = 'w', value_name = "N", value_parser = clap::value_parser!(u16).range(8..=1024))]
    pub(crate) width: Option<u16>,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}
