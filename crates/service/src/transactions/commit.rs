//! Commits of open transactions by their callers.
//!
//! Thread safety: for threads that may block, as the registry. Invariant: whether a commit may wait for pages
//! is known when its transaction is taken: from then on no view of it is mounted.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::operations::OperationKind;
use kvfs_fs::{Durability, FsError, TxnView};

use super::taken::{COMMITTING, Taken};
use super::timer::Timer;
use super::{Committed, Transactions};
use crate::caller::Caller;
use crate::error::{Result, ServiceError};

impl Transactions {
    /// Commits: the entrance of all front ends. After a conflict the transaction is gone; after other
    /// failures it stays open. `pages_max`: how long the dirty pages of its view may take.
    ///
    /// # Errors
    /// As [`Self::view`]; [`ServiceError::NotCommitted`].
    pub fn commit(
        &self,
        caller: &Caller,
        id: u64,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Committed> {
        let timer = Timer::start(&self.main.fs);
        let taken = self.take(caller, id, COMMITTING)?;
        self.commit_taken(taken, timer, caller, durability, pages_max)
    }

    /// As [`Self::commit`], of what has no kernel side: that waits for no pages. `None`: it has one, and
    /// nothing happened.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_unmounted(
        &self,
        caller: &Caller,
        id: u64,
        durability: Durability,
    ) -> Result<Option<Committed>> {
        let timer = Timer::start(&self.main.fs);
        let Some(taken) = self.take_unmounted_to_commit(caller, id)? else { return Ok(None) };
        self.commit_taken(taken, timer, caller, durability, None).map(Some)
    }

    fn commit_taken(
        &self,
        taken: Taken<'_>,
        timer: Timer<'_>,
        caller: &Caller,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Committed> {
        let id = taken.id;
        let view = Arc::clone(&taken.view);
        let operations = view.txn().map(TxnView::stats).unwrap_or_default().operations;
        let done = match &taken.view_mount {
            Some(view_mount) => view_mount.mount.commit(&view, durability, pages_max),
            None => self.main.mounts.commit(&view, durability, pages_max),
        };
        let stays = view.txn().is_some_and(|txn| !txn.is_over());
        // It may be doomed while its pages wait: the next attempt would find nothing to say so.
        let doom = view.txn().and_then(TxnView::doom).filter(|_| !stays);
        let done = done.map_err(|error| match (error, doom) {
            (FsError::Busy(_) | FsError::PagesWait, Some(doom)) => FsError::Canceled(doom),
            (error, _) => error,
        });
        taken.give_back(stays);
        timer.end(OperationKind::Commit, caller, id, done.as_ref().err().map_or(0, FsError::errno));
        match &done {
            Ok(position) => tracing::debug!(id, ?position, "transaction committed"),
            Err(FsError::Canceled(doom)) => {
                tracing::info!(id, why = view.lock_words().explain(doom), "transaction not committed");
            }
            Err(error @ (FsError::Busy(_) | FsError::PagesWait)) => {
                tracing::debug!(id, %error, "transaction not committed yet");
            }
            Err(error) => tracing::warn!(id, %error, "transaction not committed"),
        }
        match done {
            Ok(position) => Ok(Committed { position, operations }),
            Err(error) => Err(ServiceError::NotCommitted { id, view, error: Box::new(error) }),
        }
    }

    /// Commits, not durably, what has changed nothing and has no kernel side: that waits for nothing. False:
    /// it is not such a one, and nothing happened.
    ///
    /// # Errors
    /// As [`Self::view`].
    pub fn commit_unwritten(&self, caller: &Caller, id: u64) -> Result<bool> {
        let timer = Timer::start(&self.main.fs);
        let Some(taken) = self.take_unmounted_to_commit(caller, id)? else { return Ok(false) };
        let is_committed = taken.view.txn().and_then(TxnView::commit_unwritten).is_some();
        taken.give_back(!is_committed);
        if is_committed {
            timer.end(OperationKind::Commit, caller, id, 0);
        }
        Ok(is_committed)
    }
}
