//! Taking committed transactions back: which can be, what that would change, and who may (`rights`).
//!
//! Thread safety: for threads that may block. Invariant: a transaction is taken back by its owner, root and
//! the store's owner alone, and an owner other than these two may do no more by it than by hand.

mod rights;

use std::time::Duration;

use kvfs_fs::{
    DetachedTrees, Difference, FileSystem, FsError, Obstacle, Owner, Planned, Restored, Selection, TakenBack,
    TxnId, Undo, owner_of_note, undo_points,
};
use kvfs_store::{StoreError, TxnOutcome, UndoPoint};

use crate::authority::is_master;
use crate::caller::Caller;
use crate::comparisons::Comparison;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{CommittedLine, SelectionLine};
use crate::selection::selected;
use crate::served::{ServedStore, begin_for, or_nothing};
use crate::units::human_duration;
use rights::Rights;

/// Changes of which rights are looked at together, and what they may take (bytes, about).
const CHECKED_LINES_MAX: usize = 20_000;
const CHECKED_BYTES_MAX: usize = 4 << 20;

/// How many committed transactions can be taken back, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct UndoLimits {
    /// So many.
    pub count_max: usize,
    /// For so long.
    pub age_max: Duration,
}

impl UndoLimits {
    /// Whether any is kept.
    pub fn keeps_any(&self) -> bool {
        self.count_max > 0 && !self.age_max.is_zero()
    }
}

/// Something in the way of taking a transaction back.
#[derive(Debug)]
pub struct UndoObstacle {
    /// What has happened since.
    pub what: Difference,
    /// The last transaction that did it, if it is known; without counts.
    pub by: Option<CommittedLine>,
}

/// How taking a transaction back ended.
#[derive(Debug)]
pub enum Undone {
    /// This transaction did it.
    Done(TxnId, Restored),
    /// Nothing was done.
    Refused(Vec<UndoObstacle>),
}

