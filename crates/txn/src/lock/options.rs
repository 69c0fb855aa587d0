//! What is tunable about locks.
//!
//! Thread safety: plain values. Invariants: none.

use std::time::Duration;

/// Bounds of the lock manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// How long an operation on the main line waits for transactions' locks, in all, before their holders are
    /// doomed.
    pub main_wait_max: Duration,
    /// How long a transaction waits for locks that another user's transactions only share, before these are
    /// doomed.
    pub shared_wait_max: Duration,
    /// Memory for all locks (bytes). The transactions of one user may take as much of it as all users leave
    /// free, so that none ever meets a full table for another's sake; those of root, all that is left. A
    /// transaction that needs more has its locks on the entries of one directory, the blocks of one file, or
    /// the keys of one keyspace become one that covers them.
    pub bytes_max: usize,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            main_wait_max: Duration::from_secs(1),
            shared_wait_max: Duration::from_secs(10),
            bytes_max: 64 << 20,
        }
    }
}
