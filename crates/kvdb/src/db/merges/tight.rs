//! Merges on a full store.
//!
//! A merge gives the space of its inputs back when it ends, and so needs as much space as it copies. Where there is not
//! so much, all runs of a keyspace are merged in *slices*: after each piece the merge ends, what its inputs have lost is
//! free, and the next slice goes on from there, into the same run. What it needs then is what the inputs have begun to give
//! and still hold. So pieces are short; long ones are cut first, which copies hardly anything; and there are no
//! more inputs at a time than there are free zones for. With two of them all runs become one in the end, but the newest data is
//! copied once for each run.
//!
//! Thread safety: the caller has all runs. Invariants: as for merges that end early; nobody here holds a version
//! while a slice is over, since that would hold the space.

use std::sync::atomic::Ordering;

use kvfs_store::{KeyspaceKind, Result, StoreError};

use super::reclaim::is_worth_it;
use super::{Inner, Merge, Terms, full_is_false};
use crate::compaction::{MergeOptions, Victims};
use crate::format::SECTOR_BYTES;
use crate::version::{Run, RunId};
use crate::zone::Budget;

/// With shorter pieces, metadata would take a large part of the space (bytes).
const PIECE_BYTES_MIN: u64 = 256 << 10;
/// Zones that an input holds besides the piece that has been begun: its neighbours have parts of its first and last one.
const ZONES_OF_INPUT: u64 = 2;
/// Zones that the output of a slice begins besides its data: of metadata, and one that it fills in part.
const ZONES_OF_OUTPUT: u64 = 3;

impl Inner {
    /// Merges all runs of a keyspace into one, for a write within `budget`.
    ///
    /// # Errors
    /// `Full`: not even two runs could be merged, or too little would be left for deletions; I/O errors, corruption.
    pub(super) fn merge_tightly(&self, keyspace: u32, victims: &Victims, budget: Budget) -> Result<()> {
        let options = self.tight_options(self.keyspaces.kind(keyspace)?);
        let Some(age) = self.view().version.runs(keyspace).first().map(|run| run.age) else { return Ok(()) };
        let mut count_max = usize::MAX;
        loop {
            let (mut inputs, count) = {
                let view = self.view();
                let all = view.version.runs(keyspace);
                // What is flushed meanwhile is for the next time: each would have all that is merged copied once more.
                let newer = all.iter().take_while(|run| run.age > age).count();
                let runs = &all[newer..];
                if !is_worth_it(runs, victims)? || self.stopping.load(Ordering::Acquire) {
                    return Ok(());
                }
                let count = self.inputs_that_fit(runs.iter().map(AsRef::as_ref), options.piece_bytes);
                (runs.iter().map(|run| run.id).collect::<Vec<_>>(), count)
            };
            let runs = inputs.len();
            if count < 2 && runs > 1 && budget == Budget::Ordinary {
                // Only for deletions it is tried all the same.
                return Err(StoreError::Full);
            }
            let count = count.min(count_max).max(2).min(runs);
            inputs.truncate(count);
            let is_merged = full_is_false(self.merge_runs(keyspace, inputs, victims, options))?;
            match (is_merged, count) {
                (true, _) if count == runs => return Ok(()),
                (true, _) => {}
                (false, 0..=2) => return Err(StoreError::Full),
                (false, _) => count_max = count / 2,
            }
        }
    }

