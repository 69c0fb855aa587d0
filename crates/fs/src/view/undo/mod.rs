//! Taking back a committed transaction, in a new one.
//!
//! Purpose: the store keeps the states before and after a commit, so what lies between them is what the
//! transaction did. It is undone by the operations of a restore (`view/restore`), applied to the present
//! state, after it was made sure that none of it has changed since (`obstacles`). What others did beside it
//! stays: other files in the same directories, other attributes of the same files.
//!
//! A [`Selection`] limits that to places, and says what becomes of obstacles. A merge that prefers one side
//! (`view/prefer`) is the same search: what leads from a branch's snapshot to the branch is done on the main
//! line, or in the branch that it is one of.
//!
//! Thread safety: for one thread that may block; no other may use the view meanwhile. Invariant: with an
//! obstacle nothing is written. What changes while the new transaction is open is a conflict, as in any
//! other.

mod detached;
mod leaving;
mod obstacles;
mod planned;
mod resolve;
mod selection;

pub use planned::{Effects, Planned};
pub use selection::{Area, Selection};

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{NOTE_LEN_MAX, Seqno, Store, TxnId, UndoPoint};
use kvfs_txn::Rival;

use super::DiffStream;
use super::compare::Sides;
use super::diff::Difference;
use super::restore::Restored;
use super::txn::Owner;
use crate::detached::Pause;
use crate::{FileSystem, FsError, Result};

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

/// A committed transaction that can be taken back: the states before and after it.
pub struct Undo {
    before: Arc<FileSystem>,
    after: Arc<FileSystem>,
    /// What the transaction has detached stays as it is meanwhile.
    _pause: Pause,
}

impl Undo {
    /// Of a transaction that was committed to the main line `main`.
    ///
    /// # Errors
    /// The store's; [`kvfs_store::StoreError::NotKept`] among them.
    pub fn open(main: &Arc<FileSystem>, id: TxnId) -> Result<Self> {
        let (pause, views) = (Pause::of(main), main.store.open_undo(id)?);
        Ok(Self { before: main.view_of(views.before)?, after: main.view_of(views.after)?, _pause: pause })
    }

    /// The state before it.
    pub fn before(&self) -> &Arc<FileSystem> {
        &self.before
    }

    /// What taking it back would change, if nothing has changed since.
    pub fn diff(&self) -> DiffStream<Arc<FileSystem>> {
        DiffStream::new(Arc::clone(&self.after), Arc::clone(&self.before))
    }

    /// How it is taken back in `view`, of a transaction that has written nothing yet, as far as `selection`
    /// says. O(what it wrote), and memory for the names among it.
    ///
    /// # Errors
    /// Not a transaction with snapshot isolation; store errors.
    pub fn plan<'f>(&'f self, view: &'f FileSystem, selection: &Selection) -> Result<Planned<'f>> {
        Planned::new(self.sides(view)?, view, selection)
    }

    fn sides(&self, view: &FileSystem) -> Result<Sides<'_>> {
        if view.origin.txn().is_none() {
            return Err(FsError::Invalid("a transaction is taken back in another one"));
        }
        Ok(Sides { before: &self.before, after: &self.after })
    }
}

/// The transaction that made the change at `seqno`, if it is known yet.
pub(super) fn author(store: &dyn Store, seqno: Seqno) -> Option<Rival> {
    let mut points = store.undo_points().into_iter();
    let point = points.find(|point| point.before.0 < seqno && seqno <= point.after.0)?;
    Some(Rival::Txn { id: point.txn, owner: owner_of_note(&point.note) })
}

/// The transactions that can be taken back, oldest first, with their owners.
pub fn undo_points(store: &dyn Store) -> Vec<(UndoPoint, Owner)> {
    let points = store.undo_points().into_iter();
    points.map(|point| (owner_of_note(&point.note), point)).map(|(owner, point)| (point, owner)).collect()
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
