//! Merges of all runs of a keyspace into one, which give back what is deleted and overwritten.
//!
//! Thread safety: where a caller waits, it has all runs; else the runs of one merge at a time are claimed.
//! Invariant: what is flushed meanwhile is left for the next time, since each would have all that is merged
//! copied once more.

use std::time::Duration;

use kvfs_store::{Result, Seqno, StoreError};

use super::reclaim::is_worth_it;
use super::step::Progress;
use super::{Claim, Merge, Merger, StepConfig};
use crate::compaction::{Victims, picker};
use crate::space::Budget;
use crate::version::{bytes_of, runs_within, units_of};

/// How often, and how long, readers are waited for before a merge gives way for what they hold: most are done
/// at once.
const WAITS_FOR_READERS: u32 = 8;
const WAIT_FOR_READERS: Duration = Duration::from_millis(25);

/// One merge on the way to a single run.
struct Part {
    merge: Merge,
    /// It leaves none out, as one of too many runs does; no more so once it was narrowed.
    is_all: bool,
}

impl Merger {
    /// Merges all runs of a keyspace, all of which the caller has, but for those that can't be read, and what
    /// they separate. False when it ended early: the store is being closed, or there is enough space for the
    /// writer that waits.
    ///
    /// # Errors
    /// `Full`: not even two runs could be merged, or too little would be left for deletions; failures of the
    /// store.
    pub(super) fn merge_whole(&self, keyspace: u32, config: &StepConfig) -> Result<bool> {
        let Some(age) = self.newest_age(keyspace) else { return Ok(true) };
        let ends = || self.runtime.is_stopping() || self.has_enough_space(config);
        while let Some(mut part) = self.next_part(keyspace, age, config) {
            if !self.finish(&mut part, config, ends)? || self.runtime.is_stopping() {
                return Ok(false);
            }
            if part.is_all {
                break;
            }
        }
        Ok(true)
    }

    /// As [`Merger::merge_whole`], while other runs are merged by others. False when it has given way, to a
    /// pass that wants all runs or to readers.
    pub(super) fn merge_whole_beside_others(&self, keyspace: u32, config: &StepConfig) -> Result<bool> {
        let Some(age) = self.newest_age(keyspace) else { return Ok(true) };
        loop {
            let alone = self.claim_all();
            let Some(mut part) = self.next_part(keyspace, age, config) else { return Ok(true) };
            let claim: Claim<'_> = alone.narrow(part.merge.runs());
            self.runtime.work.notify();
            let config = StepConfig { lane: claim.lane(), ..config.clone() };
            let gives_way = || config.is_tight && self.has_to_give_way_to_readers(config.budget);
            if !self.finish(&mut part, &config, || self.ends_early() || gives_way())? {
                return Ok(false);
            }
            drop(claim);
            if part.is_all {
                return Ok(true);
            }
            if self.ends_early() {
                return Ok(false);
            }
        }
    }

    /// Steps until it is through, or comes to what can't be read; false: `ends` said so behind one of them.
    /// Where it `cleans`, zones come free, and writers hear of it, as the steps go over the keys.
    fn finish(&self, part: &mut Part, config: &StepConfig, ends: impl Fn() -> bool) -> Result<bool> {
        let inputs = part.merge.inputs.len();
        let mut choice_due = 0;
        let mut config = config.clone();
        for step in 0.. {
            if config.cleans && step == choice_due {
                let (victims, steps) = self.victims.of_steps(&part.merge, config.budget, &config.victims);
                (config.victims, choice_due) = (victims, step + steps);
            }
            let stepped = match self.step(&mut part.merge, &config) {
                // Without what is copied it may fit.
                Err(StoreError::Full) if config.cleans && config.victims.any() => {
                    config.victims = Victims::default();
                    self.step(&mut part.merge, &config)
                }
                stepped => stepped,
            };
            let stepped = match stepped {
                Err(error) if self.runtime.health.is_of_a_read(&error) => {
                    tracing::error!(%error, "what a merge can't read is left as it is");
                    // What it separates is another part.
                    part.is_all = false;
                    return Ok(true);
                }
                stepped => stepped?,
            };
            if config.cleans && config.victims.any() {
                self.victims.note_step_emptying();
                self.runtime.progress.notify();
            }
            if stepped == Progress::Done {
                break;
            }
            if ends() {
                return Ok(false);
            }
        }
        part.is_all &= part.merge.inputs.len() == inputs;
        Ok(true)
    }

    fn newest_age(&self, keyspace: u32) -> Option<Seqno> {
        self.live.view().version.runs(keyspace).first().map(|run| run.age)
    }

    /// What is next to be merged of the runs that are no newer than `age`: what has begun, else all, or as
    /// many as are merged at once. A tight merge is narrowed to these, as it is for want of space: its newest
    /// inputs come first. `None`: nothing is worth it.
    fn next_part(&self, keyspace: u32, age: Seqno, config: &StepConfig) -> Option<Part> {
        let view = self.live.view();
        let all = view.version.runs(keyspace);
        let runs = &all[all.iter().take_while(|run| run.age > age).count()..];
        let runs = self.merging.readable(runs);
        if !is_worth_it(runs, &self.merging) {
            return None;
        }
        let units = units_of(runs, view.version.merges(keyspace));
        if let Some(begun) = units.iter().find_map(|unit| unit.merge) {
            return Some(Part { merge: Merge::resumed(keyspace, begun), is_all: false });
        }
        let part = if config.is_tight {
            0..units.len()
        } else {
            let bytes: Vec<u64> = units.iter().map(|unit| bytes_of(unit.runs)).collect();
            picker::first_part(&bytes, self.stepper.inputs_max(runs))
        };
        let is_all = part.len() == units.len();
        Some(Part { merge: self.stepper.merge_of(keyspace, runs_within(runs, &units, part)), is_all })
    }

    /// Whether a merge that no caller waits for is to end behind its step.
    fn ends_early(&self) -> bool {
        self.runtime.is_stopping() || self.merging.is_wanted()
    }
    /// Whether a merge that no caller waits for is to end behind its step, so that writers are not refused
    /// for the sake of readers.
    fn has_to_give_way_to_readers(&self, budget: Budget) -> bool {
        for _ in 0..WAITS_FOR_READERS {
            if !self.stepper.readers_hold_much(budget)
                || self.runtime.is_stopping()
                || self.merging.is_wanted()
            {
                break;
            }
            self.runtime.timer.wait(WAIT_FOR_READERS);
        }
        self.stepper.readers_hold_much(budget)
            || (budget == Budget::Ordinary && self.stepper.room_for_steps(budget) == 0)
    }
}
