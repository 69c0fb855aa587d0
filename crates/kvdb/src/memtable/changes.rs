//! A walk over what changed in a range of keys, on its way through the layers of a keyspace.
//!
//! Purpose: two questions are asked of it. "Did one of these records change since a snapshot?"
//! ([`conflict::FirstConflict`], for "the first updater wins") ends with the first answer; "what changed
//! between two positions?" ([`ranges::ChangedRanges`]) collects the keys of a window. Layers, pieces, blocks
//! and regions of which nothing lies between the positions are passed over unread.
//!
//! Invariants: once the walk is over, nothing more is looked at; a window's end only comes down.
//!
//! Thread safety: belongs to one searcher.

mod conflict;
mod ranges;

use bytes::Bytes;
use kvfs_store::{KeyRange, Seqno};

use super::{TombstoneSet, first_block_at_or_after};
use crate::format::RecordKind;

/// How a walk goes on after a change.
#[derive(Debug)]
pub(crate) enum Next {
    /// Older changes of the same key may count, too.
    Older,
    /// Only those of other keys.
    OtherKeys,
    /// Only those of other keys, before this one.
    OtherKeysBefore(Bytes),
    /// It is over.
    Nothing,
}

/// What a walk is for.
pub(crate) trait ChangeVisitor {
    /// The keys from the first to the last, blocks of one prefix or one and the same, were written. `value`
    /// is that of the first.
    fn visit_records(
        &mut self,
        keys: (&[u8], &[u8]),
        seqno: Seqno,
        kind: RecordKind,
        value: impl FnOnce() -> Bytes,
    ) -> Next;

    /// Everything in `range` was deleted, by a tombstone over keys from `start` on.
    fn visit_deleted(&mut self, start: &[u8], range: (&[u8], &[u8]), seqno: Seqno) -> Next;
}

/// The walk, and its question.
#[derive(Debug)]
pub(crate) struct ChangeWalk<V> {
    start: Bytes,
    /// Where it ends; comes down.
    end: Option<Bytes>,
    since: Seqno,
    up_to: Seqno,
    is_one_key: bool,
    is_over: bool,
    visitor: V,
}

impl<V: ChangeVisitor> ChangeWalk<V> {
    /// Over changes above `since`, up to and with `up_to`, of the keys in `range`.
    fn new(range: KeyRange, since: Seqno, up_to: Seqno, visitor: V) -> Self {
        let is_over = range.is_empty();
        Self { start: range.start, end: range.end, since, up_to, is_one_key: false, is_over, visitor }
    }

    /// First key of interest, at or above `bound`.
    pub(crate) fn start<'s>(&'s self, bound: &'s [u8]) -> &'s [u8] {
        (&self.start[..]).max(bound)
    }

    /// Whether `key` lies behind all keys of interest.
    pub(crate) fn is_beyond(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_some_and(|end| *key >= end[..])
    }

    /// The first block of `prefix` behind all keys of interest; `None` when there is none.
    pub(crate) fn end_block(&self, prefix: &[u8]) -> Option<u64> {
        first_block_at_or_after(prefix, self.end.as_ref()?)
    }

    /// The key, when it is only one.
    pub(crate) fn one_key(&self) -> Option<&[u8]> {
        self.is_one_key.then_some(&self.start[..])
    }

    /// The last position of interest.
    pub(crate) fn up_to(&self) -> Seqno {
        self.up_to
    }

    /// Whether changes with seqnos from `min` to `max` may count.
    pub(crate) fn concerns(&self, min: Seqno, max: Seqno) -> bool {
        max > self.since && min <= self.up_to && !self.is_over
    }

    /// Whether a layer need not be asked any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes in a record of `key`, which lies between start and end. Says whether older records of it are of
    /// interest; when the walk is over it does not matter.
    pub(crate) fn visit(
        &mut self,
        key: &[u8],
        seqno: Seqno,
        kind: RecordKind,
        value: impl FnOnce() -> Bytes,
    ) -> bool {
        self.visit_all((key, key), seqno, kind, value)
    }

    /// As [`Self::visit`], for the blocks from `keys.0` to `keys.1`, of which the first lies between start
    /// and end.
    pub(crate) fn visit_blocks(&mut self, keys: (&[u8], &[u8]), seqno: Seqno) {
        self.visit_all(keys, seqno, RecordKind::Put, Bytes::new);
    }

    fn visit_all(
        &mut self,
        keys: (&[u8], &[u8]),
        seqno: Seqno,
        kind: RecordKind,
        value: impl FnOnce() -> Bytes,
    ) -> bool {
        if !self.concerns(seqno, seqno) {
            return false;
        }
        let next = self.visitor.visit_records(keys, seqno, kind, value);
        self.go_on(next)
    }

    /// Takes in the range tombstones of a layer, of which the keys at or above `bound` count. O(log n) plus
    /// the fragments over the keys of interest.
    pub(crate) fn visit_tombstones(&mut self, set: &TombstoneSet, bound: &[u8]) {
        if !self.concerns(0, set.seqno_max()) {
            return;
        }
        let start = self.start(bound).to_vec();
        for fragment in set.fragments_from(&start) {
            if self.is_over || self.is_beyond(fragment.start) {
                break;
            }
            let Some(seqno) = fragment.newest_at(self.up_to).filter(|seqno| *seqno > self.since) else {
                continue;
            };
            let end = self.end.as_ref().map_or(fragment.end, |end| end.min(fragment.end));
            let range = (start.as_slice().max(&fragment.start[..]), &end[..]);
            let next = self.visitor.visit_deleted(fragment.start, range, seqno);
            self.go_on(next);
        }
    }

    fn go_on(&mut self, next: Next) -> bool {
        match next {
            Next::Older => return true,
            Next::OtherKeys => return false,
            Next::OtherKeysBefore(end) if self.end.as_ref().is_some_and(|limit| *limit <= end) => {}
            Next::OtherKeysBefore(end) => self.end = Some(end),
            Next::Nothing => self.is_over = true,
        }
        self.is_over
    }
}
