//! Checkpoints of transactions: what the manifest learns of their runs, and how one goes on from there, or
//! another one begins.
//!
//! Thread safety: as the transaction. A fork takes what a checkpoint holds, and no lock of the transaction,
//! which may go on, checkpoint, or end meanwhile: the pieces are held until the manifest names them for the
//! fork, too. Until then no run is merged, so that both sides have the same ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs_store::{CheckpointInfo, Result, TxnId, check_owner};

use super::{DbTxn, Live, Txns};
use crate::commit::{PRIVATE, PrivateWrites};
use crate::commits::checkpoints::Saved;
use crate::format::Feature;
use crate::version::{CheckpointState, Edit};

/// What the manifest is to learn of private runs.
pub(super) struct Save {
    edits: Vec<Edit>,
    /// What is a checkpoint then.
    checkpoint: Option<CheckpointState>,
}

impl DbTxn {
    /// Opens what a checkpoint holds.
    pub(crate) fn resume(engine: &Arc<Txns>, id: TxnId) -> Result<Arc<Self>> {
        engine.runtime.check_accepting()?;
        // Its runs are those of the checkpoint until it is listed as open.
        let _held = engine.checkpoints.hold();
        let saved = engine.checkpoints.open(id)?;
        let accountant = Arc::clone(&engine.runtime.ctx.accountant);
        let stats = saved.stats();
        let writes = PrivateWrites::restored(accountant, saved.runs, stats);
        engine.transactions.note_resumed(id);
        // The checkpoint's own pin has kept what is seen there.
        let live = Live { pin: engine.history.pin(saved.state.snapshot), writes, note: Bytes::new() };
        Ok(Self::listed(Self::new(engine, id, saved.state.isolation, live, true)))
    }

    /// As [`kvfs_store::Checkpoints::fork`].
    pub(crate) fn fork(
        engine: &Arc<Txns>,
        from: TxnId,
        owner: &dyn Fn(&CheckpointInfo) -> Bytes,
    ) -> Result<TxnId> {
        engine.runtime.check_accepting()?;
        let (owner, saved, _held) = loop {
            let (_, info) = engine.checkpoints.saved(from)?;
            let owner = owner(&info);
            check_owner(&owner)?;
            let held = engine.checkpoints.hold();
            let (saved, now) = engine.checkpoints.saved(from)?;
            // Unless another checkpoint has come.
            if (now.operations, &now.owner) == (info.operations, &info.owner) {
                break (owner, saved, held);
            }
        };
        let id = engine.transactions.open(&engine.live)?;
        let forked = engine.save_fork(id, &saved, owner);
        // As a transaction that was let go.
        engine.transactions.note_suspended(id);
        forked.map(|()| id)
    }

    /// Everything to the device, and into the manifest; as a checkpoint when it has an `owner`.
    pub(super) fn prepare_spilled(&self, owner: Option<&[u8]>) -> Result<()> {
        let _one_at_a_time = self.spilling.lock();
        self.spill_whole()?;
        let save = self.with(|live| Ok(self.plan_save(live, owner)))?;
        self.tell(&save)?;
        self.with(|live| {
            self.note_saved(live, save);
            Ok(())
        })?;
        // There may be runs to merge.
        self.engine.runtime.work.notify();
        Ok(())
    }

    /// What the manifest does not know of the runs; nothing is sealed. What a checkpointed transaction
    /// prepares is its next checkpoint.
    pub(super) fn plan_save(&self, live: &Live, owner: Option<&[u8]>) -> Save {
        let mut edits = live.writes.unprepared().to_vec();
        let former = self.engine.checkpoints.get(self.id);
        if owner.is_none() && (former.is_none() || edits.is_empty()) {
            return Save { edits, checkpoint: None };
        }
        let stats = live.writes.stats_spilled();
        let now = || self.engine.runtime.clock.wall().as_nanos() as u64;
        let checkpoint = CheckpointState {
            snapshot: self.snapshot,
            isolation: self.isolation,
            created: former.as_ref().map_or_else(now, |former| former.created),
            operations: stats.operations,
            batches: stats.batches,
            bytes_written: stats.bytes_written,
            bytes_spilled: stats.bytes_spilled,
            owner: match (owner, former) {
                (None, Some(former)) => former.owner,
                (owner, _) => Bytes::copy_from_slice(owner.unwrap_or_default()),
            },
        };
        edits.push(Edit::Checkpoint { txn: self.id, checkpoint: checkpoint.clone() });
        Save { edits, checkpoint: Some(checkpoint) }
    }

    pub(super) fn tell(&self, save: &Save) -> Result<()> {
        if save.checkpoint.is_some() {
            // The snapshot, and all that was written outside with a view to the private writes.
            self.engine.history.log.sync(self.engine.history.position())?;
        }
        self.engine.flusher.prepare_runs(save.edits.clone())
    }

    pub(super) fn note_saved(&self, live: &mut Live, save: Save) {
        let snapshot = save.checkpoint.is_some().then(|| live.pin.clone());
        live.writes.note_prepared(snapshot);
        if let Some(state) = save.checkpoint {
            let runs = live.writes.runs().checkpointed(PRIVATE + state.operations);
            let saved = Saved { state, runs };
            self.engine.checkpoints.set(self.id, saved);
            self.is_checkpointed.store(true, Ordering::Release);
        }
    }
}

impl Txns {
    /// Makes `id` a checkpointed transaction of what `saved` holds, durably.
    fn save_fork(&self, id: TxnId, saved: &Saved, owner: Bytes) -> Result<()> {
        let created = self.runtime.clock.wall().as_nanos() as u64;
        let state = CheckpointState { created, owner, ..saved.state.clone() };
        let pin = self.history.pin(state.snapshot);
        let (runs, mut edits) = saved.runs.forked(id, pin, || self.live.new_run_id());
        // Also where it has no runs yet: an older program knows nothing of what depends on what.
        self.live.announce_all(&[Feature::Clones, Feature::Forks])?;
        edits.push(Edit::Checkpoint { txn: id, checkpoint: state.clone() });
        // What was written outside with a view to the fork. The snapshot, and the pieces, are durable.
        self.history.log.sync(self.history.position())?;
        self.runtime.check_running()?;
        let told = self.runtime.health.observe(self.live.install(edits, &[], &[], |view| view));
        if told.is_err() && self.runtime.check_running().is_err() {
            // The manifest may name them: see `DbTxn::suspend`.
            self.transactions.keep_dropped(id, runs);
            return told;
        }
        told?;
        self.checkpoints.add(id, Saved { state, runs });
        Ok(())
    }
}
