//! The range tombstones of one layer, asked for keys in walking order.
//!
//! Thread safety: belongs to one reader.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::Seqno;

use crate::memtable::{Fragment, TombstoneSet};

/// A set, and where the last question fell: the index of the first fragment that ended after it.
struct Remembering {
    set: Arc<TombstoneSet>,
    at: usize,
}

impl Remembering {
    /// Points `at` at the first fragment that ends after `key`. O(1) when the last question was near,
    /// else O(log n).
    fn remember(&mut self, key: &[u8]) {
        let ends_after = |at: usize| self.set.fragment(at).is_none_or(|fragment| fragment.end[..] > *key);
        let is_first = |at: usize| ends_after(at) && !at.checked_sub(1).is_some_and(ends_after);
        if !is_first(self.at) {
            let next = self.at + 1;
            self.at = if is_first(next) { next } else { self.set.first_ending_after(key) };
        }
    }

    /// The fragment over `key`, which was remembered just now.
    fn fragment_over(&self, key: &[u8]) -> Option<Fragment<'_>> {
        self.set.fragment(self.at).filter(|fragment| fragment.start[..] <= *key)
    }

    fn covering(&mut self, key: &[u8], snapshot: Seqno) -> Option<Seqno> {
        self.remember(key);
        self.fragment_over(key)?.newest_at(snapshot)
    }
}

/// The tombstones of a layer: one set (a piece), or some that overlap (a memtable), or many with
/// disjoint key ranges (the pieces of a run).
pub(super) struct LayerTombstones {
    /// By first key.
    sets: Vec<Remembering>,
    /// The set that the last question fell into, when no two sets overlap.
    disjoint: Option<usize>,
}

impl LayerTombstones {
    pub(super) fn new(sets: impl IntoIterator<Item = Arc<TombstoneSet>>) -> Self {
        let mut sets: Vec<_> =
            sets.into_iter().filter(|set| !set.is_empty()).map(|set| Remembering { set, at: 0 }).collect();
        sets.sort_by(|a, b| a.set.bounds().cmp(&b.set.bounds()));
        let overlap = sets.windows(2).any(|pair| match (pair[0].set.bounds(), pair[1].set.bounds()) {
            (Some((_, end)), Some((start, _))) => start < end,
            _ => false,
        });
        Self { disjoint: (!overlap && sets.len() > 1).then_some(0), sets }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// The sets that may cover `key`: all of them, or the one if they are disjoint.
    fn candidates(&mut self, key: &[u8]) -> &mut [Remembering] {
        let Some(last) = &mut self.disjoint else { return &mut self.sets };
        let holds = |set: &Remembering| {
            set.set.bounds().is_some_and(|(start, end)| start[..] <= *key && *key < end[..])
        };
        if !self.sets.get(*last).is_some_and(holds) {
            *last = self
                .sets
                .partition_point(|set| set.set.bounds().is_some_and(|(_, end)| end[..] <= *key))
                .min(self.sets.len() - 1);
        }
        &mut self.sets[*last..=*last]
    }

    /// The newest seqno at or below `snapshot` of a tombstone over `key`.
    pub(super) fn covering(&mut self, key: &[u8], snapshot: Seqno) -> Option<Seqno> {
        self.candidates(key).iter_mut().filter_map(|set| set.covering(key, snapshot)).max()
    }

    /// The end of a stretch from `key` on that is wholly covered at `snapshot`, by one set.
    pub(super) fn covered_until(&mut self, key: &[u8], snapshot: Seqno) -> Option<Bytes> {
        let stretch = |set: &mut Remembering| {
            set.remember(key);
            set.set.covered_ends(set.at, key, snapshot).last().cloned()
        };
        self.candidates(key).iter_mut().filter_map(stretch).max()
    }

    /// The start of a stretch up to and with `key` that is wholly covered at `snapshot`, by one set.
    pub(super) fn covered_from(&mut self, key: &[u8], snapshot: Seqno) -> Option<Bytes> {
        let stretch = |set: &mut Remembering| {
            set.remember(key);
            let mut start = set.fragment_over(key).filter(|f| f.newest_at(snapshot).is_some())?.start;
            let mut at = set.at;
            while let Some(previous) = at.checked_sub(1).and_then(|before| set.set.fragment(before))
                && previous.end == start
                && previous.newest_at(snapshot).is_some()
            {
                (start, at) = (previous.start, at - 1);
            }
            Some(start.clone())
        };
        self.candidates(key).iter_mut().filter_map(stretch).min()
    }
}

#[cfg(test)]
mod tests;
