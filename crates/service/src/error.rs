//! Why an operation was not done.
//!
//! Thread safety: plain values. Invariant: the message says what failed, on what, why, and what to do; each
//! front end maps the error, in one place, to what its callers get.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kvfs_fs::{FileSystem, FsError};
use kvfs_store::StoreError;

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Any other.
    Failed,
    /// The request makes no sense, or not here.
    Usage,
    /// Something that is in use is in the way.
    InUse,
    /// There is no store, or one of another format.
    NotAStore,
    /// Data is damaged.
    Damaged,
    /// There is no space, or no quota.
    NoSpace,
    /// The caller may not.
    Denied,
    /// The directory can't be mounted on.
    MountPoint,
    /// The store is not mounted, or is being unmounted.
    NotMounted,
    /// Another transaction was in the way; trying again makes sense.
    Conflict,
}

impl ErrorKind {
    /// All of them, in the order of the numbers that the control protocol has for them.
    pub const ALL: [Self; 10] = [
        Self::Failed,
        Self::Usage,
        Self::InUse,
        Self::NotAStore,
        Self::Damaged,
        Self::NoSpace,
        Self::Denied,
        Self::MountPoint,
        Self::NotMounted,
        Self::Conflict,
    ];
}

/// See the module.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// No open transaction has this number.
    #[error("there is no open transaction {0}; `kvfs txn list` shows them")]
    Unknown(u64),
    /// It was open, and this is why it is not any more.
    #[error("transaction {id}: {why}")]
    Ended {
        /// Its number.
        id: u64,
        /// What has ended it.
        why: String,
    },
    /// It is another user's.
    #[error("transaction {id} belongs to user {uid}; only that user and root may")]
    NotYours {
        /// Its number.
        id: u64,
        /// Its owner.
        uid: u32,
    },
    /// A thread is busy with it.
    #[error("transaction {id} is {what}")]
    Busy {
        /// Its number.
        id: u64,
        /// What is being done.
        what: &'static str,
    },
    /// It was not committed.
    #[error("{}", not_committed(*.id, .view, .error))]
    NotCommitted {
        /// Its number.
        id: u64,
        /// Its view, which explains what it met.
        view: Arc<FileSystem>,
        /// Why.
        error: Box<FsError>,
    },
    /// Files can't be changed in transactions on this mount.
    #[error(
        "the store is mounted with -o writeback: the kernel keeps changes of files to itself for a while, so transactions \
         over files would lose some; unmount, and mount without it (transactions over keys alone go on)"
    )]
    NoFiles,
    /// The file system failed or refused.
    #[error(transparent)]
    Fs(Box<FsError>),
    /// The file system refused it, and this is where.
    #[error("{message}")]
    At {
        /// In words, with the path.
        message: String,
        /// Why.
        error: Box<FsError>,
    },
    /// The store failed or refused.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// Anything else.
    #[error("{message}")]
    Refused {
        /// Of this kind.
        kind: ErrorKind,
        /// In words.
        message: String,
    },
}

impl From<FsError> for ServiceError {
    fn from(error: FsError) -> Self {
        Self::Fs(Box::new(error))
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

/// What an operation comes to.
pub type Result<T, E = ServiceError> = std::result::Result<T, E>;

fn not_committed(id: u64, view: &FileSystem, error: &FsError) -> String {
    match error {
        FsError::Canceled(doom) => {
            format!("transaction {id} was not committed: {}", view.lock_words().explain(doom))
        }
        error => error.to_string(),
    }
}

impl ServiceError {
    /// A failure in words.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Refused { kind, message: message.into() }
    }

    /// What came of an order to the engine, which refuses one that makes no sense as invalid input: the
    /// caller's mistake.
    pub fn of_order(error: StoreError) -> Self {
        match &error {
            StoreError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidInput => {
                Self::new(ErrorKind::Usage, source.to_string())
            }
            _ => error.into(),
        }
    }

    /// An I/O error on `path`, of the kind that it stands for.
    pub fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            _ => ErrorKind::Failed,
        };
        Self::new(kind, format!("cannot {what} {}: {error}", path.display()))
    }

    /// No thread could be started.
    pub(crate) fn thread(error: &io::Error) -> Self {
        Self::new(ErrorKind::Failed, format!("cannot start a thread: {error}"))
    }

    /// What the file system said, if it was the file system.
    pub fn of_file_system(&self) -> Option<&FsError> {
        match self {
            Self::NotCommitted { error, .. } | Self::Fs(error) | Self::At { error, .. } => Some(error),
            _ => None,
        }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown(_) => ErrorKind::Failed,
            Self::Ended { .. } => ErrorKind::Conflict,
            Self::NotYours { .. } => ErrorKind::Denied,
            Self::Busy { .. } => ErrorKind::InUse,
            Self::NoFiles => ErrorKind::Usage,
            Self::At { error, .. } if is_denial(error) => ErrorKind::Denied,
            Self::NotCommitted { error, .. } | Self::Fs(error) | Self::At { error, .. } => kind_of(error),
            Self::Store(error) => kind_of_store(error),
            Self::Refused { kind, .. } => *kind,
        }
    }
}

fn is_denial(error: &FsError) -> bool {
    matches!(error, FsError::AccessDenied(_) | FsError::NotPermitted(_))
}

fn kind_of(error: &FsError) -> ErrorKind {
    match error {
        FsError::Canceled(_) | FsError::MergeRefused { .. } => ErrorKind::Conflict,
        FsError::NoSpace | FsError::QuotaExceeded | FsError::ProjectFull => ErrorKind::NoSpace,
        FsError::Busy(_) | FsError::PagesWait => ErrorKind::InUse,
        FsError::Corrupt { .. } => ErrorKind::Damaged,
        FsError::Store(cause) => kind_of_store(cause),
        _ => ErrorKind::Failed,
    }
}

fn kind_of_store(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::Corrupt { .. } => ErrorKind::Damaged,
        StoreError::Full => ErrorKind::NoSpace,
        StoreError::SnapshotName { .. } => ErrorKind::Usage,
        StoreError::GivenUp => ErrorKind::NotMounted,
        _ => ErrorKind::Failed,
    }
}
