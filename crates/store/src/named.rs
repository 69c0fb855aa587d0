//! Named snapshots: positions of the order that stay readable until they are deleted by name.
//!
//! Purpose: what a user calls "the state before the upgrade". A named snapshot pins its position and nothing
//! else: no data is copied, and what others write later is theirs alone to pay for.
//!
//! Thread safety: plain values.
//!
//! Invariants: a name is a single path component, so that it can be shown as a directory.

use std::sync::Arc;
use std::time::Duration;

use crate::{Position, Result, Snapshot, StoreError};

/// Longest name of a snapshot (bytes).
pub const SNAPSHOT_NAME_LEN_MAX: usize = 255;

/// A named snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Unique in the store.
    pub name: String,
    /// What it sees: everything up to here. A name that is deleted and given again has another one, unless
    /// nothing was written in between.
    pub position: Position,
    /// When it was made (since 1970-01-01 UTC).
    pub created: Duration,
}

/// Whether a snapshot may have this name: 1 to [`SNAPSHOT_NAME_LEN_MAX`] bytes without `/` and control
/// characters, and neither `.` nor `..`.
///
/// # Errors
/// [`StoreError::SnapshotName`] with the reason.
pub fn check_snapshot_name(name: &str) -> Result<()> {
    let problem = match name {
        "" => "it is empty",
        "." | ".." => "it means a directory itself",
        _ if name.len() > SNAPSHOT_NAME_LEN_MAX => "it is longer than 255 bytes",
        _ if name.contains('/') => "it contains a slash",
        _ if name.contains(char::is_control) => "it contains a control character",
        _ => return Ok(()),
    };
    Err(StoreError::SnapshotName { name: name.to_owned(), problem })
}

/// Positions that stay readable under a name. An extension of a [`Store`](crate::Store), which an engine may
/// lack.
pub trait NamedSnapshots: Send + Sync {
    /// Gives the newest committed position a name, under which it stays readable until the name is deleted.
    /// Durable when this returns, with everything up to the position. Costs the same on a store of any size.
    ///
    /// # Errors
    /// [`StoreError::SnapshotName`], [`StoreError::SnapshotExists`]; the store is read-only or failed.
    fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo>;

    /// As [`crate::NamedSnapshots::create_snapshot`], for a state that was made elsewhere: `created` is when,
    /// there.
    ///
    /// # Errors
    /// As [`crate::NamedSnapshots::create_snapshot`].
    fn adopt_snapshot(&self, name: &str, created: Duration) -> Result<SnapshotInfo>;

    /// The named snapshots, oldest first.
    fn named_snapshots(&self) -> Vec<SnapshotInfo>;

    /// So many there may be; more would make the engine slow or dear.
    fn snapshots_max(&self) -> usize {
        usize::MAX
    }

    /// Reads at the position of a named snapshot. A caller that holds the reader keeps the position, also
    /// when the name is deleted.
    ///
    /// # Errors
    /// [`StoreError::NoSnapshot`]; the store was closed.
    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>>;

    /// Takes the name away; durable when this returns. What only this snapshot saw is garbage from then on,
    /// whose space comes back as merges go by. Works on a full store.
    ///
    /// # Errors
    /// [`StoreError::NoSnapshot`]; the store is read-only or failed.
    fn delete_snapshot(&self, name: &str) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single_path_components() {
        let longest = "n".repeat(SNAPSHOT_NAME_LEN_MAX);
        for good in ["a", "before upgrade", "…", "a.b", "...", ".hidden", &longest] {
            assert!(check_snapshot_name(good).is_ok(), "{good:?}");
        }
        let too_long = "n".repeat(SNAPSHOT_NAME_LEN_MAX + 1);
        for bad in ["", ".", "..", "a/b", "/", "a\0b", "a\nb", &too_long] {
            let refused = check_snapshot_name(bad);
            assert!(matches!(refused, Err(StoreError::SnapshotName { .. })), "{bad:?}: {refused:?}");
        }
    }
}
