//! Failures that keyspaces have of their own; views turn them into theirs.

use kvfs_store::StoreError;

use crate::OPERATIONS_MAX;

/// Why an operation on a keyspace did nothing.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// Arguments that make no sense.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// More changes or keys than one call takes.
    #[error("more than {OPERATIONS_MAX} keys at once; make several calls of it")]
    TooMany,
    /// There is no such keyspace.
    #[error("there is no such keyspace")]
    NotFound,
    /// The user may not, and never will.
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// The record of a keyspace can't be decoded.
    #[error("corrupt record of keyspace \"{0}\"; run `kvfs check`")]
    Corrupt(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
