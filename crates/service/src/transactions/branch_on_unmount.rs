//! Open transactions become branches when the store is unmounted: all, or none.
//!
//! First every view is closed and what its kernel side keeps comes in, which is where one can stand in the
//! way; then each gets its name and checkpoint. A transaction that another thread is busy with is waited for
//! before any is taken: a commit that fails may leave it open, and callers go on in the others meanwhile.
//!
//! Thread safety: for threads that may block, as the registry. Invariant: when the first one gets its name,
//! every transaction that was open at the last look was taken in that look or in one before it.

use std::collections::BTreeMap;
use std::time::Duration;

use kvfs_fs::{FrozenView, FsError};

use super::taken::{Taken, Use};
use super::{State, Transactions};
use crate::error::{ErrorKind, Result, ServiceError};

/// So long the dirty pages of a view may take: they may wait for the lock of a transaction that is kept, too.
const PAGES_TIME_MAX: Duration = Duration::from_secs(10);

/// So long other threads may be busy with transactions: a commit may wait for pages, too.
const BUSY_TIME_MAX: Duration = Duration::from_secs(10);

/// A transaction that was taken out of the reach of all other threads.
struct Leaving<'t> {
    taken: Taken<'t>,
    uid: u32,
    /// What keeps the view from being changed.
    frozen: Option<FrozenView>,
}

impl Transactions {
    /// Makes every open transaction a branch `txn-ID`, with the dirty pages of its view. Returns their names.
    /// Waits for those that are being committed. Does nothing when one can't become a branch. Only where the
    /// store itself fails on the way, or is full, some have become branches when there is an error; it names
    /// them.
    ///
    /// # Errors
    /// Which transaction can't become a branch, and why.
    pub fn keep_all(&self) -> Result<Vec<String>> {
        self.keep_all_within(BUSY_TIME_MAX)
    }

    /// As [`Self::keep_all`], where other threads may be busy with transactions for so long.
    pub(super) fn keep_all_within(&self, busy_time_max: Duration) -> Result<Vec<String>> {
        let mut closed = BTreeMap::new();
        let mut failed = self.close_all(&mut closed, busy_time_max).err();
        let mut kept = Vec::new();
        for (id, Leaving { taken, uid, frozen }) in closed {
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

    /// Takes and closes all that are open. After an error those that were taken are in `closed`, too.
    fn close_all<'t>(
        &'t self,
        closed: &mut BTreeMap<u64, Leaving<'t>>,
        busy_time_max: Duration,
    ) -> Result<()> {
        // Others may begin while views are closed.
        while self.take_others(closed, busy_time_max)? {
            for leaving in closed.values_mut().filter(|leaving| leaving.frozen.is_none()) {
                self.settle_to_keep(leaving)?;
            }
        }
        Ok(())
    }

    /// Takes all but those of `closed`, and adds them to these, when no thread is busy with one. False:
    /// there are no others.
    fn take_others<'t>(
        &'t self,
        closed: &mut BTreeMap<u64, Leaving<'t>>,
        busy_time_max: Duration,
    ) -> Result<bool> {
        let mut state = self.state.lock();
        let busy = |state: &State| {
            let mut others = state.open.iter().filter(|(id, _)| !closed.contains_key(id));
            others.find_map(|(&id, entry)| Some((id, entry.used.what()?)))
        };
        self.changed.wait_while_for(&mut state, |state| busy(state).is_some(), busy_time_max);
        if let Some((id, what)) = busy(&state) {
            let why = format!("it is still {what} after {} s; try again later", busy_time_max.as_secs());
            return Err(not_kept(id, &ServiceError::new(ErrorKind::InUse, why), &[]));
        }
        if let Some((id, _)) = state.open.iter().find(|(_, entry)| entry.serializable) {
            let message = format!(
                "transaction {id} is serializable: nothing would protect what it has read; commit or abort it first"
            );
            return Err(ServiceError::new(ErrorKind::InUse, message));
        }
        let closed_count = closed.len();
        for (&id, entry) in state.open.iter_mut().filter(|(_, entry)| entry.used == Use::Free) {
            let uid = entry.owner.uid;
            closed.insert(id, Leaving { taken: entry.take(self, id, "being kept"), uid, frozen: None });
        }
        Ok(closed.len() > closed_count)
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
