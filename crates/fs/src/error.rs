//! Errors of file-system operations, and their errno values: the one place where they are mapped.

use std::sync::Arc;

use kvfs_kv::KvError;
use kvfs_store::{StoreError, TxnId};
use kvfs_txn::{Doom, LockShare, Refused, Ticket};

/// Result of file-system calls.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

/// Why a file-system operation did nothing.
///
/// Every error means that the operation left no trace.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// Names that the operation needs are held by others. Not a failure: wait for the ticket (or
    /// register a callback), put it into [`crate::Caller::ticket`] and call the same operation again.
    #[error("the operation must wait for another one and be tried again")]
    Parked(Ticket),
    /// No such entry (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already (EEXIST).
    #[error("the name exists already")]
    Exists,
    /// A directory was needed (ENOTDIR).
    #[error("not a directory")]
    NotDirectory,
    /// Something else than a directory was needed (EISDIR).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (ENOTEMPTY).
    #[error("directory not empty")]
    NotEmpty,
    /// Another file has the name than the one that the caller has found there: look again (ESTALE).
    #[error("another file has the name by now")]
    NameChanged,
    /// A name longer than [`crate::NAME_LEN_MAX`], or a symbolic-link target longer than
    /// [`crate::SYMLINK_LEN_MAX`] (ENAMETOOLONG).
    #[error("name of {len} bytes is longer than {len_max}")]
    NameTooLong {
        /// Length given (bytes).
        len: usize,
        /// Limit (bytes).
        len_max: usize,
    },
    /// A file has [`crate::LINK_MAX`] names already (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// An offset or size beyond [`crate::FILE_SIZE_MAX`] (EFBIG).
    #[error("file too large")]
    FileTooLarge,
    /// Arguments that make no sense (EINVAL).
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The operation is never allowed on this object (EPERM).
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// The object is of a kind for which this is refused (EACCES).
    #[error("permission denied: {0}")]
    AccessDenied(&'static str),
    /// A limit of the owner's or the group's quota forbids it (EDQUOT).
    #[error("the quota is exceeded")]
    QuotaExceeded,
    /// A limit of the project's quota forbids it (ENOSPC: `df` shows the limit as the size there).
    #[error("the project's quota is exceeded")]
    ProjectFull,
    /// The directory's tree belongs to another project: what is to come into it has to be copied (EXDEV).
    #[error("the directory belongs to another project")]
    OtherProject,
    /// The caller does not wait for it any more (EINTR).
    #[error("interrupted")]
    Interrupted,
    /// Something else has to end first (EBUSY).
    #[error("{0}")]
    Busy(&'static str),
    /// Dirty pages take longer than they are waited for; they go on (EBUSY).
    #[error("dirty pages wait for another transaction's lock, or for a process that the kernel waits for")]
    PagesWait,
    /// No such extended attribute (ENODATA).
    #[error("no such extended attribute")]
    NoAttribute,
    /// An extended-attribute value or list beyond the limit (E2BIG).
    #[error("extended attribute of {len} bytes exceeds the limit of {len_max}")]
    AttributeTooLarge {
        /// Length given (bytes).
        len: usize,
        /// Limit (bytes).
        len_max: usize,
    },
    /// The extended attributes of a file would come to more than it may have (ENOSPC).
    #[error("extended attributes of {bytes} bytes in all exceed the {bytes_max} that a file may have")]
    AttributesFull {
        /// What they would come to (bytes).
        bytes: u64,
        /// Limit (bytes).
        bytes_max: u64,
    },
    /// The store has as many of something as it may (ENOSPC).
    #[error("the store has {count_max} {what}, which is as many as it may have; {remedy}")]
    TooMany {
        /// Of what, in the plural.
        what: &'static str,
        /// Limit.
        count_max: usize,
        /// What makes room.
        remedy: &'static str,
    },
    /// More keys than one call takes (E2BIG).
    #[error("{}", KvError::TooMany)]
    TooManyKeys,
    /// Not offered here (EOPNOTSUPP).
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// No data or hole at or after the offset (ENXIO).
    #[error("the offset is beyond the end of the file")]
    NoSuchOffset,
    /// The node or view is not known (any more) (ESTALE).
    #[error("stale node {0}")]
    Stale(u64),
    /// The transaction was committed or aborted (ESTALE).
    #[error("transaction {0} has ended")]
    ViewEnded(TxnId),
    /// The transaction can't be committed any more: abort it and run it again (ECANCELED).
    #[error("the transaction was canceled: {0}")]
    Canceled(Doom),
    /// The transactions of the user hold their share of the memory for locks (ENOLCK). The transaction can go
    /// on.
    #[error(
        "no more locks: the user's transactions hold {} bytes of them, and {} are left for all; end one, or lock a \
         directory, a file or a range as a whole", .0.bytes, .0.bytes_free
    )]
    NoLocks(LockShare),
    /// There are branches of the branch, which have to be merged or deleted first (EBUSY).
    #[error("there are branches of it: {}", .names.join(", "))]
    HasBranches {
        /// Their names.
        names: Vec<String>,
    },
    /// A branch can't be merged: what it changed was changed on the main line, too, or the tree would not
    /// stay one. Nothing was changed, and the branch is as it was (ECANCELED).
    #[error("the branch can't be merged: {}{}", .conflicts.join("; "), and_more(*.more))]
    MergeRefused {
        /// What is in the way, with paths or keys.
        conflicts: Vec<String>,
        /// Changes beyond those that are in the way, too.
        more: u64,
    },
    /// A branch can't be merged: the directory that it is one of was removed on the main line. The branch is
    /// as it was (ECANCELED).
    #[error("its directory {path} was removed outside of the branch")]
    DirectoryGone {
        /// Its path when the branch was made.
        path: String,
    },
    /// A part of a snapshot can't be restored alone (EINVAL). Nothing was changed.
    #[error("not restored: {0}")]
    NotRestored(String),
    /// The transaction was committed and is visible, but syncing it failed: whether it survives a power cut
    /// shows at the next open (EIO).
    #[error("committed, but it may not survive a power cut: {0}")]
    CommittedOnly(Arc<StoreError>),
    /// Mounted read-only, or the store refuses writes (EROFS).
    #[error("read-only file system")]
    ReadOnly,
    /// The store has no space for writes; deleting works (ENOSPC).
    #[error("no space left in the store")]
    NoSpace,
    /// Rows that contradict each other or can't be decoded (EIO).
    #[error("corrupt metadata of {place}: {detail}; run `kvfs check`")]
    Corrupt {
        /// Which row.
        place: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The store holds no kvfs file system, or one of another format (EINVAL).
    #[error("{0}")]
    Format(String),
    /// The store failed (EIO, except where it says otherwise).
    #[error(transparent)]
    Store(Arc<StoreError>),
}

