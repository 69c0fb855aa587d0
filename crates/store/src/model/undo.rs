//! What the model keeps of committed transactions: two pins each, that the commit state itself holds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::snapshot::Pin;
use super::{Commit, Shared};
use crate::{Position, Result, Seqno, StoreError, TxnId, UndoPoint, UndoViews};

/// Those of a store, oldest first.
#[derive(Default)]
pub(super) struct Undo {
    pub(super) count_max: usize,
    points: VecDeque<UndoPoint>,
}

impl Undo {
    pub(super) fn list(&self) -> Vec<UndoPoint> {
        self.points.iter().cloned().collect()
    }
}

impl Commit {
    /// A transaction that came after `before` is complete at `after`. `before` has been pinned for it. The
    /// model has no clock: all was committed at the beginning of time.
    pub(super) fn keep(&mut self, (txn, note): (TxnId, Bytes), before: Seqno, after: Seqno) {
        self.pin(after);
        let (before, after) = (Position(before), Position(after));
        self.undo.points.push_back(UndoPoint { txn, before, after, committed: Duration::ZERO, note });
        self.keep_at_most(self.undo.count_max);
    }

    /// Lets the oldest go until so many are left; the same holds from now on.
    pub(super) fn keep_at_most(&mut self, count_max: usize) {
        self.undo.count_max = count_max;
        while self.undo.points.len() > count_max {
            let Some(point) = self.undo.points.pop_front() else { return };
            self.unpin(point.before.0);
            self.unpin(point.after.0);
        }
    }
}

pub(super) fn open(shared: &Arc<Shared>, id: TxnId) -> Result<UndoViews> {
    let mut commit = shared.commit.lock();
    let point = commit.undo.points.iter().find(|point| point.txn == id).cloned();
    let point = point.ok_or(StoreError::NotKept(id))?;
    let mut view = |at: Position| Arc::new(Pin::another(shared, &mut commit, at.0));
    Ok(UndoViews { before: view(point.before), after: view(point.after) })
}

/// As [`crate::UndoHistory::undo_bytes`].
pub(super) fn bytes(shared: &Arc<Shared>, id: TxnId) -> Result<u64> {
    let UndoViews { before, after } = open(shared, id)?;
    let tables: Vec<_> = shared.tables.read().clone();
    let mut bytes = 0;
    for table in tables {
        let mut ranges = table.changed_ranges(&crate::KeyRange::all(), before.seqno(), after.seqno());
        while let Some(range) = crate::ChangedRanges::next(&mut ranges)? {
            let mut cursor = before.cursor(table.keyspace, range)?;
            cursor.first()?;
            while let Some((key, value)) = cursor.entry() {
                bytes += (key.len() + value.len()) as u64;
                cursor.next()?;
            }
        }
    }
    Ok(bytes)
}
