//! Arguments of `kvfs clone`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  kvfs clone ~/mnt/project ~/mnt/trial     the directory, with all that is in it
  kvfs clone ~/mnt/disk.img ~/mnt/backups  into a directory, under its own name
  kvfs txn undo 4                          the number that it has told

A clone is a tree of its own: what is changed in one is not in the other. The
content of files is not copied: both refer to the same bytes, until one of them
is overwritten. (What is small lies in the rows of files, and is in both.)
Others see all of it at once or nothing, a crash leaves all or nothing, and it
can be taken back. Names, modes, times, extended attributes, lists and hard
links are as in the source; owners too, if root clones. Another user needs to
be able to read all of it, and owns the clone. Quotas count it as a copy.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CloneArgs {
    /// A file or a directory
    pub(crate) source: PathBuf,
    /// Its clone, which must not exist, or a directory that gets it; on the same
    /// mount
    pub(crate) target: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
