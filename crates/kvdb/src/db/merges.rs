//! Which merges run, and how their output comes in: piece by piece.
//!
//! Crash order for each piece: its data → device flush → one manifest edit that adds the piece and
//! trims the inputs below its upper bound.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs_store::{Result, StoreError};

use super::inner::Inner;
use crate::compaction::{MergeJob, Sink, Victims, picker};
use crate::iter::KeepRules;
use crate::run::Piece;
use crate::version::{Edit, Run, RunId};
use crate::zone::{Budget, ZoneState};

/// A zone with less live data than this share is emptied when space is short.
const VICTIM_LIVE_PERCENT: u64 = 60;

/// Takes over the output of one merge.
struct Install<'a> {
    inner: &'a Inner,
    keyspace: u32,
    run: RunId,
    age: u64,
    inputs: &'a [Arc<Run>],
    added: bool,
    stopped: bool,
}

impl Sink for Install<'_> {
    fn piece(&mut self, piece: Option<Arc<Piece>>, bound: Option<&Bytes>) -> Result<()> {
        let (keyspace, run) = (self.keyspace, self.run);
        let mut edits = Vec::new();
        if let Some(piece) = &piece {
            self.inner.flush_device("a merge's output")?;
            if !self.added {
                edits.push(Edit::AddRun { keyspace, run, age: self.age });
                self.added = true;
            }
            edits.push(Edit::AddPiece { keyspace, run, piece: piece.desc().clone() });
        }
        for input in self.inputs {
            match bound {
                Some(bound) if *bound > input.lower_bound => {
                    edits.push(Edit::TrimRun { keyspace, run: input.id, lower_bound: bound.clone() });
                }
                // A merge that ended early has trimmed it further already.
                Some(_) => {}
                None => edits.push(Edit::DropRun { keyspace, run: input.id }),
            }
        }
        let fresh: Vec<Arc<Piece>> = piece.into_iter().collect();
        self.inner.install(edits, &[keyspace], &fresh, |view| view)?;
        if bound.is_some() && self.inner.stopping.load(Ordering::Acquire) {
            // What is installed stays; the rest is merged after the next open.
            self.stopped = true;
            return Err(stopped());
        }
        Ok(())
    }
}

/// The internal error that ends a merge early at shutdown; never leaves this module.
fn stopped() -> StoreError {
    StoreError::Unsupported("merging while the store closes")
}

impl Inner {
    /// Runs the most urgent merge; false when none is due.
    pub(crate) fn merge_once(&self) -> Result<bool> {
        let _one_at_a_time = self.merging.lock();
        self.check_writable()?;
        let view = self.view();
        for (keyspace, runs) in view.version.keyspaces() {
            let kind = self.keyspaces.kind(keyspace)?;
            let bytes: Vec<u64> = runs.iter().map(|run| run.data_bytes()).collect();
            if let Some(range) = picker::pick(&bytes, kind, &self.options.merge) {
                return self.merge_runs(
                    keyspace,
                    &runs[range.clone()],
                    &runs[range.end..],
                    Victims::default(),
                    // The reserve belongs to flushes, deletions and reclaiming.
                    Budget::Ordinary,
                );
            }
        }
        Ok(false)
    }

    /// Merges `inputs`; `older` are the runs of the keyspace behind them.
    fn merge_runs(
        &self,
        keyspace: u32,
        inputs: &[Arc<Run>],
        older: &[Arc<Run>],
        victims: Victims,
        budget: Budget,
    ) -> Result<bool> {
        let Some(newest) = inputs.first() else { return Ok(false) };
        let start = self.clock.monotonic();
        let meta = self.keyspaces.get(keyspace)?;
        let job = MergeJob {
            spec: self.output_spec(keyspace, &meta, false, budget),
            inputs: inputs.to_vec(),
            rules: KeepRules {
                boundaries: self.snapshots.boundaries(),
                bottom: !older.iter().any(|run| overlap(run, inputs)),
                merger: meta.merger.clone(),
            },
            options: self.options.merge,
            victims,
        };
        let (run, age) = (self.new_run_id(), newest.age);
        let mut install = Install { inner: self, keyspace, run, age, inputs, added: false, stopped: false };
        let result = job.run(&mut install);
        if install.stopped {
            return Ok(false);
        }
        let totals = self.health.observe(result)?;
        self.counters.note_merge_output(totals);
        self.counters.note_merge(self.clock.monotonic().saturating_sub(start));
        Ok(true)
    }

    /// Whether anything was applied since the last reclaim, so that another one may find garbage.
    pub(crate) fn reclaim_wanted(&self) -> bool {
        self.reclaimed_at.load(Ordering::Acquire) != self.counters.batches()
    }

    /// Frees what deleted and overwritten data still holds: flushes all memtables and merges all runs
    /// of every keyspace; what is contiguous is only stitched. Zones with little live data are emptied.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let mark = self.counters.batches();
        full_is_false(self.tend_undo())?;
        self.seal_if(|active| active.bytes() > 0);
        // Without space for a flush the merges still may make some.
        let is_flushed = full_is_false(self.flush_all())?;
        let one_at_a_time = self.merging.lock();
        let before = self.ctx.zones.free_bytes(Budget::Ordinary);
        let mut result = self.merge_everything(&Victims::default());
        if result.is_ok() {
            result = self.merge_everything(&self.victims());
        }
        drop(one_at_a_time);
        if !is_flushed && full_is_false(result.clone()).is_ok() {
            full_is_false(self.flush_all())?;
        }
        self.reclaimed_at.store(mark, Ordering::Release);
        let after = self.ctx.zones.free_bytes(Budget::Ordinary);
        tracing::info!(bytes_before = before, bytes_after = after, "reclaimed space");
        result
    }

    /// Flushes every sealed memtable.
    pub(crate) fn flush_all(&self) -> Result<()> {
        while self.flush_oldest()? {}
        Ok(())
    }

    fn merge_everything(&self, victims: &Victims) -> Result<()> {
        let view = self.view();
        for (keyspace, runs) in view.version.keyspaces() {
            let is_worth_it = match runs {
                [] => false,
                [alone] => victims.any() || alone.has_garbage()?,
                _ => true,
            };
            if is_worth_it {
                self.merge_runs(keyspace, runs, &[], victims.clone(), Budget::Reserve)?;
            }
        }
        Ok(())
    }

    /// The zones that are worth emptying: at least three of them become at most two.
    fn victims(&self) -> Victims {
        let zone_bytes = u64::from(self.ctx.zones.zone_bytes());
        let table = self.ctx.zones.table();
        let poor = table.iter().filter(|(_, state, live)| {
            *state == ZoneState::Closed && *live > 0 && *live * 100 < zone_bytes * VICTIM_LIVE_PERCENT
        });
        Victims::new(poor.map(|(zone, ..)| zone.0).collect(), zone_bytes)
    }
}

/// Whether it went well; `Full` is no, other errors stay errors.
pub(crate) fn full_is_false(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(StoreError::Full) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether `run` holds keys between the first and the last key of `inputs`.
fn overlap(run: &Run, inputs: &[Arc<Run>]) -> bool {
    let first = inputs.iter().filter_map(|input| input.first_key()).min();
    let last = inputs.iter().filter_map(|input| input.last_key()).max();
    let (Some(first), Some(last)) = (first, last) else { return false };
    run.first_key().is_some_and(|key| key <= last) && run.last_key().is_some_and(|key| key >= first)
}

#[cfg(test)]
mod tests;
