//! Why something could not be done with a repository.
//!
//! Thread safety: plain values. Invariant: a message says what is wrong with what, and what to do where that
//! is known.

use std::borrow::Cow;

use kvfs_fs::transfer::StreamError;

/// What a call returns.
pub type Result<T, E = RepositoryError> = std::result::Result<T, E>;

/// See the module.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RepositoryError {
    /// The place can't be used: a URL that is none, or a build without clients.
    #[error("{0}")]
    Place(String),
    /// Nothing that says so is there.
    #[error("there is no repository at {0}; `kvfs repository create` makes one")]
    NoRepository(String),
    /// There is one, or there are other objects.
    #[error("{url} is not empty (it has {found}); a repository needs a place of its own")]
    Occupied {
        /// Place.
        url: String,
        /// An object there.
        found: String,
    },
    /// Another release made it.
    #[error("the repository has format {0}, and this kvfs knows format 1; use a matching kvfs")]
    OtherVersion(u32),
    /// It is encrypted.
    #[error("the repository is encrypted; give its passphrase by --passphrase-file, or KVFS_PASSPHRASE_FILE")]
    NeedsPassphrase,
    /// Another passphrase.
    #[error("this is not the passphrase of the repository")]
    WrongPassphrase,
    /// A passphrase for nothing, or for another one that was there.
    #[error(
        "the repository is not encrypted, and there is a passphrase for it; if it was encrypted, what is there now is not to be \
         trusted; `kvfs repository create --encrypt` makes one that is, and --unencrypted uses one that is not"
    )]
    NotEncrypted,
    /// No snapshot of the name or id.
    #[error("the repository has no snapshot \"{0}\"; `kvfs repository list` shows what it has")]
    NoSnapshot(String),
    /// Several have the name.
    #[error("the repository has several snapshots \"{name}\"; say which by its id: {ids}")]
    Ambiguous {
        /// Name.
        name: String,
        /// Their ids, with commas.
        ids: String,
    },
    /// No snapshot that can be read has the name, and others can't be read.
    #[error(
        "no snapshot that can be read is \"{name}\", and {damaged}; `kvfs repository list` shows their ids"
    )]
    NameUnknown {
        /// Name.
        name: String,
        /// What is wrong with them.
        damaged: String,
    },
    /// What can't be read may be the newest snapshot.
    #[error("which snapshot is the newest is not known, so say which one: {0}")]
    NewestUnknown(String),
    /// It was pushed before.
    #[error("the repository has the snapshot \"{0}\" already")]
    Present(String),
    /// A stream that leads from another snapshot.
    #[error("only whole snapshots are pushed, and this is what leads to one from another")]
    NotWhole,
    /// What the push relies on is gone, or may be: it took long, or a prune did not respect it.
    #[error(
        "something that the push relies on is gone, or marked as unused, since it took more than half a day or \
         `kvfs repository prune --now` ran beside it; push again: hardly more than that is written anew"
    )]
    TooSlow,
    /// An object is not there.
    #[error("{0} is missing in the repository")]
    Missing(String),
    /// An object is not as it was written.
    #[error("{object} of the repository is damaged: {what}")]
    Damaged {
        /// Object.
        object: String,
        /// What is wrong.
        what: Cow<'static, str>,
    },
    /// A list of chunks that are not to be used is not as it was written.
    #[error(
        "{object} of the repository is damaged: {what}; no snapshot needs it, but nothing is pushed or pruned until \
         `kvfs repository prune --now` removes it, while nothing else pushes or prunes"
    )]
    DamagedMark {
        /// Object.
        object: String,
        /// What is wrong.
        what: Cow<'static, str>,
    },
    /// Object storage could not do it.
    #[error("{what} failed: {message}")]
    Objects {
        /// What was being done.
        what: String,
        /// What it says.
        message: String,
    },
    /// The machine could not.
    #[error("{0}")]
    Machine(String),
    /// A stream that is none.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl RepositoryError {
    pub(crate) fn damaged(object: impl Into<String>, what: impl Into<Cow<'static, str>>) -> Self {
        Self::Damaged { object: object.into(), what: what.into() }
    }

    /// Whether an object is at fault, and not what it was asked of.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Damaged { .. })
    }
}

impl From<RepositoryError> for std::io::Error {
    fn from(error: RepositoryError) -> Self {
        Self::other(error)
    }
}
