//! What an error of `LevelDB` is to a store.
//!
//! Thread safety: functions.

use std::io;

use kvfs_store::StoreError;

/// `what` was being done; the kind of an error is what its text begins with.
pub(crate) fn of_leveldb(what: &str, error: &str) -> StoreError {
    if error.starts_with("Corruption") {
        return StoreError::corrupt(format!("LevelDB, while {what}"), error);
    }
    let kind = if error.contains("already held by process") || error.contains("lock ") {
        io::ErrorKind::ResourceBusy
    } else if error.starts_with("NotFound") {
        io::ErrorKind::NotFound
    } else {
        io::ErrorKind::Other
    };
    StoreError::io(format!("{what} (LevelDB)"), io::Error::new(kind, error.to_owned()))
}
