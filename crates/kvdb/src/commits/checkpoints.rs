//! Checkpointed transactions: private runs, and a snapshot, that the manifest remembers.
//!
//! Crash order: the journal up to now → pieces → device flush → one edit that names the runs and marks them
//! as a checkpoint. Were the edit before the journal, a crash could take away the end of the history below
//! the snapshot, or what the transaction's user has written beside it (numbers that it was given). For a
//! checkpointed transaction nothing is prepared without such a mark, so the manifest never names a part of a
//! checkpoint; the edit that adopts the runs after a commit takes the mark away, the one that drops them
//! after an abort. Up to these edits a crash may bring the checkpoint back, so the snapshot stays pinned up
//! to them.
//!
//! A *fork* is a checkpoint of another transaction that has the same pieces, in runs of its own: journal up
//! to now → one edit that names the runs and marks them. Nothing of either transaction depends on the other
//! one: each run holds its own references on the zones of its pieces, in memory as after an opening.
//!
//! A merge of such runs replaces all that the manifest says of the checkpoint by one edit (`txn::merges`).
//!
//! Thread safety: one short lock, never held across I/O. Another one ([`Checkpoints::hold`]) keeps what a
//! checkpoint consists of for those who make another one of it: it is held across one edit of the manifest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvfs_locks::{Mutex, MutexGuard, class};
use kvfs_store::{CheckpointInfo, Result, Seqno, StoreError, TxnId, TxnStats};

use crate::commit::{PRIVATE, PrivateRuns, SnapshotTracker};
use crate::layers::adopted::RunsByKeyspace;
use crate::live::keyspaces::Keyspaces;
use crate::table::RunContext;
use crate::version::{CheckpointState, ManifestState, Run, RunState};

/// What a transaction goes back to when no handle of it is left. The runs keep its snapshot pinned.
#[derive(Clone)]
pub(crate) struct Saved {
    pub(crate) state: CheckpointState,
    pub(crate) runs: PrivateRuns,
}

impl Saved {
    /// Sizes of the write set.
    pub(crate) fn stats(&self) -> TxnStats {
        TxnStats {
            batches: self.state.batches,
            operations: self.state.operations,
            bytes_written: self.state.bytes_written,
            bytes_memory: 0,
            bytes_spilled: self.state.bytes_spilled,
        }
    }
}

/// The checkpointed transactions of a store.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Whether each is open.
    by_id: Mutex<BTreeMap<TxnId, (Saved, bool)>, class::KvdbCommitsCheckpointsById>,
    /// Counts what has changed in them.
    changes: AtomicU64,
    held: Mutex<(), class::KvdbCommitsCheckpointsHeld>,
}

impl Checkpoints {
    /// Opens what the manifest names, but for those that were committed. Merges have not begun; the newest
    /// seqno is `last`.
    pub(crate) fn restore(
        state: &ManifestState,
        ctx: &Arc<RunContext>,
        keyspaces: &Keyspaces,
        tracker: &SnapshotTracker,
        last: Seqno,
        is_committed: impl Fn(TxnId) -> bool,
    ) -> Result<Self> {
        let mut by_id = BTreeMap::new();
        for (&txn, checkpoint) in state.checkpoints.iter().filter(|&(&txn, _)| !is_committed(txn)) {
            let seqno = checkpoint.snapshot;
            if seqno > last {
                let detail = format!("it ends at seqno {last}, but transaction {txn} saw {seqno}");
                return Err(StoreError::corrupt("the journal", detail));
            }
            let prepared = state.prepared.get(&txn).map_or(&[][..], |runs| runs);
            let runs = open_runs(prepared, PRIVATE, ctx, keyspaces)?;
            let runs = PrivateRuns::restored(runs, PRIVATE + checkpoint.operations, tracker.pin(seqno));
            let saved = Saved { state: checkpoint.clone(), runs };
            by_id.insert(txn, (saved, false));
        }
        Ok(Self { by_id: Mutex::new(by_id), ..Self::default() })
    }

