//! The positions of a store: the newest visible one, and those that are pinned.
//!
//! Thread safety: any thread; `naming` is held across the sync and the edit of a named snapshot, and comes
//! before the ledger.
//!
//! Invariant: nothing that a pinned position sees is dropped.

pub(crate) mod named;

use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use kvfs_store::{Position, Result, Seqno};

use crate::commit::{Publisher, SnapshotPin, SnapshotTracker, Ticket};
use crate::history::named::Named;
use crate::layers::Layers;
use crate::layers::view::View;
use crate::live::LiveSet;
use crate::order::log::Log;
use crate::runtime::Runtime;

/// See the module.
pub(crate) struct History {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) live: Arc<LiveSet>,
    pub(crate) log: Arc<Log>,
    publisher: Publisher,
    snapshots: Arc<SnapshotTracker>,
    named: Named,
    naming: Mutex<(), class::KvdbHistoryNaming>,
    /// Positions of deleted snapshots: what only they saw is to be cleared away when no reader is left at
    /// them.
    deleted_positions: Mutex<Vec<Seqno>, class::KvdbHistoryDeletedPositions>,
}

impl History {
    /// As an opening has found it; the newest seqno is `last`.
    pub(crate) fn new(
        live: &Arc<LiveSet>,
        log: &Arc<Log>,
        snapshots: Arc<SnapshotTracker>,
        named: Named,
        last: Seqno,
    ) -> Self {
        let publisher = Publisher::new(last);
        let (runtime, live, log) = (Arc::clone(&live.runtime), Arc::clone(live), Arc::clone(log));
        let (naming, deleted_positions) = (Mutex::default(), Mutex::default());
        Self { runtime, live, log, publisher, snapshots, named, naming, deleted_positions }
    }

    /// What only these positions saw is to be cleared away when no reader is left at them.
    pub(crate) fn note_deleted(&self, positions: impl IntoIterator<Item = Seqno>) {
        self.deleted_positions.lock().extend(positions);
        self.runtime.work.notify();
    }

    /// The newest committed state.
    pub(crate) fn newest_layers(&self) -> Layers {
        let (view, seqno) = self.read_view();
        Layers { view, seqno, own: None }
    }

    /// The layers, and a seqno that they answer for: everything visible at it is in them.
    pub(crate) fn read_view(&self) -> (Arc<View>, Seqno) {
        loop {
            let view = self.live.view();
            let seqno = self.publisher.visible();
            // If the memtables rotated in between, writes at or below the seqno may be in a newer one.
            if self.live.is_newest(&view) {
                return (view, seqno);
            }
        }
    }

    /// A pin on the newest visible position.
    pub(crate) fn pin_newest(&self) -> SnapshotPin {
        self.snapshots.pin_newest(&self.publisher)
    }

    /// A further pin on a position that is pinned.
    pub(crate) fn pin(&self, seqno: Seqno) -> SnapshotPin {
        self.snapshots.pin(seqno)
    }

    /// What pins positions.
    pub(crate) fn tracker(&self) -> &SnapshotTracker {
        &self.snapshots
    }

    /// The pinned positions, ascending.
    pub(crate) fn boundaries(&self) -> Vec<Seqno> {
        self.snapshots.boundaries()
    }

    /// The newest pinned position.
    pub(crate) fn newest_pinned(&self) -> Option<Seqno> {
        self.snapshots.newest()
    }

    /// Pins.
    pub(crate) fn pins(&self) -> usize {
        self.snapshots.count()
    }

    /// The named snapshots.
    pub(crate) fn named(&self) -> &Named {
        &self.named
    }

    /// A write takes `count` seqnos from `base` on; in their order.
    pub(crate) fn begin(&self, base: Seqno, count: u64) -> Ticket<'_> {
        self.publisher.begin(base, count)
    }

    /// Makes everything that is visible durable.
    pub(crate) fn sync(&self) -> Result<Position> {
        let written = self.runtime.unsynced.written();
        let position = self.position();
        self.log.sync(position)?;
        self.runtime.unsynced.note_synced(written);
        Ok(position)
    }

    pub(crate) fn position(&self) -> Position {
        Position(self.publisher.visible())
    }
}
