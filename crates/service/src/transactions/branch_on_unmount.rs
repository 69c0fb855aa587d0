//! Open transactions become branches when the store is unmounted: all, or none.
//!
//! First every view is closed and what its kernel side keeps comes in, which is where one can stand in the
//! way; then each gets its name and checkpoint.
//!
//! Thread safety: for threads that may block, as the registry.

use std::time::Duration;

use kvfs_fs::{FrozenView, FsError};

use super::Transactions;
use super::taken::{Taken, Use};
use crate::error::{ErrorKind, Result, ServiceError};

/// So long the dirty pages of a view may take: they may wait for the lock of a transaction that is kept, too.
const PAGES_TIME_MAX: Duration = Duration::from_secs(10);

/// A transaction that was taken out of the reach of all other threads.
struct Leaving<'t> {
    taken: Taken<'t>,
    uid: u32,
    /// What keeps the view from being changed.
    frozen: Option<FrozenView>,
}

impl Transactions {
    /// Makes every open transaction a branch `txn-ID`, with the dirty pages of its view. Returns their names.
    /// Does nothing when one of them can't become one. Only where the store itself fails on the way, or is
    /// full, some have become branches when there is an error; it names them.
    ///
    /// # Errors
    /// Which transaction can't become a branch, and why.
    pub fn keep_all(&self) -> Result<Vec<String>> {
        let serializable =
            self.state.lock().open.iter().find(|(_, entry)| entry.serializable).map(|(id, _)| *id);
        if let Some(id) = serializable {
            let message = format!(
                "transaction {id} is serializable: nothing would protect what it has read; commit or abort it first"
            );
            return Err(ServiceError::new(ErrorKind::InUse, message));
        }
        let mut closed = Vec::new();
        let mut failed = None;
        while failed.is_none()
            && let Some(mut leaving) = self.take_free("being kept")
        {
            failed = self.settle_to_keep(&mut leaving).err();
            closed.push(leaving);
        }
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

    /// Takes any transaction that no thread is busy with.
    fn take_free(&self, what: &'static str) -> Option<Leaving<'_>> {
        let mut state = self.state.lock();
        let (id, uid) = {
            let (&id, entry) = state.open.iter().find(|(_, entry)| entry.used == Use::Free)?;
            (id, entry.owner.uid)
        };
        let taken = self.take_entry(&mut state, id, what)?;
        Some(Leaving { taken, uid, frozen: None })
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
