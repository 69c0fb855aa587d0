//! One step of a merge: how much it takes, and how its output comes in.
//!
//! Where the whole of a merge could be copied beside its inputs, a step is as long as a piece may be, and an
//! input's piece gives its space back when its end is merged. Where there is less space (a *tight* step) it
//! is as short as the space asks for, down to a zone, and what is left of a piece of which a zone's worth has
//! gone is stitched into a new one ([`Rest`]), so that all that the step has taken is free behind it, as soon
//! as no reader needs it. There are no more inputs at a time then than there are free zones for: a merge may
//! be *narrowed* to its newest inputs, since its output has the age of the newest and lies before all of
//! them.
//!
//! Thread safety: the caller has claimed the runs, or has all. Invariants: nothing here holds a version when
//! a step is over, since that would hold the space. Readers may: where no caller waits for the merge, it
//! gives way before what they hold comes to much.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{KeyspaceKind, Result, StoreError};

use super::Merge;
use crate::compaction::{
    Copies, Finished, MergeJob, MergeOptions, OutputSpec, Pace, Rescue, Rest, Sink, Victims, end_of_step,
};
use crate::flush::Flusher;
use crate::flush::headroom::Space;
use crate::format::{Feature, PieceDesc};
use crate::history::History;
use crate::iter::KeepRules;
use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::live::pinned_garbage::PinnedGarbage;
use crate::runtime::Runtime;
use crate::space::{Budget, Lane};
use crate::table::Piece;
use crate::version::{Edit, Run, RunId, bytes_of};

/// With shorter pieces, metadata would take a large part of the space (bytes).
const PIECE_BYTES_MIN: u64 = 256 << 10;
/// Zones that an input holds of what has gone: one that is gone in part, and as much as is not worth a new
/// piece.
const ZONES_OF_INPUT: u64 = 2;
/// Zones that the output of a step begins besides its data: of metadata, and one that it fills in part.
const ZONES_OF_OUTPUT: u64 = 3;

/// The part of the capacity that merges for which no caller waits leave to writers, and half of which readers
/// may hold.
const SHARE_OF_WRITERS: u64 = 16;
/// In the reserve readers may hold no more zones than this.
const ZONES_OF_READERS: u64 = 4;

/// The part of the share of indexes and filters that those of a merge's inputs may hold: several merges run
/// at once.
const SHARE_OF_INPUTS: u64 = 4;

/// On whose behalf a merge advances, and how.
#[derive(Clone)]
pub(crate) struct StepConfig {
    /// Whose zones it fills.
    pub(crate) lane: Lane,
    pub(crate) victims: Victims,
    /// Before each step of a whole merge `victims` are chosen anew: see [`Merger::finish`].
    pub(crate) cleans: bool,
    pub(crate) budget: Budget,
    /// `None`: a caller waits for it.
    pub(crate) pace: Option<Arc<dyn Pace>>,
    pub(crate) stitch_bytes_min: u64,
    /// Space is taken to be short.
    pub(crate) is_tight: bool,
    /// The two newest inputs are tried where there may be too little space for them.
    pub(crate) tries_least: bool,
    /// A writer waits with so many bytes: what makes space for it ends when there is enough.
    pub(crate) bytes_wanted: Option<u64>,
}

/// Whether a merge has come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
}

/// How much a step takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepSize {
    piece_bytes: u64,
    /// How many inputs, the newest ones.
    inputs: usize,
    pub(super) is_tight: bool,
}

/// Advances merges, and rewrites pieces, one step at a time.
pub(crate) struct Stepper {
    pub(super) runtime: Arc<Runtime>,
    pub(super) live: Arc<LiveSet>,
    pub(super) keyspaces: Arc<Keyspaces>,
    pub(super) history: Arc<History>,
    pub(super) space: Arc<Space>,
    pub(super) flusher: Arc<Flusher>,
    /// What was copied out of zones that are emptied.
    pub(super) copies: Arc<Copies>,
    /// Pieces of former versions that steps have replaced.
    pieces_replaced: PinnedGarbage<PieceDesc>,
}

