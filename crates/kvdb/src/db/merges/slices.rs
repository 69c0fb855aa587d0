//! Merges in slices, where there is less space than they copy.
//!
//! A merge gives the space of its inputs back when it ends, and so needs as much space as it copies. Where there is not
//! so much, it goes on in *slices*: after each piece the merge ends, what its inputs have lost is
//! free, and the next slice goes on from there, into the same run. What it needs then is what the inputs have begun to give
//! and still hold. So pieces are as short as the space asks for, down to a zone; longer ones are cut first, which copies
//! hardly anything; and there are no more inputs at a time than there are free zones for. With two of them all runs of a
//! keyspace become one in the end, but the newest data is copied once for each run.
//!
//! What is cut becomes a new run of the same age, which comes before all of that age. So it may be cut only where none of these
//! has newer versions of its keys, and what was cut of the newest input is merged before anything older is ([`Unfinished`]). A cut
//! that ended early goes on as one: what it has made shares its zones with what is being cut.
//!
//! Thread safety: the caller has claimed the runs ([`Slices::runs`]), or has all. Invariants: as for merges that end early;
//! nobody here holds a version while a slice is over, since that would hold the space. Readers may: where nobody waits for the
//! merge, it ends before what they hold comes to much.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvfs_store::{KeyspaceKind, Result, StoreError};

use super::reclaim::is_worth_it;
use super::registry::Claim;
use super::{Inner, Merge, Terms};
use crate::compaction::{MergeOptions, Pace};
use crate::format::{SECTOR_BYTES, ZoneId};
use crate::version::{Run, RunId};
use crate::zone::{Budget, Lane};

/// With shorter pieces, metadata would take a large part of the space (bytes).
const PIECE_BYTES_MIN: u64 = 256 << 10;
/// Zones that an input holds besides the piece that has been begun: its neighbours have parts of its first and last one.
const ZONES_OF_INPUT: u64 = 2;
/// Zones that the output of a slice begins besides its data: of metadata, and one that it fills in part.
const ZONES_OF_OUTPUT: u64 = 3;

/// The part of the capacity that merges for which nobody waits leave to those who write, and half of which readers may hold.
const SHARE_OF_WRITERS: u64 = 16;
/// In the reserve readers may hold no more zones than this.
const ZONES_OF_READERS: u64 = 4;

/// How often, and how long, readers are waited for before a merge ends for what they hold: most are done at once.
const WAITS_FOR_READERS: u32 = 8;
const WAIT_FOR_READERS: Duration = Duration::from_millis(25);

/// For whom all runs of a keyspace are merged where there is little space.
pub(super) struct Tight {
    /// Of the write that waits. Only for deletions it is tried with less than two runs need.
    pub(super) budget: Budget,
    /// What it may take.
    pub(super) space: Budget,
    /// With one, nobody waits, and the runs are claimed.
    pub(super) pace: Option<Arc<dyn Pace>>,
}

/// A merge in slices. It knows its inputs by name, so as not to hold them.
pub(super) struct Slices {
    pub(super) keyspace: u32,
    /// Newest first, and what each of them is called when it has been cut.
    inputs: Vec<(RunId, RunId)>,
    output: RunId,
    /// They are the rest of one run whose cut has ended early, and the output has the beginning. Merged as others are, they would be
    /// copied without giving space back: the piece that is cut holds all of it until its end.
    is_cut: bool,
    options: MergeOptions,
}

impl Slices {
    /// All that it has to claim.
    pub(super) fn runs(&self) -> Vec<RunId> {
        self.inputs.iter().flat_map(|&(run, cut)| [run, cut]).chain([self.output]).collect()
    }
}

