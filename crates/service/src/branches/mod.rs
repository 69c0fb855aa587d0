//! Branches of a store: those that are mounted (`mounted`), and what callers do with branches (`operations`,
//! `into_branch`).
//!
//! Thread safety: see [`Branches`]; the functions are for threads that may block. Invariant: a name is looked
//! up once, and what is found is authorized, unmounted and used: another branch may have the name later.

mod into_branch;
mod mounted;
mod operations;

use std::sync::Arc;

use kvfs_fs::{BranchInfo, FileSystem, FsError, Owner, Selection};

pub use mounted::Branches;

/// A merge into the main line.
struct Merging {
    /// Its transaction, to be committed.
    view: Arc<FileSystem>,
    /// What was done once more on the main line leaves the branch behind, open.
    left: Option<Arc<FileSystem>>,
}

impl Merging {
    fn begin(
        fs: &Arc<FileSystem>,
        branch: &BranchInfo,
        owner: Owner,
        selection: Option<&Selection>,
    ) -> Result<Self, FsError> {
        let Some(selection) = selection else {
            return Ok(Self { view: kvfs_fs::begin_merge(fs, branch, owner.pid)?, left: None });
        };
        let [view, left] = kvfs_fs::begin_merge_preferring(fs, branch, owner, selection)?;
        Ok(Self { view, left: Some(left) })
    }

    /// After the commit.
    fn end(self) -> Result<(), FsError> {
        self.left.map_or(Ok(()), |left| left.branches().delete_open())
    }
}