    /// How many of the first of these runs can be merged at once with what is free and not promised.
    fn inputs_that_fit<'a>(&self, runs: impl Iterator<Item = &'a Run>, piece_bytes: u64) -> usize {
        let zone_bytes = u64::from(self.ctx.zones.zone_bytes());
        let zones_of = |bytes: u64| bytes.div_ceil(zone_bytes);
        let free_bytes = self.ctx.zones.free_bytes(Budget::Reserve).saturating_sub(self.bytes_waiting());
        let zones_free = free_bytes / zone_bytes;
        let mut left = zones_free.saturating_sub(zones_of(piece_bytes) + ZONES_OF_OUTPUT);
        let fits = |run: &&Run| {
            let largest = run.pieces.iter().map(|piece| piece.desc().data_bytes).max().unwrap_or(0);
            let piece_bytes = if is_large(run, piece_bytes) { piece_bytes } else { largest };
            let zones = zones_of(piece_bytes) + ZONES_OF_INPUT + zones_of(bytes_of_cut(run, piece_bytes));
            let rest = left.checked_sub(zones);
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        runs.take_while(fits).count()
    }

    /// Merges these runs of a keyspace, which are neighbours.
    fn merge_runs(
        &self,
        keyspace: u32,
        mut inputs: Vec<RunId>,
        victims: &Victims,
        options: MergeOptions,
    ) -> Result<()> {
        for input in &mut inputs {
            let is_large = |run: &Run| is_large(run, options.piece_bytes);
            let Some(merge) = self.merge_of_these(keyspace, &[*input], is_large) else { continue };
            // Nothing is dropped, so hardly anything has to be copied.
            let cut = Merge { bottom: false, ..merge };
            let pieces = cut.output;
            let options = MergeOptions { stitch_bytes_min: 0, ..options };
            if !self.merge_in_slices(cut, &Victims::default(), options)? {
                return Ok(());
            }
            *input = pieces;
        }
        // One of which nothing counted any more has become none.
        let is_there = |id: &RunId| self.view().version.runs(keyspace).iter().any(|run| run.id == *id);
        inputs.retain(is_there);
        match self.merge_of_these(keyspace, &inputs, |_| true) {
            Some(merge) => self.merge_in_slices(merge, victims, options).map(drop),
            None => Ok(()),
        }
    }

    /// Rows are all copied: what is stitched here and there keeps zones from becoming free, of which none is to spare.
    fn tight_options(&self, kind: KeyspaceKind) -> MergeOptions {
        let options = self.options.merge;
        let piece_bytes = PIECE_BYTES_MIN.max(self.ctx.zones.zone_bytes().into()).min(options.piece_bytes);
        let stitch_bytes_min = if kind == KeyspaceKind::Tuple { u64::MAX } else { options.stitch_bytes_min };
        MergeOptions { stitch_bytes_min, piece_bytes, ..options }
    }

    /// Of these runs, if `wanted` says so of any. Others may have come before them since they were chosen.
    fn merge_of_these(&self, keyspace: u32, ids: &[RunId], wanted: impl Fn(&Run) -> bool) -> Option<Merge> {
        let view = self.view();
        let runs = view.version.runs(keyspace);
        // Their order may be another one: runs of one age are ordered by number, and one that was cut has a new one.
        let start = runs.iter().position(|run| ids.contains(&run.id))?;
        let inputs = runs.get(start..start + ids.len())?;
        assert!(inputs.iter().all(|run| ids.contains(&run.id)), "neighbours stay neighbours");
        let is_wanted = inputs.iter().any(|run| wanted(run));
        is_wanted.then(|| self.merge_of(keyspace, inputs, &runs[start + ids.len()..]))
    }

    /// False when the store is being closed.
    fn merge_in_slices(&self, merge: Merge, victims: &Victims, options: MergeOptions) -> Result<bool> {
        let ids: Vec<RunId> = merge.inputs.iter().map(|run| run.id).collect();
        let mut slice = merge;
        loop {
            let (budget, victims) = (Budget::Reserve, victims.clone());
            let is_done =
                self.run_merge(&slice, Terms { victims, budget, pace: None, options, is_tight: true })?;
            if is_done || self.stopping.load(Ordering::Acquire) {
                return Ok(is_done);
            }
            // What the inputs have lost is free once these are gone.
            slice.inputs.clear();
            let view = self.view();
            let runs = view.version.runs(slice.keyspace).iter();
            slice.inputs.extend(runs.filter(|run| ids.contains(&run.id)).cloned());
        }
    }
}

/// Whether a run is to be cut first.
fn is_large(run: &Run, piece_bytes: u64) -> bool {
    run.pieces.iter().any(|piece| piece.desc().data_bytes > 2 * piece_bytes)
}

/// What the metadata of a run's pieces takes once they are cut, if they have to be (bytes).
fn bytes_of_cut(run: &Run, piece_bytes: u64) -> u64 {
    if !is_large(run, piece_bytes) {
        return 0;
    }
    let meta_bytes: u64 = run.pieces.iter().map(|piece| u64::from(piece.desc().meta_len)).sum();
    meta_bytes + run.data_bytes() / piece_bytes * SECTOR_BYTES
}
