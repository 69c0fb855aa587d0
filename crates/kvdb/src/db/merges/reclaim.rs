//! Reclaiming: merges over all runs that give back what deleted and overwritten data still holds.
//!
//! Thread safety: as for all merges. Who reclaims because somebody waits for space has all runs to himself; who does it at
//! leisure has those of one keyspace at a time, and gives way.
//!
//! Invariants: a pass is done again only after something has changed; what found no space keeps nothing else from being
//! reclaimed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvfs_store::{BLOCK_BYTES, KeyspaceKind, Result, Seqno, StoreError};

use super::registry::Exclusive;
use super::slices::{Tight, unfinished};
use super::{Inner, Terms, bytes_of, full_is_false};
use crate::compaction::{Pace, Victims};
use crate::format::PieceDesc;
use crate::version::Run;
use crate::zone::{Budget, Lane};

/// At leisure all rows of a keyspace are merged when one of so many may have been overwritten or deleted: it goes over all of
/// them, and somebody may write a little all the time.
const ROWS_PER_CHANGE: u64 = 16;

/// Blocks are stitched, which costs less, but still new metadata for all of them.
const BLOCKS_PER_CHANGE: u64 = 64;

/// Where space is not short it is worth it when half of them may have been.
const ROWS_PER_CHANGE_OF_MUCH: u64 = 2;

/// Rows of less than this part of the capacity are not looked at then.
const SHARE_OF_MUCH: u64 = 64;

/// A range tombstone may delete much: for so many rows it counts.
const CHANGES_OF_RANGE: u64 = 256;

/// No pass knew of anything.
const NEVER: Seqno = 0;

/// Why there is a pass that nobody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Leisure {
    /// Many rows have changed: these are merged, in space that is left for writes.
    MuchGarbage,
    /// Space is short: it may take the reserve, as those who wait do, and passes over rows of which hardly any have changed.
    ShortSpace,
    /// There is garbage that no change tells of. As for short space, and passes over nothing.
    OldGarbage,
}

/// What is known of the passes so far.
#[derive(Debug, Default)]
pub(crate) struct ReclaimState {
    /// The last operation that the last pass knew of: another one pays only after something changed. Deletions may go further
    /// than one for ordinary writes that has failed, which is not meant.
    seqno: AtomicU64,
    /// As `seqno`, of the last pass for ordinary writes, whatever came of it.
    seqno_of_writers: AtomicU64,
    /// As `seqno`, of the last pass for anybody, as long as somebody reads what was there before one.
    seqno_while_read: AtomicU64,
    /// As `seqno`, of the last pass at leisure.
    seqno_at_leisure: AtomicU64,
    /// The last one found no space for its merges.
    pub(crate) is_stuck: AtomicBool,
    /// Operations that ordinary writes on a full store wait for before the next one.
    pub(crate) pause: AtomicU64,
    /// A pass at leisure is emptying zones.
    pub(crate) is_emptying: AtomicBool,
    /// Passes that have ended, and how many of them had when somebody last waited in vain for those who read what they have freed.
    passes_ended: AtomicU64,
    waited_in_vain: AtomicU64,
}

impl ReclaimState {
    /// Passes that have ended.
    pub(crate) fn passes_ended(&self) -> u64 {
        self.passes_ended.load(Ordering::Acquire)
    }

    /// Those who read what the passes before `passes_ended` was this have freed are no longer waited for.
    pub(crate) fn note_in_vain(&self, passes_ended: u64) {
        self.waited_in_vain.fetch_max(passes_ended, Ordering::AcqRel);
    }

    /// Whether somebody was refused since the last pass because of those who read on.
    pub(crate) fn was_in_vain(&self) -> bool {
        let passes_ended = self.passes_ended();
        passes_ended > 0 && self.waited_in_vain.load(Ordering::Acquire) == passes_ended
    }
}

/// See [`Inner::emptying`].
struct Emptying<'a>(&'a Inner);

impl Drop for Emptying<'_> {
    fn drop(&mut self) {
        self.0.reclaims.is_emptying.store(false, Ordering::Relaxed);
        self.0.update_debt();
        self.0.progress.ring();
    }
}

/// A pass over the runs of each keyspace.
struct Round<'a> {
    /// The zones that are emptied.
    victims: &'a Victims,
    /// How far that may go.
    budget: Budget,
    /// Garbage has been dropped: only what lies in these is of interest.
    is_later: bool,
}

