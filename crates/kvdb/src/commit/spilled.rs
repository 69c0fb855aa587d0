//! The private runs of a transaction: what it has written beyond its share of memory.
//!
//! Purpose: a spill writes one private table as pieces whose seqnos count from [`PRIVATE`]; a run takes them
//! in. Where the pieces of a spill meet nothing of the newest run of their keyspace, they join it: a large
//! file that is written from front to end is one run, however often it spills.
//!
//! Thread safety: values; readers share them by clones that cost one reference.
//!
//! Invariants: runs of a keyspace are newest first; for each key the seqnos descend along them; `edits` is
//! what the manifest has not been told of. A piece holds what came up to a fork or what came after it, never
//! both: with a checkpoint all of memory is spilled, and no merge joins the two sides (`txn::merges`).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Seqno, TxnId};

use super::{PRIVATE, SnapshotPin};
use crate::table::Piece;
use crate::version::{Edit, Run, RunId};

/// Pieces that one spill has written.
pub(crate) struct Spill {
    /// Whose they are.
    pub txn: TxnId,
    /// Of a run, where one is needed.
    pub run: RunId,
    /// The newest seqno in it.
    pub last: Seqno,
    /// By keyspace, in key order.
    pub pieces: BTreeMap<u32, Vec<Arc<Piece>>>,
}

impl Spill {
    /// Data and metadata on the device (bytes).
    pub(crate) fn bytes(&self) -> u64 {
        let of_piece = |piece: &Arc<Piece>| piece.desc().data_bytes + u64::from(piece.desc().meta_len);
        self.pieces.values().flatten().map(of_piece).sum()
    }
}

/// All private runs of a transaction.
#[derive(Clone, Default)]
pub(crate) struct PrivateRuns {
    by_keyspace: Arc<BTreeMap<u32, Vec<Arc<Run>>>>,
    /// What leads the manifest from what it knows to these runs.
    edits: Arc<Vec<Edit>>,
    /// It knows some of them.
    is_prepared: bool,
    /// The manifest knows the transaction as a checkpointed one, with this snapshot. The owner of the runs
    /// may be the last one to hold it: while the manifest names the checkpoint, a crash may bring it back.
    checkpoint: Option<Arc<SnapshotPin>>,
    /// Of the last batch in the runs; 0: there is none.
    last: Seqno,
}

impl PrivateRuns {
    /// Those of a checkpoint: runs by keyspace, newest first, with seqnos up to `last`.
    pub(crate) fn restored(
        by_keyspace: BTreeMap<u32, Vec<Arc<Run>>>,
        last: Seqno,
        snapshot: SnapshotPin,
    ) -> Self {
        let checkpoint = Some(Arc::new(snapshot));
        Self { by_keyspace: Arc::new(by_keyspace), checkpoint, last, ..Self::default() }
    }

    /// The snapshot of the checkpoint that the manifest knows.
    pub(crate) fn checkpoint(&self) -> Option<&Arc<SnapshotPin>> {
        self.checkpoint.as_ref()
    }

    /// Of the last batch in the runs, or [`PRIVATE`].
    pub(crate) fn last(&self) -> Seqno {
        self.last.max(PRIVATE)
    }

