//! What an error of `RocksDB` is to a store.
//!
//! Thread safety: functions.

use std::io;

use kvfs_store::StoreError;
use rocksdb::{Error, ErrorKind};

/// `what` was being done.
pub(crate) fn of_rocksdb(what: &str, error: &Error) -> StoreError {
    let kind = match error.kind() {
        ErrorKind::Corruption => {
            return StoreError::corrupt(format!("RocksDB, while {what}"), error.to_string());
        }
        ErrorKind::Busy | ErrorKind::TryAgain => io::ErrorKind::ResourceBusy,
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    StoreError::io(format!("{what} (RocksDB)"), io::Error::new(kind, error.to_string()))
}
