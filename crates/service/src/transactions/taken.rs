//! Transactions out of the reach of all threads but one, which commits, keeps or aborts them.
//!
//! ```text
//!     Free -- take --> Taken -- give_back, if it stays --> Free
//!                        |  \
//!                        |   line_gone --> Deserted
//!                        |                     |
//!                        +---------------------+-- give_back, discard, a panic --> gone
//! ```
//!
//! Thread safety: as the registry; an entry's [`Use`] changes below its lock. Invariant: for each entry that
//! is not `Free` there is one [`Taken`], which has its kernel side; when it is dropped, the entry is free or
//! gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kvfs_fs::{FileSystem, TxnView};

use super::entry::{Entry, ServedView};
use super::{State, Transactions};
use crate::caller::Caller;
use crate::error::{Result, ServiceError};

/// What the thread of [`Transactions::carry_out`] does to its transaction, operation by operation.
pub(super) const AT_WORK: &str = "at work";

/// What a commit by a caller does.
pub(super) const COMMITTING: &str = "committing";

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
pub(super) struct Taken<'t> {
    transactions: &'t Transactions,
    pub(super) id: u64,
    pub(super) view: Arc<FileSystem>,
    pub(super) view_mount: Option<ServedView>,
    is_given_back: bool,
}

impl<'t> Taken<'t> {
    /// Its entry must say that it is taken.
    pub(super) fn new(
        transactions: &'t Transactions,
        id: u64,
        view: Arc<FileSystem>,
        view_mount: Option<ServedView>,
    ) -> Self {
        Self { transactions, id, view, view_mount, is_given_back: false }
    }

    /// `Taken` → `Free`, if it `stays`; else, and where it is `Deserted`, nothing is left of it.
    pub(super) fn give_back(mut self, stays: bool) {
        self.end(stays, |_, _| ());
    }

    /// Nothing is left of it. `why` is told to the owner of the transaction that asks for it later, unless
    /// the owner has ended it: then it is unknown.
    pub(super) fn discard(mut self, by: Option<&Caller>, why: Option<String>) {
        self.end_without_owner(by, why);
    }

    fn end_without_owner(&mut self, by: Option<&Caller>, why: Option<String>) {
        let id = self.id;
        self.end(false, |state, entry| {
            if let Some(why) = why
                && by.is_none_or(|caller| caller.uid != entry.owner.uid)
            {
                state.ended.note(id, entry.owner.uid, why);
            }
            if let Some((number, Some(line))) = entry.line
                && by.is_none_or(|caller| caller.number != number)
            {
                // The command that runs the transaction learns of it, and ends what runs in it.
                line.cut();
            }
        });
    }

    fn end(&mut self, stays: bool, removed: impl FnOnce(&mut State, Entry)) {
        self.is_given_back = true;
        // Without effect on what has been committed.
        let abort = || {
            let abort = AssertUnwindSafe(|| self.view.txn().map_or((), TxnView::abort));
            if catch_unwind(abort).is_err() {
                tracing::error!(id = self.id, "the abort of the transaction panicked");
            }
        };
        if !stays {
            // Not below the lock: it may take long.
            abort();
        }
        let mut state = self.transactions.state.lock();
        let stays = |entry: &&mut Entry| stays && matches!(entry.used, Use::Taken(_));
        if let Some(entry) = state.open.get_mut(&self.id).filter(stays) {
            entry.used = Use::Free;
            entry.view_mount = self.view_mount.take();
        } else {
            abort();
            if let Some(entry) = state.open.remove(&self.id) {
                removed(&mut state, entry);
            }
            if let Some(view_mount) = self.view_mount.take() {
                state.take_down(self.id, view_mount);
            }
        }
        self.transactions.changed.notify_all();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.is_given_back {
            tracing::error!(id = self.id, "the thread that used the transaction panicked; aborted");
            self.end_without_owner(
                None,
                Some("the daemon failed in it: aborted, unless it was being committed".to_owned()),
            );
        }
    }
}

impl Transactions {
    /// `Free` → `Taken`, for a caller that may enter the transaction.
    pub(super) fn take(&self, caller: &Caller, id: u64, what: &'static str) -> Result<Taken<'_>> {
        let mut state = self.state.lock();
        Self::of(&state, caller, id)?;
        self.take_entry(&mut state, id, what).ok_or(ServiceError::Unknown(id))
    }

    /// The same, to be committed, unless it has a kernel side (`None`). What is taken gets none.
    pub(super) fn take_unmounted_to_commit(&self, caller: &Caller, id: u64) -> Result<Option<Taken<'_>>> {
        let mut state = self.state.lock();
        if Self::of(&state, caller, id)?.view_mount.is_some() {
            return Ok(None);
        }
        Ok(self.take_entry(&mut state, id, COMMITTING))
    }

    /// `Free` → `Taken`. `None`: it is in another state, or gone.
    pub(super) fn take_entry(&self, state: &mut State, id: u64, what: &'static str) -> Option<Taken<'_>> {
        let entry = state.open.get_mut(&id).filter(|entry| entry.used == Use::Free)?;
        Some(entry.take(self, id, what))
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
                    Use::Free => taken.push(entry.take(self, id, "being aborted")),
                    Use::Taken(what) | Use::Deserted(what) => entry.used = Use::Deserted(what),
                }
            }
        }
        for taken in taken {
            taken.discard(None, Some("aborted: its connection ended".to_owned()));
        }
    }
}
