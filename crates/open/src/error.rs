//! Why a store was not opened or made.
//!
//! Thread safety: plain values. Invariant: the message says what failed, on what, why, and what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvfs_device::{OpenError, same_error};
use kvfs_fs::FsError;
use kvfs_kvdb::format::SuperblockError;
use kvfs_service::{ErrorKind, ServiceError};
use kvfs_store::StoreError;

use crate::StoreDir;

/// Result of opening and making.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a store was not opened or made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rule, or the state of the store, forbids it.
    #[error("{message}")]
    Refused {
        /// Of this kind.
        kind: ErrorKind,
        /// In words.
        message: String,
    },
    /// Nothing is there.
    #[error("there is no store at {path}; make one with `kvfs mkfs {path}`", path = .0.display())]
    Missing(PathBuf),
    /// The system refused it.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// A failure in words.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Refused { kind, message: message.into() }
    }

    /// An I/O error on `path`.
    pub fn io(what: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source: Arc::new(same_error(error)) }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { kind, .. } => *kind,
            Self::Missing(_) => ErrorKind::NotAStore,
            Self::Io { what, path, source } => ServiceError::io(what, path, source).kind(),
        }
    }
}

impl From<ServiceError> for Error {
    fn from(error: ServiceError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        ServiceError::from(error).into()
    }
}

/// What a device that can't be opened means to the user.
pub fn explain_device(store: &Path, error: &OpenError) -> Error {
    let kind = match error {
        OpenError::InUse { .. } => ErrorKind::InUse,
        OpenError::NotFound { .. } => ErrorKind::NotAStore,
        OpenError::Permission { .. } | OpenError::ReadOnly { .. } => ErrorKind::Denied,
        _ => ErrorKind::Failed,
    };
    Error::new(kind, format!("cannot open the store {}: {error}", store.display()))
}

/// What an engine that can't be opened means to the user.
pub fn explain_open(dir: &StoreDir, error: StoreError) -> Error {
    let superblock = match &error {
        StoreError::Io { source, .. } => source.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    };
    let is_of_other_disk = matches!(superblock, Some(SuperblockError::NotKvfs { .. }));
    let (kind, message) = match superblock {
        // A store directory whose device holds something else: overwritten, as far as can be told.
        Some(SuperblockError::NotKvfs { blank: false }) => (
            ErrorKind::Damaged,
            "neither superblock bears the signature of a kvfs store; it was overwritten, or never was one; \
             restore it from a backup"
                .to_owned(),
        ),
        Some(cause @ (SuperblockError::NotKvfs { .. } | SuperblockError::OtherVersion { .. })) => {
            (ErrorKind::NotAStore, cause.to_string())
        }
        Some(_) | None => {
            let base = ServiceError::from(error);
            (base.kind(), base.to_string())
        }
    };
    let store = dir.path().display();
    let device = dir.device();
    let hint = if is_of_other_disk && device.is_link() {
        let device = device.target();
        format!(
            "; the device is {}: if disks have other names since a restart, `ln -sfn DEVICE {store}/device` with the \
             right one",
            device.display()
        )
    } else {
        String::new()
    };
    Error::new(kind, format!("cannot open the store {store}: {message}{hint}"))
}

/// What a file system that can't be opened means to the user.
pub(crate) fn explain_fs(dir: &StoreDir, error: FsError) -> Error {
    let message = format!("the file system in {}: {error}", dir.path().display());
    let kind = match error {
        FsError::Format(_) => ErrorKind::NotAStore,
        FsError::NoSpace => ErrorKind::NoSpace,
        FsError::Corrupt { .. } => ErrorKind::Damaged,
        FsError::Store(cause) => ServiceError::from((*cause).clone()).kind(),
        _ => ErrorKind::Failed,
    };
    Error::new(kind, message)
}