impl Round<'_> {
    fn concerns(&self, runs: &[Arc<Run>]) -> bool {
        runs.iter().any(|run| self.victims.have_any_of(run))
    }

    /// Whether a merge of all these may free anything.
    fn is_worth_it(&self, runs: &[Arc<Run>]) -> Result<bool> {
        Ok(self.concerns(runs) || (!self.is_later && is_worth_it(runs)?))
    }
}

impl Inner {
    /// Whether anything was applied since the last reclaim, so that another one within `budget` may find garbage.
    pub(crate) fn reclaim_wanted(&self, budget: Budget) -> bool {
        self.operations_since_reclaim(budget) > 0
    }

    /// Operations since the last reclaim that has done what one within `budget` can, those of transactions included.
    pub(crate) fn operations_since_reclaim(&self, budget: Budget) -> u64 {
        let mut known = self.reclaims.seqno.load(Ordering::Acquire);
        let is_read = self.versions_outlived.any();
        if is_read {
            known = known.max(self.reclaims.seqno_while_read.load(Ordering::Acquire));
        }
        if budget == Budget::Ordinary {
            known = known.max(self.reclaims.seqno_of_writers.load(Ordering::Acquire));
        }
        match known {
            // What they have hidden may be found now.
            _ if !is_read && self.reclaims.was_in_vain() => u64::MAX,
            NEVER => u64::MAX,
            seqno => self.position().0.saturating_sub(seqno),
        }
    }

    /// Frees what deleted and overwritten data still holds: flushes all memtables and merges all runs
    /// of every keyspace; what is contiguous is only stitched. Zones with little live data are emptied. Works where
    /// nothing but the reserve is free; for a write within `budget`, which leaves what that leaves. Waits for
    /// nobody but the merges under way, which end at their next piece.
    pub(crate) fn reclaim(&self, budget: Budget) -> Result<()> {
        let (mark, is_flushed) = self.begin_reclaim()?;
        let mut result = self.reclaim_alone(mark, budget);
        self.work.ring();
        if !is_flushed && full_is_false(result.clone()).is_ok() && full_is_false(self.flush_all())? {
            // What could not be flushed before may delete what was kept.
            result = self.reclaim_alone(mark, budget);
        }
        result
    }

    /// As [`Inner::reclaim`], for nobody who waits: gives way as merges do, and what is flushed meanwhile is merged
    /// beside it. Ends early when somebody wants all runs to himself.
    pub(crate) fn reclaim_at_leisure(&self, why: Leisure) -> Result<()> {
        let (mark, mut is_flushed) = self.begin_reclaim()?;
        // Until it is through: one that fails or ends early is to be done again.
        self.merging.leave_pass(Some(why));
        let mut is_through = self.merge_at_leisure(mark, why)?;
        if !is_flushed && is_through && full_is_false(self.flush_all())? {
            is_flushed = true;
            // As in `reclaim`.
            is_through = self.merge_at_leisure(mark, why)?;
        }
        self.merging.leave_pass((!is_through || !is_flushed).then_some(why));
        Ok(())
    }

    /// False when it ended early.
    fn merge_at_leisure(&self, mark: Seqno, why: Leisure) -> Result<bool> {
        let mut has_skipped = false;
        let mut round = |victims: &Victims, is_later| {
            // Those who write may take what the zones were chosen for.
            let is_emptied = why == Leisure::ShortSpace && victims.any();
            let budget = if is_emptied { Budget::Deleting } else { Budget::Ordinary };
            self.merge_each(&Round { victims, budget, is_later }, why, &mut has_skipped)
        };
        // Where space is short, zones are emptied on the way.
        let first = if why == Leisure::ShortSpace { self.victims_at_leisure() } else { Victims::default() };
        let result = round(&first, false)
            .and_then(|is_through| Ok(is_through && round(&self.victims_at_leisure(), true)?));
        if !matches!(result, Ok(false)) {
            self.reclaims.passes_ended.fetch_add(1, Ordering::Release);
            // Of one that failed, too: it would only fail again before anything has changed. Who waits for space may go
            // further, since he may take the reserve.
            self.reclaims.seqno_at_leisure.store(mark, Ordering::Release);
            if !has_skipped && result.is_ok() && !self.victims_for_waiting().0.any() {
                self.note_all_reclaimed(mark);
            }
        }
        result
    }

