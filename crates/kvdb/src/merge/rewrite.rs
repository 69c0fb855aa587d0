//! Rewrites: a piece is replaced, in one edit, by new ones of the same content, for the sake of the zones
//! that it lies in. What lies in the zones to be emptied is copied, the rest is stitched. So zones become
//! free at the cost of what is live in them and of the metadata of the pieces that have it there, however
//! much else is stored.
//!
//! Thread safety: each rewrite has claimed its run, or the caller has all. Invariants: a rewrite is a merge
//! of one piece alone, so its keys stay within those of the piece, and what it drops no reader from now on
//! would see.

use std::sync::Arc;

use kvfs_store::{Result, StoreError};

use super::registry::Registry;
use super::step::{Progress, Stepper, overlap};
use super::{Merger, StepConfig};
use crate::compaction::{Finished, MergeJob, MergeOptions, Rescue, Sharing, Sink, Victims};
use crate::format::{Feature, PieceId};
use crate::iter::KeepRules;
use crate::layers::view::View;
use crate::runtime::health::Health;
use crate::table::Piece;
use crate::version::{Edit, Run, RunId};

/// A piece is rewritten so often at most: what is shared takes two rounds, parts of packed units may take one
/// for each prefix.
const ROUNDS_MAX: usize = 4;

/// A piece that is to be rewritten.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) keyspace: u32,
    pub(super) run: RunId,
    pub(super) piece: PieceId,
}

/// What has come of a piece of a run that has to be made anew first.
enum Rebased {
    /// These are to be rewritten.
    To(Vec<Target>),
    /// It was ended behind one of its steps: what is left is a merge that goes on as any other.
    Ended,
}

/// Takes what a rewrite makes.
#[derive(Default)]
struct Pieces(Vec<Finished>);

impl Sink for Pieces {
    fn piece(&mut self, finished: Option<Finished>, _bound: Option<&bytes::Bytes>) -> Result<()> {
        self.0.extend(finished);
        Ok(())
    }
}

