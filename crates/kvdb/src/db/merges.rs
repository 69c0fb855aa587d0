//! Which merges run, and how their output comes in: piece by piece.
//!
//! Thread safety: several merges run at once. Each has claimed its inputs and its output ([`Registry`]), so no two
//! of them know a common run. What goes over all runs ([`Inner::reclaim`]) waits until no merge is under way.
//!
//! Crash order for each piece: its data → device flush → one manifest edit that adds the piece and
//! trims the inputs below its upper bound. Such edits of two merges may come in any order and number, since they
//! speak of different runs: each of them leaves every key in one run of its merge, and the runs in their order by
//! age, because the output has the age of its newest input and lies where its inputs lay. So whatever prefix of the
//! manifest a crash leaves, it is a store in which some merges have come further than others.
//!
//! What a merge decides at its beginning stays true while others run. Its inputs are neighbours; new runs come on
//! top of all, or in the place of other claimed neighbours. `bottom` asks whether anything older meets the
//! inputs: other merges move older data among older runs, never up or down past the inputs. Positions that are
//! pinned later are above all that is in runs. What a merge that ended early has left behind stays together with its
//! output ([`units_of`]).

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs_store::{KeyspaceKind, Result, StoreError};

use super::inner::Inner;
use crate::compaction::{Finished, MergeJob, MergeOptions, Pace, Sink, Victims, picker};
use crate::iter::KeepRules;
use crate::run::Piece;
use crate::version::{Edit, Run, RunId};
use crate::zone::{Budget, Lane};

mod pace;
mod reclaim;
mod registry;
mod slices;
mod victims;

pub(crate) use pace::MergePace;
pub(crate) use reclaim::{Leisure, ReclaimState};
pub(crate) use registry::Registry;
use registry::{Busy, Claim};
use slices::Slices;

/// A merge of neighbours in one keyspace.
struct Merge {
    keyspace: u32,
    /// Newest first.
    inputs: Vec<Arc<Run>>,
    /// Nothing older meets them.
    bottom: bool,
    /// The run that they become.
    output: RunId,
}

impl Merge {
    /// All that it has to claim.
    fn runs(&self) -> Vec<RunId> {
        self.inputs.iter().map(|run| run.id).chain([self.output]).collect()
    }
}

/// A merge that has been chosen.
enum Due {
    AtOnce(Merge),
    InSlices(Slices),
}

impl Due {
    /// All that it has to claim.
    fn runs(&self) -> Vec<RunId> {
        match self {
            Self::AtOnce(merge) => merge.runs(),
            Self::InSlices(slices) => slices.runs(),
        }
    }
}

/// Whether there is space for the merge that is due, and which one there is: of these units.
enum Fit {
    AtOnce(Range<usize>),
    InSlices(Range<usize>, MergeOptions),
    /// Another large merge is under way.
    Later,
    NoSpace,
}

/// A merge that is due.
struct Urgent {
    keyspace: u32,
    range: Range<usize>,
    /// If it does not fit otherwise.
    in_slices: Option<MergeOptions>,
    /// Of its inputs.
    bytes: u64,
    /// Of the keyspace, without what is being merged.
    debt_bytes: u64,
}

impl Urgent {
    fn comes_before(&self, other: &Self) -> bool {
        (self.debt_bytes, Reverse(self.bytes)) > (other.debt_bytes, Reverse(other.bytes))
    }
}

/// On whose behalf a merge runs, and how.
#[derive(Clone)]
struct Terms {
    /// Whose zones it fills.
    lane: Lane,
    victims: Victims,
    budget: Budget,
    /// `None`: somebody waits for it.
    pace: Option<Arc<dyn Pace>>,
    options: MergeOptions,
    /// It ends after each piece.
    is_sliced: bool,
    /// One of many runs ends when too little space is left for one of two.
    leaves_space: bool,
}

impl Terms {
    /// Whether metadata is written twice: there may be hardly any space.
    fn copies_meta(&self) -> bool {
        !(self.is_sliced && self.budget == Budget::Reserve)
    }
}

