//! What the command says when it fails, and the exit code it ends with.

use std::fmt;
use std::path::Path;

use kvfs_fs::FsError;
use kvfs_fs::transfer::{ReceiveError, StreamError};
use kvfs_repository::RepositoryError;
use kvfs_service::{ErrorKind, ServiceError};
use kvfs_store::StoreError;

use crate::mounts;

/// Exit codes, also listed in `kvfs --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    Failed = 1,
    /// The same number that clap uses.
    Usage = 2,
    InUse = 3,
    NotAStore = 4,
    Damaged = 5,
    NoSpace = 6,
    Denied = 7,
    MountPoint = 8,
    NotMounted = 9,
    /// What was to be undone has been built on.
    BuiltOn = 10,
    /// Damage was put right.
    Repaired = 11,
    /// Damage was put right, and something is lost.
    RepairedInPart = 12,
    /// `EX_TEMPFAIL` of sysexits.h: trying again makes sense.
    Conflict = 75,
    /// The time that a command was given is over; the number that timeout(1) uses.
    TimedOut = 124,
    /// The reader of standard output has gone: 128 and the number of SIGPIPE, as shells report it.
    ReaderGone = 141,
}

impl Code {
    pub(crate) const ALL: [Self; 15] = [
        Self::Failed,
        Self::Usage,
        Self::InUse,
        Self::NotAStore,
        Self::Damaged,
        Self::NoSpace,
        Self::Denied,
        Self::MountPoint,
        Self::NotMounted,
        Self::BuiltOn,
        Self::Repaired,
        Self::RepairedInPart,
        Self::Conflict,
        Self::TimedOut,
        Self::ReaderGone,
    ];

    pub(crate) fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|code| *code as u8 == number).unwrap_or(Self::Failed)
    }

    /// What it is for callers that know no exit codes.
    pub(crate) fn kind(self) -> ErrorKind {
        ErrorKind::ALL.into_iter().find(|&kind| Self::from(kind) == self).unwrap_or(ErrorKind::Failed)
    }
}

/// A failure with its exit code and a message that says what to do.
#[derive(Debug, Clone)]
pub(crate) struct CliError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The same, and `what` has become of the rest.
    pub(crate) fn and(mut self, what: &str) -> Self {
        self.message.push_str("; ");
        self.message.push_str(what);
        self
    }

    /// An I/O error on `path`, with the code its kind asks for.
    pub(crate) fn io(what: &str, path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotConnected
            && let Ok(Some(mounted)) = mounts::containing(path)
            && let Some(why) = mounted.obituary()
        {
            return Self::new(Code::NotMounted, format!("cannot {what} {}: {why}", path.display()));
        }
        let code = match error.kind() {
            std::io::ErrorKind::BrokenPipe if path.to_str().is_some_and(is_output) => Code::ReaderGone,
            std::io::ErrorKind::PermissionDenied => Code::Denied,
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Code::NoSpace,
            _ => Code::Failed,
        };
        Self::new(code, format!("cannot {what} {}: {error}", path.display()))
    }
}

/// Whether a message calls standard output so.
fn is_output(name: &str) -> bool {
    matches!(name, "standard output" | "standard input or output")
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Usage => Self::Usage,
            ErrorKind::InUse => Self::InUse,
            ErrorKind::NotAStore => Self::NotAStore,
            ErrorKind::Damaged => Self::Damaged,
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::MountPoint => Self::MountPoint,
            ErrorKind::NotMounted => Self::NotMounted,
            ErrorKind::Conflict => Self::Conflict,
            _ => Self::Failed,
        }
    }
}

impl From<ServiceError> for CliError {
    fn from(error: ServiceError) -> Self {
        Self::new(error.kind().into(), error.to_string())
    }
}

impl From<RepositoryError> for CliError {
    fn from(error: RepositoryError) -> Self {
        use RepositoryError as E;
        let code = match &error {
            E::Place(_) | E::NotEncrypted => Code::Usage,
            E::NoRepository(_) | E::OtherVersion(_) => Code::NotAStore,
            E::NeedsPassphrase | E::WrongPassphrase => Code::Denied,
            E::Missing(_) | E::Damaged { .. } | E::DamagedMark { .. } | E::NameUnknown { .. } => {
                Code::Damaged
            }
            E::TooSlow => Code::Conflict,
            E::Stream(error) => return error.clone().into(),
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

impl From<kvfs_open::Error> for CliError {
    fn from(error: kvfs_open::Error) -> Self {
        match &error {
            kvfs_open::Error::Io { what, path, source } => Self::io(what, path, source),
            _ => Self::new(error.kind().into(), error.to_string()),
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        ServiceError::from(error).into()
    }
}

impl From<FsError> for CliError {
    fn from(error: FsError) -> Self {
        ServiceError::from(error).into()
    }
}

impl From<StreamError> for CliError {
    fn from(error: StreamError) -> Self {
        // One that was read from a repository tells more than that it could not be read.
        if let StreamError::Io(inner) = &error
            && let Some(of_repository) =
                inner.get_ref().and_then(|inner| inner.downcast_ref::<RepositoryError>())
        {
            return of_repository.clone().into();
        }
        let code = match &error {
            StreamError::NotAStream | StreamError::OtherVersion(_) => Code::NotAStore,
            StreamError::Damaged { .. } | StreamError::Mismatch => Code::Damaged,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ReceiveError> for CliError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Stream(error) => error.into(),
            ReceiveError::Fs(error) => error.into(),
            error => Self::new(Code::Failed, error.to_string()),
        }
    }
}
