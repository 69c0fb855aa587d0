//! Transactions out of the reach of all threads but one, which commits, keeps or aborts them.
//!
//! ```text
//!     Free -- take --> Taken -- give_back, if it stays --> Free
//!                        |  \
//!                        |   line_gone --> Deserted
//!                        |                     |
//!                        +---------------------+-- give_back, drop_taken --> gone
//! ```
//!
//! Thread safety: as the registry; an entry's [`Use`] changes below its lock. Invariant: for each entry that
//! is not `Free` there is one [`Taken`], which has its kernel side; it must be given back or dropped by the
//! registry.

use std::sync::Arc;

use kvfs_fs::{FileSystem, TxnView};

use super::entry::{Entry, ServedView};
use super::{State, Transactions};
use crate::caller::Caller;
use crate::error::{Result, ServiceError};

/// What the thread of [`Transactions::carry_out`] does to its transaction, operation by operation.
pub(super) const AT_WORK: &str = "at work";

/// Who may use a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Its callers.
    Free,
    /// One thread, which does this to it.
    Taken(&'static str),
    /// The same, and the connection that it is tied to has ended meanwhile: it never stays.
    Deserted(&'static str),
}

impl Use {
    /// What a thread is doing to it.
    pub(super) fn what(self) -> Option<&'static str> {
        match self {
            Self::Free => None,
            Self::Taken(what) | Self::Deserted(what) => Some(what),
        }
    }
}

/// A transaction that one thread uses.
#[must_use = "no other thread reaches it until it is given back"]
pub(super) struct Taken {
    pub(super) id: u64,
    pub(super) view: Arc<FileSystem>,
    pub(super) view_mount: Option<ServedView>,
}

impl Transactions {
    /// `Free` → `Taken`, for a caller that may enter the transaction.
    pub(super) fn take(&self, caller: &Caller, id: u64, what: &'static str) -> Result<Taken> {
        let mut state = self.state.lock();
        Self::of(&state, caller, id)?;
        Self::take_entry(&mut state, id, what).ok_or(ServiceError::Unknown(id))
    }

    /// `Free` → `Taken`. `None`: it is in another state, or gone.
    pub(super) fn take_entry(state: &mut State, id: u64, what: &'static str) -> Option<Taken> {
        let entry = state.open.get_mut(&id).filter(|entry| entry.used == Use::Free)?;
        Some(entry.take(id, what))
    }

    /// `Taken` → `Free`, if it `stays`; else, and where it is `Deserted`, nothing is left of it.
    pub(super) fn give_back(&self, taken: Taken, stays: bool) {
        let Taken { id, view, view_mount } = taken;
        // Without effect on what has been committed.
        let abort = || view.txn().map_or((), TxnView::abort);
        if !stays {
            // Not below the lock: it may take long.
            abort();
        }
        let mut state = self.state.lock();
        let stays = |entry: &&mut Entry| stays && matches!(entry.used, Use::Taken(_));
        if let Some(entry) = state.open.get_mut(&id).filter(stays) {
            entry.used = Use::Free;
            entry.view_mount = view_mount;
        } else {
            state.open.remove(&id);
            abort();
            if let Some(view_mount) = view_mount {
                state.take_down(id, view_mount);
            }
        }
        self.changed.notify_all();
    }

    /// The connection of this number has ended, and with it what is tied to it.
    pub fn line_gone(&self, line: u64) {
        let mut taken = Vec::new();
        {
            let mut state = self.state.lock();
            let tied = state.open.iter_mut().filter(|(_, entry)| entry.is_tied_to(line));
            for (&id, entry) in tied {
                tracing::info!(id, "the connection of the transaction has ended; aborted");
                match entry.used {
                    Use::Free => taken.push(entry.take(id, "being aborted")),
                    Use::Taken(what) | Use::Deserted(what) => entry.used = Use::Deserted(what),
                }
            }
        }
        for taken in taken {
            self.drop_taken(taken, None, Some("aborted: its connection ended".to_owned()));
        }
    }
}
