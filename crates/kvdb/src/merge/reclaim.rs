//! Reclaiming: merges over all runs that give back what deleted and overwritten data still holds.
//!
//! Thread safety: as for all merges. A pass that a caller waits for has all runs to itself; one at
//! leisure has those of one keyspace at a time, and gives way.
//!
//! Invariants: a pass is done again only after something has changed; what found no space keeps nothing else
//! from being reclaimed.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvfs_store::{BLOCK_BYTES, KeyspaceKind, Result, Seqno, StoreError};

use crate::compaction::Victims;
use crate::format::PieceDesc;
use crate::merge::registry::{Exclusive, Registry};
use crate::merge::{Merger, StepConfig};
use crate::runtime::ok_unless_full;
use crate::space::passes::{Now, Outcome, PassEnd, PassStart};
use crate::space::{Budget, Lane};
use crate::version::{MergeState, Run, Version, bytes_of};

/// At leisure all rows of a keyspace are merged when one of so many may have been overwritten or deleted: it
/// goes over all of them, and a client may write a little all the time.
const ROWS_PER_CHANGE: u64 = 16;

/// Blocks are stitched, which costs less, but still new metadata for all of them.
const BLOCKS_PER_CHANGE: u64 = 64;

/// Where space is not short it is worth it when half of them may have been.
const ROWS_PER_CHANGE_OF_MUCH: u64 = 2;

/// Fewer rows (bytes) are not looked at then. When half of them go each time, they are copied once for each
/// that is written.
const BYTES_OF_MUCH: u64 = 16 << 20;

/// Or than this part of a small store.
const SHARE_OF_MUCH: u64 = 64;

/// A range tombstone may delete much: for so many rows it counts.
const CHANGES_OF_RANGE: u64 = 256;

/// Why there is a pass that no caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReclaimReason {
    /// Many rows have changed: these are merged, in space that is left for writes.
    MuchGarbage,
    /// Space is short: it may take the reserve, as a pass that is waited for may, and passes over rows of
    /// which hardly any have changed.
    ShortSpace,
    /// There is garbage that no change tells of. As for short space, and passes over nothing.
    OldGarbage,
}

/// See [`Merger::emptying`].
struct Emptying<'a>(&'a Merger);

impl Drop for Emptying<'_> {
    fn drop(&mut self) {
        self.0.pressure.end_emptying_zones();
        self.0.live.update_debt();
        self.0.runtime.progress.notify();
    }
}

impl Merger {
    /// Lets go what can't be undone any more. One thread is enough for this, whichever has the time.
    pub(crate) fn tend_undo(&self) -> Result<()> {
        if let Some(_tending) = self.tending.try_lock() {
            ok_unless_full(self.undo.tend())?;
        }
        Ok(())
    }

    /// A deleted snapshot's garbage, and deleted rows, lie where merges may not come by for long. Those under
    /// way come first, but when there is no space for any, or soon will be none.
    pub(crate) fn clear_up(&self, is_full: bool) -> Result<()> {
        if !is_full && self.merging.claims() > 0 && !self.victims.is_emptying_pressing() {
            return Ok(());
        }
        let Some(_tending) = self.tending.try_lock() else { return Ok(()) };
        // What a snapshot has left was written long ago; and what was begun is brought to its end.
        let old = self
            .history
            .has_cleared_snapshot()
            .then_some(ReclaimReason::OldGarbage)
            .max(self.merging.left_pass());
        if !self.background_wanted() {
            return Ok(());
        }
        let short = self.space_is_short().then_some(ReclaimReason::ShortSpace);
        let much = || self.has_much_garbage().then_some(ReclaimReason::MuchGarbage);
        match old.max(short).or_else(much) {
            Some(why) => self.background_reclaim(why),
            None => Ok(()),
        }
    }

    /// Less than an eighth of what may be filled is left for ordinary writes.
    fn space_is_short(&self) -> bool {
        let zones = &self.runtime.ctx.zones;
        zones.free_bytes(Budget::Ordinary) < zones.space().bytes_for_new / 8
    }

    /// Whether anything was applied since the last reclaim, so that another one within `budget` may find
    /// garbage.
    #[cfg(test)]
    pub(crate) fn reclaim_wanted(&self, budget: Budget) -> bool {
        self.operations_since_reclaim(budget) > 0
    }

    /// See [`Passes::operations_since`](crate::space::passes::Passes::operations_since); of transactions,
    /// too.
    #[cfg(test)]
    pub(crate) fn operations_since_reclaim(&self, budget: Budget) -> u64 {
        let now = self.now();
        self.pressure.passes().operations_since(budget, &now)
    }

