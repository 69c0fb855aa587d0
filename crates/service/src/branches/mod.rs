//! Branches of a store: those that are mounted, and the merge of one into the main line.
//!
//! Thread safety: see [`Branches`]; the functions are for threads that may block.

mod mounted;

use std::sync::Arc;

use kvfs_fs::{FileSystem, FsError, Owner, Selection};

pub use mounted::Branches;

/// The transaction of a merge.
///
/// # Errors
/// There is no such branch; something is in the way of the merge.
pub fn begin_merge(
    fs: &Arc<FileSystem>,
    name: &str,
    owner: Owner,
    selection: Option<&Selection>,
) -> Result<Arc<FileSystem>, FsError> {
    match selection {
        None => kvfs_fs::begin_merge(fs, name, owner.pid),
        Some(selection) => kvfs_fs::begin_merge_preferring(fs, name, owner, selection),
    }
}

/// What was done once more on the main line leaves the branch behind.
///
/// # Errors
/// The branch can't be deleted.
pub fn end_merged(fs: &FileSystem, name: &str, is_left: bool) -> Result<(), FsError> {
    if is_left { fs.branches().delete(name) } else { Ok(()) }
}
