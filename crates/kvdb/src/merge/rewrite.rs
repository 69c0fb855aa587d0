//! Rewrites: a piece is replaced, in one edit, by new ones of the same content, for the sake of the zones that it lies in.
//! What lies in the zones to be emptied is copied, the rest is stitched. So zones become free at the cost of what is live in
//! them and of the metadata of the pieces that have it there, however much else is stored.
//!
//! Thread safety: each rewrite has claimed its run, or the caller has all. Invariants: a rewrite is a merge of one piece alone, so its
//! keys stay within those of the piece, and what it drops no reader from now on would see.

use std::collections::HashSet;
use std::sync::Arc;

use kvfs_store::{Result, StoreError};

use super::step::{Progress, Stepper, overlap};
use super::{Merger, StepConfig};
use crate::compaction::{Copies, Finished, MergeJob, MergeOptions, Sink, Victims};
use crate::format::{Feature, PieceId, Region};
use crate::iter::KeepRules;
use crate::layers::view::View;
use crate::table::Piece;
use crate::version::{Edit, Run, RunId};

/// A piece is rewritten so often at most: what is shared takes two rounds, parts of packed units may take one for each prefix.
const ROUNDS_MAX: usize = 4;

/// A piece that is to be rewritten.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) keyspace: u32,
    pub(super) run: RunId,
    pub(super) piece: PieceId,
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
    /// Empties the zones of `config.victims`, piece by piece; `has_all`: the caller has all runs. Runs that are being merged are passed
    /// over, and those that can't be read. Before each piece `goes_on` is told how many of how many are done. False when that said no,
    /// or it has given way, or the store is being closed.
    ///
    /// # Errors
    /// `Full`: what lies in a zone finds no space within the budget; I/O errors, corruption: behind all that could be read.
    pub(super) fn empty(
        &self,
        config: &StepConfig,
        has_all: bool,
        goes_on: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<bool> {
        let targets = targets_of(&self.live.view(), &config.victims);
        self.rewrite_all(&targets, config, has_all, goes_on)
    }

    /// Rewrites these pieces; as [`Merger::empty`].
    pub(super) fn rewrite_all(
        &self,
        targets: &[Target],
        config: &StepConfig,
        has_all: bool,
        goes_on: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<bool> {
        let mut unread = Ok(());
        // What clones share is copied once.
        let mut copies = self
            .live
            .has_announced(Feature::Clones)
            .then(|| Arc::new(Copies::of(&config.victims, &self.runtime.ctx.zones)));
        for (done, &target) in targets.iter().enumerate() {
            let is_wanted = !has_all && self.merging.is_wanted();
            if self.runtime.is_stopping() || is_wanted || !goes_on(done, targets.len()) {
                return Ok(false);
            }
            if has_all {
                pass_over(&mut unread, self.stepper.rewrite_all_of(target, config, copies.as_mut()))?;
                continue;
            }
            let claimed = self.merging.claim(|busy| {
                let is_free = !busy.contains(target.run);
                Ok(is_free.then(|| (vec![target.run], ())))
            })?;
            if let Some(((), claim)) = claimed {
                let config = StepConfig { lane: claim.lane(), ..config.clone() };
                pass_over(&mut unread, self.stepper.rewrite_all_of(target, &config, copies.as_mut()))?;
            }
        }
        unread.map(|()| true)
    }
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

/// What can't be read stays where it is, and is told of behind everything else.
pub(super) fn pass_over(unread: &mut Result<()>, rewritten: Result<()>) -> Result<()> {
    match rewritten {
        Err(error @ (StoreError::Io { .. } | StoreError::Corrupt { .. })) => {
            if unread.is_ok() {
                *unread = Err(error);
            }
            Ok(())
        }
        other => other,
    }
}

impl Stepper {
    /// Rewrites a piece, and what takes its place, until nothing of the victims is left: where the piece refers to the same bytes several
    /// times, they are copied at first, and then referred to where they have come to lie.
    fn rewrite_all_of(
        &self,
        target: Target,
        config: &StepConfig,
        mut copies: Option<&mut Arc<Copies>>,
    ) -> Result<()> {
        let mut targets = vec![target];
        for round in 1..=ROUNDS_MAX {
            let mut left = Vec::new();
            for target in targets {
                // In the end whatever is left is copied.
                let copies = copies.as_deref_mut().filter(|_| round < ROUNDS_MAX);
                left.extend(self.rewrite(target, config, copies)?);
            }
            targets = left;
        }
        Ok(())
    }

    /// `copies`: what was copied before for the same victims, to which is added what is now. Returns what still has something of them.
    fn rewrite(
        &self,
        target: Target,
        config: &StepConfig,
        copies: Option<&mut Arc<Copies>>,
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
            // A new piece of that run would count from its base, too: the run becomes another one.
            let is_alone = view.version.merges(keyspace).iter().all(|merge| !merge.involves(run));
            let merge = is_alone.then(|| self.merge_of(keyspace, std::slice::from_ref(of)));
            drop(view);
            return merge.map_or(Ok(Vec::new()), |mut merge| {
                while self.step(&mut merge, config)? == Progress::More {}
                Ok(Vec::new())
            });
        }
        let part = Arc::new(Run { pieces: vec![Arc::clone(&old)], ..Run::clone(of) });
        let bottom = !runs[at + 1..].iter().any(|older| overlap(older, std::slice::from_ref(&part)));
        let before = Arc::clone(of);
        drop(view);
        let victims =
            copies.as_deref().map_or_else(|| config.victims.clone(), |known| config.victims.copied(known));
        let made = self.copies_of(keyspace, part, bottom, victims, config)?;
        let mut edits = vec![Edit::DropPiece { keyspace, run, piece }];
        let add = |piece: &Arc<Piece>| Edit::AddPiece { keyspace, run, piece: piece.desc().clone() };
        edits.extend(made.iter().map(add));
        self.runtime.flush_device("what zones are emptied of")?;
        self.live.announce(Feature::Steps)?;
        self.live.install(edits, &[keyspace], &made, |view| view)?;
        let mut left = Vec::new();
        if let Some(copies) = copies {
            let zones = &self.runtime.ctx.zones;
            let is_victim = |zone| copies.is_to_be_emptied(zone, zones);
            let has_more = |piece: &&Arc<Piece>| piece.desc().zones.iter().any(|held| is_victim(held.zone));
            let target = |piece: &Arc<Piece>| Target { keyspace, run, piece: piece.desc().id };
            left.extend(made.iter().filter(has_more).map(target));
            let is_meant: HashSet<_> =
                old.desc().zones.iter().map(|held| held.zone).filter(|&zone| is_victim(zone)).collect();
            let of_region = |region: &Region<'_>| is_meant.contains(&zones.zone_of(region.addr));
            Arc::make_mut(copies).note(&old, &made, of_region)?;
        }
        drop(old);
        self.note_replaced(keyspace, &[before]);
        Ok(left)
    }

    /// What takes the place of `part`, a run of one piece; nothing older meets it if it is at the `bottom`.
    fn copies_of(
        &self,
        keyspace: u32,
        part: Arc<Run>,
        bottom: bool,
        victims: Victims,
        config: &StepConfig,
    ) -> Result<Vec<Arc<Piece>>> {
        let meta = self.keyspaces.get(keyspace)?;
        let mut spec = self.flusher.output_spec(keyspace, &meta, Some(config.lane), config.budget);
        spec.pace.clone_from(&config.pace);
        spec.piece_bytes = u64::MAX;
        spec.filters = part.is_searched();
        let rules = KeepRules { boundaries: self.history.boundaries(), bottom, merger: meta.merger.clone() };
        // All is stitched that can be.
        let options =
            MergeOptions { stitch_bytes_min: 0, piece_bytes: u64::MAX, ..self.runtime.options.merge };
        let job = MergeJob { spec, inputs: vec![part], rules, options, victims };
        let mut made = Pieces::default();
        match job.run(&mut made) {
            // A write that failed is told to all.
            Err(error) if self.runtime.ctx.has_write_failed() => self.runtime.health.observe(Err(error))?,
            // What could not be read is where it was: nothing is lost yet.
            result => result.map(drop)?,
        }
        let count = |Finished { piece, totals }| {
            self.runtime.counters.note_merge_output(totals);
            piece
        };
        Ok(made.0.into_iter().map(count).collect())
    }
}