impl Stepper {
    /// Of what `flusher` writes.
    pub(super) fn new(flusher: &Arc<Flusher>) -> Self {
        Self {
            runtime: Arc::clone(&flusher.runtime),
            live: Arc::clone(&flusher.live),
            keyspaces: Arc::clone(&flusher.keyspaces),
            history: Arc::clone(&flusher.history),
            space: Arc::clone(&flusher.space),
            flusher: Arc::clone(flusher),
            copies: Arc::new(Copies::new(&flusher.runtime.ctx)),
            pieces_replaced: PinnedGarbage::default(),
        }
    }

    /// Of these neighbours, into a run of its own.
    pub(crate) fn merge_of(&self, keyspace: u32, inputs: &[Arc<Run>]) -> Merge {
        let inputs = inputs.iter().map(|run| run.id).collect();
        Merge { keyspace, inputs, output: self.live.new_run_id() }
    }

    /// How many of these runs are merged at once: an index of each is held meanwhile.
    pub(super) fn inputs_max(&self, runs: &[Arc<Run>]) -> usize {
        let options = &self.runtime.options.merge;
        let of_pieces = runs.iter().flat_map(|run| &run.pieces).map(|piece| piece.index_bytes());
        let room = self.runtime.ctx.accountant.index_budget() / SHARE_OF_INPUTS;
        let fitting = room / of_pieces.max().unwrap_or(0).max(1);
        // A class that is due, and the oldest run.
        let least = options.class_runs.max(2) + 1;
        usize::try_from(fitting).unwrap_or(usize::MAX).max(least).min(options.inputs_max).max(2)
    }

    /// How many bytes are merged as if space were plenty: the whole of it could be copied beside its inputs.
    /// Blocks are stitched, as a rule; and where no merge can do with less, it is tried.
    pub(super) fn room_for_merge(&self, kind: KeyspaceKind) -> u64 {
        if kind == KeyspaceKind::Block || !self.runtime.ctx.zones.reserves_for_merges() {
            u64::MAX
        } else {
            self.space.space_left()
        }
    }

    /// As steps run ordinarily.
    pub(crate) fn step_config(&self, lane: Lane, budget: Budget, pace: Option<Arc<dyn Pace>>) -> StepConfig {
        let stitch_bytes_min = self.runtime.options.merge.stitch_bytes_min;
        let victims = Victims::default();
        StepConfig {
            lane,
            victims,
            cleans: false,
            budget,
            pace,
            stitch_bytes_min,
            is_tight: false,
            tries_least: false,
            bytes_wanted: None,
        }
    }

    /// Advances `merge` by one piece; narrows it where there is too little space, or memory, for all its
    /// inputs.
    ///
    /// # Errors
    /// `Full`: not even two inputs fit; I/O errors, corruption: sticky, but for what can't be read. What came
    /// in before stays, and where something can't be read nothing goes on with the merge.
    pub(crate) fn step(&self, merge: &mut Merge, config: &StepConfig) -> Result<Progress> {
        let view = self.live.view();
        let runs = view.version.runs(merge.keyspace).iter();
        let inputs: Vec<Arc<Run>> = runs.filter(|run| merge.inputs.contains(&run.id)).cloned().collect();
        let (count, bytes, inputs_max) = (inputs.len(), bytes_of(&inputs), self.inputs_max(&inputs));
        drop((inputs, view));
        if count == 0 {
            return Ok(Progress::Done);
        }
        let kind = self.keyspaces.kind(merge.keyspace)?;
        let size = self.size_of_step(kind, count, bytes, config).ok_or(StoreError::Full)?;
        merge.inputs.truncate(size.inputs.min(inputs_max));
        loop {
            match self.advance(merge, size, config) {
                // Fewer need less. At once: nothing knows yet that it is narrowed.
                Err(StoreError::Full) if size.is_tight && merge.inputs.len() > 2 => {
                    merge.inputs.truncate((merge.inputs.len() / 2).max(2));
                }
                stepped => {
                    let stepped = self.runtime.observe_writes(stepped);
                    if stepped.as_ref().is_err_and(|error| self.runtime.health.is_of_a_read(error)) {
                        self.end_here(merge)?;
                    }
                    return stepped;
                }
            }
        }
    }