impl Merger {
    /// Empties the zones of `config.victims`, piece by piece; `has_all`: the caller has all runs. Runs that
    /// are being merged are passed over, and those that can't be read. Before each piece `goes_on` is told
    /// how many of how many are done. False when that said no, or it has given way, or the store is being
    /// closed.
    ///
    /// # Errors
    /// `Full`: what lies in a zone finds no space within the budget; I/O errors, corruption: behind all that
    /// could be read.
    pub(super) fn empty(
        &self,
        config: &StepConfig,
        has_all: bool,
        goes_on: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<bool> {
        let targets = targets_of(&self.live.view(), &config.victims);
        self.rewrite_all(&targets, config, has_all, goes_on)
    }

    /// Rewrites these pieces; as [`Merger::empty`]. Where the run of one has to be made anew before,
    /// `goes_on` is asked between the steps of that, too.
    pub(super) fn rewrite_all(
        &self,
        targets: &[Target],
        config: &StepConfig,
        has_all: bool,
        goes_on: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<bool> {
        let mut unread = Ok(());
        // What clones share is copied once, by this pass and those before it.
        let is_shared = self.live.has_announced(Feature::Clones);
        self.stepper.copies.forget_emptied();
        let sharing = is_shared.then(|| Arc::new(Sharing::of(&self.stepper.copies, &config.victims)));
        let mut ends = |done| {
            let is_wanted = !has_all && self.merging.is_wanted();
            self.runtime.is_stopping() || is_wanted || !goes_on(done, targets.len())
        };
        for (done, &target) in targets.iter().enumerate() {
            if ends(done) {
                return Ok(false);
            }
            let rebase = |config: &StepConfig| self.stepper.rebase(target, config, &mut || ends(done));
            let rebased = match claimed(&self.merging, target, config, has_all, rebase) {
                Ok(Some(Rebased::Ended)) => return Ok(false),
                Ok(Some(Rebased::To(targets))) => targets,
                Ok(None) => Vec::new(),
                Err(error) => {
                    pass_over(&mut unread, Err(error), &self.runtime.health)?;
                    Vec::new()
                }
            };
            for (at, target) in rebased.into_iter().enumerate() {
                if at > 0 && ends(done) {
                    return Ok(false);
                }
                let sharing = sharing.as_ref();
                let rewrite = |config: &StepConfig| self.stepper.rewrite_all_of(target, config, sharing);
                let rewritten = claimed(&self.merging, target, config, has_all, rewrite);
                pass_over(&mut unread, rewritten.map(drop), &self.runtime.health)?;
            }
        }
        self.stepper.copies.forget_emptied();
        unread.map(|()| true)
    }
}

/// What `act` does to the run of `target`, which is its alone meanwhile. `None`: the run is being merged.
/// `has_all`: the caller has all runs.
fn claimed<T>(
    merging: &Registry,
    target: Target,
    config: &StepConfig,
    has_all: bool,
    act: impl FnOnce(&StepConfig) -> Result<T>,
) -> Result<Option<T>> {
    if has_all {
        return act(config).map(Some);
    }
    let claimed = merging.claim(|busy| {
        let is_free = !busy.contains(target.run);
        Ok(is_free.then(|| (vec![target.run], ())))
    })?;
    let Some(((), claim)) = claimed else { return Ok(None) };
    act(&StepConfig { lane: claim.lane(), ..config.clone() }).map(Some)
}

/// Pieces that have something of `victims`.
fn targets_of(view: &View, victims: &Victims) -> Vec<Target> {
    let mut targets = Vec::new();
    for (keyspace, runs) in view.version.keyspaces() {
        for run in runs {
            let pieces = run.pieces.iter().filter(|piece| victims.have_any_of(piece.desc()));
            targets.extend(pieces.map(|piece| Target { keyspace, run: run.id, piece: piece.desc().id }));
        }
    }
    targets
}

/// What can't be read stays where it is, and is told of behind everything else. Nothing goes on behind a
/// failure of the store.
pub(super) fn pass_over(unread: &mut Result<()>, rewritten: Result<()>, health: &Health) -> Result<()> {
    match rewritten {
        Err(error @ (StoreError::Io { .. } | StoreError::Corrupt { .. })) => {
            health.check()?;
            if unread.is_ok() {
                *unread = Err(error);
            }
            Ok(())
        }
        other => other,
    }
}

impl Stepper {
    /// A new piece of a run whose seqnos are counted from its base would be counted so, too: such a run
    /// becomes another one, of the same bytes where they are. What of it is to be rewritten, which may be
    /// `target` as it is. `ends` is asked behind each step.
    fn rebase(&self, target: Target, config: &StepConfig, ends: &mut dyn FnMut() -> bool) -> Result<Rebased> {
        let Target { keyspace, run, piece } = target;
        let view = self.live.view();
        let Some(of) = view.version.runs(keyspace).iter().find(|other| other.id == run) else {
            return Ok(Rebased::To(Vec::new()));
        };
        let Some(old) = of.pieces.iter().find(|other| other.desc().id == piece).cloned() else {
            return Ok(Rebased::To(Vec::new()));
        };
        if old.seqno_min() == old.desc().seqno_min {
            return Ok(Rebased::To(vec![target]));
        }
        if view.version.merges(keyspace).iter().any(|merge| merge.involves(run)) {
            return Ok(Rebased::To(Vec::new()));
        }
        let mut merge = self.merge_of(keyspace, std::slice::from_ref(of));
        drop(view);
        let stitching = StepConfig { victims: Victims::default(), stitch_bytes_min: 0, ..config.clone() };
        while self.step(&mut merge, &stitching)? == Progress::More {
            if ends() {
                return Ok(Rebased::Ended);
            }
        }
        let view = self.live.view();
        let runs = view.version.runs(keyspace).iter().filter(|run| run.id == merge.output);
        let is_to_be_rewritten =
            |piece: &&Arc<Piece>| config.victims.may_have_any_of(piece.desc(), old.desc());
        let pieces = runs.flat_map(|run| &run.pieces).filter(is_to_be_rewritten);
        let target = |piece: &Arc<Piece>| Target { keyspace, run: merge.output, piece: piece.desc().id };
        Ok(Rebased::To(pieces.map(target).collect()))
    }

    /// Rewrites a piece, and what takes its place, until nothing of the victims is left: where the piece
    /// refers to the same bytes several times, they are copied at first, and then referred to where they have
    /// come to lie.
    fn rewrite_all_of(
        &self,
        target: Target,
        config: &StepConfig,
        sharing: Option<&Arc<Sharing>>,
    ) -> Result<()> {
        let mut targets = vec![target];
        for round in 1..=ROUNDS_MAX {
            let mut left = Vec::new();
            for target in targets {
                // In the end whatever is left is copied.
                left.extend(self.rewrite(target, config, sharing.filter(|_| round < ROUNDS_MAX))?);
            }
            targets = left;
        }
        Ok(())
    }

    /// `sharing`: what was copied before, to which is added what is now. Returns what still has something of
    /// the victims. A piece whose seqnos are counted from a base stays: see [`Self::rebase`].
    fn rewrite(
        &self,
        target: Target,
        config: &StepConfig,
        sharing: Option<&Arc<Sharing>>,
    ) -> Result<Vec<Target>> {
        let Target { keyspace, run, piece } = target;
        let view = self.live.view();
        let runs = view.version.runs(keyspace);
        let Some(at) = runs.iter().position(|other| other.id == run) else { return Ok(Vec::new()) };
        let of = &runs[at];
        let Some(old) = of.pieces.iter().find(|other| other.desc().id == piece).cloned() else {
            return Ok(Vec::new());
        };
        if old.seqno_min() != old.desc().seqno_min {
            return Ok(Vec::new());
        }
        let part = Arc::new(Run { pieces: vec![Arc::clone(&old)], ..Run::clone(of) });
        let bottom = !runs[at + 1..].iter().any(|older| overlap(older, std::slice::from_ref(&part)));
        let before = Arc::clone(of);
        drop(view);
        let victims =
            sharing.map_or_else(|| config.victims.clone(), |sharing| config.victims.copied_once(sharing));
        let (made, unread) = self.copies_of(keyspace, part, bottom, victims, config)?;
        let mut edits = vec![Edit::DropPiece { keyspace, run, piece }];
        let add = |piece: &Arc<Piece>| Edit::AddPiece { keyspace, run, piece: piece.desc().clone() };
        edits.extend(made.iter().map(add));
        self.runtime.flush_device("what zones are emptied of")?;
        self.live.announce(Feature::Steps)?;
        self.live.install(edits, &[keyspace], &made, |view| view)?;
        let mut left = Vec::new();
        if let Some(sharing) = sharing {
            let has_more = |piece: &&Arc<Piece>| {
                piece.desc().zones.iter().any(|held| sharing.is_to_be_emptied(held.zone))
            };
            let target = |piece: &Arc<Piece>| Target { keyspace, run, piece: piece.desc().id };
            left.extend(made.iter().filter(has_more).map(target));
            sharing.note(&old, &made)?;
        }
        drop(old);
        self.note_replaced(keyspace, &[before]);
        unread.map(|()| left)
    }

    /// What takes the place of `part`, a run of one piece; nothing older meets it if it is at the `bottom`.
    /// Beside it the first error of what stays where it is because it can't be read. Where nothing else is to
    /// be copied, there is no reason for a new piece.
    fn copies_of(
        &self,
        keyspace: u32,
        part: Arc<Run>,
        bottom: bool,
        victims: Victims,
        config: &StepConfig,
    ) -> Result<(Vec<Arc<Piece>>, Result<()>)> {
        let meta = self.keyspaces.get(keyspace)?;
        let mut spec = self.flusher.output_spec(keyspace, &meta, Some(config.lane), config.budget);
        spec.pace.clone_from(&config.pace);
        spec.piece_bytes = u64::MAX;
        spec.filters = part.is_searched();
        let rules = KeepRules { boundaries: self.history.boundaries(), bottom, merger: meta.merger.clone() };
        // All is stitched that can be.
        let options =
            MergeOptions { stitch_bytes_min: 0, piece_bytes: u64::MAX, ..self.runtime.options.merge };
        let rescue = Rescue::default();
        let job = MergeJob { spec, inputs: vec![part], rules, options, victims, end: None, rescue };
        let mut made = Pieces::default();
        self.runtime.observe_writes(job.run(&mut made))?;
        let count = |Finished { piece, totals }| {
            self.runtime.counters.note_merge_output(totals);
            piece
        };
        let unread = job.rescue.unread().map_or(Ok(()), Err);
        if !job.rescue.has_copied() {
            unread.clone()?;
        }
        Ok((made.0.into_iter().map(count).collect(), unread))
    }
}
