//! Which step comes next.
//!
//! Thread safety: the choice is made under the lock of the claims, so that a step that has given its runs
//! back has also installed what became of them.
//!
//! Invariants: the keyspace that owes most comes first, and in it the smallest merge, be it a new one or one
//! that has begun: what has piled up beside a large merge waits for one step of that, and not for its end.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use kvfs_store::{KeyspaceKind, Result};

use super::{Busy, Claim, Merge, Merger};
use crate::compaction::picker;
use crate::space::{Budget, Lane};
use crate::version::{MergeState, Run, RunId, Unit, Version, bytes_of, of_one_age, runs_within, units_of};

/// A merge that may go on, or begin.
struct Candidate<'a> {
    /// Those that are involved, newest first.
    runs: &'a [Arc<Run>],
    /// What is recorded of it, if it has begun.
    begun: Option<&'a MergeState>,
    /// Inputs.
    count: usize,
    /// Of these.
    bytes: u64,
}

impl<'a> Candidate<'a> {
    fn new(runs: &'a [Arc<Run>], begun: Option<&'a MergeState>) -> Self {
        let is_input = |run: &&Arc<Run>| begun.is_none_or(|begun| begun.inputs.contains(&run.id));
        let inputs = || runs.iter().filter(is_input);
        let (count, bytes) = (inputs().count(), inputs().map(|run| run.data_bytes()).sum());
        Self { runs, begun, count, bytes }
    }
}

/// The best step of a keyspace.
struct Urgent {
    merge: Merge,
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

impl Merger {
    /// The merge whose step is most urgent; its runs are the caller's until it drops the claim.
    pub(super) fn claim_merge(&self) -> Result<Option<(Merge, Claim<'_>)>> {
        self.merging.claim(|busy| {
            let merge = self.most_urgent(busy)?;
            Ok(merge.map(|merge| (merge.runs(), merge)))
        })
    }

    fn most_urgent(&self, busy: &Busy<'_>) -> Result<Option<Merge>> {
        let view = self.live.view();
        let mut urgent: Option<Urgent> = None;
        let mut debt_unpayable = 0;
        for (keyspace, runs) in view.version.keyspaces() {
            let kind = self.keyspaces.kind(keyspace)?;
            let debt_of = |counts: &dyn Fn(RunId) -> bool| {
                let counted = of_one_age(runs).filter(|runs| runs.iter().all(|run| counts(run.id)));
                let bytes: Vec<u64> = counted.map(bytes_of).collect();
                picker::debt_bytes(&bytes, &self.runtime.options.merge)
            };
            debt_unpayable += debt_of(&|_| true).saturating_sub(debt_of(&|run| !busy.is_unread(run)));
            let candidates = self.candidates(kind, &view.version, keyspace, busy);
            if candidates.is_empty() {
                continue;
            }
            let debt_bytes = debt_of(&|run| busy.leaves(run));
            let Some(Candidate { runs, begun, bytes, .. }) =
                candidates.into_iter().find(|candidate| self.has_room_for_step(kind, candidate))
            else {
                debt_unpayable += debt_bytes;
                continue;
            };
            let merge = match begun {
                Some(state) => Merge::resumed(keyspace, state),
                None => self.stepper.merge_of(keyspace, runs),
            };
            let found = Urgent { merge, bytes, debt_bytes };
            if urgent.as_ref().is_none_or(|most| found.comes_before(most)) {
                urgent = Some(found);
            }
        }
        self.pressure.note_unpayable(debt_unpayable);
        Ok(urgent.map(|urgent| urgent.merge))
    }

    /// What may be merged in a keyspace, the smallest first.
    fn candidates<'a>(
        &self,
        kind: KeyspaceKind,
        version: &'a Version,
        keyspace: u32,
        busy: &Busy<'_>,
    ) -> Vec<Candidate<'a>> {
        let runs = version.runs(keyspace);
        let units = units_of(runs, version.merges(keyspace));
        let is_busy = |unit: &Unit<'_>| unit.runs.iter().any(|run| !busy.leaves(run.id));
        let new_bytes =
            |unit: &Unit<'_>| (unit.merge.is_none() && !is_busy(unit)).then(|| bytes_of(unit.runs));
        let unit_bytes: Vec<Option<u64>> = units.iter().map(new_bytes).collect();
        let runs_of = |range: Range<usize>| runs_within(runs, &units, range);
        let mut candidates: Vec<Candidate<'a>> = units
            .iter()
            .filter(|unit| unit.merge.is_some() && !is_busy(unit))
            .map(|unit| Candidate::new(unit.runs, unit.merge))
            .collect();
        let options = &self.runtime.options.merge;
        if let Some(due) = picker::pick(&unit_bytes, kind, options) {
            let bytes: Vec<u64> = unit_bytes[due.clone()].iter().flatten().copied().collect();
            let part = picker::first_part(&bytes, self.stepper.inputs_max(runs_of(due.clone())));
            let all = Candidate::new(runs_of(due.start + part.start..due.start + part.end), None);
            let bytes_max = self.stepper.room_for_merge(kind);
            if all.bytes > bytes_max
                && let Some(small) = picker::pick_small(&unit_bytes, bytes_max, options)
            {
                candidates.push(Candidate::new(runs_of(small), None));
            }
            candidates.push(all);
        }
        candidates.sort_by_key(|candidate| candidate.bytes);
        candidates
    }

    /// Whether a step of it has room beside what others write, and readers hold little of what steps have
    /// replaced.
    fn has_room_for_step(&self, kind: KeyspaceKind, candidate: &Candidate<'_>) -> bool {
        let config = self.stepper.step_config(Lane::FIRST, Budget::Ordinary, None);
        let size = self.stepper.size_of_step(kind, candidate.count, candidate.bytes, &config);
        size.is_some_and(|size| !size.is_tight || !self.stepper.readers_hold_much(Budget::Ordinary))
    }
}
