//! Merging a branch of a branch into that one.
//!
//! Thread safety: for threads that may block.

use kvfs_fs::{FsError, Selection};
use kvfs_store::StoreError;

use super::Branches;
use super::operations::{explain, mount_again, refused};
use crate::caller::Caller;
use crate::error::Result;
use crate::served::ServedStore;

/// Merges a branch of a branch. That one is mounted again, where it was mounted, whatever comes of it.
pub(super) fn merge_into_parent(
    store: &ServedStore<'_>,
    caller: &Caller,
    name: &str,
    selection: Option<&Selection>,
) -> Result<()> {
    let (_, parent) = store.fs.branches().kin(name).map_err(|error| explain(name, error))?;
    store.own_branch(caller, &parent.name)?;
    let mut mounted = store.branches.map(Branches::mounted).unwrap_or_default();
    store.unmount_for(caller, name)?;
    let merged = store.unmount_for(caller, &parent.name).and_then(|()| {
        let merged = kvfs_fs::merge_into_parent(store.fs, name, selection);
        mount_again(store, caller, &parent.name, mounted.remove(&parent.name));
        merged.map_err(|error| match error {
            FsError::MergeRefused { conflicts, more } => refused(name, &conflicts, more, selection.is_some()),
            FsError::Store(error) if matches!(*error, StoreError::CheckpointOpen(id) if id == parent.id) => {
                explain(&parent.name, FsError::Store(error))
            }
            error => explain(name, error),
        })
    });
    if merged.is_err() {
        mount_again(store, caller, name, mounted.remove(name));
    }
    merged?;
    tracing::info!(name, parent = parent.name, "branch merged");
    Ok(())
}