    /// What a merge has made stays, and what it has not come to stays what it was. Recorded, any other merge
    /// would go on with it, and fail for good.
    fn end_here(&self, merge: &Merge) -> Result<()> {
        let &Merge { keyspace, output, .. } = merge;
        let is_recorded =
            self.live.view().version.merges(keyspace).iter().any(|known| known.output == output);
        if !is_recorded {
            return Ok(());
        }
        let forgotten = Edit::RecordMerge { keyspace, output, inputs: Vec::new() };
        self.live.install(vec![forgotten], &[keyspace], &[], |view| view)
    }

    fn advance(&self, merge: &Merge, size: StepSize, config: &StepConfig) -> Result<Progress> {
        let start = self.runtime.clock.monotonic();
        let view = self.live.view();
        let runs = view.version.runs(merge.keyspace);
        let is_input = |run: &Arc<Run>| merge.inputs.contains(&run.id);
        let inputs: Vec<Arc<Run>> = runs.iter().filter(|run| is_input(run)).cloned().collect();
        let behind = runs.iter().rposition(is_input).map_or(runs.len(), |last| last + 1);
        let bottom = !runs[behind..].iter().any(|run| overlap(run, &inputs));
        let recorded = view.version.merges(merge.keyspace).iter().find(|known| known.output == merge.output);
        let recorded = recorded.map(|known| known.inputs.clone());
        let added = runs.iter().any(|run| run.id == merge.output);
        drop(view);

        let meta = self.keyspaces.get(merge.keyspace)?;
        let mut spec = self.flusher.output_spec(merge.keyspace, &meta, Some(config.lane), config.budget);
        spec.pace.clone_from(&config.pace);
        spec.piece_bytes = size.piece_bytes;
        // There may be hardly any space.
        spec.copies_meta = !(size.is_tight && config.budget == Budget::Reserve);
        spec.filters = inputs.iter().any(|run| run.is_searched());
        // Of rows what is stitched here and there keeps zones from becoming free, of which none is to spare.
        let copies_all = size.is_tight && meta.kind == KeyspaceKind::Tuple;
        let options = MergeOptions {
            stitch_bytes_min: if copies_all { u64::MAX } else { config.stitch_bytes_min },
            piece_bytes: size.piece_bytes,
            ..self.runtime.options.merge
        };
        let (boundaries, merger) = (self.history.boundaries(), meta.merger.clone());
        let end = end_of_step(&inputs, options.tombstones_max);
        debug_assert!(end.as_ref().is_none_or(|end| inputs.iter().any(|run| run.lower_bound < *end)));
        let job = MergeJob {
            spec: spec.clone(),
            inputs: inputs.clone(),
            rules: KeepRules { boundaries, bottom, merger },
            options,
            victims: config.victims.clone(),
            end,
            rescue: Rescue::default(),
        };
        let releases = size.is_tight;
        let mut install = Install {
            stepper: self,
            merge,
            inputs: &inputs,
            recorded,
            added,
            releases,
            spec,
            has_stopped: false,
        };
        let result = job.run(&mut install);
        let has_stopped = install.has_stopped;
        if !has_stopped {
            result?;
        }
        drop(job);
        self.note_replaced(merge.keyspace, &inputs);
        self.runtime.counters.note_merge(self.runtime.clock.monotonic().saturating_sub(start), !has_stopped);
        Ok(if has_stopped { Progress::More } else { Progress::Done })
    }

    /// Readers may hold what these have lost.
    pub(super) fn note_replaced(&self, keyspace: u32, before: &[Arc<Run>]) {
        let view = self.live.view();
        let runs = view.version.runs(keyspace);
        for old in before {
            self.pieces_replaced.add(old.pieces_lost(runs.iter().find(|run| run.id == old.id)));
        }
    }

