//! What a caller says of a transaction that begins, and is told of one.
//!
//! Thread safety: plain values.

use std::time::Duration;

use kvfs_fs::Position;

/// How a transaction begins.
#[derive(Debug, Clone, Default)]
pub struct Begin {
    /// As if transactions ran one after the other.
    pub serializable: bool,
    /// It is given up when it takes longer.
    pub timeout: Option<Duration>,
    /// It may go without an operation for so long; `None`: as the mount says, `Duration::MAX`: for ever.
    pub idle_max: Option<Duration>,
    /// Of two in each other's way the one with the greater number gives way. Below 0: root and the store's
    /// owner alone.
    pub nice: i32,
    /// What its owner calls it: a command, mostly. It is cut, and made printable.
    pub label: String,
    /// It ends with the connection at the latest.
    pub tied: bool,
    /// It is begun for files: refused where the kernel keeps changes of files to itself.
    pub needs_files: bool,
}

/// A transaction that was committed.
#[derive(Debug, Clone, Copy)]
pub struct Committed {
    /// Where it is in the order of commits.
    pub position: Position,
    /// How many operations had changed something before the commit.
    pub operations: u64,
}

/// How an open transaction is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TxnState {
    /// It takes operations.
    Open,
    /// This is being done to it.
    Busy(&'static str),
    /// It can never be committed, and why.
    Doomed(String),
}
