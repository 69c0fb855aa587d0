//! A search for everything that changed between two positions, on its way through the layers of a keyspace.
//!
//! Purpose: comparing two snapshots without reading what both see alike. Layers, pieces, blocks and regions of
//! which nothing is newer than the older position are passed over unread.
//!
//! Invariants: the search covers one window of keys. A sequence that finds as much as the window may hold ends
//! the window there, for all layers; so memory is bounded, and what was found is complete below the end.
//!
//! Thread safety: belongs to one searcher.

use bytes::Bytes;
use kvfs_store::{KeyRange, Seqno};

use super::TombstoneSet;

/// Most ranges that one sequence finds in a window.
const FOUND_MAX: usize = 1024;

/// The search in one window.
#[derive(Debug)]
pub struct ChangedSearch {
    start: Bytes,
    /// Where the window ends; comes down.
    end: Option<Bytes>,
    older: Seqno,
    newer: Seqno,
    found: Vec<(Bytes, Bytes)>,
    in_sequence: usize,
}

/// What a window held.
#[derive(Debug)]
pub struct Window {
    /// Ascending and disjoint.
    pub ranges: Vec<KeyRange>,
    /// Where the next window begins; `None`: there is none.
    pub next: Option<Bytes>,
}

impl ChangedSearch {
    /// Looks for changes above `older`, up to and with `newer`, of the keys in `range`.
    pub fn new(range: KeyRange, older: Seqno, newer: Seqno) -> Self {
        Self { start: range.start, end: range.end, older, newer, found: Vec::new(), in_sequence: 0 }
    }

    /// The next call of [`Self::add`] begins with the first of keys that ascend.
    pub fn begin_sequence(&mut self) {
        self.in_sequence = 0;
    }

    /// First key of interest, at or above `bound`.
    pub fn start<'s>(&'s self, bound: &'s [u8]) -> &'s [u8] {
        (&self.start[..]).max(bound)
    }

    /// Whether `key` lies behind the window.
    pub fn is_beyond(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_some_and(|end| *key >= end[..])
    }

    /// The newer position.
    pub fn newer(&self) -> Seqno {
        self.newer
    }

    /// Whether a change with one of these seqnos may count.
    pub fn concerns(&self, seqno_min: Seqno, seqno_max: Seqno) -> bool {
        seqno_max > self.older && seqno_min <= self.newer
    }

    /// Takes in that keys of `[start, end)` may have changed; those at or above `bound` count.
    pub fn add(&mut self, start: &[u8], end: &[u8], bound: &[u8]) {
        let start = start.max(self.start(bound));
        let end = self.end.as_ref().map_or(end, |limit| end.min(&limit[..]));
        if start >= end {
            return;
        }
        let end = Bytes::copy_from_slice(end);
        self.found.push((Bytes::copy_from_slice(start), end.clone()));
        self.in_sequence += 1;
        if self.in_sequence >= FOUND_MAX {
            self.end = Some(end);
        }
    }

    /// As [`Self::add`], for one key.
    pub fn add_key(&mut self, key: &[u8], bound: &[u8]) {
        self.add(key, &[key, b"\0"].concat(), bound);
    }

    /// Takes in the range tombstones of a layer, of which the keys at or above `bound` count.
    pub fn add_tombstones(&mut self, set: &TombstoneSet, bound: &[u8]) {
        if !set.seqno_range().is_some_and(|(min, max)| self.concerns(min, max)) {
            return;
        }
        self.begin_sequence();
        let first = self.start(bound).to_vec();
        for fragment in set.fragments_from(&first) {
            if self.is_beyond(fragment.start) {
                break;
            }
            if fragment.newest_at(self.newer).is_some_and(|seqno| seqno > self.older) {
                self.add(fragment.start, fragment.end, bound);
            }
        }
    }

    /// What was found, after all layers were asked.
    pub fn finish(self) -> Window {
        let Self { end: limit, mut found, .. } = self;
        found.sort_unstable();
        let mut ranges: Vec<KeyRange> = Vec::new();
        for (start, end) in found {
            // Others were found before the window was cut.
            if limit.as_ref().is_some_and(|limit| start >= *limit) {
                continue;
            }
            let end = limit.as_ref().map_or(&end, |limit| limit.min(&end)).clone();
            match ranges.last_mut().and_then(|last| last.end.as_mut()) {
                Some(last_end) if *last_end >= start => *last_end = end.max(last_end.clone()),
                _ => ranges.push(KeyRange { start, end: Some(end) }),
            }
        }
        Window { ranges, next: limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Vec<u8> {
        format!("{number:05}").into_bytes()
    }

    #[test]
    fn a_full_sequence_cuts_the_window_for_all() {
        let mut search = ChangedSearch::new(KeyRange::all(), 5, 9);
        search.begin_sequence();
        search.add(&key(FOUND_MAX - 1), &key(9 * FOUND_MAX), b"");
        search.begin_sequence();
        for number in 0..2 * FOUND_MAX {
            search.add_key(&key(number), b"");
        }
        let end = [&key(FOUND_MAX - 1)[..], b"\0"].concat();
        assert!(search.is_beyond(&end) && !search.is_beyond(&key(FOUND_MAX - 1)));
        let window = search.finish();
        assert_eq!(window.next.as_deref(), Some(&end[..]));
        assert_eq!(window.ranges.len(), FOUND_MAX);
        assert_eq!(window.ranges.last().and_then(|last| last.end.as_deref()), Some(&end[..]));
    }

    #[test]
    fn what_overlaps_or_touches_is_one_range_and_bounds_count() {
        let mut search = ChangedSearch::new(KeyRange::new("b", "m"), 5, 9);
        for (start, end, bound) in
            [("c", "e", ""), ("d", "f", ""), ("f", "g", ""), ("a", "z", "k"), ("x", "y", "")]
        {
            search.begin_sequence();
            search.add(start.as_bytes(), end.as_bytes(), bound.as_bytes());
        }
        assert_eq!(search.finish().ranges, [KeyRange::new("c", "g"), KeyRange::new("k", "m")]);
        let search = ChangedSearch::new(KeyRange::all(), 5, 9);
        assert_eq!(
            [(1, 5), (1, 6), (9, 12), (10, 12)].map(|(min, max)| search.concerns(min, max)),
            [false, true, true, false]
        );
    }
}
