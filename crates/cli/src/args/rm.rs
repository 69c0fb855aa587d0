//! Arguments of `kvfs rm`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  kvfs rm -r ~/mnt/build                   all of it or nothing
  kvfs rm -r ~/mnt/build ~/mnt/cache       both or neither
  kvfs rm -rf ~/mnt/build                  no error where there is none
  kvfs txn undo 4                          the number that it has told

The trees go in one transaction: others see all of it or nothing, a crash leaves
all or nothing, and it can be taken back. Nothing goes where you may not remove
something in it, as `rm -r` would have it. Root's go at once, however large; of
others' is looked first for what may not go. The space comes back in the
background (`kvfs status` shows it). On a branch, and in `kvfs txn run`, they go
as a part of that, each at once, and what becomes of the branch or the
transaction becomes of them.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RmArgs {
    /// Files, and with -r directories, on one mount
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Directories, too, with all that is below them
    #[arg(long, short)]
    pub(crate) recursive: bool,
    /// What is not there is no error
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