/// Takes over the output of one merge.
struct Install<'a> {
    inner: &'a Inner,
    merge: &'a Merge,
    age: u64,
    /// With one, it ends early when somebody wants all runs to himself.
    pace: Option<Arc<dyn Pace>>,
    /// The output is there already.
    added: bool,
    /// It ends after this piece.
    is_sliced: bool,
    stopped: bool,
}

impl Sink for Install<'_> {
    fn piece(&mut self, finished: Option<Finished>, bound: Option<&Bytes>) -> Result<()> {
        let (keyspace, run) = (self.merge.keyspace, self.merge.output);
        let mut edits = Vec::new();
        if let Some(pace) = &self.pace {
            // One that only stitches has spent nothing so far, but its flushes of the device are in the way, too.
            pace.spend(0);
        }
        if let Some(Finished { piece, totals }) = &finished {
            self.inner.counters.note_merge_output(*totals);
            self.inner.flush_device("a merge's output")?;
            if !self.added {
                edits.push(Edit::AddRun { keyspace, run, age: self.age });
                self.added = true;
            }
            edits.push(Edit::AddPiece { keyspace, run, piece: piece.desc().clone() });
        }
        for input in &self.merge.inputs {
            match bound {
                Some(bound) if *bound > input.lower_bound => {
                    edits.push(Edit::TrimRun { keyspace, run: input.id, lower_bound: bound.clone() });
                }
                // A merge that ended early has trimmed it further already.
                Some(_) => {}
                None => edits.push(Edit::DropRun { keyspace, run: input.id }),
            }
        }
        let fresh: Vec<Arc<Piece>> = finished.into_iter().map(|finished| finished.piece).collect();
        self.inner.install(edits, &[keyspace], &fresh, |view| view)?;
        if bound.is_some() && self.is_to_stop() {
            // What is installed stays; the rest is merged by whoever comes next.
            self.stopped = true;
            return Err(stopped());
        }
        Ok(())
    }
}

impl Install<'_> {
    fn is_to_stop(&self) -> bool {
        self.is_sliced || self.inner.ends_early(self.pace.is_some())
    }
}

/// The internal error that ends a merge early; never leaves this module.
fn stopped() -> StoreError {
    StoreError::Unsupported("merging while others wait for its end")
}

impl Inner {
    /// Runs the most urgent merge that meets no other one under way; false when none is due, or when it ended
    /// early because somebody wants all runs to himself.
    pub(crate) fn merge_once(&self) -> Result<bool> {
        self.check_writable()?;
        let Some((due, claim)) = self.claim_merge()? else { return Ok(false) };
        // There may be another one for another thread.
        self.work.ring();
        // The reserve belongs to flushes, deletions and reclaiming.
        let (budget, pace) = (Budget::Ordinary, Some(self.pace()));
        let done = match &due {
            Due::AtOnce(merge) => self.run_merge(merge, self.terms(claim.lane(), budget, pace)),
            Due::InSlices(slices) => {
                self.merge_in_slices(slices, &self.terms_of_slices(slices, claim.lane(), budget, pace))
            }
        };
        // Who waits for the claim counts on the space of the inputs.
        drop(due);
        drop(claim);
        done
    }

    /// Whether a merge ends at its next piece; `gives_way`: nobody waits for it.
    fn ends_early(&self, gives_way: bool) -> bool {
        self.stopping.load(Ordering::Acquire) || (gives_way && self.merging.is_wanted())
    }

    /// Merges until none is due, and none is under way that could leave one.
    pub(crate) fn compact(&self) -> Result<()> {
        loop {
            // Before the look: what ends during it counts.
            let ends = self.merging.ends();
            self.check_running()?;
            if !self.merge_once()? && !self.merging.wait_for_end(ends) {
                return Ok(());
            }
        }
    }

    fn pace(&self) -> Arc<dyn Pace> {
        Arc::clone(&self.pace) as Arc<dyn Pace>
    }

