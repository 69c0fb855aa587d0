//! Operations that are tried until no other holds what they need; waits of a process for the locks of
//! transactions, which end with it.
//!
//! Thread safety: one lock, held for a few instructions. Invariant: once those of a process have ended none
//! begins.

use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_locks::{Mutex, class};
use kvfs_txn::Ticket;

use crate::{Caller, FsError, Result};

/// Tries `operation` until no other holds what it needs. Blocks meanwhile: not for workers.
///
/// # Errors
/// Those of `operation`, but for `Parked`.
pub fn settled<T>(operation: impl FnMut(&Caller) -> Result<T>) -> Result<T> {
    settled_for(&Caller::default(), operation)
}

/// As [`settled`], for this caller.
///
/// # Errors
/// Those of `operation`, but for `Parked`; `Interrupted`: its [`Waits`] have ended.
pub fn settled_for<T>(caller: &Caller, operation: impl FnMut(&Caller) -> Result<T>) -> Result<T> {
    let wait = |ticket: &Ticket| {
        let Some(waits) = &caller.waits else {
            ticket.wait();
            return true;
        };
        waits.wait(ticket)
    };
    settled_by(caller, wait, operation)
}

/// As [`settled_for`]; `wait` waits for a ticket, and says whether the operation is still wanted.
///
/// # Errors
/// Those of `operation`, but for `Parked`; `Interrupted`: it is not wanted any more, and has done nothing.
pub fn settled_by<T>(
    caller: &Caller,
    mut wait: impl FnMut(&Ticket) -> bool,
    mut operation: impl FnMut(&Caller) -> Result<T>,
) -> Result<T> {
    let mut outcome = operation(caller);
    while let Err(FsError::Parked(ticket)) = outcome {
        if !wait(&ticket) {
            return Err(FsError::Interrupted);
        }
        outcome = operation(&Caller { ticket: Some(ticket), ..caller.clone() });
    }
    outcome
}

/// Those of a process.
#[derive(Debug, Default)]
pub struct Waits {
    /// Changed while `waiting` is held.
    are_over: AtomicBool,
    waiting: Mutex<Vec<Ticket>, class::FsWaitsWaiting>,
}

impl Waits {
    /// Waits until the operation is worth trying again. False: the process has ended, and the ticket was
    /// cancelled.
    pub fn wait(&self, ticket: &Ticket) -> bool {
        {
            let mut waiting = self.waiting.lock();
            if self.are_over() {
                drop(waiting);
                ticket.cancel();
                return false;
            }
            waiting.push(ticket.clone());
        }
        ticket.wait();
        self.waiting.lock().retain(|other| other != ticket);
        !self.are_over()
    }

    /// Whether the process has ended.
    pub fn are_over(&self) -> bool {
        self.are_over.load(Ordering::SeqCst)
    }

    /// The process ends: those under way end, and none begins.
    pub fn end(&self) {
        let ended = {
            let mut waiting = self.waiting.lock();
            self.are_over.store(true, Ordering::SeqCst);
            std::mem::take(&mut *waiting)
        };
        for ticket in ended {
            ticket.cancel();
        }
    }
}
