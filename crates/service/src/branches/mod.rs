//! Branches of a store: those that are mounted (`mounted`), and what callers do with branches (`operations`).
//!
//! Thread safety: see [`Branches`]; the functions are for threads that may block.

mod mounted;
mod operations;

use std::sync::Arc;

use kvfs_fs::{FileSystem, FsError, Owner, Selection};

pub use mounted::Branches;

/// The transaction of a merge.
fn begin_merge(
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
fn end_merged(fs: &FileSystem, name: &str, is_left: bool) -> Result<(), FsError> {
    if is_left { fs.branches().delete(name) } else { Ok(()) }
}
