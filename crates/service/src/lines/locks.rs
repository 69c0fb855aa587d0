//! Locks, as listed. Plain values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where a list of locks goes on, as `kvfs_fs::LockPlace::to_parts` gives it.
pub type LockPlaceParts = (u8, u64, u64, u64);

/// A page of locks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LockLines {
    pub locks: Vec<LockLine>,
    /// With the first page: transactions that can't go on. They hold nothing any more.
    pub doomed: Vec<DoomLine>,
    /// Where the next page begins.
    pub next: Option<LockPlaceParts>,
}

/// A lock, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LockLine {
    pub holder: PartyLine,
    /// What: a path or a key, where it is known.
    pub name: String,
    /// `shared`, `exclusive` or `increment`.
    pub mode: String,
    pub age: Duration,
    /// The first that wait for it.
    pub waiters: Vec<WaiterLine>,
    pub waiters_count: u64,
}

/// A transaction or an operation that waits for a lock.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WaiterLine {
    pub waiter: PartyLine,
    pub name: String,
    pub mode: String,
    pub waited: Duration,
}

/// A transaction that can never commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DoomLine {
    pub party: PartyLine,
    pub why: String,
}

/// The holder of a lock, or one that waits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartyLine {
    /// `None`: the main line.
    pub txn: Option<u64>,
    /// Of the transaction's owner.
    pub uid: Option<u32>,
    /// 0: unknown.
    pub pid: u32,
    /// What the transaction's owner calls it.
    pub label: String,
    /// The transaction can't go on.
    pub is_doomed: bool,
}
