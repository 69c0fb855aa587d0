//! Merges: neighbouring runs of a keyspace become one, step by step.
//!
//! A *step* ([`step`]) takes the inputs' keys from their bounds on until it has enough for one piece, and
//! ends with one edit of the manifest: the piece comes in, the inputs begin behind it, and the merge is
//! recorded, so that any later step, after a restart, too, goes on from there. Between its steps a merge is a
//! few numbers ([`Merge`]): it holds neither runs nor space. Which step comes next is chosen anew each time
//! ([`due`]); merges over all runs of a keyspace give back what is deleted and overwritten ([`reclaim`],
//! [`whole`]).
//!
//! Thread safety: several steps run at once. Each has claimed the inputs and the output of its merge
//! ([`Registry`]), so no two of them know a common run. What goes over all runs ([`Merger::reclaim`]) waits
//! until no step is under way.
//!
//! Crash order for each step: its data → device flush → one manifest edit. Such edits of two merges may come
//! in any order and number, since they speak of different runs: each of them leaves every key in one run of
//! its merge, and the runs in their order by age, because the output has the age of its newest input and lies
//! where its inputs lay. So whatever prefix of the manifest a crash leaves, it is a store in which some
//! merges have come further than others.
//!
//! What holds when a merge begins stays true while others run. Its inputs are neighbours; new runs come on
//! top of all, or in the place of other claimed neighbours. Other merges move older data among older runs,
//! never up or down past the inputs. Positions that are pinned later are above all that is in runs.

mod choice;
pub(crate) mod defrag;
pub(crate) mod deleted;
pub(crate) mod drain;
mod due;
mod giving_way;
pub(crate) mod heat_map;
mod limited;
pub(crate) mod migrate;
pub(crate) mod reclaim;
pub(crate) mod registry;
mod rewrite;
mod rounds;
mod shared;
mod step;
mod victims;
mod whole;

use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use kvfs_store::Result;

use crate::commits::undo::Undo;
use crate::compaction::Pace;
use crate::flush::Flusher;
use crate::flush::headroom::Space;
use crate::history::History;
use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::merge::deleted::Deleted;
use crate::pressure::Pressure;
use crate::runtime::Runtime;
use crate::space::Budget;
use crate::version::{MergeState, RunId, bytes_of};

pub(crate) use registry::Registry;
use registry::{Busy, Claim};
pub(crate) use step::StepConfig;
use step::{Progress, Stepper};
use victims::VictimPicker;

/// A merge of neighbours in one keyspace, by number: so it holds none of them between its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Merge {
    pub(crate) keyspace: u32,
    /// Newest first.
    pub(crate) inputs: Vec<RunId>,
    /// The run that they become.
    pub(crate) output: RunId,
}

impl Merge {
    /// All that it has to claim.
    pub(crate) fn runs(&self) -> Vec<RunId> {
        self.inputs.iter().copied().chain([self.output]).collect()
    }

    /// As the manifest has recorded it.
    fn resumed(keyspace: u32, state: &MergeState) -> Self {
        Self { keyspace, inputs: state.inputs.clone(), output: state.output }
    }
}

/// Merges, and what is reclaimed by them.
pub(crate) struct Merger {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) live: Arc<LiveSet>,
    pub(crate) pressure: Arc<Pressure>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    pub(crate) history: Arc<History>,
    pub(crate) undo: Arc<Undo>,
    pub(crate) space: Arc<Space>,
    pub(crate) flusher: Arc<Flusher>,
    /// Which runs are being merged, and where merges give way.
    merging: Registry,
    pub(crate) stepper: Stepper,
    pub(crate) victims: VictimPicker,
    /// Held by the merge thread that looks after undo and space just now.
    tending: Mutex<(), class::KvdbMergeTending>,
}

impl Merger {
    /// Of what `flusher` writes.
    pub(crate) fn new(flusher: &Arc<Flusher>, deleted: &Arc<Deleted>) -> Self {
        Self {
            runtime: Arc::clone(&flusher.runtime),
            live: Arc::clone(&flusher.live),
            pressure: Arc::clone(&flusher.live.pressure),
            keyspaces: Arc::clone(&flusher.keyspaces),
            history: Arc::clone(&flusher.history),
            undo: Arc::clone(&flusher.undo),
            space: Arc::clone(&flusher.space),
            flusher: Arc::clone(flusher),
            merging: Registry::default(),
            stepper: Stepper::new(flusher),
            victims: VictimPicker::new(&flusher.space, deleted),
            tending: Mutex::default(),
        }
    }

    /// Steps under way.
    pub(crate) fn claims(&self) -> usize {
        self.merging.claims()
    }

    /// Nothing looks after undo and space while the caller has this.
    #[cfg(test)]
    pub(crate) fn lock_tending(&self) -> kvfs_locks::MutexGuard<'_, (), class::KvdbMergeTending> {
        self.tending.lock()
    }

    /// Runs the most urgent step of a merge that meets no other one under way; false when none is due.
    pub(crate) fn merge_once(&self) -> Result<bool> {
        self.runtime.check_writable()?;
        let Some((mut merge, claim)) = self.claim_merge()? else { return Ok(false) };
        // There may be another one for another thread.
        self.runtime.work.notify();
        // The reserve belongs to flushes, deletions and reclaiming.
        let config = self.stepper.step_config(claim.lane(), Budget::Ordinary, Some(self.pace()));
        let stepped = self.step(&mut merge, &config);
        drop(claim);
        stepped.map(|_| true)
    }

    /// A step of a merge whose runs the caller has. Where something can't be read it ends, and no other one
    /// begins with these runs before the next opening.
    fn step(&self, merge: &mut Merge, config: &StepConfig) -> Result<Progress> {
        let stepped = self.stepper.step(merge, config);
        if let Err(error) = &stepped
            && self.runtime.health.is_of_a_read(error)
        {
            self.merging.leave_out(&merge.runs());
        }
        stepped
    }

    /// Merges until none is due, and none is under way that could leave one.
    pub(crate) fn compact(&self) -> Result<()> {
        loop {
            // Before the look: what ends during it counts.
            let ends = self.merging.ends();
            self.runtime.check_running()?;
            if !self.merge_once()? && !self.merging.wait_for_end(ends) {
                return Ok(());
            }
        }
    }

    fn pace(&self) -> Arc<dyn Pace> {
        Arc::clone(&self.pressure.pace) as Arc<dyn Pace>
    }

    /// Whether there is room for a merge of all runs of a keyspace.
    fn keyspace_fits(&self, keyspace: u32) -> Result<bool> {
        let bytes = bytes_of(self.live.view().version.runs(keyspace));
        Ok(bytes <= self.stepper.room_for_merge(self.keyspaces.kind(keyspace)?))
    }
}

#[cfg(test)]
mod tests;