    /// How much a step of so many runs, of so many bytes together, takes; `None`: there is no space for two
    /// of them, and it is not to be tried.
    pub(super) fn size_of_step(
        &self,
        kind: KeyspaceKind,
        count: usize,
        bytes: u64,
        config: &StepConfig,
    ) -> Option<StepSize> {
        let options = &self.runtime.options.merge;
        if !config.is_tight && bytes <= self.room_for_merge(kind) {
            return Some(StepSize { piece_bytes: options.piece_bytes, inputs: count, is_tight: false });
        }
        let zone_bytes = u64::from(self.runtime.ctx.zones.zone_bytes());
        let (count, zones) = (count as u64, self.room_for_steps(config.budget) / zone_bytes);
        let needed = |piece_bytes: u64, inputs: u64| {
            piece_bytes.div_ceil(zone_bytes) + ZONES_OF_OUTPUT + ZONES_OF_INPUT * inputs
        };
        let piece_bytes_min = PIECE_BYTES_MIN.max(zone_bytes).min(options.piece_bytes);
        let mut piece_bytes = options.piece_bytes;
        // Half of it: what others take meanwhile must not end it.
        while piece_bytes > piece_bytes_min && needed(piece_bytes, count) > zones / 2 {
            piece_bytes = (piece_bytes / 2).max(piece_bytes_min);
        }
        // Blocks are stitched, as a rule.
        let fitting = if kind == KeyspaceKind::Block {
            count
        } else {
            zones.saturating_sub(needed(piece_bytes, 0)) / ZONES_OF_INPUT
        };
        let least = count.min(2);
        let inputs = fitting.clamp(least, count) as usize;
        (fitting >= least || config.tries_least).then_some(StepSize { piece_bytes, inputs, is_tight: true })
    }

    /// What is free for steps within `budget` (bytes).
    pub(super) fn room_for_steps(&self, budget: Budget) -> u64 {
        if budget == Budget::Ordinary {
            return self.space.space_left().saturating_sub(self.share_of_writers());
        }
        let zones = &self.runtime.ctx.zones;
        // What readers still hold will be free, if it is not much.
        let held = self.bytes_pinned().min(ZONES_OF_READERS * u64::from(zones.zone_bytes()));
        (zones.free_bytes(budget) + held).saturating_sub(self.space.bytes_waiting())
    }

    /// Whether so much of what steps have replaced is still read that nothing more should be, in `budget`.
    pub(crate) fn readers_hold_much(&self, budget: Budget) -> bool {
        let bytes_max = match budget {
            Budget::Ordinary => u64::MAX,
            _ => ZONES_OF_READERS * u64::from(self.runtime.ctx.zones.zone_bytes()),
        };
        self.bytes_pinned() > bytes_max.min(self.share_of_writers() / 2)
    }

    /// What readers hold of what steps have replaced (bytes).
    fn bytes_pinned(&self) -> u64 {
        self.pieces_replaced.read().iter().map(|piece| piece.data_bytes).sum()
    }

    /// See [`SHARE_OF_WRITERS`] (bytes).
    fn share_of_writers(&self) -> u64 {
        self.runtime.ctx.zones.space().bytes_capacity / SHARE_OF_WRITERS
    }
}

/// Takes over the output of one step.
struct Install<'a> {
    stepper: &'a Stepper,
    merge: &'a Merge,
    /// Newest first.
    inputs: &'a [Arc<Run>],
    /// The inputs that the manifest knows of.
    recorded: Option<Vec<RunId>>,
    /// The output is there already.
    added: bool,
    /// Pieces of which the beginning has gone are replaced by their rest.
    releases: bool,
    spec: OutputSpec,
    /// There is more to come.
    has_stopped: bool,
}

