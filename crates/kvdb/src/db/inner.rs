//! The state of an open store, shared by its callers and its background threads.
//!
//! Lock order: transaction → ids of transactions → order → ledger → view; naming → ledger; claims of merges → view.
//! No lock is held across a wait for background work; the ledger lock is held across the manifest's write and flush,
//! because edits must reach it in one order, and the naming lock across the sync before them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvfs_store::clock::Clock;
use kvfs_store::{Position, Result, Seqno, StoreError};
use parking_lot::{Mutex, RwLock};

use super::checkpoints::Checkpoints;
use super::counters::Counters;
use super::features::Announced;
use super::health::Health;
use super::keyspaces::Keyspaces;
use super::layers::Layers;
use super::merges::{MergePace, ReclaimState, Registry};
use super::named::Named;
use super::options::Options;
use super::outlived::Outlived;
use super::signals::Bell;
use super::stalls::Stalls;
use super::timeline::Timeline;
use super::transactions::Transactions;
use super::undo::Undo;
use super::view::View;
use crate::commit::{Publisher, SnapshotTracker};
use crate::format::PieceDesc;
use crate::journal::Journal;
use crate::memtable::MemTable;
use crate::run::{Piece, RunContext};
use crate::version::{Edit, Manifest, ManifestState, RunId, Version};

/// What the order lock protects.
pub(crate) struct Order {
    pub(crate) next_seqno: Seqno,
    /// The first seqno that the active memtable can hold.
    pub(crate) active_from: Seqno,
}

/// The manifest and the state that it describes, in step.
pub(crate) struct Ledger {
    pub(crate) manifest: Manifest,
    pub(crate) state: ManifestState,
}

/// An open store.
pub(crate) struct Inner {
    pub(crate) uuid: [u8; 16],
    pub(crate) options: Options,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) health: Health,
    pub(crate) ctx: Arc<RunContext>,
    /// `None`: opened read-only.
    pub(crate) journal: Option<Journal>,
    pub(crate) keyspaces: Keyspaces,
    pub(crate) publisher: Publisher,
    pub(crate) snapshots: Arc<SnapshotTracker>,
    pub(crate) named: Named,
    pub(crate) undo: Undo,
    pub(crate) transactions: Transactions,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) counters: Counters,
    pub(crate) stalls: Stalls,
    pub(crate) order: Mutex<Order>,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) view: RwLock<Arc<View>>,
    /// Former versions: what they have and the current one has not takes space until nobody reads them, and so does what memtables of
    /// their time have bound.
    pub(crate) versions_outlived: Outlived<Version>,
    /// Pieces of theirs that the current one has not. Each of these goes when its piece has given its space back, be it by somebody
    /// who has let go of the version already. Merges hold some, too.
    pub(crate) pieces_outlived: Outlived<PieceDesc>,
    pub(crate) next_id: Arc<AtomicU64>,
    /// One flush at a time.
    pub(crate) flushing: Mutex<()>,
    /// Which runs are being merged, and where merges give way.
    pub(crate) merging: Registry,
    pub(crate) pace: Arc<MergePace>,
    /// The rate of writers that are held back.
    pub(crate) admission: Mutex<Timeline>,
    /// A memtable is sealed when it has grown to this: the option, unless the journal is too short for it.
    pub(crate) table_bytes: u64,
    pub(crate) making_keyspace: Mutex<()>,
    pub(crate) naming: Mutex<()>,
    /// Rung when there is something to do, and when something was done.
    pub(crate) work: Bell,
    pub(crate) progress: Bell,
    pub(crate) timer: Bell,
    /// Rung when the journal's open group should be written.
    pub(crate) journal_due: Bell,
    /// Held by the merge thread that looks after undo and space just now.
    pub(crate) tending: Mutex<()>,
    /// Held while the debt is computed and kept.
    pub(crate) debt_update: Mutex<()>,
    pub(crate) stopping: AtomicBool,
    /// Set by `close`: nothing new comes in, while what is there is written out.
    pub(crate) closed: AtomicBool,
    pub(crate) compaction_debt_bytes: AtomicU64,
    /// The last flush found no space; the next one may, after a merge.
    pub(crate) flush_is_full: AtomicBool,
    /// Part of that for whose merges there is no space.
    pub(crate) debt_lacking_space: AtomicU64,
    /// The passes over all runs.
    pub(crate) reclaims: ReclaimState,
    /// What of that merges in slices have replaced.
    pub(crate) slices_outlived: Outlived<PieceDesc>,
    /// Positions of deleted snapshots: what only they saw is to be cleared away when nobody reads it any more.
    pub(crate) deleted_positions: Mutex<Vec<Seqno>>,
    /// What the superblocks say that the store may hold.
    pub(crate) announced: Announced,
}

impl Inner {
    /// The layers now.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// Puts the layers that `change` makes of the current ones in their place.
    pub(crate) fn replace_view(&self, change: impl FnOnce(&View) -> View) {
        let mut view = self.view.write();
        let next = Arc::new(change(&view));
        let old = std::mem::replace(&mut *view, next);
        if !Arc::ptr_eq(&old.version, &view.version) {
            self.versions_outlived.add([&old.version]);
            self.pieces_outlived.add(old.version.pieces_replaced_by(&view.version));
        }
        self.pace.note_sealed(view.sealed.len());
        drop(view);
        // The last reference to pieces may go here: outside the lock.
        drop(old);
    }

    /// The newest committed state.
    pub(crate) fn newest_layers(&self) -> Layers {
        let (view, seqno) = self.read_view();
        Layers { view, seqno, own: None }
    }

    /// The layers, and a seqno that they answer for: everything visible at it is in them.
    pub(crate) fn read_view(&self) -> (Arc<View>, Seqno) {
        loop {
            let view = self.view();
            let seqno = self.publisher.visible();
            // If the memtables rotated in between, writes at or below the seqno may be in a newer one.
            if Arc::ptr_eq(&view, &self.view.read()) {
                return (view, seqno);
            }
        }
    }

    /// The journal of a writable store.
    pub(crate) fn journal(&self) -> Result<&Journal> {
        self.journal.as_ref().ok_or(StoreError::ReadOnly)
    }

    pub(crate) fn position(&self) -> Position {
        Position(self.publisher.visible())
    }

    pub(crate) fn new_memtable(&self) -> MemTable {
        MemTable::new(Arc::clone(&self.ctx.accountant))
    }

    pub(crate) fn new_run_id(&self) -> RunId {
        RunId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes `edits` durable and visible. `fresh` are the pieces that they add; `keyspaces` those whose
    /// runs change. `also` changes the rest of the view in the same step. The caller has flushed what
    /// the new pieces refer to.
    pub(crate) fn install(
        &self,
        mut edits: Vec<Edit>,
        keyspaces: &[u32],
        fresh: &[Arc<Piece>],
        also: impl FnOnce(View) -> View,
    ) -> Result<()> {
        let mut ledger = self.ledger.lock();
        edits.push(Edit::NextId(self.next_id.load(Ordering::Relaxed)));
        self.health.observe(ledger.manifest.commit(&edits))?;
        for edit in &edits {
            self.health.observe(ledger.state.apply(edit))?;
        }
        self.replace_view(|view| {
            let mut version = (*view.version).clone();
            for &keyspace in keyspaces {
                version = version.follow(&ledger.state, keyspace, fresh);
            }
            also(View { version: Arc::new(version), ..view.clone() })
        });
        drop(ledger);
        self.update_debt();
        self.progress.ring();
        Ok(())
    }
}