    /// As merges run ordinarily.
    fn terms(&self, lane: Lane, budget: Budget, pace: Option<Arc<dyn Pace>>) -> Terms {
        Terms {
            lane,
            victims: Victims::default(),
            budget,
            pace,
            options: self.options.merge,
            is_sliced: false,
            leaves_space: false,
        }
    }

    /// The most urgent merge, whose runs are the caller's until he drops the claim.
    fn claim_merge(&self) -> Result<Option<(Due, Claim<'_>)>> {
        self.merging.claim(|busy| {
            // Under the lock of the claims, so that whoever has given his runs back has also installed what
            // became of them.
            let Some((due, is_large)) = self.most_urgent(busy)? else { return Ok(None) };
            let runs = due.runs();
            Ok(Some((due, runs, is_large)))
        })
    }

    /// Of the keyspace that owes most; among equals the smallest. And whether it is large.
    fn most_urgent(&self, busy: &Busy<'_>) -> Result<Option<(Due, bool)>> {
        let view = self.view();
        let mut urgent: Option<Urgent> = None;
        let mut debt_lacking_space = 0;
        for (keyspace, runs) in view.version.keyspaces() {
            let kind = self.keyspaces.kind(keyspace)?;
            let units: Vec<&[Arc<Run>]> = units_of(runs).collect();
            let free = |run: &Arc<Run>| (!busy.contains(run.id)).then(|| run.data_bytes());
            let unit_bytes: Vec<Option<u64>> = units.iter().map(|unit| unit.iter().map(free).sum()).collect();
            let Some(range) = picker::pick(&unit_bytes, kind, &self.options.merge) else { continue };
            let free_bytes: Vec<u64> = unit_bytes.iter().copied().flatten().collect();
            let debt_bytes = picker::debt_bytes(&free_bytes, &self.options.merge);
            let runs_of = |range: &Range<usize>| {
                let runs_in = |units: &[&[Arc<Run>]]| units.iter().map(|unit| unit.len()).sum::<usize>();
                runs_in(&units[..range.start])..runs_in(&units[..range.end])
            };
            let in_slices = |range: &Range<usize>| self.slicing_at_leisure(kind, &runs[runs_of(range)]);
            let (range, in_slices) = match self.fit(kind, &unit_bytes, range, busy, in_slices) {
                Fit::AtOnce(range) => (range, None),
                Fit::InSlices(range, options) => (range, Some(options)),
                Fit::Later => continue,
                Fit::NoSpace => {
                    debt_lacking_space += debt_bytes;
                    continue;
                }
            };
            let bytes = unit_bytes[range.clone()].iter().flatten().sum();
            let found = Urgent { keyspace, range: runs_of(&range), in_slices, bytes, debt_bytes };
            if urgent.as_ref().is_none_or(|most| found.comes_before(most)) {
                urgent = Some(found);
            }
        }
        self.debt_lacking_space.store(debt_lacking_space, Ordering::Relaxed);
        Ok(urgent.map(|Urgent { keyspace, range, in_slices, bytes, .. }| {
            let runs = view.version.runs(keyspace);
            let inputs = &runs[range.clone()];
            let due = match in_slices {
                Some(options) => Due::InSlices(self.slices_of(keyspace, inputs, options)),
                None => Due::AtOnce(self.merge_of(keyspace, inputs, &runs[range.end..])),
            };
            (due, bytes > self.small_bytes_max())
        }))
    }

    /// Of units of so many bytes of which those in `due` are to be merged; `in_slices` says how they can be.
    fn fit(
        &self,
        kind: KeyspaceKind,
        unit_bytes: &[Option<u64>],
        due: Range<usize>,
        busy: &Busy<'_>,
        in_slices: impl Fn(&Range<usize>) -> Option<MergeOptions>,
    ) -> Fit {
        let (room_bytes, small_bytes_max) = (self.room_for_merge(kind), self.small_bytes_max());
        let bytes_max = if busy.large_may_begin { room_bytes } else { room_bytes.min(small_bytes_max) };
        let bytes: u64 = unit_bytes[due.clone()].iter().flatten().sum();
        if bytes <= bytes_max {
            return Fit::AtOnce(due);
        }
        // What has piled up beside a large merge must not wait for its end, nor for space.
        if let Some(small) = picker::pick_small(unit_bytes, bytes_max, &self.options.merge) {
            return Fit::AtOnce(small);
        }
        if bytes > small_bytes_max && !busy.large_may_begin {
            return Fit::Later;
        }
        in_slices(&due).map_or(Fit::NoSpace, |options| Fit::InSlices(due, options))
    }

