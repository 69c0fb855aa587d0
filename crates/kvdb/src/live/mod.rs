//! The live set: the layers that readers see, the manifest that describes them, and their change in step.
//!
//! Thread safety: any thread. The ledger's lock is held across the manifest's write and flush, because edits
//! must reach it in one order; the view's lock only for its exchange, within the ledger's.
//!
//! Invariants: what the view shows of runs is what the manifest says; former versions and pieces are known as
//! long as a reader holds them, since they take space until then.

pub(crate) mod catalog;
pub(crate) mod features;
pub(crate) mod grow;
pub(crate) mod keyspaces;
pub(crate) mod pinned_garbage;
pub(crate) mod wishes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::{Result, Seqno};

use crate::format::{Feature, PieceDesc};
use crate::layers::view::View;
use crate::live::features::Announced;
use crate::live::keyspaces::KeyspaceMeta;
use crate::live::pinned_garbage::PinnedGarbage;
use crate::pressure::Pressure;
use crate::pressure::throttle::SEALED_MAX;
use crate::runtime::Runtime;
use crate::table::{Packing, Piece};
use crate::version::{Edit, Manifest, ManifestState, RunId, Version};

/// The manifest and the state that it describes, in step.
pub(crate) struct Ledger {
    pub(crate) manifest: Manifest,
    pub(crate) state: ManifestState,
}

/// See the module.
pub(crate) struct LiveSet {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) pressure: Arc<Pressure>,
    ledger: Mutex<Ledger, class::KvdbLiveLedger>,
    view: RwLock<Arc<View>, class::KvdbLiveView>,
    /// Former versions: what they have and the current one has not takes space until no reader holds them,
    /// and so does what memtables of their time have bound.
    versions_pinned: PinnedGarbage<Version>,
    /// Pieces of theirs that the current one has not. Each of these goes when its piece has given its space
    /// back, be it by a reader that has let go of the version already. Merges hold some, too.
    pieces_pinned: PinnedGarbage<PieceDesc>,
    next_id: Arc<AtomicU64>,
    /// What the superblocks say that the store may hold.
    announced: Announced,
    /// See [`wishes`].
    placed_by: RwLock<BTreeMap<u32, u32>, class::KvdbLivePlacedBy>,
}

impl LiveSet {
    /// As an opening has found it.
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        pressure: Arc<Pressure>,
        ledger: Ledger,
        view: View,
        announced: Announced,
    ) -> Self {
        let next_id = Arc::new(AtomicU64::new(ledger.state.next_id.max(1)));
        Self {
            runtime,
            pressure,
            ledger: Mutex::new(ledger),
            view: RwLock::new(Arc::new(view)),
            versions_pinned: PinnedGarbage::default(),
            pieces_pinned: PinnedGarbage::default(),
            next_id,
            announced,
            placed_by: RwLock::default(),
        }
    }

    /// Recomputes what merges owe.
    pub(crate) fn update_debt(&self) {
        self.pressure.update(|| self.view());
    }

    /// How data of a keyspace is to be packed now: not at all before that is announced.
    pub(crate) fn packing(&self, meta: &KeyspaceMeta) -> Packing {
        if !self.announced.has(Feature::Packed) {
            return Packing::default();
        }
        Packing { compression: meta.compression, merger: Some(meta.merger.clone()) }
    }

    /// Whether a reader has looked for keys in the runs of the keyspace, or could not yet, since there are
    /// none.
    pub(crate) fn is_searched(&self, keyspace: u32) -> bool {
        let view = self.view();
        let runs = view.version.runs(keyspace);
        runs.is_empty() || runs.iter().any(|run| run.is_searched())
    }

    /// The layers now.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// Whether these are the layers now. Takes no reference: every read asks.
    pub(crate) fn is_newest(&self, view: &Arc<View>) -> bool {
        Arc::ptr_eq(view, &self.view.read())
    }

    /// Puts the layers that `change` makes of the current ones in their place.
    pub(crate) fn replace_view(&self, change: impl FnOnce(&View) -> View) {
        let mut view = self.view.write();
        let next = Arc::new(change(&view));
        let old = std::mem::replace(&mut *view, next);
        if !Arc::ptr_eq(&old.version, &view.version) {
            self.versions_pinned.add([&old.version]);
            self.pieces_pinned.add(old.version.pieces_replaced_by(&view.version));
        }
        self.pressure.pace.note_sealed(view.sealed.len());
        drop(view);
        // The last reference to pieces may go here: outside the lock.
        drop(old);
    }

    /// Whether memory has room for another sealed layer.
    pub(crate) fn has_room_for_layer(&self) -> bool {
        self.view().sealed.len() < SEALED_MAX
    }

    /// Whether a reader holds a former version.
    pub(crate) fn is_old_version_read(&self) -> bool {
        self.versions_pinned.any()
    }

    /// Whether a reader, or a merge, holds anything that has been replaced.
    pub(crate) fn is_anything_old_read(&self) -> bool {
        self.versions_pinned.any() || self.pieces_pinned.any()
    }

    /// The former versions that readers hold. The last reference to one may come to be the caller's.
    pub(crate) fn old_versions(&self) -> Vec<Arc<Version>> {
        self.versions_pinned.read()
    }

    /// Up to which seqno everything is in runs.
    pub(crate) fn flushed_seqno(&self) -> Seqno {
        self.ledger.lock().state.flushed_seqno
    }

    /// What the manifest has taken (bytes).
    pub(crate) fn manifest_bytes_written(&self) -> u64 {
        self.ledger.lock().manifest.bytes_written()
    }

    /// See [`Manifest::damaged_superblocks`](crate::version::Manifest::damaged_superblocks).
    pub(crate) fn damaged_superblocks(&self) -> Vec<String> {
        self.ledger.lock().manifest.damaged_superblocks()
    }

    #[cfg(test)]
    pub(crate) fn superblock(&self) -> crate::format::Superblock {
        self.ledger.lock().manifest.superblock()
    }

    /// Where the ids of pieces come from.
    pub(crate) fn ids(&self) -> &Arc<AtomicU64> {
        &self.next_id
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
        if self.announced.has(Feature::Members) {
            edits.extend(self.runtime.ctx.zones.endurance().to_keep().map(Edit::NoteWritten));
        }
        self.runtime.health.observe(ledger.manifest.commit(&edits))?;
        for edit in &edits {
            self.runtime.health.observe(ledger.state.apply(edit))?;
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
        self.runtime.progress.notify();
        Ok(())
    }

    /// Something that is no batch has left garbage.
    pub(crate) fn note_garbage(&self) {
        self.pressure.passes().note_garbage();
    }
}
