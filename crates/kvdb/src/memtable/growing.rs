//! Range tombstones that come in while others read them.
//!
//! Purpose: the logarithmic method over immutable [`TombstoneSet`]s. New tombstones go to a short
//! unsorted tail; a full tail becomes a set; [`FANOUT`] sets of similar size are merged into one.
//! Each tombstone is rebuilt O(log n) times, a question asks O(log n) sets.
//!
//! Thread safety: readers and writers at once. Sets are built outside the lock that readers take.
//! Invariants: the union of sets and tail is all tombstones; sizes of sets fall along the list.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::Seqno;

use super::{
    fill::BlockFill,
    search::BlockSearch,
    tombstones::{RangeTombstone, TombstoneSet},
};

/// Tombstones that are searched one by one.
const TAIL_LEN: usize = 16;

/// Sets of one size class before they become one.
const FANOUT: usize = 4;

/// Sets of more tombstones stay as they are: it bounds how long one insertion can take, and a
/// memtable is sealed before it has more than a few of them.
const SET_LEN_MAX: usize = 1 << 13;

/// Memory that a range tombstone takes beyond its keys as a rule (bytes): list entry, fragments, seqno sets.
const OVERHEAD_BYTES: usize = 256;

#[derive(Debug, Default)]
struct State {
    /// Big ones first.
    sets: Vec<Arc<TombstoneSet>>,
    tail: Vec<RangeTombstone>,
}

/// A growing set of range tombstones.
#[derive(Debug, Default)]
pub(super) struct GrowingTombstones {
    state: RwLock<State, class::KvdbMemtableGrowingState>,
    /// Held by the one thread that replaces sets. What they have taken beyond the rule at their largest
    /// (bytes): the more tombstones lie over each other, the more their sets of seqnos take.
    rebuilding: Mutex<usize, class::KvdbMemtableGrowingRebuilding>,
    /// Lets readers of a memtable without range deletes skip the lock.
    count: AtomicUsize,
}

impl GrowingTombstones {
    /// Returns the memory that is taken for it beyond its keys (bytes), and for others that it was merged
    /// with where these take more than the rule. Amortized O(log² n) with small factors: ~½ log₂ n rebuilds
    /// of a sorted list.
    pub(super) fn insert(&self, tombstone: RangeTombstone) -> usize {
        if tombstone.start >= tombstone.end {
            return OVERHEAD_BYTES;
        }
        let tail_len = {
            let mut state = self.state.write();
            state.tail.push(tombstone);
            // Inside the lock, so that the count never lags behind what a reader could be told of.
            self.count.fetch_add(1, Ordering::Release);
            state.tail.len()
        };
        if tail_len >= TAIL_LEN
            && let Some(mut beyond_rule) = self.rebuilding.try_lock()
        {
            self.fold_tail();
            let beyond = self.bytes_beyond_rule().saturating_sub(*beyond_rule);
            *beyond_rule += beyond;
            return OVERHEAD_BYTES + beyond;
        }
        OVERHEAD_BYTES
    }

    /// O(sets).
    fn bytes_beyond_rule(&self) -> usize {
        let state = self.state.read();
        let sets = || state.sets.iter();
        let by_rule = sets().map(|set| set.len()).sum::<usize>() * OVERHEAD_BYTES;
        sets().map(|set| set.overhead_bytes()).sum::<usize>().saturating_sub(by_rule)
    }

    /// Makes a set of the tail, and one of the last sets if they are of similar size. The caller
    /// holds `rebuilding`, so that only tails grow meanwhile.
    fn fold_tail(&self) {
        let (tail, mut sets) = {
            let state = self.state.read();
            (state.tail.clone(), state.sets.clone())
        };
        if tail.len() < TAIL_LEN {
            return;
        }
        let tail_len = tail.len();
        sets.push(Arc::new(TombstoneSet::new(tail)));
        while let Some(from) = sets.len().checked_sub(FANOUT) {
            let newest_len = sets[sets.len() - 1].len();
            if sets[from].len() > (FANOUT * newest_len).min(SET_LEN_MAX) {
                break;
            }
            let merged = TombstoneSet::union(sets[from..].iter().map(|set| &**set));
            sets.truncate(from);
            sets.push(Arc::new(merged));
        }
        self.replace(sets, tail_len);
    }

