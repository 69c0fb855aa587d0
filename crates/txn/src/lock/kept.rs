//! Places in queues between two tries of an operation.
//!
//! Purpose: an operation outside of transactions may be refused with all of its names free, because its party
//! must look at something first: a kernel, at names that have changed. The party then asks for the operation
//! once more, at once, and mostly not a third time. A transaction that had got the names in between would be
//! waited for, and change them again. So the operation keeps its places until it comes again, and
//! transactions wait behind it, for a moment at most: the party may be gone.
//!
//! Thread safety: one mutex, under which no ticket is dropped, as that takes the lock of a shard. Invariant:
//! a place goes with the next try of its operation, or at the first wait or look after [`KEEP_MAX`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvfs_locks::class;

use crate::sync::Mutex;
use crate::ticket::Ticket;

/// A kernel comes again within a millisecond, if it gets a processor.
pub(super) const KEEP_MAX: Duration = Duration::from_millis(100);

/// Operations that are kept places for; others come again as any newcomer does.
pub(super) const KEPT_MAX: usize = 1024;

struct Kept {
    ticket: Ticket,
    until: Duration,
}

/// See the module.
#[derive(Default)]
pub(crate) struct KeptPlaces {
    /// By what the party calls the operation.
    by_operation: Mutex<HashMap<u64, Kept>, class::TxnLockKept>,
    /// How many, to be looked at without the lock.
    len: AtomicUsize,
}

impl KeptPlaces {
    fn change<R>(&self, change: impl FnOnce(&mut HashMap<u64, Kept>) -> R) -> R {
        let mut kept = self.by_operation.lock();
        let changed = change(&mut kept);
        self.len.store(kept.len(), Ordering::Release);
        changed
    }

    /// `ticket`, whose operation is parked, is for the next try of `operation`.
    pub(crate) fn keep(&self, operation: u64, ticket: Ticket, now: Duration) {
        let kept = Kept { ticket, until: now.saturating_add(KEEP_MAX) };
        let given_up = self.change(|all| {
            if all.len() >= KEPT_MAX && !all.contains_key(&operation) {
                return Some(kept);
            }
            all.insert(operation, kept)
        });
        drop(given_up);
    }

    /// Whether there are any.
    pub(crate) fn has_some(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    /// For the next try of `operation`.
    pub(crate) fn take(&self, operation: u64) -> Option<Ticket> {
        self.change(|all| all.remove(&operation)).map(|kept| kept.ticket)
    }

    /// Gives up the places whose time is over. Returns how long the next one still has.
    pub(super) fn expire(&self, now: Duration) -> Option<Duration> {
        if !self.has_some() {
            return None;
        }
        let (next, given_up) = self.change(|all| {
            let given_up: Vec<Kept> =
                all.extract_if(|_, kept| kept.until <= now).map(|(_, kept)| kept).collect();
            (all.values().map(|kept| kept.until.saturating_sub(now)).min(), given_up)
        });
        drop(given_up);
        next
    }
}
