//! Merges of private runs: a transaction that has many checkpoints has few runs, not one for each of them.
//!
//! Which runs of a checkpoint are due is chosen as for those of the main line. What they come to takes their
//! place in what the manifest says of the checkpoint, and in the transaction, if that is open. What comes of
//! them has the content of all of them but for what is overwritten there: below may be anything.
//!
//! Runs of which another transaction has a piece, too, stay as they are. So a transaction and its forks have
//! the same pieces of what came before a fork, and no piece has what came before *and* after it, as long as
//! both have not ended: that is what they are compared by.
//!
//! Crash order: pieces → device flush → one edit that states the runs of the checkpoint anew.
//!
//! Thread safety: one merge at a time. It holds no lock of a transaction while it reads and writes. What it
//! has made is dropped where the inputs have changed meanwhile.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use kvfs_store::{KeyspaceKind, Result, StoreError, TxnId};

use super::Txns;
use crate::commit::PrivateRuns;
use crate::compaction::picker;
use crate::format::PieceId;
use crate::version::{Edit, Run, RunId, bytes_of, of_one_age};

/// Most bytes that are merged at once: it is not done in steps, and what it has made goes with the end of the
/// store. Larger runs stay as they are.
const MERGE_BYTES_MAX: u64 = 1 << 30;

/// What is known of merges to come.
#[derive(Default)]
pub(super) struct Merges {
    /// These can't be read: they are left as they are until the next opening.
    left_out: BTreeSet<RunId>,
    /// None was possible when so much had changed in the checkpoints, and so many bytes at once could be
    /// merged.
    idle_at: Option<(u64, u64)>,
}

/// Runs that are to become one, neighbours, newest first.
struct Due {
    txn: TxnId,
    keyspace: u32,
    inputs: Vec<Arc<Run>>,
}

impl Txns {
    /// Merges some runs of a checkpoint; false when none are due, or another thread is at it. `between` is
    /// called behind each piece.
    ///
    /// # Errors
    /// As a merge of the main line, but for a lack of space.
    pub(crate) fn merge_once(&self, between: &mut dyn FnMut()) -> Result<bool> {
        self.merges.try_lock().map_or(Ok(false), |mut merges| self.merge_some(&mut merges, between))
    }

    /// Merges until none is due.
    ///
    /// # Errors
    /// As [`Self::merge_once`].
    pub(crate) fn merge_all(&self) -> Result<()> {
        let mut merges = self.merges.lock();
        while self.merge_some(&mut merges, &mut || ())? {}
        Ok(())
    }

    fn merge_some(&self, merges: &mut Merges, between: &mut dyn FnMut()) -> Result<bool> {
        self.runtime.check_running()?;
        // Before the look: what changes during it counts.
        let changes = self.checkpoints.changes();
        // Its output lies beside its inputs until the end, and the most of what is left is for writers.
        let bytes_max = MERGE_BYTES_MAX.min(self.flusher.space.space_left() / 4);
        if merges.idle_at.is_some_and(|(seen, bytes)| seen == changes && bytes_max <= bytes) {
            return Ok(false);
        }
        let Some(due) = self.due(&merges.left_out, bytes_max)? else {
            merges.idle_at = Some((changes, bytes_max));
            return Ok(false);
        };
        match self.merge(&due, between) {
            // What has ended needs it no more.
            Ok(()) | Err(StoreError::TxnEnded(_)) => Ok(true),
            Err(StoreError::Full) => {
                merges.idle_at = Some((changes, bytes_max));
                Ok(false)
            }
            Err(error) => {
                if self.runtime.health.is_of_a_read(&error) {
                    let (txn, count) = (due.txn, due.inputs.len());
                    tracing::warn!(%txn, %error, "{count} runs of a transaction can't be merged");
                    merges.left_out.extend(due.inputs.iter().map(|run| run.id));
                }
                Err(error)
            }
        }
    }

    fn merge(&self, due: &Due, between: &mut dyn FnMut()) -> Result<()> {
        let mut goes_on = || {
            between();
            self.runtime.check_running()?;
            if !self.checkpoints.contains(due.txn) {
                return Err(StoreError::TxnEnded(due.txn));
            }
            // Writers come first.
            if self.flusher.space.space_left() == 0 { Err(StoreError::Full) } else { Ok(()) }
        };
        let output = self.flusher.merge_private(due.keyspace, &due.inputs, &mut goes_on)?;
        // Here, where nothing waits for it.
        self.runtime.flush_device("a merge of a transaction's runs")?;
        self.replace(due, &output)
    }

