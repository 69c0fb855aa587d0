//! Merging a branch of a branch into that one.
//!
//! Thread safety: for threads that may block.

use kvfs_fs::{BranchInfo, FsError, Selection};
use kvfs_store::StoreError;

use super::Branches;
use super::operations::{expect_own, explain, mount_again, refused};
use crate::caller::Caller;
use crate::error::Result;
use crate::served::ServedStore;

/// Merges a branch of a branch, of the caller's. That one is mounted again, where it was mounted, whatever
/// comes of it.
pub(super) fn merge_into_parent(
    store: &ServedStore<'_>,
    caller: &Caller,
    branch: &BranchInfo,
    selection: Option<&Selection>,
) -> Result<()> {
    let name = &branch.name;
    let parent = store.fs.branches().parent(branch).map_err(|error| explain(name, error))?;
    expect_own(caller, &parent)?;
    let mut mounted = store.branches.map(Branches::mounted).unwrap_or_default();
    store.unmount_for(caller, branch)?;
    let merged = store.unmount_for(caller, &parent).and_then(|()| {
        let merged = kvfs_fs::merge_into_parent(store.fs, branch, selection);
        mount_again(store, caller, &parent, mounted.remove(&parent.id));
        merged.map_err(|error| match error {
            FsError::MergeRefused { conflicts, more } => refused(name, &conflicts, more, selection.is_some()),
            FsError::Store(error) if matches!(*error, StoreError::CheckpointOpen(id) if id == parent.id) => {
                explain(&parent.name, FsError::Store(error))
            }
            error => explain(name, error),
        })
    });
    if merged.is_err() {
        mount_again(store, caller, branch, mounted.remove(&branch.id));
    }
    merged?;
    tracing::info!(name, parent = parent.name, "branch merged");
    Ok(())
}
