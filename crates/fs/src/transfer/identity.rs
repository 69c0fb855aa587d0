//! Which snapshot is which, in whatever store it is.
//!
//! A snapshot is told by the store in which it was made, its position there, and the time of its creation
//! there. One that was received keeps that identity: a record says it, which counts as long as the snapshot
//! of that name has the time of creation that the record says, so a new one that takes the name is another
//! one.
//!
//! Thread safety: plain values.

use std::fmt;
use std::sync::Arc;

use kvfs_store::Seqno;

use crate::{FileSystem, FsError, Result};

/// Identity of a snapshot: the same in every store that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// The store in which it was made.
    pub store: [u8; 16],
    /// Its position there.
    pub position: Seqno,
    /// When it was made (nanoseconds since 1970).
    pub created: u64,
}

/// Identity of a stream: which two snapshots it leads from and to, and in which format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub [u8; 16]);

impl StreamId {
    /// Of the stream from `from` (`None`: from nothing) to `to`.
    pub fn of(from: Option<&SnapshotId>, to: &SnapshotId) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"kvfs stream 1");
        for id in from.into_iter().chain([to]) {
            hasher.update(&id.store).update(&id.position.to_le_bytes()).update(&id.created.to_le_bytes());
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(id)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Name and view of the snapshot with that identity.
pub(super) fn open_by_id(fs: &Arc<FileSystem>, id: &SnapshotId) -> Result<(String, Arc<FileSystem>)> {
    let info = fs.snapshots().find(id)?.ok_or(FsError::NotFound)?;
    let snapshot = fs.store.open_snapshot(&info.name)?;
    // Meanwhile another one may have taken the name.
    if snapshot.seqno() != info.position.0 {
        return Err(FsError::NotFound);
    }
    Ok((info.name, fs.view_of(snapshot)?))
}