    /// What passes that have ended are held against.
    pub(crate) fn now(&self) -> Now {
        let is_read = self.live.is_old_version_read();
        Now { last: self.history.position().0, pins: self.history.boundaries(), is_read }
    }

    /// Taken when the merges of a pass begin, and later than `mark`: see [`Merger::begin_reclaim`].
    fn pass_start(&self, mark: Seqno) -> PassStart {
        let pins = self.history.boundaries();
        self.pressure.passes().begin(mark, pins)
    }

    /// Frees what deleted and overwritten data still holds: flushes all memtables and merges all runs of
    /// every keyspace; what is contiguous is only stitched. Zones with little live data are emptied. Works
    /// where nothing but the reserve is free; for a write within `budget`, which leaves what that leaves.
    /// Waits for nothing but the steps under way.
    pub(crate) fn reclaim(&self, budget: Budget) -> Result<()> {
        self.reclaim_until(budget, None)
    }

    /// As [`Merger::reclaim`], for an ordinary write of so many bytes: ends with the step that has made
    /// enough space. The next one goes on from there.
    pub(crate) fn make_space(&self, bytes: u64) -> Result<()> {
        self.reclaim_until(Budget::Ordinary, Some(bytes))
    }

    fn reclaim_until(&self, budget: Budget, bytes_wanted: Option<u64>) -> Result<()> {
        let (mark, is_flushed) = self.begin_reclaim()?;
        let mut result = self.reclaim_alone(mark, budget, bytes_wanted);
        self.runtime.work.notify();
        if !is_flushed && ok_unless_full(result.clone()).is_ok() && ok_unless_full(self.flusher.flush_all())?
        {
            // What could not be flushed before may delete what was kept.
            result = self.reclaim_alone(mark, budget, bytes_wanted);
        }
        result
    }

    /// As [`Merger::reclaim`], but no caller waits for it: gives way as merges do, and what is flushed
    /// meanwhile is merged beside it. Ends early when another pass wants all runs to itself. Where space is
    /// short it empties zones on the way, and goes over the keys again as long as that gains anything and
    /// zones are left that are worth it.
    pub(crate) fn background_reclaim(&self, why: ReclaimReason) -> Result<()> {
        let cleans = why == ReclaimReason::ShortSpace && !self.victims.readers_hold_zones();
        // Also between two of them: a writer that waits would begin one of its own.
        let _emptying = cleans.then(|| self.emptying());
        loop {
            let before = self.victims.steps_emptying();
            let is_through = self.background_pass(why, cleans)?;
            let has_emptied = self.victims.steps_emptying() > before;
            if !(is_through && has_emptied && self.space_is_short() && self.background_wanted()) {
                return Ok(());
            }
        }
    }

    /// Once over all keyspaces. False when it ended early.
    fn background_pass(&self, why: ReclaimReason, cleans: bool) -> Result<bool> {
        let (mark, mut is_flushed) = self.begin_reclaim()?;
        // Until it is through: one that fails or ends early is to be done again.
        self.merging.leave_pass(Some(why));
        let mut is_through = self.background_merge(mark, why, cleans)?;
        if !is_flushed && is_through && ok_unless_full(self.flusher.flush_all())? {
            is_flushed = true;
            // As in `reclaim`.
            is_through = self.background_merge(mark, why, cleans)?;
        }
        self.merging.leave_pass((!is_through || !is_flushed).then_some(why));
        Ok(is_through)
    }

    /// False when it ended early.
    fn background_merge(&self, mark: Seqno, why: ReclaimReason, cleans: bool) -> Result<bool> {
        let start = self.pass_start(mark);
        let mut has_skipped = false;
        let before = self.runtime.ctx.zones.free_bytes(Budget::Reserve);
        let merged = self.merge_each(why, cleans, &mut has_skipped);
        // What lies all over the keys becomes free by rewrites alone; they are made where merges have freed
        // nothing.
        let has_gained = cleans && self.runtime.ctx.zones.free_bytes(Budget::Reserve) > before;
        let result = merged
            .and_then(|is_through| Ok(is_through && (has_gained || self.empty_zones_beside_others(why)?)));
        if !matches!(result, Ok(false)) {
            let is_complete = !has_skipped && result.is_ok() && !self.victims.are_left();
            let is_read = self.live.is_old_version_read();
            self.pressure.passes().note_background_end(start, is_complete, is_read);
        }
        result
    }