    /// Whether nothing was spilled.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_keyspace.is_empty()
    }

    /// Whether the manifest knows any of them.
    pub(crate) fn is_prepared(&self) -> bool {
        self.is_prepared || self.checkpoint.is_some()
    }

    /// The runs of a keyspace, newest first.
    pub(crate) fn of(&self, keyspace: u32) -> &[Arc<Run>] {
        self.by_keyspace.get(&keyspace).map_or(&[], |runs| runs)
    }

    /// The same as those of a checkpoint that the manifest knows, which goes up to `last`.
    #[must_use]
    pub(crate) fn checkpointed(&self, last: Seqno) -> Self {
        let (by_keyspace, checkpoint) = (Arc::clone(&self.by_keyspace), self.checkpoint.clone());
        Self { by_keyspace, checkpoint, last, ..Self::default() }
    }

    /// Runs of `txn` with the same pieces, as a checkpoint with that snapshot, and the edits by which the
    /// manifest learns of them.
    pub(crate) fn forked(
        &self,
        txn: TxnId,
        snapshot: SnapshotPin,
        mut new_id: impl FnMut() -> RunId,
    ) -> (Self, Vec<Edit>) {
        let mut by_keyspace = BTreeMap::new();
        for (&keyspace, runs) in &*self.by_keyspace {
            let forked = |run: &Arc<Run>| Arc::new(Run { id: new_id(), ..run.rebased(PRIVATE) });
            // The oldest one has the smallest number.
            let forked: Vec<_> = runs.iter().rev().map(forked).collect();
            by_keyspace.insert(keyspace, forked.into_iter().rev().collect());
        }
        let forked = Self::restored(by_keyspace, self.last, snapshot);
        let edits = forked.stated(txn);
        (forked, edits)
    }

    /// The edits by which the manifest learns of all these runs as those of `txn`.
    pub(crate) fn stated(&self, txn: TxnId) -> Vec<Edit> {
        let mut edits = Vec::new();
        for (&keyspace, runs) in &*self.by_keyspace {
            // The manifest has them oldest first.
            for run in runs.iter().rev() {
                edits.push(Edit::PrepareRun { txn, keyspace, run: run.id, age: run.age });
                let add = |piece: &Arc<Piece>| Edit::AddPiece {
                    keyspace,
                    run: run.id,
                    piece: piece.desc().clone(),
                };
                edits.extend(run.pieces.iter().map(add));
            }
        }
        edits
    }

    /// The same with `output` in the place of `inputs`, neighbours in `keyspace`; `None`: not all of them are
    /// there any more.
    pub(crate) fn merged(&self, keyspace: u32, inputs: &[Arc<Run>], output: &Arc<Run>) -> Option<Self> {
        let (runs, newest) = (self.of(keyspace), inputs.first()?);
        let at = runs.iter().position(|run| Arc::ptr_eq(run, newest))?;
        let there = runs.get(at..at + inputs.len())?;
        if !there.iter().zip(inputs).all(|(run, input)| Arc::ptr_eq(run, input)) {
            return None;
        }
        let mut merged = self.clone();
        let runs = Arc::make_mut(&mut merged.by_keyspace).entry(keyspace).or_default();
        runs.splice(at..at + inputs.len(), [Arc::clone(output)]);
        Some(merged)
    }

    /// By keyspace, newest first.
    pub(crate) fn keyspaces(&self) -> impl Iterator<Item = (u32, &[Arc<Run>])> {
        self.by_keyspace.iter().map(|(&keyspace, runs)| (keyspace, &runs[..]))
    }

    /// Every run, with its keyspace.
    pub(crate) fn all(&self) -> Vec<(u32, Arc<Run>)> {
        let of = |(&keyspace, runs): (&u32, &Vec<Arc<Run>>)| {
            runs.iter().map(move |run| (keyspace, Arc::clone(run))).collect::<Vec<_>>()
        };
        self.by_keyspace.iter().flat_map(of).collect()
    }

    /// Numbers of all runs.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.by_keyspace.values().flatten().map(|run| run.id.0).collect()
    }

    /// The same runs with all seqnos counted from `base` on.
    pub(crate) fn rebased(&self, base: Seqno) -> BTreeMap<u32, Vec<Arc<Run>>> {
        let rebase = |runs: &Vec<Arc<Run>>| runs.iter().map(|run| Arc::new(run.rebased(base))).collect();
        self.by_keyspace.iter().map(|(&keyspace, runs)| (keyspace, rebase(runs))).collect()
    }

    pub(super) fn add(&mut self, spill: Spill) {
        self.last = spill.last;
        let by_keyspace = Arc::make_mut(&mut self.by_keyspace);
        let edits = Arc::make_mut(&mut self.edits);
        for (keyspace, pieces) in spill.pieces {
            let runs = by_keyspace.entry(keyspace).or_default();
            let joined = runs.first().and_then(|newest| joined(newest, &pieces));
            let run = if let Some(joined) = joined {
                let run = joined.id;
                runs[0] = Arc::new(joined);
                run
            } else {
                let age = spill.last - PRIVATE;
                edits.push(Edit::PrepareRun { txn: spill.txn, keyspace, run: spill.run, age });
                let pieces = pieces.clone();
                runs.insert(0, Arc::new(Run { id: spill.run, age, lower_bound: Bytes::new(), pieces }));
                spill.run
            };
            let add = |piece: Arc<Piece>| Edit::AddPiece { keyspace, run, piece: piece.desc().clone() };
            edits.extend(pieces.into_iter().map(add));
        }
    }

    pub(super) fn unprepared(&self) -> &[Edit] {
        &self.edits
    }

    pub(super) fn note_prepared(&mut self, checkpoint: Option<SnapshotPin>) {
        self.is_prepared |= !self.edits.is_empty();
        self.edits = Arc::default();
        if let Some(snapshot) = checkpoint {
            self.checkpoint = Some(Arc::new(snapshot));
        }
    }
}

/// `run` with `pieces`, when these meet no key of it.
fn joined(run: &Run, pieces: &[Arc<Piece>]) -> Option<Run> {
    let mut all = run.pieces.clone();
    for piece in pieces {
        let desc = piece.desc();
        let at = all.partition_point(|other| other.desc().first_key < desc.first_key);
        let is_behind = at.checked_sub(1).is_none_or(|before| all[before].desc().last_key < desc.first_key);
        let is_before = all.get(at).is_none_or(|next| desc.last_key < next.desc().first_key);
        if !is_behind || !is_before {
            return None;
        }
        all.insert(at, Arc::clone(piece));
    }
    Some(Run { pieces: all, ..run.clone() })
}