impl Inner {
    /// Merges all runs of a keyspace into one. False when it ended early.
    ///
    /// # Errors
    /// `Full`: not even two runs could be merged, or too little would be left for deletions; I/O errors, corruption.
    pub(super) fn merge_tightly(&self, keyspace: u32, tight: &Tight) -> Result<bool> {
        let kind = self.keyspaces.kind(keyspace)?;
        let Some(age) = self.view().version.runs(keyspace).first().map(|run| run.age) else {
            return Ok(true);
        };
        let mut count_max = usize::MAX;
        loop {
            let alone = tight.pace.as_ref().map(|_| self.claim_all());
            let (slices, is_all, is_least) = {
                let view = self.view();
                let all = view.version.runs(keyspace);
                // What is flushed meanwhile is for the next time: each would have all that is merged copied once more.
                let newer = all.iter().take_while(|run| run.age > age).count();
                let runs = &all[newer..];
                let unfinished = unfinished(runs);
                if !is_worth_it(runs)? {
                    return Ok(true);
                }
                if self.stopping.load(Ordering::Acquire) {
                    return Ok(false);
                }
                // What was begun comes first (see `slices_of`), of which its output and one behind that are the least.
                let (range, least) = match &unfinished {
                    Some(cut) if cut.is_cut => (cut.range.clone(), cut.range.len()),
                    Some(begun) => (begun.range.clone(), begun.output + 2 - begun.range.start),
                    None => (0..runs.len(), 2),
                };
                let output = unfinished.as_ref().map(|begun| runs[begun.output].id);
                let is_cut = unfinished.as_ref().is_some_and(|begun| begun.is_cut);
                let (options, count) =
                    self.slicing(kind, &runs[range.clone()], self.room_for_slices(tight.space));
                let is_begun = count_max < usize::MAX;
                if count < 2 && range.len() > 1 && tight.budget == Budget::Ordinary && !is_begun {
                    return Err(StoreError::Full);
                }
                let count = count.min(count_max).max(least).min(range.len());
                let inputs = &runs[range.start..range.start + count];
                let slices = Slices { is_cut, ..self.slices_into(output, keyspace, inputs, options) };
                // What is cut still has what a merge would drop.
                (slices, count == runs.len() && !is_cut, count <= least)
            };
            let claim = alone.map(|alone| alone.narrow(slices.runs()));
            if claim.is_some() {
                self.work.ring();
            }
            let lane = claim.as_ref().map_or(Lane::FIRST, Claim::lane);
            let terms = self.terms_of_slices(&slices, lane, tight.space, tight.pace.clone());
            let terms = Terms { leaves_space: !is_least, ..terms };
            let merged = self.merge_in_slices(&slices, &terms);
            drop(claim);
            match (merged, slices.inputs.len()) {
                (Ok(true), _) if is_all => return Ok(true),
                (Ok(true), _) => {}
                (Err(StoreError::Full), count) if count > 2 && !is_least => count_max = count / 2,
                (ended, _) => return ended,
            }
        }
    }

    /// How a merge of these runs can be cut so that it fits beside what others write; `None`: not at all, or readers hold much
    /// of what was merged before.
    pub(super) fn slicing_at_leisure(&self, kind: KeyspaceKind, runs: &[Arc<Run>]) -> Option<MergeOptions> {
        let runs = &runs[unfinished(runs).map_or(0..runs.len(), |unfinished| unfinished.range)];
        let (options, count) = self.slicing(kind, runs, self.room_for_slices(Budget::Ordinary));
        (count == runs.len() && !self.readers_hold_much(Budget::Ordinary)).then_some(options)
    }

    /// Whether so much of what slices have replaced is still read that nothing more should be, in `space`.
    pub(super) fn readers_hold_much(&self, space: Budget) -> bool {
        let bytes_max = match space {
            Budget::Ordinary => self.share_of_writers() / 2,
            _ => ZONES_OF_READERS * u64::from(self.ctx.zones.zone_bytes()),
        };
        self.bytes_outlived() > bytes_max.min(self.share_of_writers() / 2)
    }

    /// What readers hold of what slices have replaced (bytes). Of a piece that was cut it will be lost when its parts are merged.
    fn bytes_outlived(&self) -> u64 {
        self.slices_outlived.read().iter().map(|piece| piece.data_bytes).sum()
    }

    /// See [`SHARE_OF_WRITERS`] (bytes).
    fn share_of_writers(&self) -> u64 {
        self.ctx.zones.space().bytes_capacity / SHARE_OF_WRITERS
    }