    fn replace(&self, sets: Vec<Arc<TombstoneSet>>, tail_len: usize) {
        let mut state = self.state.write();
        state.tail.drain(..tail_len);
        state.sets = sets;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The newest seqno at or below `snapshot` of a tombstone over `key`.
    pub(super) fn covering(&self, key: &[u8], snapshot: Seqno) -> Option<Seqno> {
        if self.is_empty() {
            return None;
        }
        let state = self.state.read();
        let in_tail = state
            .tail
            .iter()
            .filter(|tombstone| tombstone.seqno <= snapshot && tombstone.covers(key))
            .map(|tombstone| tombstone.seqno)
            .max();
        // Newer sets come last; once they have answered, older ones need no search.
        state.sets.iter().rev().fold(in_tail, |newest, set| match newest {
            Some(newest) if newest >= set.seqno_max() => Some(newest),
            _ => newest.max(set.covering(key, snapshot)),
        })
    }

    /// The stretches of positions of `fill` that tombstones cover at its snapshot, each with a covering
    /// seqno; they may overlap.
    pub(super) fn covered(&self, fill: &BlockFill<'_>) -> Vec<(Range<usize>, Seqno)> {
        if self.is_empty() {
            return Vec::new();
        }
        let state = self.state.read();
        let in_sets = state.sets.iter().flat_map(|set| fill.covered(set));
        let in_tail = state
            .tail
            .iter()
            .filter(|tombstone| tombstone.seqno <= fill.snapshot())
            .map(|tombstone| (fill.positions(&tombstone.start, &tombstone.end), tombstone.seqno));
        in_sets.chain(in_tail).filter(|(range, _)| !range.is_empty()).collect()
    }

    /// Takes `search` over what they cover.
    pub(super) fn pass_covered(&self, search: &mut BlockSearch<'_>) {
        if self.is_empty() {
            return;
        }
        let (state, snapshot) = (self.state.read(), search.snapshot());
        search.pass_covered(|key, end| {
            let in_sets = state.sets.iter().filter_map(|set| set.covered_until(key, end, snapshot));
            let covers = |tombstone: &&RangeTombstone| tombstone.seqno <= snapshot && tombstone.covers(key);
            in_sets.chain(state.tail.iter().filter(covers).map(|tombstone| &tombstone.end)).max()
        });
    }

    /// All tombstones now, as few sets whose key ranges may overlap. Cheap.
    pub(super) fn sets(&self) -> Vec<Arc<TombstoneSet>> {
        if self.is_empty() {
            return Vec::new();
        }
        let state = self.state.read();
        let mut sets = state.sets.clone();
        if !state.tail.is_empty() {
            sets.push(Arc::new(TombstoneSet::new(state.tail.iter().cloned())));
        }
        sets
    }

    /// All tombstones now, as one set, which is kept: cheap when nothing came in between.
    pub(super) fn whole(&self) -> Arc<TombstoneSet> {
        if self.is_empty() {
            return Arc::default();
        }
        let _rebuilding = self.rebuilding.lock();
        let (tail_len, sets) = {
            let state = self.state.read();
            if let ([set], []) = (&state.sets[..], &state.tail[..]) {
                return Arc::clone(set);
            }
            let mut sets = state.sets.clone();
            sets.push(Arc::new(TombstoneSet::new(state.tail.iter().cloned())));
            (state.tail.len(), sets)
        };
        let whole = Arc::new(TombstoneSet::union(sets.iter().map(|set| &**set)));
        self.replace(vec![Arc::clone(&whole)], tail_len);
        whole
    }
}

#[cfg(test)]
mod tests;
