//! Why a transaction was stopped, and by which party.
//!
//! Thread safety: plain values. Invariants: a doom never changes; the first one counts.

use std::fmt;

use kvfs_store::TxnId;

use crate::LockNameBuf;

/// The process that asked for a transaction, for messages and lists.
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

/// A party that holds, wants or waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rival {
    /// A transaction.
    Txn {
        /// Its name.
        id: TxnId,
        /// The process that asked for it.
        owner: Owner,
    },
    /// An operation outside of transactions.
    Main {
        /// Process id; 0: unknown.
        pid: u32,
    },
}

impl Rival {
    /// The party in words, where an operation's process is called `command`.
    pub fn words(&self, command: Option<&str>) -> String {
        match (self, command) {
            (Self::Txn { id, owner }, _) => format!("transaction {id} ({owner})"),
            (Self::Main { pid: 0 }, _) => "an operation on the main line".to_owned(),
            (Self::Main { pid }, None) => format!("an operation on the main line (pid {pid})"),
            (Self::Main { pid }, Some(command)) => format!("{command} (pid {pid}) on the main line"),
        }
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(None))
    }
}

/// Kinds of [`Doom`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DoomReason {
    /// It and others waited for each other, and it was the least important.
    Deadlock,
    /// It waited for a lock longer than it was willing to.
    LockTimeout,
    /// An operation on the main line waited for one of its locks as long as such operations do, or another
    /// user's transaction for one that it only shares.
    MainLine,
    /// It took longer as a whole than it was allowed to.
    TimedOut,
    /// It went without an operation for longer than it may.
    Idle {
        /// How long it may (ms).
        idle_max_ms: u32,
    },
    /// The store was full, and the transaction, idle for a while, pinned space.
    Space {
        /// For how long it had been idle (s).
        idle_s: u32,
    },
    /// Another party changed what it changed or, at its commit, what it was about to replace.
    Conflict,
    /// It was aborted on request.
    Aborted,
    /// It has ended (or its commit is decided): there is nothing left to lock for.
    Ended,
}

/// Why a transaction can't go on, and can never commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doom {
    /// What happened.
    pub reason: DoomReason,
    /// The other party.
    pub rival: Option<Rival>,
    /// Over what.
    pub name: Option<LockNameBuf>,
}

impl Doom {
    /// A doom that no other party has part in.
    pub const fn new(reason: DoomReason) -> Self {
        Self { reason, rival: None, name: None }
    }

    /// The message for the user, with the name as `render` writes it (as a path, say), and the other party as
    /// `party` does.
    pub fn message(
        &self,
        render: impl FnOnce(&LockNameBuf) -> String,
        party: impl FnOnce(&Rival) -> String,
    ) -> String {
        let idle;
        let what = match self.reason {
            DoomReason::Idle { idle_max_ms } => {
                idle = format!(
                    "ended by its idle time-out: no operation for {} s (mount option txn_idle, option --idle-timeout)",
                    f64::from(idle_max_ms) / 1000.0
                );
                &*idle
            }
            DoomReason::Space { idle_s } => {
                idle = format!(
                    "ended because the store was full and the transaction pinned space, idle for {idle_s} s"
                );
                &*idle
            }
            DoomReason::Deadlock => "deadlock",
            DoomReason::LockTimeout => "waited too long for a lock",
            DoomReason::MainLine => "it kept others waiting too long",
            DoomReason::TimedOut => "the transaction's time is over",
            DoomReason::Conflict => "conflict",
            DoomReason::Aborted => "aborted",
            DoomReason::Ended => "the transaction has ended",
        };
        let mut message = what.to_owned();
        if let Some(rival) = &self.rival {
            message = format!("{message}, with {}", party(rival));
        }
        if let Some(name) = &self.name {
            message = format!("{message}, over {}", render(name));
        }
        message
    }
}

impl fmt::Display for Doom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(LockNameBuf::to_string, Rival::to_string))
    }
}