    /// False when it ended early.
    fn empty_zones_beside_others(&self, why: ReclaimReason) -> Result<bool> {
        let victims = self.victims.background_victims();
        if !victims.any() {
            return Ok(true);
        }
        let _emptying = self.emptying();
        // Writers may take what the zones were chosen for.
        let budget = if why == ReclaimReason::ShortSpace { Budget::Deleting } else { Budget::Ordinary };
        let config =
            StepConfig { victims, ..self.stepper.step_config(Lane::FIRST, budget, Some(self.pace())) };
        self.empty(&config, false, &mut |_, _| true)
    }

    /// Zones are being emptied while this lives: writers pay for it, one that finds no space waits for it,
    /// and it does not give way.
    fn emptying(&self) -> Emptying<'_> {
        self.pressure.begin_emptying_zones();
        self.live.update_debt();
        Emptying(self)
    }

    /// As [`Merger::reclaim_wanted`], for a reclaim at leisure, which passes over what needs more space than
    /// there is.
    pub(crate) fn background_wanted(&self) -> bool {
        let now = self.now();
        self.pressure.passes().is_background_wanted(&now)
    }

    /// Whether rows may have much garbage. Which merges are due goes by bytes, of which deletions have few.
    pub(crate) fn has_much_garbage(&self) -> bool {
        let bytes_min = BYTES_OF_MUCH.min(self.runtime.ctx.zones.space().bytes_capacity / SHARE_OF_MUCH);
        // Merges that don't fit would not begin.
        let may_begin = !self.stepper.readers_hold_much(Budget::Ordinary);
        let has_much = |version: &Version, keyspace, runs| {
            let runs = self.merging.readable(runs);
            runs.len() > 1
                && bytes_of(runs) >= bytes_min
                && matches!(self.keyspaces.kind(keyspace), Ok(KeyspaceKind::Tuple))
                && is_changed(runs, version.merges(keyspace), ROWS_PER_CHANGE_OF_MUCH)
        };
        let view = self.live.view();
        may_begin && view.version.keyspaces().any(|(keyspace, runs)| has_much(&view.version, keyspace, runs))
    }

    /// The last operation that a pass which begins now knows of; false: there was no space to flush all of
    /// them.
    fn begin_reclaim(&self) -> Result<(Seqno, bool)> {
        let mark = self.history.position().0;
        ok_unless_full(self.undo.tend())?;
        // Without space for a flush the merges still may make some.
        Ok((mark, self.flusher.flush_everything()?))
    }

    /// Waits until the steps under way have ended, and have given back what they hold.
    pub(crate) fn end_merges(&self) {
        let alone = self.claim_all();
        self.runtime.ctx.zones.close_other_lanes();
        drop(alone);
    }

    /// Waits until no merge is under way.
    pub(crate) fn claim_all(&self) -> Exclusive<'_> {
        let mut hurry = None;
        self.merging.exclusive(|| hurry = Some(self.pressure.pace.hurry()))
    }

    /// The part for which no merge may be under way. `mark`: see [`Merger::begin_reclaim`].
    fn reclaim_alone(&self, mark: Seqno, budget: Budget, bytes_wanted: Option<u64>) -> Result<()> {
        let passes = self.merging.passes();
        let alone = self.claim_all();
        if alone.is_needless(passes) {
            return Ok(());
        }
        let start = self.pass_start(mark);
        self.runtime.ctx.zones.close_other_lanes();
        let before = self.runtime.ctx.zones.free_bytes(Budget::Ordinary);
        // One pass over all that is stored does both.
        let (victims, within) = self.victims.victims_for_waiting();
        let config = StepConfig { victims, bytes_wanted, ..self.config_of_pass(within) };
        let merged = self.merge_everything(budget, &config);
        // Also where something found no space: zones of which little is left may be all that can be freed.
        let emptied =
            if ok_unless_full(merged.clone().map(drop)).is_ok() { self.empty_zones() } else { Ok(()) };
        let is_through = matches!((&merged, &emptied), (Ok(true), Ok(())));
        let outcome = match (&merged, &emptied) {
            (Err(StoreError::Full), _) => Outcome::Stuck,
            (Err(_), _) | (_, Err(_)) => Outcome::Failed,
            (Ok(false), _) => Outcome::Enough,
            (Ok(true), _) if self.victims.are_left() => Outcome::ZonesLeft,
            (Ok(true), _) => Outcome::Complete,
        };
        let result = merged.map(drop).and(emptied);
        let is_read = self.live.is_old_version_read();
        // Before the runs are given back: a thread that then finds nothing to be done has to know of it.
        self.pressure.passes().note_end(PassEnd { start, budget, outcome, is_read });
        if is_through {
            alone.complete();
        }
        drop(alone);
        let after = self.runtime.ctx.zones.free_bytes(Budget::Ordinary);
        tracing::info!(bytes_before = before, bytes_after = after, "reclaimed space");
        result
    }

    /// Merges all runs of each keyspace: first blocks, which are stitched as a rule, and the small ones,
    /// which may be all that keeps zones from being free. The caller has all of them. What finds no space
    /// keeps the others from nothing. False when it ended early, with enough space.
    fn merge_everything(&self, budget: Budget, config: &StepConfig) -> Result<bool> {
        let mut left = BTreeSet::new();
        for (keyspace, runs) in self.live.view().version.keyspaces() {
            let is_tuple = self.keyspaces.kind(keyspace)? == KeyspaceKind::Tuple;
            left.insert((is_tuple, bytes_of(runs), keyspace));
        }
        let free_bytes = || self.runtime.ctx.zones.free_bytes(Budget::Reserve);
        loop {
            let before = free_bytes();
            let mut full = BTreeSet::new();
            for entry @ (.., keyspace) in left {
                match self.merge_keyspace(keyspace, budget, config) {
                    Ok(true) => {}
                    Err(StoreError::Full) => drop(full.insert(entry)),
                    ended => return ended,
                }
            }
            if full.is_empty() {
                return Ok(true);
            }
            if free_bytes() <= before {
                return Err(StoreError::Full);
            }
            left = full;
        }
    }

    /// Empties zones until there is space enough, or no more to be gained. What is copied has to fit what is
    /// free, so each round makes room for a larger one. The caller has all runs.
    fn empty_zones(&self) -> Result<()> {
        let free_bytes = || self.runtime.ctx.zones.free_bytes(Budget::Reserve);
        while !self.victims.has_much_space() {
            let before = free_bytes();
            let (mut victims, mut budget) = self.victims.victims_for_waiting();
            if !victims.any() {
                (victims, budget) = self.victims.shared_for_waiting();
            }
            if !victims.any() {
                break;
            }
            let config = StepConfig { victims, ..self.stepper.step_config(Lane::FIRST, budget, None) };
            let is_through = self.empty(&config, true, &mut |_, _| true)?;
            if !is_through || free_bytes() <= before {
                break;
            }
        }
        Ok(())
    }

    /// False when it ended early.
    ///
    /// # Errors
    /// As [`Merger::merge_whole`].
    fn merge_keyspace(&self, keyspace: u32, budget: Budget, config: &StepConfig) -> Result<bool> {
        if self.keyspace_fits(keyspace)? {
            match self.merge_whole(keyspace, config) {
                Err(StoreError::Full) => {}
                ended => return ended,
            }
        }
        if !self.runtime.ctx.zones.reserves_for_merges() {
            return Err(StoreError::Full);
        }
        let config = StepConfig {
            budget: Budget::Reserve,
            is_tight: true,
            tries_least: budget != Budget::Ordinary,
            // Rows are all copied then, and of blocks no more than has to be.
            victims: Victims::default(),
            ..config.clone()
        };
        self.merge_whole(keyspace, &config)
    }

    /// Whether what makes space for a writer may end.
    pub(super) fn has_enough_space(&self, config: &StepConfig) -> bool {
        config.bytes_wanted.is_some_and(|bytes| {
            self.victims.has_much_space() && self.space.has_space(bytes, Budget::Ordinary)
        })
    }

    /// As the steps of a pass run: what does not have to be copied is not, however short. A pass goes over
    /// all that is stored, and a short stretch between long ones would be copied by each of them.
    fn config_of_pass(&self, budget: Budget) -> StepConfig {
        let config = self.stepper.step_config(Lane::FIRST, budget, None);
        let stitch_bytes_min = match config.stitch_bytes_min {
            never @ u64::MAX => never,
            bytes => bytes.min(BLOCK_BYTES as u64),
        };
        StepConfig { stitch_bytes_min, ..config }
    }

    /// As [`Merger::merge_everything`], with a claim for each keyspace; passes over those that are not worth
    /// it or find no space, and says so. False when it ended early.
    fn merge_each(&self, why: ReclaimReason, cleans: bool, has_skipped: &mut bool) -> Result<bool> {
        let keyspaces: Vec<u32> =
            self.live.view().version.keyspaces().map(|(keyspace, _)| keyspace).collect();
        for keyspace in keyspaces {
            let view = self.live.view();
            let merges = view.version.merges(keyspace);
            let runs = self.merging.readable(view.version.runs(keyspace));
            if !is_worth_it(runs, &self.merging) {
                continue;
            }
            let is_tuple = self.keyspaces.kind(keyspace)? == KeyspaceKind::Tuple;
            let is_due = match why {
                ReclaimReason::MuchGarbage => is_tuple && is_changed(runs, merges, ROWS_PER_CHANGE_OF_MUCH),
                ReclaimReason::ShortSpace if is_tuple => is_changed(runs, merges, ROWS_PER_CHANGE),
                ReclaimReason::ShortSpace => {
                    cleans || is_deleted_of(runs) || is_changed(runs, merges, BLOCKS_PER_CHANGE)
                }
                ReclaimReason::OldGarbage => true,
            };
            if !is_due {
                *has_skipped = true;
                continue;
            }
            drop(view);
            let is_tight = !self.keyspace_fits(keyspace)?;
            // What others merge meanwhile, a tight one does not.
            *has_skipped |= is_tight;
            if !self.merge_beside_others(keyspace, is_tight, why, cleans)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Merges all runs of a keyspace beside other merges. False when it ended early.
    fn merge_beside_others(
        &self,
        keyspace: u32,
        is_tight: bool,
        why: ReclaimReason,
        cleans: bool,
    ) -> Result<bool> {
        if !is_tight {
            // Writers may take what the zones were chosen for.
            let budget = if cleans { Budget::Deleting } else { Budget::Ordinary };
            let pace = Some(self.pace());
            let config = StepConfig { cleans, pace, ..self.config_of_pass(budget) };
            return self.merge_whole_beside_others(keyspace, &config);
        }
        let budget = if why == ReclaimReason::MuchGarbage { Budget::Ordinary } else { Budget::Reserve };
        if !self.runtime.ctx.zones.reserves_for_merges() || self.stepper.readers_hold_much(budget) {
            return Ok(true);
        }
        let config = StepConfig { pace: Some(self.pace()), is_tight, ..self.config_of_pass(budget) };
        match self.merge_whole_beside_others(keyspace, &config) {
            Err(StoreError::Full) => Ok(true),
            ended => ended,
        }
    }
}

/// Whether one of so many rows of a keyspace, or more, may have been overwritten or deleted since they were
/// merged.
fn is_changed(runs: &[Arc<Run>], merges: &[MergeState], rows_per_change: u64) -> bool {
    let Some(oldest) = runs.last() else { return false };
    if runs.len() == 1 {
        // It is known to have some.
        return true;
    }
    // What a merge that has begun has made of the oldest ones is as old as they.
    let begun = merges.iter().find(|merge| merge.involves(oldest.id));
    let start = begun.and_then(|merge| runs.iter().position(|run| merge.involves(run.id)));
    let (newer, oldest) = runs.split_at(start.unwrap_or(runs.len() - 1));
    let sum = |runs: &[Arc<Run>], of: fn(&PieceDesc) -> u64| -> u64 {
        runs.iter().flat_map(|run| &run.pieces).map(|piece| of(piece.desc())).sum()
    };
    let rows = sum(oldest, |piece| piece.records);
    let changes =
        sum(newer, |piece| piece.records.saturating_add(piece.tombstones.saturating_mul(CHANGES_OF_RANGE)));
    changes.saturating_mul(rows_per_change) >= rows
}

/// Whether anything was deleted since the oldest of these runs: of blocks that may be much.
fn is_deleted_of(runs: &[Arc<Run>]) -> bool {
    let newer = runs
        .split_last()
        .map_or(runs, |(oldest, newer)| if newer.is_empty() { std::slice::from_ref(oldest) } else { newer });
    newer.iter().flat_map(|run| &run.pieces).any(|piece| piece.desc().tombstones > 0)
}

/// Whether a merge of these runs, all that a keyspace has, may free anything. One of which that can't be read
/// is left out of merges.
pub(super) fn is_worth_it(runs: &[Arc<Run>], merging: &Registry) -> bool {
    let [alone] = runs else { return !runs.is_empty() };
    alone.has_garbage().unwrap_or_else(|error| {
        tracing::error!(%error, "what deleted data a run has can't be read");
        merging.leave_out(&[alone.id]);
        false
    })
}
