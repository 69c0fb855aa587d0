//! Arguments of `kvfs copy`.

use std::path::PathBuf;

use clap::Args;

use super::mkfs::{NewStoreArgs, engines_help};

const EXAMPLES: &str = "\
Examples:
  kvfs copy ~/store ~/copy                     everything, to a file inside
  kvfs copy ~/store ~/copy --device /dev/sdb1  to a block device
  kvfs copy ~/store ~/copy --engine kvdb       to another engine
  kvfs copy ~/store ~/small --size 20G         to a smaller store

Everything is copied: files with all that belongs to them (inode numbers, links,
attributes, lists, times, quotas), keys, keyspaces with their owners and, where
both engines have them, named snapshots. Branches and the undo of transactions
stay behind; what NEWSTORE will not have is named before anything is copied.

NEWSTORE has an identity of its own. It is compared with STORE record by record,
and checked, before it becomes a store: a copy that is cut off is never mounted,
and one that fails or is interrupted is removed.

Exit codes: 5 is also said of a STORE that contradicts itself: NEWSTORE, which
is there then, does so in the same way.";

#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct CopyArgs {
    /// Store to be copied, not mounted
    pub(crate) store: PathBuf,
    /// Directory of the new store; made when missing, must be empty
    #[arg(value_name = "NEWSTORE")]
    pub(crate) new_store: PathBuf,
    #[command(flatten)]
    pub(crate) new: NewStoreArgs,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", engines_help(|kind| !kind.is_volatile()))
}