impl Sink for Install<'_> {
    fn piece(&mut self, finished: Option<Finished>, bound: Option<&Bytes>) -> Result<()> {
        let mut edits = Vec::new();
        let mut fresh: Vec<Arc<Piece>> = Vec::new();
        if let Some(pace) = &self.spec.pace {
            // One that only stitches has spent nothing so far, but its flushes of the device are in the way,
            // too.
            pace.spend(0);
        }
        let (keyspace, output) = (self.merge.keyspace, self.merge.output);
        if let Some(Finished { piece, totals }) = finished {
            self.stepper.runtime.counters.note_merge_output(totals);
            if !self.added {
                let age = self.inputs.first().map_or(0, |newest| newest.age);
                edits.push(Edit::AddRun { keyspace, run: output, age });
                self.added = true;
            }
            edits.push(Edit::AddPiece { keyspace, run: output, piece: piece.desc().clone() });
            fresh.push(piece);
        }
        self.record(bound.is_some(), &mut edits);
        for input in self.inputs {
            match bound {
                Some(bound) if *bound > input.lower_bound => {
                    edits.push(Edit::TrimRun { keyspace, run: input.id, lower_bound: bound.clone() });
                    if self.releases {
                        self.release(input, bound, &mut edits, &mut fresh)?;
                    }
                }
                // An earlier merge has trimmed it further already.
                Some(_) => {}
                None => edits.push(Edit::DropRun { keyspace, run: input.id }),
            }
        }
        if !fresh.is_empty() {
            self.stepper.runtime.flush_device("a merge's output")?;
        }
        if edits.iter().any(|edit| matches!(edit, Edit::RecordMerge { .. } | Edit::DropPiece { .. })) {
            self.stepper.live.announce(Feature::Steps)?;
        }
        self.stepper.live.install(edits, &[keyspace], &fresh, |view| view)?;
        if bound.is_some() {
            self.has_stopped = true;
            return Err(stopped());
        }
        Ok(())
    }
}

impl Install<'_> {
    /// What the manifest is to know of the merge, if it knows something else: nothing, as long as it has made
    /// nothing. Then its inputs are merely shorter, and any merge may follow.
    fn record(&mut self, is_to_go_on: bool, edits: &mut Vec<Edit>) {
        let (keyspace, output) = (self.merge.keyspace, self.merge.output);
        let is_known = self.recorded.as_ref() == Some(&self.merge.inputs);
        if is_to_go_on && self.added && !is_known {
            edits.push(Edit::RecordMerge { keyspace, output, inputs: self.merge.inputs.clone() });
        } else if !is_to_go_on && self.recorded.is_some() && !is_known {
            // Of those that were left out nothing is to come into this output any more.
            edits.push(Edit::RecordMerge { keyspace, output, inputs: Vec::new() });
        }
    }

    /// Has the rest of `input`'s first piece take its place, if that lets a zone's worth of data go.
    fn release(
        &self,
        input: &Run,
        bound: &Bytes,
        edits: &mut Vec<Edit>,
        fresh: &mut Vec<Arc<Piece>>,
    ) -> Result<()> {
        let (keyspace, run) = (self.merge.keyspace, input.id);
        let bytes_min = u64::from(self.stepper.runtime.ctx.zones.zone_bytes());
        let is_behind = |piece: &&Arc<Piece>| piece.desc().last_key < *bound;
        let has_begun = |piece: &&Arc<Piece>| piece.desc().first_key < *bound;
        for piece in input.pieces.iter().skip_while(is_behind).take_while(has_begun) {
            let PieceDesc { id, data_bytes, .. } = *piece.desc();
            // Its seqnos count from others than those of a new piece.
            let is_rebased = piece.seqno_min() != piece.desc().seqno_min;
            if is_rebased || data_bytes < bytes_min {
                continue;
            }
            let rest = Rest::of(piece, bound)?;
            if rest.bytes_gone() < bytes_min {
                continue;
            }
            match rest.write(&self.spec) {
                Ok(rest) => {
                    edits.push(Edit::DropPiece { keyspace, run, piece: id });
                    edits.extend(rest.as_ref().map(|rest| {
                        let piece = rest.desc().clone();
                        Edit::AddPiece { keyspace, run, piece }
                    }));
                    fresh.extend(rest);
                }
                // It goes with its end.
                Err(StoreError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The internal error that ends a step; never leaves this module.
fn stopped() -> StoreError {
    StoreError::Unsupported { engine: "kvdb", what: "merging beyond a step" }
}

/// Whether `run` holds keys between the first and the last key of `inputs`.
pub(super) fn overlap(run: &Run, inputs: &[Arc<Run>]) -> bool {
    let first = inputs.iter().filter_map(|input| input.first_key()).min();
    let last = inputs.iter().filter_map(|input| input.last_key()).max();
    let (Some(first), Some(last)) = (first, last) else { return false };
    run.first_key().is_some_and(|key| key <= last) && run.last_key().is_some_and(|key| key >= first)
}
