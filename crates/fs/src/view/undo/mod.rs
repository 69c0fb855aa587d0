//! Taking back a committed transaction, in a new one.
//!
//! Purpose: the store keeps the states before and after a commit, so what lies between them is what the transaction
//! did. It is undone by the operations of a restore (`view/restore`), applied to the present state, after it was
//! made sure that none of it has changed since (`obstacles`). What others did beside it stays: other files in
//! the same directories, other attributes of the same files.
//!
//! A [`Selection`] limits that to places, and says what becomes of obstacles. A merge that prefers one side
//! (`view/prefer`) is the same search: what leads from a branch's snapshot to the branch is done on the main line.
//!
//! Thread safety: for one thread that may block; no other may use the view meanwhile. Invariant: with an obstacle
//! nothing is written. What changes while the new transaction is open is a conflict, as in any other.

mod obstacles;
mod resolve;
mod selection;

pub use selection::{Area, Selection};

use bytes::Bytes;
use kvfs_store::{NOTE_LEN_MAX, Seqno, TxnId, UndoPoint, UndoViews};
use kvfs_txn::Rival;

use super::compare::Sides;
use super::diff::Difference;
use super::restore::{Restored, take_back};
use super::txn::Owner;
use crate::{FileSystem, FsError, Result};
use obstacles::Search;

/// Something that was built on a transaction, so that it can't be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// What has happened since the transaction.
    pub what: Difference,
    /// The last transaction that did it, if it is known.
    pub by: Option<UndoPoint>,
}

/// How taking back a transaction ended.
#[derive(Debug)]
pub enum TakenBack {
    /// The view holds what takes it back, to be committed.
    Done(Restored),
    /// Nothing was done. In the order of the places.
    Refused(Vec<Obstacle>),
}

/// What a transaction carries along of its owner: uid and pid, little-endian, and the name, cut to fit.
pub(super) fn note_of(owner: &Owner) -> Bytes {
    let mut note = Vec::with_capacity(8 + owner.name.len());
    note.extend_from_slice(&owner.uid.to_le_bytes());
    note.extend_from_slice(&owner.pid.to_le_bytes());
    let name_len = owner.name.floor_char_boundary(NOTE_LEN_MAX - note.len());
    note.extend_from_slice(&owner.name.as_bytes()[..name_len]);
    note.into()
}

/// The owner that [`UndoPoint::note`] tells of; root, when it is no such note.
pub fn owner_of_note(note: &[u8]) -> Owner {
    let parse = || {
        let (uid, rest) = note.split_first_chunk()?;
        let (pid, name) = rest.split_first_chunk()?;
        let name = String::from_utf8_lossy(name).into_owned();
        Some(Owner { uid: u32::from_le_bytes(*uid), pid: u32::from_le_bytes(*pid), name })
    };
    // Root's: only root may take back what has no owner.
    parse().unwrap_or_default()
}

impl FileSystem {
    /// What taking back a transaction whose states these are would change, if nothing has changed since.
    ///
    /// # Errors
    /// Store errors.
    pub fn undo_diff(self: &std::sync::Arc<Self>, views: &UndoViews) -> Result<Vec<Difference>> {
        let before = self.view_of(views.before.clone())?;
        before.diff_from(&*self.view_of(views.after.clone())?)
    }

    /// What stands in the way of taking back a transaction, whose states these are, in this view of a transaction
    /// that has written nothing yet. O(what it wrote).
    ///
    /// # Errors
    /// Not a transaction with snapshot isolation; store errors.
    pub fn undo_obstacles(&self, views: &UndoViews, selection: &Selection) -> Result<Vec<Obstacle>> {
        let (before, after) = self.undo_sides(views)?;
        let sides = Sides { before: &before, after: &after };
        Ok(Search::new(sides, self, selection)?.run()?.0)
    }

    /// Takes back a transaction, whose states these are, in this view of a transaction that has written nothing
    /// yet, as far as `selection` says; or tells why not. Nothing is committed. May block. O(what it wrote), and memory for the names among
    /// it.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn undo(&self, views: &UndoViews, selection: &Selection) -> Result<TakenBack> {
        let (before, after) = self.undo_sides(views)?;
        self.apply_reversed(Sides { before: &before, after: &after }, selection)
    }

    /// Brings what differs from `before` to `after` of the `sides` to what it is before, in this view.
    pub(super) fn apply_reversed(&self, sides: Sides<'_>, selection: &Selection) -> Result<TakenBack> {
        let (obstacles, alone, plan) = Search::new(sides, self, selection)?.run()?;
        if !obstacles.is_empty() {
            return Ok(TakenBack::Refused(obstacles));
        }
        take_back(sides, self, alone, plan).map(TakenBack::Done)
    }

    fn undo_sides(&self, views: &UndoViews) -> Result<(std::sync::Arc<Self>, std::sync::Arc<Self>)> {
        let Some(view) = self.origin.txn() else {
            return Err(FsError::Invalid("a transaction is taken back in another one"));
        };
        Ok((view.main.view_of(views.before.clone())?, view.main.view_of(views.after.clone())?))
    }

    /// The transaction that made the change at `seqno`, if it is known yet.
    pub(super) fn author(&self, seqno: Seqno) -> Option<Rival> {
        let mut points = self.store.undo_points().into_iter();
        let point = points.find(|point| point.before.0 < seqno && seqno <= point.after.0)?;
        Some(Rival::Txn { id: point.txn, owner: owner_of_note(&point.note) })
    }

    /// The transactions that can be taken back, oldest first, with their owners.
    pub fn undo_points(&self) -> Vec<(UndoPoint, Owner)> {
        let points = self.store.undo_points().into_iter();
        points.map(|point| (owner_of_note(&point.note), point)).map(|(owner, point)| (point, owner)).collect()
    }

    /// The states before and after a committed transaction.
    ///
    /// # Errors
    /// The store's; [`kvfs_store::StoreError::NotKept`] among them.
    pub fn open_undo(&self, id: TxnId) -> Result<UndoViews> {
        Ok(self.store.open_undo(id)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_carry_owners() {
        let owner = |name: &str| Owner { uid: 1000, pid: 7, name: name.to_owned() };
        for name in ["", "make install", "…"] {
            assert_eq!(owner_of_note(&note_of(&owner(name))), owner(name));
        }
        let long = note_of(&owner(&"ü".repeat(300)));
        assert!(long.len() <= NOTE_LEN_MAX);
        assert_eq!(owner_of_note(&long), owner(&"ü".repeat(123)));
        assert_eq!(owner_of_note(b"short"), Owner::default());
    }
}
