//! Why a call did nothing, and its errno.
//!
//! Thread safety: plain values.

use kvfs_fs::FsError;
use rustix::io::Errno;

/// Result of calls.
pub type Result<T, E = PosixError> = std::result::Result<T, E>;

/// Why a call did nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PosixError {
    /// The file system refused it.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The rules of paths, descriptors and permissions forbid it.
    #[error("{reason}")]
    Refused {
        /// What POSIX calls it.
        errno: Errno,
        /// What it is about.
        reason: &'static str,
    },
    /// The rules of keys forbid it, or a server, in words of their own.
    #[error("{message}")]
    Explained {
        /// What POSIX calls it.
        errno: Errno,
        /// What it is about.
        message: Box<str>,
    },
    /// The path leads out of the file system, into the one that it lies in
    /// ([`Process::placed`](crate::Process::placed)).
    #[error("the path leads out of the file system")]
    Outside {
        /// Absolute, there.
        path: Vec<u8>,
    },
}

impl PosixError {
    /// What a C program finds in `errno`.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Fs(error) => Errno::from_raw_os_error(error.errno()),
            Self::Refused { errno, .. } | Self::Explained { errno, .. } => *errno,
            Self::Outside { .. } => Errno::XDEV,
        }
    }

    pub(crate) const fn new(errno: Errno, reason: &'static str) -> Self {
        Self::Refused { errno, reason }
    }
}

impl From<PosixError> for std::io::Error {
    fn from(error: PosixError) -> Self {
        error.errno().into()
    }
}

/// A refusal as a result.
pub(crate) fn refuse<T>(errno: Errno, reason: &'static str) -> Result<T> {
    Err(PosixError::new(errno, reason))
}