    /// While the caller has this no fork is made, no transaction resumed, and no run merged.
    pub(crate) fn hold(&self) -> MutexGuard<'_, (), class::KvdbCommitsCheckpointsHeld> {
        self.held.lock()
    }

    /// A number that is another one after each change of what there is.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// What they all have.
    pub(crate) fn all(&self) -> Vec<(TxnId, PrivateRuns)> {
        self.by_id.lock().iter().map(|(&id, (saved, _))| (id, saved.runs.clone())).collect()
    }

    /// Oldest first.
    pub(crate) fn list(&self) -> Vec<CheckpointInfo> {
        let by_id = self.by_id.lock();
        by_id.iter().map(|(&id, (saved, is_open))| info(id, &saved.state, *is_open)).collect()
    }

    pub(crate) fn count(&self) -> u64 {
        self.by_id.lock().len() as u64
    }

    /// All runs.
    pub(crate) fn runs(&self) -> Vec<(u32, Arc<Run>)> {
        self.by_id.lock().values().flat_map(|(saved, _)| saved.runs.all()).collect()
    }

    pub(crate) fn contains(&self, id: TxnId) -> bool {
        self.by_id.lock().contains_key(&id)
    }

    /// The checkpoint of `id`, if it has one.
    pub(crate) fn get(&self, id: TxnId) -> Option<CheckpointState> {
        self.by_id.lock().get(&id).map(|(saved, _)| saved.state.clone())
    }

    /// The manifest holds `saved` for the open transaction `id`; what it goes back to is that.
    pub(crate) fn set(&self, id: TxnId, saved: Saved) {
        self.put(id, saved, true);
    }

    fn put(&self, id: TxnId, saved: Saved, is_open: bool) {
        // What it replaces may be the last to hold pieces: it goes outside of the lock.
        let former = self.by_id.lock().insert(id, (saved, is_open));
        self.changes.fetch_add(1, Ordering::AcqRel);
        drop(former);
    }

    /// The manifest names `runs`, of the same content, for `id`. The caller holds what there is.
    pub(crate) fn replace_runs(&self, id: TxnId, runs: PrivateRuns) {
        let mut by_id = self.by_id.lock();
        let former = by_id.get_mut(&id).map(|(saved, _)| std::mem::replace(&mut saved.runs, runs));
        drop(by_id);
        self.changes.fetch_add(1, Ordering::AcqRel);
        drop(former);
    }

    /// What `id` goes back to, as the manifest knows it; it may be open. The runs keep the snapshot and their
    /// pieces, whatever becomes of `id`.
    pub(crate) fn saved(&self, id: TxnId) -> Result<(Saved, CheckpointInfo)> {
        let by_id = self.by_id.lock();
        let (saved, is_open) = by_id.get(&id).ok_or(StoreError::NoCheckpoint(id))?;
        Ok((saved.clone(), info(id, &saved.state, *is_open)))
    }

    /// The manifest holds `saved` for `id`, which is not open.
    pub(crate) fn add(&self, id: TxnId, saved: Saved) {
        self.put(id, saved, false);
    }

    /// What `id` is to go on from; it is open now.
    pub(crate) fn open(&self, id: TxnId) -> Result<Saved> {
        let mut by_id = self.by_id.lock();
        let (saved, is_open) = by_id.get_mut(&id).ok_or(StoreError::NoCheckpoint(id))?;
        if std::mem::replace(is_open, true) {
            return Err(StoreError::CheckpointOpen(id));
        }
        Ok(saved.clone())
    }

    /// No handle of `id` is left.
    pub(crate) fn close(&self, id: TxnId) {
        if let Some((_, is_open)) = self.by_id.lock().get_mut(&id) {
            *is_open = false;
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Transaction `id` has ended: its checkpoint is none any more. What only the returned position saw is
    /// garbage once the manifest has forgotten it, too: until then the runs hold the snapshot.
    pub(crate) fn remove(&self, id: TxnId) -> Option<Seqno> {
        let removed = self.by_id.lock().remove(&id);
        self.changes.fetch_add(1, Ordering::AcqRel);
        removed.map(|(saved, _)| saved.state.snapshot)
    }
}

fn info(id: TxnId, state: &CheckpointState, is_open: bool) -> CheckpointInfo {
    CheckpointInfo {
        id,
        isolation: state.isolation,
        snapshot: state.snapshot,
        created: Duration::from_nanos(state.created),
        operations: state.operations,
        bytes: state.bytes_written,
        is_open,
        owner: state.owner.clone(),
    }
}

/// Opens prepared runs, whose seqnos count from `base`.
pub(crate) fn open_runs(
    prepared: &[(u32, RunState)],
    base: Seqno,
    ctx: &Arc<RunContext>,
    keyspaces: &Keyspaces,
) -> Result<RunsByKeyspace> {
    let mut runs = RunsByKeyspace::new();
    for (keyspace, run) in prepared {
        let run = Run::open(run, base, ctx, *keyspace, keyspaces.kind(*keyspace)?)?;
        // They were prepared oldest first.
        runs.entry(*keyspace).or_default().insert(0, Arc::new(run));
    }
    Ok(runs)
}
