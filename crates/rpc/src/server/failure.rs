//! Errors, and their gRPC status: the one place where they are mapped.

use kvfs_fs::{Doom, FileSystem, FsError, LockNameBuf, Ticket};
use kvfs_store::StoreError;
use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::{CONFLICT_TRAILER, ENDED_TRAILER, proto};

/// Why an attempt at an operation did not do it.
pub(super) enum Failure {
    /// A lock is in the way: again, with this ticket.
    Parked(Ticket),
    /// For the client.
    Status(Status),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<TxnError> for Failure {
    fn from(error: TxnError) -> Self {
        Self::Status(error.into())
    }
}

impl Failure {
    /// An error of an operation in the view `fs`.
    pub(super) fn of(fs: &FileSystem, error: FsError) -> Self {
        match error {
            FsError::Parked(ticket) => Self::Parked(ticket),
            error => TxnError::of(fs, &error).into(),
        }
    }
}

/// Why nothing was done to a transaction.
#[derive(Debug, thiserror::Error)]
pub enum TxnError {
    /// None of this number is open.
    #[error("there is no open transaction {0}")]
    Unknown(u64),
    /// It is another user's.
    #[error("transaction {0} belongs to another user")]
    NotYours(u64),
    /// Something is being done to it.
    #[error("{0}")]
    Busy(String),
    /// The store is being unmounted.
    #[error("the store is being unmounted")]
    Closing,
    /// The daemon or an administrator has ended it.
    #[error("{message}")]
    Ended {
        /// Its number.
        txn: u64,
        /// Why.
        message: String,
    },
    /// It met another one, and is gone.
    #[error("{}", .0.message)]
    Conflict(Box<proto::Conflict>),
    /// Anything else.
    #[error("{message}")]
    Failed {
        /// Status.
        code: Code,
        /// In words.
        message: String,
    },
}

impl TxnError {
    /// What became of an operation on the transaction `txn` in the view `fs`.
    pub fn of(fs: &FileSystem, error: &FsError) -> Self {
        match error {
            FsError::Canceled(doom) => Self::Conflict(Box::new(conflict(fs, doom))),
            error => Self::Failed { code: code_of(error), message: error.to_string() },
        }
    }
}

impl From<TxnError> for Status {
    fn from(error: TxnError) -> Self {
        let code = match &error {
            TxnError::Unknown(txn) => return ended(Code::NotFound, &error, *txn),
            TxnError::Ended { txn, .. } => return ended(Code::Aborted, &error, *txn),
            TxnError::NotYours(_) => Code::PermissionDenied,
            TxnError::Busy(_) => Code::FailedPrecondition,
            TxnError::Closing => Code::Unavailable,
            TxnError::Conflict(conflict) => return aborted(conflict),
            TxnError::Failed { code, .. } => *code,
        };
        Self::new(code, error.to_string())
    }
}

/// The status of an error of the store itself.
pub(super) fn of_store(error: &StoreError) -> Status {
    Status::new(code_of_store(error), error.to_string())
}

fn code_of(error: &FsError) -> Code {
    match error {
        FsError::Parked(_) | FsError::Canceled(_) => Code::Aborted,
        FsError::NotFound => Code::NotFound,
        FsError::Exists => Code::AlreadyExists,
        FsError::Invalid(_)
        | FsError::NotRestored(_)
        | FsError::NotDirectory
        | FsError::TooManyKeys
        | FsError::NameTooLong { .. } => Code::InvalidArgument,
        FsError::NotPermitted(_) | FsError::AccessDenied(_) => Code::PermissionDenied,
        FsError::NotSupported(_) => Code::Unimplemented,
        FsError::ViewEnded(_) | FsError::Stale(_) | FsError::ReadOnly => Code::FailedPrecondition,
        FsError::NoSpace
        | FsError::QuotaExceeded
        | FsError::ProjectFull
        | FsError::AttributesFull { .. }
        | FsError::TooMany { .. }
        | FsError::NoLocks(_) => Code::ResourceExhausted,
        FsError::Corrupt { .. } => Code::DataLoss,
        FsError::Store(cause) => code_of_store(cause),
        _ => Code::Internal,
    }
}

fn code_of_store(error: &StoreError) -> Code {
    match error {
        StoreError::Corrupt { .. } => Code::DataLoss,
        StoreError::Full | StoreError::TransactionsFull { .. } => Code::ResourceExhausted,
        StoreError::Failed { .. } | StoreError::ReadOnly | StoreError::TxnEnded(_) => {
            Code::FailedPrecondition
        }
        StoreError::KeyTooLong { .. }
        | StoreError::KeyEmpty
        | StoreError::ValueTooLong { .. }
        | StoreError::BatchTooLarge { .. } => Code::InvalidArgument,
        StoreError::Conflict { .. } => Code::Aborted,
        StoreError::NoSnapshot(_) => Code::NotFound,
        StoreError::Unsupported { .. } => Code::Unimplemented,
        _ => Code::Internal,
    }
}

/// The rival that a transaction met, and over what.
fn conflict(fs: &FileSystem, doom: &Doom) -> proto::Conflict {
    let txn = fs.txn().map_or(0, |txn| txn.id().0);
    let why = fs.lock_words().explain(doom);
    let mut conflict = proto::Conflict {
        message: format!("transaction {txn} was not committed: {why}"),
        txn,
        other: doom.rival.as_ref().map(|rival| fs.lock_words().party(rival)).unwrap_or_default(),
        place: doom.name.as_ref().map(|name| fs.lock_words().describe(name)).unwrap_or_default(),
        ..proto::Conflict::default()
    };
    if let Some(LockNameBuf::Keys { keyspace, start, .. }) = &doom.name {
        conflict.key = start.clone();
        let known = fs.keys().keyspaces().unwrap_or_default();
        let named = known.into_iter().find(|(_, entry)| entry.keyspace == *keyspace);
        conflict.keyspace = named.map(|(name, _)| name).unwrap_or_default();
    }
    [&mut conflict.message, &mut conflict.other, &mut conflict.place].into_iter().for_each(cut);
    conflict
}

fn ended(code: Code, error: &TxnError, txn: u64) -> Status {
    let mut status = Status::new(code, error.to_string());
    status.metadata_mut().insert(ENDED_TRAILER, txn.into());
    status
}

/// Most bytes of words about a conflict, three of them: with the whole key they have to fit into the 8 KiB of
/// headers that every client takes, twice as long once they are encoded.
const WORDS_BYTES_MAX: usize = 400;

/// The words, cut where they are too long: a key or a path in them may be of any length.
fn cut(words: &mut String) {
    if words.len() > WORDS_BYTES_MAX {
        words.truncate(words.floor_char_boundary(WORDS_BYTES_MAX));
        words.push('…');
    }
}

fn aborted(conflict: &proto::Conflict) -> Status {
    let mut status = Status::aborted(conflict.message.clone());
    let value = MetadataValue::from_bytes(&conflict.encode_to_vec());
    status.metadata_mut().insert_bin(CONFLICT_TRAILER, value);
    status
}
