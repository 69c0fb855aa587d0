//! Why a call did nothing.

use std::path::PathBuf;
use std::{fmt, io};

use prost::Message;
use tonic::{Code, Status};

use crate::{CONFLICT_TRAILER, proto};

/// Result of calls.
pub type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no mounted store.
    #[error("{} is not on a mounted kvfs store", .0.display())]
    NotMounted(PathBuf),
    /// The connection, or a file in a transaction.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The transaction met another one: nothing of it happened, run it again.
    #[error("{}", .0.message)]
    Conflict(Box<proto::Conflict>),
    /// An operation on a tree was refused: nothing was changed.
    #[error("{text}")]
    Tree {
        /// As for a call of Linux.
        errno: i32,
        /// Why, and where.
        text: String,
    },
    /// The daemon says why.
    #[error("{}", .0.message())]
    Refused(Status),
    /// An import into a transaction failed when a part of it was there: the transaction was aborted. In a
    /// branch, which can't be, the part stays.
    #[error("{cause}; {part}")]
    ImportedPart {
        /// Why it failed.
        cause: Box<ClientError>,
        /// What has become of the part.
        part: ImportedPart,
    },
}

impl ClientError {
    /// What the daemon said, as a number.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(status) => Some(status.code()),
            Self::Conflict(_) => Some(Code::Aborted),
            Self::ImportedPart { cause, .. } => cause.code(),
            Self::NotMounted(_) | Self::Io(_) | Self::Tree { .. } => None,
        }
    }
}

/// The part of an import that was there when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportedPart {
    /// So many keys were set.
    pub keys: u64,
    /// Whether they are gone with the transaction.
    pub is_aborted: bool,
}

impl fmt::Display for ImportedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_aborted {
            f.write_str("the transaction, which had a part of the import, was aborted")
        } else {
            write!(f, "the first {} keys are set", self.keys)
        }
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        let trailer = status.metadata().get_bin(CONFLICT_TRAILER).filter(|_| status.code() == Code::Aborted);
        let bytes = trailer.and_then(|value| value.to_bytes().ok());
        match bytes.and_then(|bytes| proto::Conflict::decode(bytes).ok()) {
            Some(conflict) => Self::Conflict(Box::new(conflict)),
            None => Self::Refused(status),
        }
    }
}