    /// What is free for slices within `budget` (bytes).
    fn room_for_slices(&self, budget: Budget) -> u64 {
        match budget {
            Budget::Ordinary => self.space_left().saturating_sub(self.share_of_writers()),
            _ => self.ctx.zones.free_bytes(budget).saturating_sub(self.bytes_waiting()),
        }
    }

    /// How a merge of these runs is cut where so much is free, and how many of the first of them can take part. Rows are all
    /// copied: what is stitched here and there keeps zones from becoming free, of which none is to spare.
    fn slicing(&self, kind: KeyspaceKind, runs: &[Arc<Run>], room_bytes: u64) -> (MergeOptions, usize) {
        let options = self.options.merge;
        let piece_bytes_min =
            PIECE_BYTES_MIN.max(self.ctx.zones.zone_bytes().into()).min(options.piece_bytes);
        let mut piece_bytes = options.piece_bytes;
        // Half of it: what others take meanwhile must not end it.
        while piece_bytes > piece_bytes_min
            && self.inputs_that_fit(runs, piece_bytes, room_bytes / 2) < runs.len()
        {
            piece_bytes = (piece_bytes / 2).max(piece_bytes_min);
        }
        let stitch_bytes_min = if kind == KeyspaceKind::Tuple { u64::MAX } else { options.stitch_bytes_min };
        let count = self.inputs_that_fit(runs, piece_bytes, room_bytes);
        (MergeOptions { stitch_bytes_min, piece_bytes, ..options }, count)
    }

