//! The question what changed between two positions, without reading what both see alike.
//!
//! Invariants: the walk covers one window of keys. Where more is found than the window may hold, it ends
//! before the greater half of that, for all layers; so memory is bounded, and what was found is complete
//! below the end.

use bytes::Bytes;
use kvfs_store::{KeyRange, Seqno};

use super::{ChangeVisitor, ChangeWalk, Next};
use crate::format::RecordKind;

/// Most ranges that a window holds.
const FOUND_MAX: usize = 16 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ChangedRanges {
    found: Vec<(Bytes, Bytes)>,
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
        let (limit, mut visitor) = (self.end, self.visitor);
        visitor.join();
        let mut ranges = Vec::with_capacity(visitor.found.len());
        for (start, end) in visitor.found {
            // A stretch of blocks may reach beyond it.
            let end = limit.as_ref().map_or(&end, |limit| limit.min(&end)).clone();
            ranges.push(KeyRange { start, end: Some(end) });
        }
        Window { ranges, next: limit }
    }
}

impl ChangedRanges {
    fn add(&mut self, start: &[u8], end: Bytes) -> Next {
        self.found.push((Bytes::copy_from_slice(start), end));
        if self.found.len() < FOUND_MAX {
            return Next::OtherKeys;
        }
        self.join();
        let Some((start, _)) = self.found.get(FOUND_MAX / 2) else { return Next::OtherKeys };
        let end = start.clone();
        self.found.truncate(FOUND_MAX / 2);
        Next::OtherKeysBefore(end)
    }

    /// Sorts what was found; what overlaps or touches becomes one.
    fn join(&mut self) {
        self.found.sort_unstable();
        self.found.dedup_by(|(start, end), (_, last_end)| {
            let is_joined = start <= last_end;
            if is_joined && last_end < end {
                last_end.clone_from(end);
            }
            is_joined
        });
    }
}

impl ChangeVisitor for ChangedRanges {
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
        format!("{number:07}").into_bytes()
    }

    fn set(start: &[u8], end: &[u8]) -> TombstoneSet {
        let (start, end) = (Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        TombstoneSet::new([RangeTombstone { start, end, seqno: 7 }])
    }

    #[test]
    fn full_window_is_cut_for_all_layers() {
        let mut walk = ChangeWalk::ranges(KeyRange::all(), 5, 9);
        walk.visit_tombstones(&set(&key(FOUND_MAX / 4), &key(9 * FOUND_MAX)), b"");
        for number in 0..2 * FOUND_MAX {
            walk.visit(&key(number), 7, RecordKind::Put, Bytes::new);
        }
        assert!(walk.finish().next.is_none(), "all but the first quarter is one range");

        let mut walk = ChangeWalk::ranges(KeyRange::all(), 5, 9);
        for number in 0..FOUND_MAX {
            walk.visit(&key(number), 7, RecordKind::Put, Bytes::new);
        }
        let end = key(FOUND_MAX / 2);
        assert!(walk.is_beyond(&end) && !walk.is_beyond(&key(FOUND_MAX / 2 - 1)));
        walk.visit_blocks((&key(FOUND_MAX / 2 - 1), &key(FOUND_MAX)), 7);
        let window = walk.finish();
        assert_eq!(window.next.as_deref(), Some(&end[..]));
        assert_eq!(window.ranges.len(), FOUND_MAX / 2);
        assert_eq!(window.ranges.last().and_then(|last| last.end.as_deref()), Some(&end[..]));
    }

    #[test]
    fn windows_are_bounded_and_find_all_however_many_pieces_there_are() {
        const PIECES: usize = 100;
        const IN_PIECE: usize = 1000;
        const LAYERS: usize = 3;
        let keys: Vec<_> = (0..PIECES * IN_PIECE + LAYERS - 1).map(key).collect();
        let (mut rest, mut found, mut windows) = (KeyRange::all(), 0, 0);
        loop {
            let mut walk = ChangeWalk::ranges(rest.clone(), 5, 9);
            // None of the pieces has many changes.
            for (layer, piece) in
                (0..LAYERS).flat_map(|layer| (0..PIECES).rev().map(move |piece| (layer, piece)))
            {
                for key in &keys[layer + piece * IN_PIECE..][..IN_PIECE] {
                    if key[..] >= rest.start[..] && !walk.is_beyond(key) {
                        walk.visit(key, 7, RecordKind::Put, Bytes::new);
                    }
                }
                assert!(walk.visitor.found.len() < FOUND_MAX);
            }
            let window = walk.finish();
            for range in &window.ranges {
                assert_eq!(range.start, keys[found]);
                found += 1;
            }
            windows += 1;
            let Some(next) = window.next else { break };
            rest.start = next;
        }
        assert_eq!(found, keys.len());
        assert!(windows <= 2 * found / FOUND_MAX + 1, "{windows} windows");
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