    /// The first merge that is due, of no more than so many bytes.
    fn due(&self, left_out: &BTreeSet<RunId>, bytes_max: u64) -> Result<Option<Due>> {
        let all = self.checkpoints.all();
        let shared = shared_pieces(&all);
        for (txn, runs) in &all {
            let Ok(known) = self.runs_of_open(*txn) else { continue };
            let is_free = |run: &Arc<Run>| {
                let is_known = known.as_ref().is_none_or(|known| known.contains(&Arc::as_ptr(run)));
                is_known && !has_any_of(run, &shared) && !left_out.contains(&run.id)
            };
            for (keyspace, runs) in runs.keyspaces() {
                // Parts of one clone have one age. They are merged together or not at all: at the commit runs
                // are ordered by age, and what comes of one of them alone would come before the others.
                let units: Vec<_> = of_one_age(runs).collect();
                let bytes = |unit: &&[Arc<Run>]| unit.iter().all(is_free).then(|| bytes_of(unit));
                let sizes: Vec<_> = units.iter().map(bytes).collect();
                if let Some(picked) = self.pick(&sizes, self.keyspaces.kind(keyspace)?, bytes_max) {
                    return Ok(Some(Due { txn: *txn, keyspace, inputs: units[picked].concat() }));
                }
            }
        }
        Ok(None)
    }

    /// As the main line picks, of these sizes.
    fn pick(&self, sizes: &[Option<u64>], kind: KeyspaceKind, bytes_max: u64) -> Option<Range<usize>> {
        let options = &self.runtime.options.merge;
        let due = picker::pick(sizes, kind, options)?;
        let bytes: Vec<u64> = sizes[due.clone()].iter().flatten().copied().collect();
        let part = picker::first_part(&bytes, options.inputs_max);
        if bytes[part.clone()].iter().sum::<u64>() > bytes_max {
            return picker::pick_small(sizes, bytes_max, options);
        }
        Some(due.start + part.start..due.start + part.end)
    }

    /// The runs of a transaction, by address, if it is open: what came after the checkpoint may have joined
    /// one that it has.
    fn runs_of_open(&self, id: TxnId) -> Result<Option<HashSet<*const Run>>> {
        let Some(txn) = self.open.get(id) else { return Ok(None) };
        let runs = txn.with(|live| Ok(live.writes.runs().clone()))?;
        Ok(Some(runs.keyspaces().flat_map(|(_, runs)| runs).map(Arc::as_ptr).collect()))
    }

    /// Has `output` take the place of what is due, unless something has changed meanwhile.
    fn replace(&self, due: &Due, output: &Arc<Run>) -> Result<()> {
        let &Due { txn: id, keyspace, ref inputs } = due;
        let txn = self.open.get(id);
        // Held up to the end: neither runs nor the end of the transaction come in between.
        let _spilling = txn.as_ref().map(|txn| txn.spilling.lock());
        let _held = self.checkpoints.hold();
        let Ok((saved, info)) = self.checkpoints.saved(id) else { return Ok(()) };
        let shared = shared_pieces(&self.checkpoints.all());
        if info.is_open != txn.is_some() || inputs.iter().any(|run| has_any_of(run, &shared)) {
            return Ok(());
        }
        let Some(merged) = saved.runs.merged(keyspace, inputs, output) else { return Ok(()) };
        let of_open =
            txn.as_ref().map(|txn| txn.with(|live| Ok(live.writes.runs().merged(keyspace, inputs, output))));
        let of_open = match of_open {
            None => None,
            Some(Ok(Some(runs))) => Some(runs),
            // It has ended, or has added to the newest run.
            Some(_) => return Ok(()),
        };
        let mut edits = vec![Edit::DropPrepared { txn: id }];
        edits.extend(merged.stated(id));
        edits.push(Edit::Checkpoint { txn: id, checkpoint: saved.state });
        self.runtime.check_running()?;
        self.runtime.health.observe(self.live.install(edits, &[], &[], |view| view))?;
        self.checkpoints.replace_runs(id, merged);
        if let (Some(txn), Some(runs)) = (&txn, of_open) {
            txn.with(|live| {
                live.writes.replace_runs(runs);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Those that several transactions have.
fn shared_pieces(all: &[(TxnId, PrivateRuns)]) -> HashSet<PieceId> {
    let (mut known, mut shared) = (HashSet::new(), HashSet::new());
    for (_, runs) in all {
        // One transaction has each of its pieces once.
        let pieces = runs.keyspaces().flat_map(|(_, runs)| runs).flat_map(|run| &run.pieces);
        shared.extend(pieces.map(|piece| piece.desc().id).filter(|id| !known.insert(*id)));
    }
    shared
}

fn has_any_of(run: &Run, pieces: &HashSet<PieceId>) -> bool {
    run.pieces.iter().any(|piece| pieces.contains(&piece.desc().id))
}

#[cfg(test)]
mod tests;
