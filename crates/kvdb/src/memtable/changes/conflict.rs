//! The question whether one of some records changed after a snapshot. The answer is any such change.

use bytes::Bytes;
use kvfs_store::{KeyRange, Records, Seqno, Touch};

use super::{ChangeVisitor, ChangeWalk, Next};
use crate::format::RecordKind;
use crate::memtable::{Merger, block_key, first_block_at_or_after, split_block_key};

/// See the module.
#[derive(Debug)]
pub(crate) struct FirstConflict<'a> {
    /// Only blocks of this prefix count.
    prefix: Option<&'a [u8]>,
    touch: Touch,
    merger: &'a Merger,
    found: Option<(Bytes, Seqno)>,
}

impl<'a> ChangeWalk<FirstConflict<'a>> {
    /// Looks for changes of `records` with a seqno above `since`; `merger` is that of the keyspace.
    pub(crate) fn conflict(records: &'a Records, since: Seqno, merger: &'a Merger) -> Self {
        let after = |mut key: Vec<u8>| {
            key.push(0);
            Some(key.into())
        };
        let (mut prefix, mut touch) = (None, Touch::ALL);
        let range = match records {
            Records::Key { key, touch: of_key } => {
                touch = *of_key;
                KeyRange { start: key.clone(), end: after(key.to_vec()) }
            }
            Records::Range(range) => range.clone(),
            Records::Blocks { prefix: of_blocks, first, count } => {
                prefix = Some(&of_blocks[..]);
                let end = match first.checked_add(*count) {
                    Some(end) => Some(block_key(of_blocks, end).into()),
                    None => after(block_key(of_blocks, u64::MAX)),
                };
                KeyRange { start: block_key(of_blocks, *first).into(), end }
            }
        };
        let mut walk =
            Self::new(range, since, Seqno::MAX, FirstConflict { prefix, touch, merger, found: None });
        walk.is_one_key = matches!(records, Records::Key { .. });
        // No change would count.
        walk.is_over |= !touch.conflicts_with(Touch::ALL);
        walk
    }

    /// The change: its key (of a range tombstone the start) and seqno.
    pub(crate) fn into_found(self) -> Option<(Bytes, Seqno)> {
        self.visitor.found
    }
}

impl FirstConflict<'_> {
    fn found(&mut self, key: &[u8], seqno: Seqno) -> Next {
        self.found = Some((Bytes::copy_from_slice(key), seqno));
        Next::Nothing
    }
}

impl ChangeVisitor for FirstConflict<'_> {
    fn visit_records(
        &mut self,
        (key, _): (&[u8], &[u8]),
        seqno: Seqno,
        kind: RecordKind,
        value: impl FnOnce() -> Bytes,
    ) -> Next {
        let is_of = |prefix| split_block_key(key).is_some_and(|(of_key, _)| of_key == prefix);
        if !self.prefix.is_none_or(is_of) {
            return Next::OtherKeys;
        }
        let touch = match kind {
            RecordKind::Put | RecordKind::Delete => Touch::ALL,
            RecordKind::Merge => self.merger.touch(key, &value()),
        };
        if self.touch.conflicts_with(touch) { self.found(key, seqno) } else { Next::Older }
    }

    fn visit_deleted(&mut self, start: &[u8], range: (&[u8], &[u8]), seqno: Seqno) -> Next {
        // Between two blocks of the prefix there may lie anything.
        let holds_block = |prefix| {
            first_block_at_or_after(prefix, range.0)
                .is_some_and(|first| first_block_at_or_after(prefix, range.1).is_none_or(|end| first < end))
        };
        if self.prefix.is_none_or(holds_block) { self.found(start, seqno) } else { Next::OtherKeys }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::{RangeTombstone, TombstoneSet};

    fn merger() -> Merger {
        Merger::new("rows", None)
    }

    fn set(start: &[u8], end: &[u8], seqno: Seqno) -> TombstoneSet {
        let (start, end) = (Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        TombstoneSet::new([RangeTombstone { start, end, seqno }])
    }

    fn finds_tombstone(records: &Records, set: &TombstoneSet, bound: &[u8]) -> bool {
        let merger = merger();
        let mut walk = ChangeWalk::conflict(records, 10, &merger);
        walk.visit_tombstones(set, bound);
        walk.into_found().is_some()
    }

    #[test]
    fn tombstones_count_where_they_meet_the_records() {
        let range = Records::Range(KeyRange::new("d", "f"));
        for (start, end, seqno, bound, found) in [
            ("a", "d", 11, "", false),
            ("a", "dd", 11, "", true),
            ("a", "dd", 10, "", false),
            ("a", "dd", 11, "dd", false),
            ("e", "z", 11, "dd", true),
            ("f", "z", 11, "", false),
        ] {
            let set = set(start.as_bytes(), end.as_bytes(), seqno);
            assert_eq!(finds_tombstone(&range, &set, bound.as_bytes()), found, "{start}..{end} {bound}");
        }
        let key = |touch| Records::Key { key: "k".into(), touch };
        assert!(finds_tombstone(&key(Touch::ALL), &set(b"k", b"l", 11), b""));
        assert!(!finds_tombstone(&key(Touch::ALL), &set(b"ka", b"l", 11), b""));
        assert!(!finds_tombstone(&key(Touch::default()), &set(b"k", b"l", 11), b""));
    }

    #[test]
    fn tombstones_between_blocks_of_a_prefix_do_not_count() {
        let blocks = |first, count| Records::Blocks { prefix: "f".into(), first, count };
        let between = set(&[&block_key(b"f", 3)[..], b"\0"].concat(), &block_key(b"f", 4), 11);
        assert!(!finds_tombstone(&blocks(0, 10), &between, b""));
        let third = set(&block_key(b"f", 3), &block_key(b"f", 4), 11);
        assert!(finds_tombstone(&blocks(0, 4), &third, b""));
        assert!(finds_tombstone(&blocks(3, u64::MAX), &third, b""));
        assert!(!finds_tombstone(&blocks(4, u64::MAX), &third, b""));
        assert!(!finds_tombstone(&blocks(0, 3), &third, b""));
        assert!(finds_tombstone(&blocks(u64::MAX, u64::MAX), &set(b"e", b"g", 11), b""));
    }

    #[test]
    fn records_count_when_they_are_newer_and_of_the_prefix() {
        let merger = merger();
        let records = Records::Blocks { prefix: "f".into(), first: 0, count: 9 };
        let mut walk = ChangeWalk::conflict(&records, 10, &merger);
        let mut visit = |key: &[u8], seqno| {
            walk.visit(key, seqno, RecordKind::Put, Bytes::new);
            walk.is_over()
        };
        assert!(!visit(&block_key(b"f", 3), 10));
        assert!(!visit(&[&block_key(b"f", 3)[..], b"longer"].concat(), 11));
        assert!(visit(&block_key(b"f", 3), 11));
    }
}
