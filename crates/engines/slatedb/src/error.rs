//! What an error of `SlateDB` or of object storage is to a store.
//!
//! Thread safety: functions. Invariant: a message is one line, whatever the service has answered.

use std::io;

use kvfs_objects::brief;
use kvfs_store::StoreError;
use slatedb::{CloseReason, Error, ErrorKind};

/// Why a store that was fenced takes no more writes.
pub(crate) const TAKEN_OVER: &str =
    "another mount has taken this store over; what object storage did not have by then is not there";

/// `what` was being done.
pub(crate) fn of_slatedb(what: &str, error: &Error) -> StoreError {
    match error.kind() {
        ErrorKind::Closed(CloseReason::Fenced) => StoreError::Failed { reason: TAKEN_OVER.into() },
        ErrorKind::Closed(CloseReason::Clean) => StoreError::Failed { reason: "it was closed".into() },
        ErrorKind::Data => StoreError::corrupt(format!("SlateDB, while {what}"), brief(&error.to_string())),
        _ => StoreError::io(format!("{what} (SlateDB)"), io::Error::other(brief(&error.to_string()))),
    }
}

/// `what` was being done with objects beside the database.
pub(crate) fn of_objects(what: impl Into<String>, error: &object_store::Error) -> StoreError {
    let kind = match error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        object_store::Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::Other,
    };
    StoreError::io(what, io::Error::new(kind, brief(&error.to_string())))
}
