//! Why a stream can't be taken.

use std::io;
use std::sync::Arc;

use kvfs_store::StoreError;

use crate::FsError;

/// Bytes that are no stream, or not all of one. Positions count bytes of the stream, without its prologue.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It could not be read or kept.
    #[error("the stream could not be read: {0}")]
    Io(Arc<io::Error>),
    /// Something else.
    #[error("this is no stream of `kvfs snapshot send`")]
    NotAStream,
    /// Made by another release.
    #[error("the stream has format {0}, and this kvfs knows formats 1 and 2; use a matching kvfs")]
    OtherVersion(u32),
    /// It ended too soon.
    #[error("the stream ends at byte {position}, before its end")]
    Truncated {
        /// Where the first frame begins that is not whole.
        position: u64,
    },
    /// It was changed on the way.
    #[error("the stream is damaged at byte {position}: {what}")]
    Damaged {
        /// Where the frame begins.
        position: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Each frame is sound, and all together are not what was sent: what was kept of it is of no use.
    #[error("the stream as a whole is not what was sent")]
    Mismatch,
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Why a stream did not take effect. Nothing has changed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// See there.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The snapshot from which the stream leads is not here.
    #[error(
        "the stream goes on from a snapshot \"{0}\" that this store does not have; send it first, or send without --from"
    )]
    Unfounded(String),
    /// The directories of the stream would be no tree: a circle, or one in two places.
    #[error(
        "the stream makes no tree of directory inode {0}: it would be inside of itself, or not where it says"
    )]
    NoTree(u64),
    /// What is referred to is not there: it would be a hole.
    #[error("the stream refers to blocks of inode {0} that have not come")]
    NoSource(u64),
    /// A stream from nothing, and a store with something in it.
    #[error("the stream begins with nothing, and this store is not empty; receive it into a new one")]
    NotEmpty,
    /// There are branches.
    #[error(
        "the store has branches, which know nothing of what would arrive; merge or delete them first (`kvfs branch list`)"
    )]
    Branches,
    /// The store has gone on from the snapshot.
    #[error(
        "the store has changed since its snapshot \"{0}\"; see `kvfs snapshot diff`, and give these changes up with --rollback"
    )]
    Changed(String),
    /// The snapshot is here already.
    #[error("the store has the snapshot \"{0}\" of this stream already")]
    Present(String),
    /// Another snapshot has the name.
    #[error("the store has another snapshot \"{0}\"; delete it first")]
    NameTaken(String),
    /// The store failed.
    #[error(transparent)]
    Fs(#[from] FsError),
}

impl From<StoreError> for ReceiveError {
    fn from(error: StoreError) -> Self {
        Self::Fs(error.into())
    }
}
