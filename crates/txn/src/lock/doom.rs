//! Why a transaction was stopped, and by whom.
//!
//! Thread safety: plain values. Invariants: a doom never changes; the first one counts.

use std::fmt;

use kvfs_store::TxnId;

use crate::LockNameBuf;

/// Who asked for a transaction, for messages and lists.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Process id; 0: unknown.
    pub pid: u32,
    /// Name of the program or whatever its user called it.
    pub name: String,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, pid {}, uid {}", self.name, self.pid, self.uid)
    }
}

/// Somebody who holds, wants or waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rival {
    /// A transaction.
    Txn {
        /// Its name.
        id: TxnId,
        /// Who asked for it.
        owner: Owner,
    },
    /// An operation outside of transactions.
    Main {
        /// Process id; 0: unknown.
        pid: u32,
    },
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Txn { id, owner } => write!(f, "transaction {id} ({owner})"),
            Self::Main { pid: 0 } => f.write_str("an operation on the main line"),
            Self::Main { pid } => write!(f, "an operation on the main line (pid {pid})"),
        }
    }
}

/// Kinds of [`Doom`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DoomReason {
    /// It and others waited for each other, and it was the least important.
    Deadlock,
    /// It waited for a lock longer than it was willing to.
    LockTimeout,
    /// An operation on the main line waited for one of its locks as long as such operations do.
    MainLine,
    /// It took longer as a whole than it was allowed to.
    TimedOut,
    /// Somebody changed what it changed or, at its commit, what it was about to replace.
    Conflict,
    /// Its locks would have taken more memory than there is for locks.
    LockMemory,
    /// Somebody aborted it.
    Aborted,
    /// It has ended (or its commit is decided): there is nothing left to lock for.
    Ended,
}

/// Why a transaction can't go on, and can never commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doom {
    /// What happened.
    pub reason: DoomReason,
    /// With whom.
    pub rival: Option<Rival>,
    /// Over what.
    pub name: Option<LockNameBuf>,
}

impl Doom {
    /// A doom that nobody else has part in.
    pub const fn new(reason: DoomReason) -> Self {
        Self { reason, rival: None, name: None }
    }

    /// The message for the user, with the name as `render` writes it (as a path, say).
    pub fn message(&self, render: impl FnOnce(&LockNameBuf) -> String) -> String {
        let what = match self.reason {
            DoomReason::Deadlock => "deadlock",
            DoomReason::LockTimeout => "waited too long for a lock",
            DoomReason::MainLine => "an operation outside of transactions needed a lock of it",
            DoomReason::TimedOut => "the transaction's time is over",
            DoomReason::Conflict => "conflict",
            DoomReason::LockMemory => "too many locks",
            DoomReason::Aborted => "aborted",
            DoomReason::Ended => "the transaction has ended",
        };
        let mut message = what.to_owned();
        if let Some(rival) = &self.rival {
            message = format!("{message}, with {rival}");
        }
        if let Some(name) = &self.name {
            message = format!("{message}, over {}", render(name));
        }
        message
    }
}

impl fmt::Display for Doom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(LockNameBuf::to_string))
    }
}
