//! The runs of a transaction between its commit and the edit of the manifest that adopts them.
//!
//! Thread safety: shared. The committing thread sets the runs once; until then readers find none here, and
//! see nothing of the commit either, because the watermark passes it only afterwards.
//!
//! Invariant: the edit comes after the commit is published and its outcome is known (the guard of
//! [`CommittedRuns::begin`]), and after all older layers are in runs.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use kvfs_locks::{Mutex, class};
use kvfs_store::{Seqno, TxnId};

use crate::commit::SnapshotPin;
use crate::memtable::{WriteGuard, Writers};
use crate::version::Run;

/// Runs by keyspace, newest first.
pub(crate) type RunsByKeyspace = BTreeMap<u32, Vec<Arc<Run>>>;

/// A sealed layer that has been written before it was committed.
pub(crate) struct CommittedRuns {
    pub(crate) txn: TxnId,
    /// What the seqnos of the runs count from.
    pub(crate) base: Seqno,
    runs: OnceLock<RunsByKeyspace>,
    writers: Writers,
    /// Of a transaction that was checkpointed: until the manifest has adopted the runs, a crash may bring
    /// back the checkpoint, which then needs its snapshot.
    checkpoint: Mutex<Option<Arc<SnapshotPin>>, class::KvdbLayersAdoptedCheckpoint>,
}

impl CommittedRuns {
    /// Without runs yet.
    pub(crate) fn new(txn: TxnId, base: Seqno, checkpoint: Option<Arc<SnapshotPin>>) -> Self {
        let (runs, writers) = (OnceLock::new(), Writers::default());
        Self { txn, base, runs, writers, checkpoint: Mutex::new(checkpoint) }
    }

    /// The manifest has adopted the runs, and knows no checkpoint any more.
    pub(crate) fn release_checkpoint(&self) {
        let released = self.checkpoint.lock().take();
        drop(released);
    }

    /// With these runs; they must not be set again.
    pub(crate) fn with(txn: TxnId, base: Seqno, runs: RunsByKeyspace) -> Self {
        Self { runs: runs.into(), ..Self::new(txn, base, None) }
    }

    /// Announces the committer. Take it before the layer can be seen, keep it until the commit is published
    /// and noted.
    pub(crate) fn begin(&self) -> WriteGuard<'_> {
        self.writers.enter()
    }

    /// Waits until the committer has left.
    pub(crate) fn wait_quiescent(&self) {
        self.writers.wait_quiescent();
    }

    /// Sets the runs. Once.
    pub(crate) fn set(&self, runs: RunsByKeyspace) {
        let is_first = self.runs.set(runs).is_ok();
        debug_assert!(is_first, "a commit has one set of runs");
    }

    /// The runs; `None`: not set yet.
    pub(crate) fn all(&self) -> Option<&RunsByKeyspace> {
        self.runs.get()
    }

    /// The runs of a keyspace, newest first.
    pub(crate) fn of(&self, keyspace: u32) -> &[Arc<Run>] {
        self.all().and_then(|runs| runs.get(&keyspace)).map_or(&[], |runs| runs)
    }
}
