//! From file-system errors to what the kernel returns to the caller.

use kvfs_fs::FsError;
use rustix::io::Errno;

/// The errno of `error`; failures of the store itself are logged, since EIO says so little.
pub(super) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::Corrupt { .. } | FsError::Store(_) => {
            tracing::error!(%error, "a request failed");
        }
        _ => {}
    }
    Errno::from_raw_os_error(error.errno())
}
