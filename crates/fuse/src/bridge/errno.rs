//! From file-system errors to what the kernel returns to the caller.

use kvfs_fs::{AsFsError, FsError};
use rustix::io::Errno;

use super::Failure;

/// The errno of `error`; failures of the store itself are logged, since EIO says so little.
pub(super) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::Corrupt { .. } | FsError::Store(_) if !error.is_repeated() => {
            tracing::error!(%error, "a request failed");
        }
        _ => {}
    }
    Errno::from_raw_os_error(error.errno())
}

impl AsFsError for Failure {
    fn as_fs_error(&self) -> Option<&FsError> {
        match self {
            Self::Fs(error) => Some(error),
            Self::Plain(_) => None,
        }
    }
}