    /// How many of the first of these runs can be merged at once where so much is free.
    fn inputs_that_fit(&self, runs: &[Arc<Run>], piece_bytes: u64, room_bytes: u64) -> usize {
        let zone_bytes = u64::from(self.ctx.zones.zone_bytes());
        let zones_of = |bytes: u64| bytes.div_ceil(zone_bytes);
        let mut left = (room_bytes / zone_bytes).saturating_sub(zones_of(piece_bytes) + ZONES_OF_OUTPUT);
        let fits = |run: &&Arc<Run>| {
            let largest = run.pieces.iter().map(|piece| piece.desc().data_bytes).max().unwrap_or(0);
            let piece_bytes = if is_large(run, piece_bytes) { piece_bytes } else { largest };
            let is_empty = run.pieces.is_empty();
            let zones = zones_of(piece_bytes) + ZONES_OF_INPUT + zones_of(bytes_of_cut(run, piece_bytes));
            let zones = if is_empty { 0 } else { zones };
            let rest = left.checked_sub(zones);
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        runs.iter().take_while(fits).count()
    }

    /// Of these runs, which are neighbours. If a merge that ended early has left some of them, it goes on with those: else all
    /// that it has done would be copied again.
    pub(super) fn slices_of(&self, keyspace: u32, runs: &[Arc<Run>], options: MergeOptions) -> Slices {
        match unfinished(runs) {
            Some(Unfinished { range, output, is_cut }) => {
                let slices = self.slices_into(Some(runs[output].id), keyspace, &runs[range], options);
                Slices { is_cut, ..slices }
            }
            None => self.slices_into(None, keyspace, runs, options),
        }
    }

    /// Of all these runs, into one of them, or a new one.
    fn slices_into(
        &self,
        output: Option<RunId>,
        keyspace: u32,
        runs: &[Arc<Run>],
        options: MergeOptions,
    ) -> Slices {
        let output = output.unwrap_or_else(|| self.new_run_id());
        let inputs = runs.iter().filter(|run| run.id != output);
        let inputs = inputs.map(|run| (run.id, self.new_run_id())).collect();
        Slices { keyspace, inputs, output, is_cut: false, options }
    }

    /// As slices run: each merge ends after a piece.
    pub(super) fn terms_of_slices(
        &self,
        slices: &Slices,
        lane: Lane,
        budget: Budget,
        pace: Option<Arc<dyn Pace>>,
    ) -> Terms {
        Terms { options: slices.options, is_sliced: true, ..self.terms(lane, budget, pace) }
    }

    /// False when it ended early.
    pub(super) fn merge_in_slices(&self, slices: &Slices, terms: &Terms) -> Result<bool> {
        let keyspace = slices.keyspace;
        if slices.is_cut {
            let inputs: Vec<RunId> = slices.inputs.iter().map(|&(input, _)| input).collect();
            let merge = self.merge_of_these(keyspace, &inputs, slices.output, |_| true);
            return merge.map_or(Ok(true), |merge| self.cut(merge, terms));
        }
        let mut inputs = Vec::new();
        for &(input, cut) in &slices.inputs {
            let is_to_be_cut =
                |run: &Run| is_large(run, slices.options.piece_bytes) && self.may_be_cut(keyspace, run);
            let Some(merge) = self.merge_of_these(keyspace, &[input], cut, is_to_be_cut) else {
                inputs.push(input);
                continue;
            };
            if !self.cut(merge, terms)? {
                return Ok(false);
            }
            inputs.push(cut);
        }
        // One of which nothing counted any more has become none.
        let is_there = |id: &RunId| self.view().version.runs(keyspace).iter().any(|run| run.id == *id);
        inputs.retain(is_there);
        match self.merge_of_these(keyspace, &inputs, slices.output, |_| true) {
            Some(merge) => self.slice_by_slice(merge, terms),
            None => Ok(true),
        }
    }

    /// Makes shorter pieces, of nothing but what is there: none of it is dropped, so hardly anything has to be copied. False when
    /// it ended early.
    fn cut(&self, merge: Merge, terms: &Terms) -> Result<bool> {
        let options = MergeOptions { stitch_bytes_min: 0, ..terms.options };
        // There is no less space in the end, so it need not leave any.
        let terms = Terms { options, leaves_space: false, ..terms.clone() };
        self.slice_by_slice(Merge { bottom: false, ..merge }, &terms)
    }

    /// Whether what is made of it may come before all runs of its age, where a new run comes: that none of these has newer data for
    /// its keys.
    fn may_be_cut(&self, keyspace: u32, run: &Run) -> bool {
        let view = self.view();
        let before = view.version.runs(keyspace).iter().take_while(|other| other.id != run.id);
        !before
            .filter(|other| other.age == run.age)
            .any(|other| !comes_before(other, run) && !comes_before(run, other))
    }

    /// Of these runs into `output`, if `wanted` says so of any. Others may have come before them since they were chosen.
    fn merge_of_these(
        &self,
        keyspace: u32,
        ids: &[RunId],
        output: RunId,
        wanted: impl Fn(&Run) -> bool,
    ) -> Option<Merge> {
        let view = self.view();
        let runs = view.version.runs(keyspace);
        // Their order may be another one: runs of one age are ordered by number, and one that was cut has a new one.
        let is_input = |run: &Arc<Run>| ids.contains(&run.id);
        let (first, last) = (runs.iter().position(is_input)?, runs.iter().rposition(is_input)?);
        let (inputs, between): (Vec<_>, Vec<_>) = runs[first..=last].iter().cloned().partition(is_input);
        // If the merge has ended early before, its output, and what was cut then and not yet merged, may lie between what was
        // cut now and the rest: of the output's age, and not behind it.
        let stays_before = |run: &Arc<Run>| run.age == runs[first].age && run.id >= output;
        assert!(between.iter().all(stays_before), "neighbours stay neighbours");
        let is_wanted = inputs.len() == ids.len() && inputs.iter().any(|run| wanted(run));
        is_wanted.then(|| Merge { output, ..self.merge_of(keyspace, &inputs, &runs[last + 1..]) })
    }

    /// False when it ended early.
    fn slice_by_slice(&self, merge: Merge, terms: &Terms) -> Result<bool> {
        let keyspace = merge.keyspace;
        let mut slice = merge;
        loop {
            let is_done = self.run_merge(&slice, terms.clone())?;
            let replaced = std::mem::take(&mut slice.inputs);
            let view = self.view();
            let runs = view.version.runs(keyspace);
            for old in replaced {
                let new = runs.iter().find(|run| run.id == old.id);
                self.slices_outlived.add(old.pieces_lost(new));
                slice.inputs.extend(new.cloned());
            }
            // What the inputs have lost is free once this is gone.
            drop(view);
            if is_done || self.ends_early(terms.pace.is_some()) {
                return Ok(is_done);
            }
            if terms.leaves_space && slice.inputs.len() > 2 && self.is_little_left(terms) {
                return Err(StoreError::Full);
            }
            if terms.pace.is_some() && self.has_to_give_way_to_readers(terms.budget) {
                return Ok(false);
            }
        }
    }

    /// Whether a merge of many runs is to end, so that there is space for one of two: it gives back what each of these holds
    /// of its first and last zone, and then there is more for the rest.
    fn is_little_left(&self, terms: &Terms) -> bool {
        let zone_bytes = u64::from(self.ctx.zones.zone_bytes());
        let zones = 3 * terms.options.piece_bytes.div_ceil(zone_bytes) + 2 * ZONES_OF_INPUT + ZONES_OF_OUTPUT;
        // What somebody still reads will be free, if it is not much.
        let outlived = self.bytes_outlived().min(ZONES_OF_READERS * zone_bytes);
        terms.budget == Budget::Reserve
            && self.ctx.zones.free_bytes(Budget::Reserve) + outlived < zones * zone_bytes
    }

    /// Whether a merge that nobody waits for is to end, so that those who write are not refused for those who read.
    fn has_to_give_way_to_readers(&self, space: Budget) -> bool {
        for _ in 0..WAITS_FOR_READERS {
            if !self.readers_hold_much(space) || self.ends_early(true) {
                break;
            }
            self.timer.wait(WAIT_FOR_READERS);
        }
        self.readers_hold_much(space) || (space == Budget::Ordinary && self.room_for_slices(space) == 0)
    }
}

/// What a merge that ended early has left: its output, and inputs, newest first, of which all keys up to the last one of the
/// output have moved on. What was cut of the newest input has its age and a greater number than the output, so it lies before
/// that; all else comes behind.
pub(super) struct Unfinished {
    pub(super) range: Range<usize>,
    pub(super) output: usize,
    /// A run was being cut: nothing older takes part, and the output lies where its rest does.
    pub(super) is_cut: bool,
}

pub(super) fn unfinished(runs: &[Arc<Run>]) -> Option<Unfinished> {
    (0..runs.len()).filter(|&output| !runs[output].pieces.is_empty()).find_map(|output| {
        let of = &runs[output];
        let is_beyond = |run: &&Arc<Run>| comes_before(of, run);
        // What was cut of an older one has no bound.
        let behind = runs[output + 1..].iter().take_while(is_beyond).count();
        let before =
            runs[..output].iter().rev().take_while(|run| run.age == of.age && is_beyond(run)).count();
        let is_begun = runs[output + 1..][..behind].iter().any(|run| of.ends_before(&run.lower_bound));
        let range = output - before..output + 1 + behind;
        is_begun.then(|| {
            let is_one = runs[range.clone()].iter().all(|run| run.age == of.age);
            let mut rest = runs.iter().filter(|run| run.age == of.age && run.id != of.id);
            Unfinished { range, output, is_cut: is_one && rest.any(|rest| shares_zones(of, rest)) }
        })
    })
}

/// Whether most of the last piece of `output` lies in zones that `rest` has, too, as what was stitched from there does.
fn shares_zones(output: &Run, rest: &Run) -> bool {
    let zones_of_rest: HashSet<ZoneId> =
        rest.pieces.iter().flat_map(|piece| &piece.desc().zones).map(|zone_use| zone_use.zone).collect();
    let last = output.pieces.last().map(|piece| &piece.desc().zones[..]).unwrap_or_default();
    let bytes = |is_meant: &dyn Fn(ZoneId) -> bool| -> u64 {
        last.iter().filter(|zone_use| is_meant(zone_use.zone)).map(|zone_use| zone_use.bytes).sum()
    };
    bytes(&|zone| zones_of_rest.contains(&zone)) > bytes(&|_| true) / 2
}

/// Whether all keys of one run are less than those of the other.
fn comes_before(run: &Run, other: &Run) -> bool {
    other.first_key().is_none_or(|first_key| run.ends_before(first_key))
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