impl ServedStore<'_> {
    /// The transactions that the caller may take back, oldest first.
    ///
    /// # Errors
    /// The store is not mounted.
    pub fn committed(&self, caller: &Caller) -> Result<Vec<CommittedLine>> {
        self.transactions()?;
        self.expect_undo()?;
        let points = undo_points(&**self.fs.store()).into_iter();
        let mine = points.filter(|(_, owner)| caller.may_act_for(owner.uid));
        let line = |(point, owner): (UndoPoint, Owner)| CommittedLine {
            // One that goes just now holds nothing any more.
            bytes_kept: self.fs.store().undo_bytes(point.txn).unwrap_or(0),
            operations: point.after.0 - point.before.0,
            ..committed_line(&point, owner)
        };
        Ok(mine.map(line).collect())
    }

    /// Whether a committed transaction can be taken back.
    pub fn is_kept(&self, id: TxnId) -> bool {
        undo_points(&**self.fs.store()).iter().any(|(point, _)| point.txn == id)
    }

    /// What taking back a transaction of the caller's would change, as far as the caller may see it.
    ///
    /// # Errors
    /// It is another user's, or not kept; store errors.
    pub fn undo_diff(&self, caller: &Caller, id: TxnId) -> Result<Comparison> {
        Ok(Comparison::of_undo(&self.open_undo(caller, id)?))
    }

    /// What is in the way of taking back a transaction of the caller's.
    ///
    /// # Errors
    /// As [`Self::undo_diff`]; the caller could not do it by hand.
    pub fn undo_obstacles(
        &self,
        caller: &Caller,
        id: TxnId,
        selection: SelectionLine,
    ) -> Result<Vec<UndoObstacle>> {
        self.defrag.while_wanted(caller, || {
            let (undo, selection) = self.undoable(caller, id, selection)?;
            let view = self.fs.begin(&undoing(caller, id))?;
            let planned = undo.plan(&view, &selection)?;
            self.check_effects(caller, &view, &planned)?;
            Ok(told(planned.into_obstacles()))
        })
    }

    /// Takes back a transaction of the caller's, in one of its own.
    ///
    /// # Errors
    /// As [`Self::undo_obstacles`], and as a commit.
    pub fn take_back(&self, caller: &Caller, id: TxnId, selection: SelectionLine) -> Result<Undone> {
        let undoable = || self.undoable(caller, id, selection);
        let (undo, selection) = self.defrag.while_wanted(caller, undoable)?;
        let (mut obstacles, mut denied, mut done) = (Vec::new(), None, Restored::default());
        let mut work = |view: &FileSystem| -> Result<(), FsError> {
            let planned = undo.plan(view, &selection)?;
            if let Err(error) = self.check_effects(caller, view, &planned) {
                denied = Some(error);
                return Err(FsError::NotPermitted("it is more than the user could do by hand"));
            }
            match planned.carry_out()? {
                TakenBack::Done(restored) => {
                    done = restored;
                    Ok(())
                }
                TakenBack::Refused(found) => {
                    obstacles = found;
                    Err(FsError::NotPermitted("something was built on it"))
                }
            }
        };
        let committed = self
            .transactions()?
            .carry_out(&undoing(caller, id), |view| self.defrag.while_wanted(caller, || work(view)));
        if let Some(error) = denied {
            return Err(error);
        }
        let undone = match committed {
            Err(_) if !obstacles.is_empty() => Undone::Refused(told(obstacles)),
            committed => Undone::Done(or_nothing(committed, "nothing was taken back")?, done),
        };
        tracing::info!(id = id.0, refused = matches!(undone, Undone::Refused(_)), "undo");
        Ok(undone)
    }

    /// What the caller may take back of a transaction.
    fn undoable(&self, caller: &Caller, id: TxnId, selection: SelectionLine) -> Result<(Undo, Selection)> {
        let selection = selected(caller, selection);
        let mut undo = self.open_undo(caller, id)?;
        if selection.is_limited() {
            // A tree that was removed, and is not gone yet, comes back as a whole only.
            drop(undo);
            DetachedTrees::of(self.fs).remove_all()?;
            undo = self.open_undo(caller, id)?;
        }
        self.check_undo_rights(caller, &undo, &selection)?;
        Ok((undo, selection))
    }

    /// Refuses it where the engine keeps no former states.
    fn expect_undo(&self) -> Result<()> {
        let store = self.fs.store();
        let lacks = || StoreError::Unsupported { engine: store.engine_name(), what: "undo of transactions" };
        store.undo().map(|_| ()).ok_or_else(|| lacks().into())
    }

    /// The states before and after a transaction of the caller's.
    fn open_undo(&self, caller: &Caller, id: TxnId) -> Result<Undo> {
        self.transactions()?;
        self.expect_undo()?;
        let undo = match Undo::open(self.fs, id) {
            Err(FsError::Store(error)) if matches!(*error, StoreError::NotKept(_)) => {
                return Err(self.not_kept(id));
            }
            undo => undo?,
        };
        let points = undo_points(&**self.fs.store());
        let (_, owner) =
            points.into_iter().find(|(point, _)| point.txn == id).ok_or_else(|| self.not_kept(id))?;
        if caller.may_act_for(owner.uid) {
            return Ok(undo);
        }
        let only = format!("transaction {id} belonged to user {}; only that user and root may", owner.uid);
        Err(ServiceError::new(ErrorKind::Denied, only))
    }

    /// Refuses a user that could not do by hand what taking the transaction back does.
    fn check_undo_rights(&self, caller: &Caller, undo: &Undo, selection: &Selection) -> Result<()> {
        if is_master(self.fs, caller.uid) {
            return Ok(());
        }
        let mut rights = Rights::new(self.fs, undo.before(), caller);
        let mut changes = undo.diff();
        while !changes.is_through() {
            let mut page = changes.next_page(CHECKED_LINES_MAX, CHECKED_BYTES_MAX)?;
            page.retain(|change| {
                let places = std::iter::once(&change.place).chain(&change.from);
                places.into_iter().any(|place| selection.selects(place, change.keyspace.as_deref()))
            });
            rights.check(&page)?;
        }
        Ok(())
    }

    /// Refuses a user that could not do by hand what is planned: force and a selection add to what the
    /// changes of the transaction tell.
    fn check_effects(&self, caller: &Caller, view: &FileSystem, planned: &Planned<'_>) -> Result<()> {
        if !planned.is_free() || is_master(self.fs, caller.uid) {
            return Ok(());
        }
        rights::check_effects(view, caller, &planned.effects()?)
    }

    fn not_kept(&self, id: TxnId) -> ServiceError {
        let UndoLimits { count_max, age_max } = self.undo;
        let kept = if count_max == 0 {
            "nothing is kept for that here (mount option undo_count=0)".to_owned()
        } else {
            let age = human_duration(age_max);
            format!(
                "kept are the last {count_max} that wrote something, for {age} (mount options undo_count, undo_age), \
                 while there is space; `kvfs txn list --committed` shows them"
            )
        };
        let message = match self.fs.store().txn_outcome(id) {
            TxnOutcome::Open => format!("transaction {id} is open; `kvfs txn abort {id}` drops it"),
            TxnOutcome::Committed(_) => {
                format!("transaction {id} can't be taken back: what was there before it is not kept; {kept}")
            }
            TxnOutcome::Unknown => format!("no transaction {id} that was committed is known; {kept}"),
        };
        ServiceError::new(ErrorKind::Failed, message)
    }
}

/// How the transaction begins that takes back another one.
fn undoing(caller: &Caller, id: TxnId) -> kvfs_fs::BeginOptions {
    begin_for(caller, format!("txn undo {id}"))
}

fn told(obstacles: Vec<Obstacle>) -> Vec<UndoObstacle> {
    let tell = |Obstacle { what, by }: Obstacle| UndoObstacle {
        what,
        by: by.map(|point| committed_line(&point, owner_of_note(&point.note))),
    };
    obstacles.into_iter().map(tell).collect()
}

fn committed_line(point: &UndoPoint, owner: Owner) -> CommittedLine {
    CommittedLine {
        id: point.txn.0,
        uid: owner.uid,
        pid: owner.pid,
        label: owner.name,
        committed: point.committed,
        operations: 0,
        bytes_kept: 0,
    }
}

#[cfg(test)]
mod tests;
