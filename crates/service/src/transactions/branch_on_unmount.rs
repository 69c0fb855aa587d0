//! Open transactions become branches when the store is unmounted: all, or none.
//!
//! From the beginning to the end no transaction begins, so those that other threads are busy with become
//! fewer. They are waited for: a commit that fails leaves its transaction open, and one that is refused would
//! be lost with the command that ends with it. Then all are taken in one look. Every view is closed and what
//! its kernel side keeps comes in, which is where one can stand in the way; then each gets its name and
//! checkpoint.
//!
//! What the daemon itself is at work at is passed by: no caller could commit it, so it can't become a branch.
//!
//! Thread safety: for threads that may block, as the registry; one at a time. Invariant: when the first one
//! gets its name, every transaction of a caller that is open was taken, but for those that are being aborted.

use std::collections::BTreeMap;
use std::time::Duration;

use kvfs_fs::{FrozenView, FsError};
use kvfs_locks::{MutexGuard, class};

use super::entry::Entry;
use super::taken::{AT_WORK, Taken, Use};
use super::{State, Transactions};
use crate::error::{ErrorKind, Result, ServiceError};

/// So long the dirty pages of a view may take: they may wait for the lock of a transaction that is kept, too.
const PAGES_TIME_MAX: Duration = Duration::from_secs(10);

/// So long other threads may be busy with transactions: a commit may wait for pages, too.
const BUSY_TIME_MAX: Duration = Duration::from_secs(10);

/// While it is there, transactions become branches, and none begins.
struct Keeping<'t>(&'t Transactions);

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_keeping = false;
        self.0.changed.notify_all();
    }
}

/// A transaction that was taken out of the reach of all other threads.
struct Leaving<'t> {
    taken: Taken<'t>,
    uid: u32,
    /// What keeps the view from being changed.
    frozen: Option<FrozenView>,
}

impl Transactions {
    /// Makes every open transaction a branch `txn-ID`, with the dirty pages of its view. Returns their names.
    /// Waits for those that are being committed, and for another call of this. Does nothing when one can't
    /// become a branch. Only where the store itself fails on the way, or is full, some have become branches
    /// when there is an error; it names them.
    ///
    /// # Errors
    /// Which transaction can't become a branch, and why.
    pub fn keep_all(&self) -> Result<Vec<String>> {
        self.keep_all_within(BUSY_TIME_MAX)
    }

    /// As [`Self::keep_all`], where other threads may be busy with transactions for so long.
    pub(super) fn keep_all_within(&self, busy_time_max: Duration) -> Result<Vec<String>> {
        // Goes last: what begins would not be kept.
        let _keeping = self.begin_to_keep(busy_time_max)?;
        let mut closed = Vec::new();
        let mut failed = self.close_all(&mut closed, busy_time_max).err();
        let mut kept = Vec::new();
        for Leaving { taken, uid, frozen } in closed {
            let id = taken.id;
            let done = if failed.is_none() {
                taken.view.branches().keep(&branch_name(id), uid).map(drop)
            } else {
                Ok(())
            };
            if let Err(error) = done {
                failed = Some(not_kept(id, &error.into(), &kept));
            }
            if failed.is_some() {
                drop(frozen);
                taken.give_back(true);
            } else {
                tracing::info!(id, "transaction kept as a branch");
                taken.discard(None, Some(format!("kept as branch {}", branch_name(id))));
                kept.push(branch_name(id));
            }
        }
        failed.map_or(Ok(kept), Err)
    }

    /// Waits for so long until no other call of [`Self::keep_all`] is under way.
    fn begin_to_keep(&self, time_max: Duration) -> Result<Keeping<'_>> {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| state.is_keeping, time_max);
        if state.is_keeping {
            let message = "another unmount is keeping transactions as branches; try again later";
            return Err(ServiceError::new(ErrorKind::InUse, message));
        }
        state.is_keeping = true;
        Ok(Keeping(self))
    }

    /// Takes and closes all that are open. After an error those that were taken are in `closed`, too.
    fn close_all<'t>(&'t self, closed: &mut Vec<Leaving<'t>>, busy_time_max: Duration) -> Result<()> {
        {
            let mut state = self.state.lock();
            check_none_serializable(&state)?;
            self.wait_until_free(&mut state, busy_time_max)?;
            check_none_serializable(&state)?;
            for (&id, entry) in state.open.iter_mut().filter(|(_, entry)| entry.used == Use::Free) {
                let uid = entry.owner.uid;
                closed.push(Leaving { taken: entry.take(self, id, "being kept"), uid, frozen: None });
            }
        }
        closed.iter_mut().try_for_each(|leaving| self.settle_to_keep(leaving))
    }

    /// Waits until other threads are busy with none. What the daemon is at work at is not waited for.
    fn wait_until_free(
        &self,
        state: &mut MutexGuard<'_, State, class::ServiceTransactionsState>,
        time_max: Duration,
    ) -> Result<()> {
        let busy = |state: &State| -> BTreeMap<u64, &'static str> {
            let all = state.open.iter().filter_map(|(&id, entry)| Some((id, entry.used.what()?)));
            all.filter(|&(_, what)| what != AT_WORK).collect()
        };
        let at_first = busy(state);
        self.changed.wait_while_for(state, |state| !busy(state).is_empty(), time_max);
        let still = busy(state);
        // The one that has taken longest, if there is one.
        let longest = still.iter().find(|(id, _)| at_first.contains_key(id)).or_else(|| still.iter().next());
        let Some((&id, what)) = longest else { return Ok(()) };
        let why = format!("it is still {what} after {} s; try again later", time_max.as_secs());
        Err(not_kept(id, &ServiceError::new(ErrorKind::InUse, why), &[]))
    }

    /// Closes a view, and has what the kernel keeps of it come in.
    fn settle_to_keep(&self, leaving: &mut Leaving<'_>) -> Result<()> {
        let Leaving { taken: Taken { id, view, view_mount, .. }, frozen, .. } = leaving;
        let mut settle = || {
            *frozen = Some(view.expect_txn()?.freeze()?);
            if let Some(view_mount) = view_mount {
                view_mount.mount.write_back(Some(PAGES_TIME_MAX))?;
            }
            if self.main.fs.branches().get(&branch_name(*id)).is_ok() { Err(FsError::Exists) } else { Ok(()) }
        };
        settle().map_err(|error| not_kept(*id, &error.into(), &[]))
    }
}

/// Those that other threads are busy with may end; they are not looked at.
fn check_none_serializable(state: &State) -> Result<()> {
    let is_in_the_way = |entry: &Entry| entry.serializable && entry.used == Use::Free;
    match state.open.iter().find(|(_, entry)| is_in_the_way(entry)) {
        None => Ok(()),
        Some((id, _)) => Err(ServiceError::new(
            ErrorKind::InUse,
            format!(
                "transaction {id} is serializable: nothing would protect what it has read; commit or abort it first"
            ),
        )),
    }
}

/// What a transaction is called that is kept as a branch.
fn branch_name(id: u64) -> String {
    format!("txn-{id}")
}

/// Why a transaction isn't kept, and which of the others are.
fn not_kept(id: u64, error: &ServiceError, kept: &[String]) -> ServiceError {
    let others = match kept {
        [] => "all are open as before".to_owned(),
        kept => format!("kept so far: {}; the others are open as before", kept.join(", ")),
    };
    ServiceError::new(error.kind(), format!("transaction {id} can't be kept as a branch: {error}; {others}"))
}