    /// How many bytes a merge may read at most, which it holds until it ends: more would fill the store for nothing. Blocks are
    /// stitched, as a rule; and where no merge can do with less, it is tried.
    fn room_for_merge(&self, kind: KeyspaceKind) -> u64 {
        if kind == KeyspaceKind::Block || !self.ctx.zones.reserves_for_merges() {
            u64::MAX
        } else {
            self.space_left()
        }
    }

    /// Whether there is room for a merge of all runs of a keyspace.
    fn keyspace_fits(&self, keyspace: u32) -> Result<bool> {
        let bytes = bytes_of(self.view().version.runs(keyspace));
        Ok(bytes <= self.room_for_merge(self.keyspaces.kind(keyspace)?))
    }

    /// What K full memtables come to, twice over: merges of no more must go on whatever else is merged.
    fn small_bytes_max(&self) -> u64 {
        self.options.merge.class_runs.max(2) as u64 * self.table_bytes * 2
    }

    /// Of `inputs`; `older` are the runs of the keyspace behind them.
    fn merge_of(&self, keyspace: u32, inputs: &[Arc<Run>], older: &[Arc<Run>]) -> Merge {
        let bottom = !older.iter().any(|run| overlap(run, inputs));
        Merge { keyspace, inputs: inputs.to_vec(), bottom, output: self.new_run_id() }
    }

    /// False when it ended early. The caller has claimed the runs, or all.
    fn run_merge(&self, merge: &Merge, terms: Terms) -> Result<bool> {
        let Some(newest) = merge.inputs.first() else { return Ok(true) };
        let start = self.clock.monotonic();
        let meta = self.keyspaces.get(merge.keyspace)?;
        let mut spec = self.output_spec(merge.keyspace, &meta, Some(terms.lane), terms.budget);
        spec.pace.clone_from(&terms.pace);
        spec.piece_bytes = terms.options.piece_bytes;
        spec.copies_meta = terms.copies_meta();
        spec.filters = merge.inputs.iter().any(|run| run.is_searched());
        let job = MergeJob {
            spec,
            inputs: merge.inputs.clone(),
            rules: KeepRules {
                boundaries: self.snapshots.boundaries(),
                bottom: merge.bottom,
                merger: meta.merger.clone(),
            },
            options: terms.options,
            victims: terms.victims,
        };
        // An earlier slice may have begun it.
        let added = self.view().version.runs(merge.keyspace).iter().any(|run| run.id == merge.output);
        let (age, is_sliced) = (newest.age, terms.is_sliced);
        let mut install =
            Install { inner: self, merge, age, pace: terms.pace, added, is_sliced, stopped: false };
        let result = job.run(&mut install);
        let is_done = !install.stopped;
        if is_done {
            self.health.observe(result)?;
        }
        self.counters.note_merge(self.clock.monotonic().saturating_sub(start), is_done);
        Ok(is_done)
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

/// Runs that are merged together or not at all: what a merge that ended early has left of its newest input has the age of its
/// output, which lies before it. A merge that began behind the output and took older runs along would come to lie before it,
/// with older data for its keys.
pub(crate) fn units_of(runs: &[Arc<Run>]) -> impl Iterator<Item = &[Arc<Run>]> {
    runs.chunk_by(|run, next| run.age == next.age)
}

pub(crate) fn bytes_of(runs: &[Arc<Run>]) -> u64 {
    runs.iter().map(|run| run.data_bytes()).sum()
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
