//! Ranges that were deleted, and whose keys are still there.
//!
//! Purpose: a range delete is one record, whatever lies in the range. What is older than the record and lies
//! in the range is hidden; the reaper deletes it key by key, and then the record.
//!
//! Thread safety: plain values. Invariant: a range is in the list of a store from before its batch is visible
//! until after its last key is deleted, so a reader that takes the list before it reads, or together with a
//! snapshot, sees all that concern it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kvfs_store::{KeyRange, Result, StoreError};

/// Before the sequence number and the number within the batch, in the key of the record.
pub(crate) const RECORDS: &[u8] = b"range/";

/// One deleted range.
#[derive(Debug)]
pub(crate) struct DeadRange {
    /// Number of the keyspace.
    pub(crate) space: u32,
    /// It has an end.
    pub(crate) range: KeyRange,
    /// Of its batch: what is older is deleted.
    pub(crate) sequence: u64,
    /// Among those of its batch.
    pub(crate) index: u32,
}

impl DeadRange {
    /// What no other one has.
    fn id(&self) -> (u64, u32) {
        (self.sequence, self.index)
    }

    /// The key of its record among what is of no keyspace.
    pub(crate) fn key(&self) -> Bytes {
        let mut key = BytesMut::from(RECORDS);
        key.put_u64(self.sequence);
        key.put_u32(self.index);
        key.freeze()
    }

    pub(crate) fn value(&self) -> Bytes {
        let mut value = BytesMut::new();
        value.put_u32(self.space);
        value.put_u32(self.range.start.len() as u32);
        value.put_slice(&self.range.start);
        value.put_slice(self.range.end.as_deref().unwrap_or_default());
        value.freeze()
    }

    pub(crate) fn parse(key: &[u8], value: &[u8]) -> Result<Self> {
        let damaged = || StoreError::corrupt("SlateDB", "the record of a deleted range is damaged");
        let mut id = key.strip_prefix(RECORDS).filter(|id| id.len() == 12).ok_or_else(damaged)?;
        let mut value = Bytes::copy_from_slice(value);
        if value.len() < 8 {
            return Err(damaged());
        }
        let (space, start_len) = (value.get_u32(), value.get_u32() as usize);
        if value.len() < start_len {
            return Err(damaged());
        }
        let start = value.split_to(start_len);
        Ok(Self { space, range: KeyRange::new(start, value), sequence: id.get_u64(), index: id.get_u32() })
    }
}

/// All of them, the oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeadRanges {
    list: Vec<Arc<DeadRange>>,
    /// Some of them: the keys of these stay until the next opening.
    stuck: BTreeSet<(u64, u32)>,
}

impl DeadRanges {
    pub(crate) fn new(mut list: Vec<Arc<DeadRange>>) -> Self {
        list.sort_by_key(|dead| dead.id());
        Self { list, stuck: BTreeSet::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// How many of them the reaper has still to come to.
    pub(crate) fn waiting(&self) -> usize {
        self.list.len() - self.stuck.len()
    }

    /// Of those that wait for the reaper.
    pub(crate) fn oldest(&self) -> Option<&Arc<DeadRange>> {
        self.list.iter().find(|dead| !self.stuck.contains(&dead.id()))
    }

    pub(crate) fn with(&self, new: &[Arc<DeadRange>]) -> Self {
        Self { list: self.list.iter().chain(new).cloned().collect(), stuck: self.stuck.clone() }
    }

    pub(crate) fn without(&self, gone: &DeadRange) -> Self {
        let mut left = self.clone();
        left.list.retain(|dead| dead.id() != gone.id());
        left.stuck.remove(&gone.id());
        left
    }

    /// The same, of which the reaper leaves alone one that is in the list.
    pub(crate) fn with_stuck(&self, stuck: &DeadRange) -> Self {
        let mut same = self.clone();
        same.stuck.insert(stuck.id());
        same
    }

    /// Whether a reader at `at` doesn't see an entry of the sequence number `sequence`.
    pub(crate) fn hide(&self, space: u32, key: &[u8], sequence: u64, at: u64) -> bool {
        self.list.iter().any(|dead| {
            dead.space == space && sequence < dead.sequence && dead.sequence <= at && dead.range.contains(key)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(start: &'static str, end: &'static str, sequence: u64) -> Arc<DeadRange> {
        Arc::new(DeadRange { space: 1, range: KeyRange::new(start, end), sequence, index: 2 })
    }

    #[test]
    fn records_are_read_as_they_were_written_and_damage_is_found() {
        let dead = dead("a", "bcd", 9);
        let read = DeadRange::parse(&dead.key(), &dead.value()).unwrap();
        assert_eq!((read.space, &read.range, read.sequence, read.index), (1, &dead.range, 9, 2));
        for (key, value) in [(&dead.key()[1..], &dead.value()[..]), (&dead.key(), &dead.value()[..7])] {
            assert!(matches!(DeadRange::parse(key, value), Err(StoreError::Corrupt { .. })));
        }
    }

    #[test]
    fn range_hides_what_is_older_and_within_from_those_who_see_it() {
        let ranges = DeadRanges::new(vec![dead("x", "z", 20), dead("b", "d", 10)]);
        assert_eq!(ranges.oldest().unwrap().sequence, 10);
        assert!(ranges.hide(1, b"b", 9, 10) && ranges.hide(1, b"cc", 9, 99));
        assert!(!ranges.hide(1, b"b", 10, 99), "written after it");
        assert!(!ranges.hide(1, b"b", 9, 9), "an older view");
        assert!(!ranges.hide(2, b"b", 9, 99), "another keyspace");
        assert!(!ranges.hide(1, b"d", 9, 99) && !ranges.hide(1, b"a", 9, 99));
        let left = ranges.without(ranges.oldest().unwrap());
        assert!(!left.hide(1, b"b", 9, 99) && left.hide(1, b"y", 9, 99) && left.len() == 1);
    }

    #[test]
    fn range_whose_keys_stay_hides_them_and_is_not_waited_for() {
        let all = DeadRanges::new(vec![dead("b", "d", 10), dead("x", "z", 20)]);
        let first = Arc::clone(all.oldest().unwrap());
        let stuck = all.with_stuck(&first).with(&[dead("e", "f", 30)]);
        assert_eq!((stuck.len(), stuck.waiting()), (3, 2));
        assert_eq!(stuck.oldest().unwrap().sequence, 20);
        assert!(stuck.hide(1, b"c", 9, 99));
        let left = stuck.without(&first);
        assert_eq!((left.len(), left.waiting()), (2, 2));
        let none = all.with_stuck(&first).without(&dead("x", "z", 20));
        assert!(none.oldest().is_none() && none.waiting() == 0 && none.len() == 1);
    }
}
