//! The live runs that readers see: immutable values, replaced as a whole.
//!
//! Thread safety: everything here is immutable and shared by `Arc`. A reader that holds a
//! [`Version`] keeps all its pieces, and so their zones, from being reused.
//!
//! Invariants: runs of a keyspace are ordered newest first and their seqno ranges descend, except that the
//! output of an unfinished merge stands beside its trimmed inputs, with disjoint keys; the pieces of a run
//! are ordered by key and don't overlap. The same piece may be in several runs, of forks of one transaction,
//! each with its own base: an open piece belongs to one of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{KeyspaceKind, Result, Seqno};

use super::{ManifestState, MergeState, RunId, RunState};
use crate::format::{PieceDesc, PieceId};
use crate::memtable::{
    BlockFill, BlockSearch, ChangeVisitor, ChangeWalk, Lookup, RangeTombstone, TombstoneSet, block_key,
    first_block_at_or_after,
};
use crate::table::{Piece, RunContext};

/// What is done with a piece of a run that may know undecided blocks of a fill; keys below the bound don't
/// count.
pub(crate) type TakePiece<'t> = &'t mut dyn FnMut(&Arc<Piece>, &mut BlockFill<'_>, &[u8]) -> Result<()>;

/// Blocks are read.
pub(crate) fn read_piece(piece: &Arc<Piece>, fill: &mut BlockFill<'_>, lower_bound: &[u8]) -> Result<()> {
    piece.fill_from(fill, lower_bound)
}

/// A sorted run: pieces with disjoint key ranges, of which the keys below `lower_bound` have moved on.
#[derive(Clone)]
pub(crate) struct Run {
    /// Identity in the manifest.
    pub id: RunId,
    /// Greater means newer.
    pub age: Seqno,
    /// Keys below don't count any more; empty: all count.
    pub lower_bound: Bytes,
    /// By key.
    pub pieces: Vec<Arc<Piece>>,
}

impl Run {
    /// Opens the pieces of `state` and counts their seqnos from `base` on.
    pub(crate) fn open(
        state: &RunState,
        base: Seqno,
        ctx: &Arc<RunContext>,
        keyspace: u32,
        kind: KeyspaceKind,
    ) -> Result<Self> {
        let open = |desc| Piece::open(Arc::clone(ctx), keyspace, kind, desc, base);
        let pieces = state.pieces.iter().map(open).collect::<Result<Vec<_>>>()?;
        Ok(live_run(state, pieces))
    }

    /// The same run with all seqnos counted from `base` on.
    pub(crate) fn rebased(&self, base: Seqno) -> Self {
        Self { pieces: self.pieces.iter().map(|piece| piece.rebased(base)).collect(), ..self.clone() }
    }

    /// The part that may hold anything above `seqno`, by pieces; `None`: nothing does. O(pieces).
    pub(crate) fn part_above(&self, seqno: Seqno) -> Option<Self> {
        let is_newer = |piece: &&Arc<Piece>| piece.seqno_max() > seqno;
        let pieces: Vec<_> = self.pieces.iter().filter(is_newer).cloned().collect();
        (!pieces.is_empty()).then(|| Self { pieces, ..self.clone() })
    }

    /// Whether a reader has looked for keys in it.
    pub(crate) fn is_searched(&self) -> bool {
        self.pieces.iter().any(|piece| piece.is_filter_asked())
    }

    /// Bytes of data that the run refers to.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.desc().data_bytes).sum()
    }

    /// The pieces that it has lost when it is `later`, or has gone. O(pieces of both).
    pub(crate) fn pieces_lost<'a>(
        &'a self,
        later: Option<&Arc<Self>>,
    ) -> impl Iterator<Item = &'a Arc<PieceDesc>> {
        let mut left =
            later.map_or(&[][..], |later| &later.pieces).iter().map(|piece| piece.desc()).peekable();
        let is_lost = move |desc: &&Arc<PieceDesc>| {
            while left.next_if(|left| left.first_key < desc.first_key).is_some() {}
            left.next_if(|left| left.id == desc.id).is_none()
        };
        self.pieces.iter().map(|piece| piece.shared_desc()).filter(is_lost)
    }

    /// Smallest key that counts.
    pub(crate) fn first_key(&self) -> Option<&Bytes> {
        self.pieces.first().map(|piece| (&piece.desc().first_key).max(&self.lower_bound))
    }

    /// Greatest key, or the end of the last range tombstone.
    pub(crate) fn last_key(&self) -> Option<&Bytes> {
        self.pieces.last().map(|piece| &piece.desc().last_key)
    }

    /// Whether a merge of the run alone may drop something: tombstones, versions that only a snapshot saw,
    /// or keys below the bound.
    pub(crate) fn has_garbage(&self) -> Result<bool> {
        if self.pieces.first().is_some_and(|piece| piece.desc().first_key < self.lower_bound) {
            return Ok(true);
        }
        for piece in &self.pieces {
            if piece.has_garbage()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first piece that may hold keys at or above `key`, by number.
    pub(crate) fn piece_at(&self, key: &[u8]) -> usize {
        self.pieces.partition_point(|piece| piece.desc().last_key[..] < *key)
    }

    /// Looks `lookup`'s key up, unless it lies below the bound.
    pub(crate) fn lookup(&self, lookup: &mut Lookup<'_>) -> Result<()> {
        if lookup.key() < &self.lower_bound[..] {
            return Ok(());
        }
        // A tombstone's exclusive end may equal the next piece's first key: then two pieces touch.
        for piece in &self.pieces[self.piece_at(lookup.key())..] {
            if piece.desc().first_key[..] > *lookup.key() || lookup.is_decided() {
                break;
            }
            piece.lookup(lookup)?;
        }
        Ok(())
    }

    /// Decides what it can of `fill`.
    pub(crate) fn fill(&self, fill: &mut BlockFill<'_>) -> Result<()> {
        self.fill_by(fill, &mut read_piece)
    }

    /// As [`Self::fill`], of what `take` does with each piece.
    pub(crate) fn fill_by(&self, fill: &mut BlockFill<'_>, take: TakePiece<'_>) -> Result<()> {
        let (low, high) = (fill.key(0), fill.key(fill.count() - 1));
        if high[..] < self.lower_bound[..] {
            return Ok(());
        }
        for piece in &self.pieces[self.piece_at(&low)..] {
            if piece.desc().first_key[..] > high[..] || fill.is_complete() {
                break;
            }
            take(piece, fill, &self.lower_bound)?;
        }
        Ok(())
    }

    /// Takes a walk over changes through the pieces in its range.
    pub(crate) fn walk_changes(&self, walk: &mut ChangeWalk<impl ChangeVisitor>) -> Result<()> {
        let first = self.piece_at(walk.start(&self.lower_bound));
        for piece in &self.pieces[first..] {
            if walk.is_over() || walk.is_beyond(&piece.desc().first_key) {
                break;
            }
            piece.walk_changes(walk, &self.lower_bound)?;
        }
        Ok(())
    }

    /// Takes a search for the next block through the run.
    pub(crate) fn search(&self, search: &mut BlockSearch<'_>) -> Result<()> {
        if let Some(block) = self.next_block(search)? {
            search.note(block);
        }
        let snapshot = search.snapshot();
        search.pass_covered(|key, end| {
            let over = |piece: &&Arc<Piece>| piece.desc().first_key[..] <= *key;
            let mut pieces = self.pieces[self.piece_at(key)..].iter().take_while(over);
            let until = pieces.find_map(|piece| piece.tombstones().covered_until(key, end, snapshot));
            until.filter(|_| *key >= self.lower_bound[..])
        });
        Ok(())
    }

    /// The smallest block that `search` looks for, tombstones ignored.
    fn next_block(&self, search: &BlockSearch<'_>) -> Result<Option<u64>> {
        let (prefix, mut blocks) = (search.prefix(), search.blocks());
        if search.key()[..] < self.lower_bound[..] {
            let Some(first) = first_block_at_or_after(prefix, &self.lower_bound) else { return Ok(None) };
            blocks.start = first;
        }
        let (key, end) = (block_key(prefix, blocks.start), block_key(prefix, blocks.end));
        for piece in &self.pieces[self.piece_at(&key)..] {
            if blocks.is_empty() || piece.desc().first_key[..] >= end[..] {
                break;
            }
            let found = piece.next_block(prefix, blocks.clone(), search.snapshot())?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The range tombstones at or above the bound.
    pub(crate) fn tombstones(&self) -> impl Iterator<Item = Arc<TombstoneSet>> {
        self.tombstones_before(None)
    }

    /// As [`Self::tombstones`], as far as they lie before `end`; `None`: all.
    pub(crate) fn tombstones_before<'a>(
        &'a self,
        end: Option<&'a Bytes>,
    ) -> impl Iterator<Item = Arc<TombstoneSet>> + 'a {
        let begins = move |piece: &&Arc<Piece>| end.is_none_or(|end| piece.desc().first_key < *end);
        let pieces = self.pieces[self.piece_at(&self.lower_bound)..].iter().take_while(begins);
        pieces.filter(|piece| !piece.tombstones().is_empty()).map(move |piece| {
            let desc = piece.desc();
            if desc.first_key >= self.lower_bound && end.is_none_or(|end| desc.last_key <= *end) {
                Arc::clone(piece.tombstones())
            } else {
                Arc::new(piece.tombstones().clip(&self.lower_bound, end.map(|end| &end[..])))
            }
        })
    }

    /// The range tombstones that begin behind the first key, by where they begin: those of each piece with
    /// any. O(log n) for each piece.
    pub(crate) fn tombstones_behind_first_key(&self) -> impl Iterator<Item = &[RangeTombstone]> {
        let first_key = self.first_key();
        self.pieces[self.piece_at(&self.lower_bound)..].iter().filter_map(move |piece| {
            let list = piece.tombstones().list();
            let begun = list.partition_point(|tombstone| Some(&tombstone.start) <= first_key);
            list.get(begun..).filter(|behind| !behind.is_empty())
        })
    }
}

/// The runs of one keyspace, newest first.
#[derive(Clone, Default)]
pub(crate) struct KeyspaceRuns {
    /// Shared with older and newer versions.
    pub runs: Vec<Arc<Run>>,
    /// Merges that have begun and not ended.
    pub merges: Vec<MergeState>,
}

/// The live set of runs of all keyspaces.
#[derive(Clone, Default)]
pub(crate) struct Version {
    keyspaces: BTreeMap<u32, Arc<KeyspaceRuns>>,
}

impl Version {
    /// The runs of `keyspace`, newest first.
    pub(crate) fn runs(&self, keyspace: u32) -> &[Arc<Run>] {
        self.keyspaces.get(&keyspace).map_or(&[], |runs| &runs.runs)
    }

    /// The merges in `keyspace` that have begun and not ended.
    pub(crate) fn merges(&self, keyspace: u32) -> &[MergeState] {
        self.keyspaces.get(&keyspace).map_or(&[], |runs| &runs.merges)
    }

    /// Every keyspace that has runs.
    pub(crate) fn keyspaces(&self) -> impl Iterator<Item = (u32, &[Arc<Run>])> {
        self.keyspaces.iter().map(|(&id, runs)| (id, &runs.runs[..]))
    }

    /// What `next`, which came after this one, has no more. O(runs²) of the keyspaces that have changed.
    pub(crate) fn pieces_replaced_by(&self, next: &Self) -> Vec<&Arc<PieceDesc>> {
        let mut replaced = Vec::new();
        for (keyspace, runs) in &self.keyspaces {
            let later = next.keyspaces.get(keyspace);
            if later.is_some_and(|later| Arc::ptr_eq(runs, later)) {
                continue;
            }
            for run in &runs.runs {
                let later = later.and_then(|later| later.runs.iter().find(|later| later.id == run.id));
                replaced.extend(run.pieces_lost(later));
            }
        }
        replaced
    }

    /// Opens all that `state` names.
    pub(crate) fn open(state: &ManifestState, ctx: &Arc<RunContext>) -> Result<Self> {
        let mut version = Self::default();
        for (&id, keyspace) in &state.keyspaces {
            let mut runs = Vec::with_capacity(keyspace.runs.len());
            for run in &keyspace.runs {
                runs.push(Arc::new(Run::open(run, run.base, ctx, id, keyspace.kind)?));
            }
            let merges = keyspace.merges.clone();
            version.keyspaces.insert(id, Arc::new(KeyspaceRuns { runs, merges }));
        }
        Ok(version)
    }

    /// The version that `state` describes, with pieces from `self` and from `fresh`. Both must be in
    /// step: every piece of `state` is in one of them. Runs of forks have the same pieces, each counted from
    /// its own base.
    pub(crate) fn follow(&self, state: &ManifestState, keyspace: u32, fresh: &[Arc<Piece>]) -> Self {
        // The smallest seqno tells of which base a piece is.
        let with_place = |piece| -> ((PieceId, Seqno), &Arc<Piece>) {
            let piece: &Arc<Piece> = piece;
            ((piece.desc().id, piece.seqno_min()), piece)
        };
        let mut known: BTreeMap<_, _> = fresh.iter().map(with_place).collect();
        for run in self.runs(keyspace) {
            known.extend(run.pieces.iter().map(with_place));
        }
        let of = state.keyspaces.get(&keyspace);
        let state_runs = of.map_or(&[][..], |of| &of.runs[..]);
        let merges = of.map_or_else(Vec::new, |of| of.merges.clone());
        let runs = state_runs
            .iter()
            .map(|run| {
                let pieces = run
                    .pieces
                    .iter()
                    .filter_map(|desc| {
                        known.get(&(desc.id, desc.seqno_min.wrapping_add(run.base))).map(|&p| Arc::clone(p))
                    })
                    .collect();
                Arc::new(live_run(run, pieces))
            })
            .collect();
        let mut next = self.clone();
        next.keyspaces.insert(keyspace, Arc::new(KeyspaceRuns { runs, merges }));
        next
    }
}

fn live_run(state: &RunState, pieces: Vec<Arc<Piece>>) -> Run {
    debug_assert_eq!(state.pieces.len(), pieces.len(), "manifest and live set are in step");
    Run { id: state.id, age: state.age, lower_bound: state.lower_bound.clone(), pieces }
}