    /// Zones are being emptied while this lives: writers pay for it, who finds no space waits for it, and it does not give way.
    fn emptying(&self) -> Emptying<'_> {
        self.reclaims.is_emptying.store(true, Ordering::Relaxed);
        self.update_debt();
        Emptying(self)
    }

    /// After a pass that knew of all up to `mark`, and has left nothing that another one could free.
    fn note_all_reclaimed(&self, mark: Seqno) {
        if self.versions_outlived.any() {
            // Who still reads may hide what there is.
            self.reclaims.seqno_while_read.store(mark, Ordering::Release);
        } else {
            self.reclaims.seqno.store(mark, Ordering::Release);
        }
    }

    /// Something that is no batch has left garbage.
    pub(crate) fn note_garbage(&self) {
        self.reclaims.seqno.store(NEVER, Ordering::Release);
        self.reclaims.seqno_while_read.store(NEVER, Ordering::Release);
        self.reclaims.seqno_of_writers.store(NEVER, Ordering::Release);
        self.reclaims.seqno_at_leisure.store(NEVER, Ordering::Release);
    }

    /// As [`Inner::reclaim_wanted`], for a reclaim at leisure, which passes over what needs more space than there is.
    pub(crate) fn leisure_wanted(&self) -> bool {
        self.reclaim_wanted(Budget::Ordinary)
            && self.position().0 > self.reclaims.seqno_at_leisure.load(Ordering::Acquire)
    }

    /// Whether rows may have much garbage. Which merges are due goes by bytes, of which deletions have few.
    pub(crate) fn has_much_garbage(&self) -> bool {
        let bytes_min = self.ctx.zones.space().bytes_capacity / SHARE_OF_MUCH;
        // Merges that don't fit would not begin.
        let may_begin = !self.readers_hold_much(Budget::Ordinary);
        may_begin
            && self.view().version.keyspaces().any(|(keyspace, runs)| {
                runs.len() > 1
                    && bytes_of(runs) >= bytes_min
                    && matches!(self.keyspaces.kind(keyspace), Ok(KeyspaceKind::Tuple))
                    && is_changed(runs, ROWS_PER_CHANGE_OF_MUCH)
            })
    }

    /// The last operation that a pass which begins now knows of; false: there was no space to flush all of them.
    fn begin_reclaim(&self) -> Result<(Seqno, bool)> {
        let mark = self.position().0;
        full_is_false(self.tend_undo())?;
        // Without space for a flush the merges still may make some.
        Ok((mark, self.flush_everything()?))
    }

    /// Turns all memtables into runs; false: there was no space for all of them.
    pub(crate) fn flush_everything(&self) -> Result<bool> {
        self.seal_if(|active| active.bytes() > 0);
        full_is_false(self.flush_all())
    }

    /// Waits until the merges under way have ended, at their next piece, and have given back what they hold.
    pub(crate) fn end_merges(&self) {
        let alone = self.claim_all();
        self.ctx.zones.close_other_lanes();
        drop(alone);
    }

    /// Waits until no merge is under way.
    pub(super) fn claim_all(&self) -> Exclusive<'_> {
        let mut hurry = None;
        self.merging.exclusive(|| hurry = Some(self.pace.hurry()))
    }

    /// The part for which no merge may be under way. `mark`: see [`Inner::begin_reclaim`].
    fn reclaim_alone(&self, mark: Seqno, budget: Budget) -> Result<()> {
        let passes = self.merging.passes();
        let alone = self.claim_all();
        if alone.is_needless(passes) {
            return Ok(());
        }
        self.ctx.zones.close_other_lanes();
        let before = self.ctx.zones.free_bytes(Budget::Ordinary);
        // One pass over all that is stored does both.
        let (victims, within) = self.victims_for_waiting();
        let round = Round { victims: &victims, budget: within, is_later: false };
        let merged = self.merge_everything(&round, budget);
        // Also where something found no space: zones of which little is left may be all that can be freed.
        let emptied =
            if full_is_false(merged.clone().map(drop)).is_ok() { self.empty_zones(budget) } else { Ok(true) };
        if budget != Budget::Ordinary {
            self.reclaims.is_stuck.store(matches!(merged, Err(StoreError::Full)), Ordering::Relaxed);
        }
        let is_through = matches!((&merged, &emptied), (Ok(true), Ok(true)));
        let result = merged.and(emptied).map(drop);
        // Who then finds that there is nothing to be done has to know of it.
        self.reclaims.passes_ended.fetch_add(1, Ordering::Release);
        if budget == Budget::Ordinary {
            self.reclaims.seqno_of_writers.store(mark, Ordering::Release);
        }
        if is_through && !self.victims_for_waiting().0.any() {
            self.note_all_reclaimed(mark);
        } else if result.is_err() && budget != Budget::Ordinary {
            self.reclaims.seqno.store(mark, Ordering::Release);
        }
        if is_through {
            alone.complete();
        }
        drop(alone);
        let after = self.ctx.zones.free_bytes(Budget::Ordinary);
        tracing::info!(bytes_before = before, bytes_after = after, "reclaimed space");
        result
    }

    /// Flushes every sealed memtable.
    pub(crate) fn flush_all(&self) -> Result<()> {
        while self.flush_oldest()? {}
        Ok(())
    }

    /// Merges all runs of each keyspace: first blocks, which are stitched as a rule, and the small ones, which may be all that keeps
    /// zones from being free. The caller has all of them. What finds no space keeps the others from nothing. False when rows were
    /// left alone, since enough has become free without them.
    fn merge_everything(&self, round: &Round<'_>, budget: Budget) -> Result<bool> {
        let mut left = BTreeSet::new();
        for (keyspace, runs) in self.view().version.keyspaces() {
            let is_tuple = self.keyspaces.kind(keyspace)? == KeyspaceKind::Tuple;
            left.insert((is_tuple, bytes_of(runs), keyspace));
        }
        let free_bytes = || self.ctx.zones.free_bytes(Budget::Reserve);
        let mut is_all = true;
        loop {
            let before = free_bytes();
            let mut full = BTreeSet::new();
            for entry @ (is_tuple, _, keyspace) in left {
                if is_tuple
                    && budget == Budget::Ordinary
                    && self.has_much_space()
                    && !self.keyspace_fits(keyspace)?
                {
                    is_all = false;
                } else if !self.merge_keyspace(keyspace, is_tuple, round, budget)? {
                    full.insert(entry);
                }
            }
            if full.is_empty() {
                return Ok(is_all);
            }
            if free_bytes() <= before {
                return Err(StoreError::Full);
            }
            left = full;
        }
    }

    /// Empties zones until there is space enough, or no more to be gained. What is copied has to fit what is free, so each
    /// round makes room for a larger one. As [`Inner::merge_everything`].
    fn empty_zones(&self, budget: Budget) -> Result<bool> {
        let free_bytes = || self.ctx.zones.free_bytes(Budget::Reserve);
        loop {
            let before = free_bytes();
            let (victims, within) = self.victims_for_waiting();
            if !victims.any() || self.has_much_space() {
                return Ok(true);
            }
            let round = Round { victims: &victims, budget: within, is_later: true };
            let is_all = self.merge_everything(&round, budget)?;
            if !is_all || free_bytes() <= before {
                return Ok(is_all);
            }
        }
    }

    /// False: there was no space for it.
    fn merge_keyspace(
        &self,
        keyspace: u32,
        is_tuple: bool,
        round: &Round<'_>,
        budget: Budget,
    ) -> Result<bool> {
        if self.keyspace_fits(keyspace)? && full_is_false(self.merge_at_once(keyspace, round))? {
            return Ok(true);
        }
        if round.is_later {
            // Rows that are merged tightly are all copied: there is nothing left to be emptied.
            return Ok(is_tuple);
        }
        if !self.ctx.zones.reserves_for_merges() {
            return Ok(false);
        }
        let tight = Tight { budget, space: Budget::Reserve, pace: None };
        full_is_false(self.merge_tightly(keyspace, &tight).map(drop))
    }

    /// Merges all runs of a keyspace, which needs as much space as what is copied takes.
    fn merge_at_once(&self, keyspace: u32, round: &Round<'_>) -> Result<()> {
        let view = self.view();
        let runs = view.version.runs(keyspace);
        if round.is_worth_it(runs)? && !self.stopping.load(Ordering::Acquire) {
            let merge = self.merge_of(keyspace, runs, &[]);
            drop(view);
            self.run_merge(&merge, self.terms_of_reclaim(round, Lane::FIRST, None))?;
        }
        Ok(())
    }

    /// As [`Inner::merge_everything`], with a claim for each keyspace; passes over those that are not worth it or find no space, and
    /// says so. False when it ended early.
    fn merge_each(&self, round: &Round<'_>, why: Leisure, has_skipped: &mut bool) -> Result<bool> {
        let keyspaces: Vec<u32> = self.view().version.keyspaces().map(|(keyspace, _)| keyspace).collect();
        for keyspace in keyspaces {
            let view = self.view();
            let runs = view.version.runs(keyspace);
            if !round.is_worth_it(runs)? {
                continue;
            }
            let is_tuple = self.keyspaces.kind(keyspace)? == KeyspaceKind::Tuple;
            let fits = self.keyspace_fits(keyspace)?;
            let is_emptied = fits && round.concerns(runs);
            let is_due = match why {
                _ if is_emptied => true,
                Leisure::MuchGarbage => is_tuple && is_changed(runs, ROWS_PER_CHANGE_OF_MUCH),
                Leisure::ShortSpace if is_tuple => is_changed(runs, ROWS_PER_CHANGE),
                Leisure::ShortSpace => is_deleted_of(runs) || is_changed(runs, BLOCKS_PER_CHANGE),
                Leisure::OldGarbage => true,
            };
            if !is_due {
                *has_skipped = true;
                continue;
            }
            drop(view);
            let is_done = if fits {
                let _emptying = is_emptied.then(|| self.emptying());
                self.merge_at_once_beside_others(keyspace, round)?
            } else {
                // Of what is copied as a whole nothing is left to be emptied; and what others merge meanwhile, this does not.
                *has_skipped = true;
                round.is_later || self.merge_tightly_beside_others(keyspace, why)?
            };
            if !is_done {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As passes run: what does not have to be copied is not, however short. A pass goes over all that is stored, and a short
    /// stretch between long ones would be copied by each of them.
    fn terms_of_reclaim(&self, round: &Round<'_>, lane: Lane, pace: Option<Arc<dyn Pace>>) -> Terms {
        let mut terms = Terms { victims: round.victims.clone(), ..self.terms(lane, round.budget, pace) };
        if terms.options.stitch_bytes_min < u64::MAX {
            terms.options.stitch_bytes_min = terms.options.stitch_bytes_min.min(BLOCK_BYTES as u64);
        }
        terms
    }

    /// Merges all runs of a keyspace, which it claims. False when it ended early.
    fn merge_at_once_beside_others(&self, keyspace: u32, round: &Round<'_>) -> Result<bool> {
        let alone = self.claim_all();
        let view = self.view();
        let merge = self.merge_of(keyspace, view.version.runs(keyspace), &[]);
        // It would hold what others merge meanwhile.
        drop(view);
        let claim = alone.narrow(merge.runs());
        self.work.ring();
        let terms = self.terms_of_reclaim(round, claim.lane(), Some(self.pace()));
        let done = self.run_merge(&merge, terms);
        // Who waits for the claim counts on the space of the inputs.
        drop(merge);
        drop(claim);
        done
    }

    /// As [`Inner::merge_at_once_beside_others`], in slices; true, too, when there was no space.
    fn merge_tightly_beside_others(&self, keyspace: u32, why: Leisure) -> Result<bool> {
        let space = if why == Leisure::MuchGarbage { Budget::Ordinary } else { Budget::Reserve };
        if !self.ctx.zones.reserves_for_merges() || self.readers_hold_much(space) {
            return Ok(true);
        }
        let tight = Tight { budget: Budget::Ordinary, space, pace: Some(self.pace()) };
        match self.merge_tightly(keyspace, &tight) {
            Err(StoreError::Full) => Ok(true),
            ended => ended,
        }
    }
}

/// Whether one of so many rows of a keyspace, or more, may have been overwritten or deleted since they were merged.
fn is_changed(runs: &[Arc<Run>], rows_per_change: u64) -> bool {
    // What a merge that ended early has made of the oldest ones is as old as they.
    let last = runs.len().saturating_sub(1);
    let start = unfinished(runs).map(|unfinished| unfinished.range).filter(|range| range.end == runs.len());
    let start = start.map_or(last, |range| range.start);
    let (newer, oldest) = runs.split_at(start);
    if newer.is_empty() && runs.len() == 1 {
        // It is known to have some.
        return true;
    }
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

/// Whether a merge of all runs of a keyspace may free anything.
pub(super) fn is_worth_it(runs: &[Arc<Run>]) -> Result<bool> {
    match runs {
        [] => Ok(false),
        [alone] => alone.has_garbage(),
        _ => Ok(true),
    }
}
