//! The question what changed between two positions, without reading what both see alike.
//!
//! Invariants: the walk covers one window of keys. A sequence that finds as much as the window may hold ends
//! the window there, for all layers; so memory is bounded, and what was found is complete below the end.

use bytes::Bytes;
use kvfs_store::{KeyRange, Seqno};

use super::{ChangeVisitor, ChangeWalk, Next};
use crate::format::RecordKind;

/// Most ranges that one sequence finds in a window.
const FOUND_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ChangedRanges {
    found: Vec<(Bytes, Bytes)>,
    in_sequence: usize,
}

/// What a window held.
#[derive(Debug)]
pub(crate) struct Window {
    /// Ascending and disjoint.
    pub ranges: Vec<KeyRange>,
    /// Where the next window begins; `None`: there is none.
    pub next: Option<Bytes>,
}

impl ChangeWalk<ChangedRanges> {
    /// Looks for changes above `older`, up to and with `newer`, of the keys in `range`.
    pub(crate) fn ranges(range: KeyRange, older: Seqno, newer: Seqno) -> Self {
        Self::new(range, older, newer, ChangedRanges::default())
    }

    /// What was found, after all layers were asked.
    pub(crate) fn finish(self) -> Window {
        let (limit, mut found) = (self.end, self.visitor.found);
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

impl ChangedRanges {
    fn add(&mut self, start: &[u8], end: Bytes) -> Next {
        self.found.push((Bytes::copy_from_slice(start), end.clone()));
        self.in_sequence += 1;
        if self.in_sequence < FOUND_MAX { Next::OtherKeys } else { Next::OtherKeysBefore(end) }
    }
}

impl ChangeVisitor for ChangedRanges {
    fn begin_sequence(&mut self) {
        self.in_sequence = 0;
    }

    fn visit_records(
        &mut self,
        (first, last): (&[u8], &[u8]),
        _: Seqno,
        _: RecordKind,
        _: impl FnOnce() -> Bytes,
    ) -> Next {
        self.add(first, [last, b"\0"].concat().into())
    }

    fn visit_deleted(&mut self, _: &[u8], (start, end): (&[u8], &[u8]), _: Seqno) -> Next {
        self.add(start, Bytes::copy_from_slice(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::{RangeTombstone, TombstoneSet};

    fn key(number: usize) -> Vec<u8> {
        format!("{number:05}").into_bytes()
    }

    fn set(start: &[u8], end: &[u8]) -> TombstoneSet {
        let (start, end) = (Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        TombstoneSet::new([RangeTombstone { start, end, seqno: 7 }])
    }

    #[test]
    fn a_full_sequence_cuts_the_window_for_all() {
        let mut walk = ChangeWalk::ranges(KeyRange::all(), 5, 9);
        walk.visit_tombstones(&set(&key(FOUND_MAX - 1), &key(9 * FOUND_MAX)), b"");
        walk.begin_sequence();
        for number in 0..2 * FOUND_MAX {
            walk.visit(&key(number), 7, RecordKind::Put, Bytes::new);
        }
        let end = [&key(FOUND_MAX - 1)[..], b"\0"].concat();
        assert!(walk.is_beyond(&end) && !walk.is_beyond(&key(FOUND_MAX - 1)));
        let window = walk.finish();
        assert_eq!(window.next.as_deref(), Some(&end[..]));
        assert_eq!(window.ranges.len(), FOUND_MAX);
        assert_eq!(window.ranges.last().and_then(|last| last.end.as_deref()), Some(&end[..]));
    }

    #[test]
    fn what_overlaps_or_touches_is_one_range_and_bounds_count() {
        let mut walk = ChangeWalk::ranges(KeyRange::new("b", "m"), 5, 9);
        for (start, end, bound) in
            [("c", "e", ""), ("d", "f", ""), ("f", "g", ""), ("a", "z", "k"), ("x", "y", "")]
        {
            walk.visit_tombstones(&set(start.as_bytes(), end.as_bytes()), bound.as_bytes());
        }
        assert_eq!(walk.finish().ranges, [KeyRange::new("c", "g"), KeyRange::new("k", "m")]);
        let walk = ChangeWalk::ranges(KeyRange::all(), 5, 9);
        assert_eq!(
            [(1, 5), (1, 6), (9, 12), (10, 12)].map(|(min, max)| walk.concerns(min, max)),
            [false, true, true, false]
        );
    }
}
