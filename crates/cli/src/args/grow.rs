//! `kvfs grow`, as clap sees it.

use std::path::PathBuf;

use clap::Args;

use crate::units::parse_size;

const EXAMPLES: &str = "\
Examples:
  kvfs grow ~/store                        as far as there is room now
  kvfs grow ~/mnt 200G                     while mounted
  lvextend -L +50G vg/data && kvfs grow /srv/data     a block device

Only root and the owner of the store may do this. A store does not shrink.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GrowArgs {
    /// Store, or a directory on its mount
    #[arg(value_name = "STORE|DIR")]
    pub(crate) target: PathBuf,
    /// Most bytes the store may take from now on, such as 200G (default: the block device, or what is free
    /// now)
    #[arg(value_parser = parse_size)]
    pub(crate) size: Option<u64>,
}
