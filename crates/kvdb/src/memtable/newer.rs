//! A search for changes after a snapshot, on its way through the layers of a keyspace.
//!
//! Purpose: "the first updater wins" asks every layer that holds something newer than a snapshot whether one
//! of some records changed there. The answer is any such change.
//!
//! Invariant: once found, nothing more is looked at.
//!
//! Thread safety: belongs to one searcher.

use bytes::Bytes;
use kvfs_store::{Records, Seqno, Touch};

use super::{
    fill::{block_key, first_block_at_or_after, split_block_key},
    merge::Merger,
    tombstones::TombstoneSet,
};
use crate::format::RecordKind;

/// The search for a change of some records.
#[derive(Debug)]
pub struct NewerSearch<'a> {
    start: Bytes,
    end: Option<Bytes>,
    /// Only blocks of this prefix count.
    prefix: Option<&'a [u8]>,
    touch: Touch,
    is_one_key: bool,
    since: Seqno,
    merger: &'a Merger,
    found: Option<(Bytes, Seqno)>,
}

impl<'a> NewerSearch<'a> {
    /// Looks for changes of `records` with a seqno above `since`; `merger` is that of the keyspace.
    pub fn new(records: &'a Records, since: Seqno, merger: &'a Merger) -> Self {
        let after = |mut key: Vec<u8>| {
            key.push(0);
            Some(key.into())
        };
        let (start, end) = match records {
            Records::Key { key, .. } => (key.clone(), after(key.to_vec())),
            Records::Range(range) => (range.start.clone(), range.end.clone()),
            Records::Blocks { prefix, first, count } => {
                let end = match first.checked_add(*count) {
                    Some(end) => Some(block_key(prefix, end).into()),
                    None => after(block_key(prefix, u64::MAX)),
                };
                (block_key(prefix, *first).into(), end)
            }
        };
        let prefix = match records {
            Records::Blocks { prefix, .. } => Some(&prefix[..]),
            _ => None,
        };
        let (touch, is_one_key) = match records {
            Records::Key { touch, .. } => (*touch, true),
            _ => (Touch::ALL, false),
        };
        Self { start, end, prefix, touch, is_one_key, since, merger, found: None }
    }

    /// First key of interest, at or above `bound`.
    pub fn start<'s>(&'s self, bound: &'s [u8]) -> &'s [u8] {
        (&self.start[..]).max(bound)
    }

    /// Whether `key` lies behind all keys of interest.
    pub fn is_beyond(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_some_and(|end| *key >= end[..])
    }

    /// The first block of `prefix` behind all keys of interest; `None` when there is none.
    pub fn end_block(&self, prefix: &[u8]) -> Option<u64> {
        first_block_at_or_after(prefix, self.end.as_ref()?)
    }

    /// The key, when it is only one.
    pub fn one_key(&self) -> Option<&[u8]> {
        self.is_one_key.then_some(&self.start[..])
    }

    /// Whether changes up to `seqno` can matter at all.
    pub fn concerns(&self, seqno: Seqno) -> bool {
        seqno > self.since && !self.is_over()
    }

    /// Whether a layer need not be asked any more: found, or no change would count.
    pub fn is_over(&self) -> bool {
        let is_empty = self.end.as_ref().is_some_and(|end| *end <= self.start);
        self.found.is_some() || is_empty || !self.touch.conflicts_with(Touch::ALL)
    }

    /// The change: its key (of a range tombstone the start) and seqno.
    pub fn into_found(self) -> Option<(Bytes, Seqno)> {
        self.found
    }

    /// Takes in a record whose key lies between start and end. `value` is asked for when it is an operand.
    pub fn visit<E>(
        &mut self,
        key: &[u8],
        seqno: Seqno,
        kind: RecordKind,
        value: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<(), E> {
        if !self.concerns(seqno) || !self.is_of_prefix(key) {
            return Ok(());
        }
        let touch = match kind {
            RecordKind::Put | RecordKind::Delete => Touch::ALL,
            RecordKind::Merge => self.merger.touch(key, &value()?),
        };
        if self.touch.conflicts_with(touch) {
            self.found = Some((Bytes::copy_from_slice(key), seqno));
        }
        Ok(())
    }

    fn is_of_prefix(&self, key: &[u8]) -> bool {
        self.prefix.is_none_or(|prefix| split_block_key(key).is_some_and(|(of_key, _)| of_key == prefix))
    }

    /// Takes in the range tombstones of a layer, of which the keys at or above `bound` count. O(log n) plus
    /// the fragments over the keys of interest.
    pub fn visit_tombstones(&mut self, set: &TombstoneSet, bound: &[u8]) {
        if !self.concerns(set.seqno_max()) {
            return;
        }
        let start = self.start(bound);
        let fragments = set.fragments_from(start).take_while(|fragment| !self.is_beyond(fragment.start));
        let found = fragments
            .filter_map(|fragment| Some((fragment, fragment.newest_at(Seqno::MAX)?)))
            .find(|(fragment, seqno)| *seqno > self.since && self.covers_block(fragment, start))
            .map(|(fragment, seqno)| (fragment.start.clone(), seqno));
        self.found = found;
    }

    /// Whether a block of the prefix lies in the fragment, from `start` on; true when there is no prefix.
    fn covers_block(&self, fragment: &super::Fragment<'_>, start: &[u8]) -> bool {
        let Some(prefix) = self.prefix else { return true };
        let first = first_block_at_or_after(prefix, start.max(&fragment.start[..]));
        let end = self.end.as_ref().map_or(fragment.end, |end| end.min(fragment.end));
        first.is_some_and(|first| first_block_at_or_after(prefix, end).is_none_or(|end| first < end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::RangeTombstone;
    use kvfs_store::KeyRange;

    fn merger() -> Merger {
        Merger::new("rows", None)
    }

    fn set(start: &[u8], end: &[u8], seqno: Seqno) -> TombstoneSet {
        let (start, end) = (Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        TombstoneSet::new([RangeTombstone { start, end, seqno }])
    }

    fn finds_tombstone(records: &Records, set: &TombstoneSet, bound: &[u8]) -> bool {
        let merger = merger();
        let mut search = NewerSearch::new(records, 10, &merger);
        search.visit_tombstones(set, bound);
        search.into_found().is_some()
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
        let mut search = NewerSearch::new(&records, 10, &merger);
        let mut visit = |key: &[u8], seqno| {
            search.visit(key, seqno, RecordKind::Put, || Ok::<_, ()>(Bytes::new())).unwrap();
            search.is_over()
        };
        assert!(!visit(&block_key(b"f", 3), 10));
        assert!(!visit(&[&block_key(b"f", 3)[..], b"longer"].concat(), 11));
        assert!(visit(&block_key(b"f", 3), 11));
    }
}
