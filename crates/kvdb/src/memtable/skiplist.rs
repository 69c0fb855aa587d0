//! The concurrent ordered list of a memtable's point records.
//!
//! Purpose: wraps `crossbeam_skiplist::SkipMap` with record order, lookups by borrowed key, and a
//! cursor that owns its list.
//!
//! Thread safety: any number of readers and writers at once, without locks. A record is complete
//! when a reader meets it. Records are never removed.
//! Invariants: (key, seqno) is unique.

use std::{borrow::Borrow, cmp::Ordering, ops::Bound, sync::Arc};

use bytes::Bytes;
use crossbeam_skiplist::{SkipMap, map::Entry};
use kvfs_store::Seqno;

use crate::format::{RecordKind, RecordRef};

/// Memory that a record takes beyond its key and value (bytes): a list node with its tower.
pub(super) const RECORD_OVERHEAD_BYTES: usize = 144;

/// The first bytes of a key as a number, zero-padded: where the heads of two keys differ, they order
/// the keys. They lie in the list node itself, so most comparisons of a search miss the cache once,
/// not twice.
fn head(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<16>() {
        return u128::from_be_bytes(*first);
    }
    let mut bytes = [0; 16];
    bytes[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(bytes)
}

/// Owned place of a record: by key, then newest first.
#[derive(Debug)]
struct Place {
    head: u128,
    key: Bytes,
    seqno: Seqno,
}

/// Borrowed place.
#[derive(Clone, Copy)]
struct PlaceRef<'a> {
    head: u128,
    key: &'a [u8],
    seqno: Seqno,
}

impl PlaceRef<'_> {
    fn compare(self, other: PlaceRef<'_>) -> Ordering {
        let keys = || self.head.cmp(&other.head).then_with(|| self.key.cmp(other.key));
        keys().then_with(|| other.seqno.cmp(&self.seqno))
    }
}

#[derive(Debug)]
struct Content {
    kind: RecordKind,
    value: Bytes,
}

/// A place, owned or borrowed, so that a search needs no allocation.
trait AsPlace {
    fn place(&self) -> PlaceRef<'_>;
}

impl AsPlace for Place {
    fn place(&self) -> PlaceRef<'_> {
        PlaceRef { head: self.head, key: &self.key, seqno: self.seqno }
    }
}

impl AsPlace for PlaceRef<'_> {
    fn place(&self) -> PlaceRef<'_> {
        *self
    }
}

impl Ord for dyn AsPlace + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().compare(other.place())
    }
}

impl PartialOrd for dyn AsPlace + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn AsPlace + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for dyn AsPlace + '_ {}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().compare(other.place())
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Place {}

impl<'a> Borrow<dyn AsPlace + 'a> for Place {
    fn borrow(&self) -> &(dyn AsPlace + 'a) {
        self
    }
}

/// The list.
#[derive(Debug, Default)]
pub(super) struct SkipList {
    map: SkipMap<Place, Content>,
}

/// A record met by a walk.
pub(super) struct Node<'a>(Entry<'a, Place, Content>);

impl Node<'_> {
    pub(super) fn record(&self) -> RecordRef<'_> {
        let place = self.0.key();
        RecordRef { key: &place.key, seqno: place.seqno, kind: self.0.value().kind }
    }

    pub(super) fn value(&self) -> &Bytes {
        &self.0.value().value
    }

    /// Moves to the next record; false, without moving, at the end.
    pub(super) fn advance(&mut self) -> bool {
        self.0.move_next()
    }
}

impl SkipList {
    /// Expected O(log n).
    pub(super) fn insert(&self, key: Bytes, seqno: Seqno, kind: RecordKind, value: Bytes) {
        self.map.insert(Place { head: head(&key), key, seqno }, Content { kind, value });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The first record at or after `(key, seqno)` in record order. Expected O(log n).
    pub(super) fn seek(&self, key: &[u8], seqno: Seqno) -> Option<Node<'_>> {
        let place: &dyn AsPlace = &PlaceRef { head: head(key), key, seqno };
        self.map.lower_bound(Bound::Included(place)).map(Node)
    }

    /// The last record before all versions of `key`. Expected O(log n).
    fn seek_before(&self, key: &[u8]) -> Option<Node<'_>> {
        let place: &dyn AsPlace = &PlaceRef { head: head(key), key, seqno: Seqno::MAX };
        self.map.upper_bound(Bound::Excluded(place)).map(Node)
    }
}

/// What holds a list and keeps it at one address while it is shared.
pub(super) trait HoldsList: Send + Sync + 'static {
    fn list(&self) -> &SkipList;
}

/// A walk over a list that keeps the list alive.
pub(super) struct Cursor<H: HoldsList> {
    // Declared, and so dropped, before the owner that it borrows from.
    node: Option<Node<'static>>,
    holder: Arc<H>,
}

impl<H: HoldsList> Cursor<H> {
    pub(super) fn new(holder: Arc<H>) -> Self {
        Self { node: None, holder }
    }

    pub(super) fn node(&self) -> Option<&Node<'_>> {
        self.node.as_ref()
    }

    /// Moves to the node that `find` gives.
    fn stand(&mut self, find: impl FnOnce(&SkipList) -> Option<Node<'_>>) {
        let node = find(self.holder.list());
        // SAFETY: the node borrows from the list inside `self.holder`. That allocation neither moves
        // nor goes away while the `Arc` is held: the holder is never replaced, `Arc` gives only
        // shared access, and `node` is dropped before `holder`. `node()` hands the node out with the
        // lifetime of `&self` only, and nothing moves it out of the cursor.
        self.node = unsafe { std::mem::transmute::<Option<Node<'_>>, Option<Node<'static>>>(node) };
    }

    pub(super) fn seek(&mut self, key: &[u8], seqno: Seqno) {
        self.stand(|list| list.seek(key, seqno));
    }

    pub(super) fn seek_before(&mut self, key: &[u8]) {
        self.stand(|list| list.seek_before(key));
    }

    pub(super) fn first(&mut self) {
        self.stand(|list| list.map.front().map(Node));
    }

    pub(super) fn last(&mut self) {
        self.stand(|list| list.map.back().map(Node));
    }

    pub(super) fn next(&mut self) {
        if self.node.as_mut().is_some_and(|node| !node.0.move_next()) {
            self.node = None;
        }
    }

    pub(super) fn prev(&mut self) {
        if self.node.as_mut().is_some_and(|node| !node.0.move_prev()) {
            self.node = None;
        }
    }
}