impl From<StoreError> for FsError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::NoSpace,
            StoreError::ReadOnly => Self::ReadOnly,
            StoreError::TxnEnded(id) => Self::ViewEnded(id),
            error => Self::Store(Arc::new(error)),
        }
    }
}

impl From<KvError> for FsError {
    fn from(error: KvError) -> Self {
        match error {
            KvError::Invalid(why) => Self::Invalid(why),
            KvError::TooMany => Self::TooManyKeys,
            KvError::NotFound => Self::NotFound,
            KvError::NotPermitted(why) => Self::NotPermitted(why),
            KvError::Corrupt(name) => {
                Self::corrupt(format!("keyspace \"{name}\""), "its record says nothing that is known")
            }
            KvError::Store(error) => error.into(),
        }
    }
}

impl From<Refused> for FsError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Wait(ticket) => Self::Parked(ticket),
            Refused::Doomed(doom) => Self::Canceled(doom),
            Refused::Full(share) => Self::NoLocks(share),
        }
    }
}

/// What a list of conflicts ends with.
fn and_more(count: u64) -> String {
    if count == 0 { String::new() } else { format!("; and {count} more changes") }
}

/// Whether it was done. False: there is no space for it, so that it has to wait.
pub(crate) fn done_unless_full(done: Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(FsError::NoSpace) => Ok(false),
        Err(error) => Err(error),
    }
}

