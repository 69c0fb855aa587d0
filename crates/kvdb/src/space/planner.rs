//! What is done next for a caller that needs space: a pure function of what is known.
//!
//! A caller finds space, or waits for what gives some back, from the cheapest to the dearest: what waits to
//! be written is flushed (it counts with all that it may come to); zones that are being emptied are waited
//! for; steps under way end; passes over all runs drop what is deleted and overwritten; readers of what that
//! has freed get a moment; what could be undone is given up. It is refused when none of that is left, so only
//! when what is free and what passes can free, without what readers, snapshots and transactions hold, is less
//! than it needs.
//!
//! Thread safety: plain values. Invariants: each act is chosen at most once for an attempt, but for passes
//! and waits for readers, which come once more after undo was given up; so an attempt ends after [`ACTS_MAX`]
//! acts, but for [`Act::AwaitZones`], which is chosen as long as zones are emptied. No caller is refused
//! while an act is left that may free something.

use super::Budget;
use super::passes::PAUSE_MAX;

/// What is known of a store for a caller.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Known {
    /// There is space for the caller within its budget, beside what waits to be written.
    pub(crate) fits: bool,
    /// There would be if it took the reserve, too.
    pub(crate) fits_reserve: bool,
    /// What is free, with the reserve.
    pub(crate) free_bytes: u64,
    /// What waits to be written may take much more than it needs.
    pub(crate) is_much_unwritten: bool,
    /// Zones are being emptied in the background.
    pub(crate) is_emptying: bool,
    /// Steps of merges hold what they have written and not brought in yet.
    pub(crate) has_steps: bool,
    /// Operations since the last pass within the caller's budget
    /// ([`Passes::operations_since`](super::passes::Passes)).
    pub(crate) operations: u64,
    /// As `operations`, of passes for deletions, which may go further.
    pub(crate) operations_for_deletions: u64,
    /// Operations that writes wait for before the next pass, since the last one freed nothing.
    pub(crate) pause: u64,
    /// Committed transactions can be undone, for which what was there before is kept.
    pub(crate) keeps_undo: bool,
    /// Merges can't go on, so they need no more what was left for them.
    pub(crate) is_stuck: bool,
}

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// The caller goes on.
    Admit,
    /// All memtables are flushed.
    Flush,
    /// The next progress of what empties zones is waited for: ended half-way, that would have taken space and
    /// given none back.
    AwaitZones,
    /// Steps under way come to their end, and give back what they hold.
    EndSteps,
    /// A pass over all runs, within this budget. For an ordinary one it ends with the step that has made
    /// enough space.
    Pass(Budget),
    /// Readers of what passes have freed are waited for, a moment.
    AwaitReaders,
    /// What was there before a transaction is worth less than what comes now.
    GiveUpUndo,
    /// There is no space.
    Refuse,
}

/// Acts of one attempt, at most, but for those that wait for zones.
#[cfg(test)]
const ACTS_MAX: usize = 12;

/// Where an attempt has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Unwritten,
    Zones,
    Steps,
    Pass,
    /// What the pass has freed may be read.
    Readers,
    PassForDeletions,
    /// As [`Stage::Readers`], of the last pass, which may be that of another caller.
    LastReaders,
    Undo,
}

/// One caller's attempt to find space.
#[derive(Debug)]
pub(crate) struct Attempt {
    budget: Budget,
    stage: Stage,
    has_given_up_undo: bool,
    /// What was free before the first pass: what was flushed before is none of its doing.
    free_before_pass: Option<u64>,
    /// What was free at the last look.
    free_bytes: u64,
}

impl Attempt {
    /// Of a caller within `budget`. In [`Budget::Reserve`], of a flush that has found no space: nothing but
    /// passes helps it.
    pub(crate) fn new(budget: Budget) -> Self {
        let stage = if budget == Budget::Reserve { Stage::Pass } else { Stage::Unwritten };
        Self { budget, stage, has_given_up_undo: false, free_before_pass: None, free_bytes: 0 }
    }

    /// What its passes have freed up to the last look, from which writes learn how long to wait for the next
    /// ones. `None`: it made none, or is that of a stuck flush, which tries again and again, and for which
    /// writes do not pay.
    pub(crate) fn freed_bytes(&self) -> Option<u64> {
        let before = self.free_before_pass.filter(|_| self.budget != Budget::Reserve)?;
        Some(self.free_bytes.saturating_sub(before))
    }

    /// What is done next; it counts as done.
    pub(crate) fn next(&mut self, known: &Known) -> Act {
        self.free_bytes = known.free_bytes;
        if known.fits {
            return Act::Admit;
        }
        loop {
            let (act, stage) = match self.stage {
                Stage::Unwritten => (known.is_much_unwritten.then_some(Act::Flush), Stage::Zones),
                Stage::Zones if known.is_emptying => (Some(Act::AwaitZones), Stage::Zones),
                Stage::Zones => (None, Stage::Steps),
                Stage::Steps => (known.has_steps.then_some(Act::EndSteps), Stage::Pass),
                Stage::Pass if self.is_pass_worth_it(known) => (Some(Act::Pass(self.budget)), Stage::Readers),
                Stage::Pass => (None, Stage::LastReaders),
                Stage::Readers => (Some(Act::AwaitReaders), Stage::PassForDeletions),
                Stage::PassForDeletions if self.is_pass_for_deletions_worth_it(known) => {
                    (Some(Act::Pass(Budget::Deleting)), Stage::LastReaders)
                }
                Stage::PassForDeletions => (None, Stage::Undo),
                Stage::LastReaders => (Some(Act::AwaitReaders), Stage::Undo),
                Stage::Undo if known.keeps_undo && !self.has_given_up_undo => {
                    self.has_given_up_undo = true;
                    (Some(Act::GiveUpUndo), Stage::Pass)
                }
                Stage::Undo => (Some(self.last(known)), Stage::Undo),
            };
            self.stage = stage;
            if let Some(act) = act {
                if matches!(act, Act::Pass(_)) {
                    self.free_before_pass.get_or_insert(known.free_bytes);
                }
                return act;
            }
        }
    }

    fn last(&self, known: &Known) -> Act {
        let is_last_resort = self.budget == Budget::Deleting && known.is_stuck && known.fits_reserve;
        if is_last_resort { Act::Admit } else { Act::Refuse }
    }

    /// A pass goes over all that is stored. One after the other that frees nothing would make every write on
    /// a full store that slow, so ordinary ones wait for more and more operations in between; deletions never
    /// do. While undo is kept there is something that passes can't free, so they are no reason to wait.
    fn is_pass_worth_it(&self, known: &Known) -> bool {
        let waits = self.budget == Budget::Ordinary && !known.keeps_undo;
        let operations_min = if waits { known.pause } else { 0 };
        self.has_given_up_undo || self.budget == Budget::Reserve || known.operations > operations_min
    }

    /// Deletions, or merges that were ended, may have left less of the reserve than two runs need. Only what
    /// is done for deletions goes on from there; without it writes would be refused until a caller deletes
    /// more. What undo keeps could not be dropped yet.
    fn is_pass_for_deletions_worth_it(&self, known: &Known) -> bool {
        let operations_min = if known.pause > 0 { PAUSE_MAX } else { 0 };
        self.budget == Budget::Ordinary
            && !known.keeps_undo
            && known.operations_for_deletions > operations_min
    }
}

#[cfg(test)]
mod tests;