impl FsError {
    /// Whether it repeats an earlier failure that has closed the store for writing, and was told then.
    pub fn is_repeated(&self) -> bool {
        matches!(self, Self::Store(error) if matches!(**error, StoreError::Failed { .. }))
    }

    /// Whether it may go away when space is made.
    pub fn lacks_space(&self) -> bool {
        matches!(self, Self::NoSpace | Self::QuotaExceeded | Self::ProjectFull)
    }

    /// The Linux errno for this error. [`FsError::Parked`] must not reach a user; it maps to EAGAIN.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Parked(_) => errno::EAGAIN,
            Self::NotFound => errno::ENOENT,
            Self::Exists => errno::EEXIST,
            Self::NotDirectory => errno::ENOTDIR,
            Self::IsDirectory => errno::EISDIR,
            Self::NotEmpty => errno::ENOTEMPTY,
            Self::NameTooLong { .. } => errno::ENAMETOOLONG,
            Self::TooManyLinks => errno::EMLINK,
            Self::FileTooLarge => errno::EFBIG,
            Self::Invalid(_) | Self::NotRestored(_) | Self::Format(_) => errno::EINVAL,
            Self::NotPermitted(_) => errno::EPERM,
            Self::AccessDenied(_) => errno::EACCES,
            Self::QuotaExceeded => errno::EDQUOT,
            Self::OtherProject => errno::EXDEV,
            Self::Interrupted => errno::EINTR,
            Self::Busy(_) | Self::PagesWait | Self::HasBranches { .. } => errno::EBUSY,
            Self::NoAttribute => errno::ENODATA,
            Self::AttributeTooLarge { .. } | Self::TooManyKeys => errno::E2BIG,
            Self::NotSupported(_) => errno::EOPNOTSUPP,
            Self::NoSuchOffset => errno::ENXIO,
            Self::Stale(_) | Self::ViewEnded(_) | Self::NameChanged => errno::ESTALE,
            Self::Canceled(_) | Self::MergeRefused { .. } | Self::DirectoryGone { .. } => errno::ECANCELED,
            Self::NoLocks(_) => errno::ENOLCK,
            Self::ReadOnly => errno::EROFS,
            Self::NoSpace | Self::ProjectFull | Self::AttributesFull { .. } | Self::TooMany { .. } => {
                errno::ENOSPC
            }
            Self::Corrupt { .. } | Self::CommittedOnly(_) => errno::EIO,
            Self::Store(error) => match **error {
                StoreError::Failed { .. } => errno::EROFS,
                StoreError::Unsupported { .. } => errno::EOPNOTSUPP,
                StoreError::TransactionsFull { .. } => errno::ENOSPC,
                StoreError::SnapshotExists(_) => errno::EEXIST,
                StoreError::NoSnapshot(_) | StoreError::NoCheckpoint(_) | StoreError::NotKept(_) => {
                    errno::ENOENT
                }
                StoreError::CheckpointOpen(_) => errno::EBUSY,
                StoreError::GivenUp => errno::EINTR,
                StoreError::SnapshotName { .. } => errno::EINVAL,
                _ => errno::EIO,
            },
        }
    }

    /// Corruption of `place`.
    pub(crate) fn corrupt(place: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Corrupt { place: place.into(), detail: detail.into() }
    }
}

/// Linux errno values (x86-64 and arm64 agree on these).
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EINTR: i32 = 4;
    pub(super) const EIO: i32 = 5;
    pub(super) const ENXIO: i32 = 6;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EXDEV: i32 = 18;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EFBIG: i32 = 27;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EMLINK: i32 = 31;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ENOLCK: i32 = 37;
    pub(super) const ENOTEMPTY: i32 = 39;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ESTALE: i32 = 116;
    pub(super) const EDQUOT: i32 = 122;
    pub(super) const ECANCELED: i32 = 125;
}
