//! The concurrent ordered list of a memtable's point records.
//!
//! Purpose: record order, lookups by borrowed key, and a cursor that owns its list. A record is one stretch
//! of the list's [`Arena`]: links, key, and the value unless that is long, which is shared with the batch
//! then.
//!
//! Thread safety: any number of readers and writers at once; readers take no lock, writers only the arena's
//! for a few instructions. A record is complete when a reader meets it. Records are never removed.
//! Invariants: (key, seqno) is unique, or of equal records any may be met. A node and all that it links to
//! live as long as the list; but for its links it never changes once it is linked.

use std::alloc::Layout;
use std::cmp::Ordering as Order;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use kvfs_store::Seqno;

use super::arena::{Arena, Given};
use super::growth::Growth;
use crate::format::{RecordKind, RecordRef};

/// Values up to this are copied into the list (bytes): shared, they would take an allocation each.
const VALUE_BYTES_INLINE: usize = 1024;

/// Levels of links: enough for 4^12 records.
const LEVELS: usize = 12;

/// Links to the next record, one of each level.
type Tower = [AtomicPtr<Node>];

/// The first bytes of a key as a number, zero-padded: where the heads of two keys differ, they order
/// the keys.
fn head(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<16>() {
        return u128::from_be_bytes(*first);
    }
    let mut bytes = [0; 16];
    bytes[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(bytes)
}

/// A record. Behind it lie its tower, its key, and its value if that is inline.
#[repr(C)]
struct Node {
    head: u128,
    seqno: Seqno,
    key_len: u32,
    /// Of an inline value.
    value_len: u32,
    kind: RecordKind,
    levels: u8,
    /// The value, if it is not inline.
    shared: Option<Box<Bytes>>,
}

/// What a record takes beyond key and value (bytes): no less than this.
pub(super) const RECORD_BYTES_MIN: usize = size_of::<Node>() + size_of::<AtomicPtr<Node>>();

/// Where the parts of a node lie in its memory.
struct Parts {
    layout: Layout,
    key: usize,
    value: usize,
}

impl Parts {
    const TOWER: usize = size_of::<Node>();

    fn of(levels: usize, key_len: usize, value_len: usize) -> Self {
        let key = Self::TOWER + levels * size_of::<AtomicPtr<Node>>();
        let value = key + key_len;
        let bytes = (value + value_len).next_multiple_of(align_of::<Node>());
        let Ok(layout) = Layout::from_size_align(bytes, align_of::<Node>()) else {
            unreachable!("keys and values have their limits")
        };
        Self { layout, key, value }
    }
}

const _: () = assert!(size_of::<Node>().is_multiple_of(align_of::<AtomicPtr<Node>>()));

/// A linked record of a list that is borrowed for `'a`.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    node: NonNull<Node>,
    list: &'a SkipList,
}

impl<'a> Record<'a> {
    fn node(&self) -> &'a Node {
        // SAFETY: the node is complete and lives as long as the list, which is borrowed for `'a`; no thread
        // changes what a `Node` has besides its tower.
        unsafe { self.node.as_ref() }
    }

    fn stretch(&self, at: usize, len: usize) -> &'a [u8] {
        // SAFETY: key and value were copied to these places of the node's memory before it was linked, and do
        // not change any more. The pointer is that of the whole allocation.
        unsafe { std::slice::from_raw_parts(self.node.as_ptr().cast::<u8>().add(at), len) }
    }

    fn key(&self) -> &'a [u8] {
        let node = self.node();
        self.stretch(Parts::of(node.levels.into(), 0, 0).key, node.key_len as usize)
    }

    fn tower(&self) -> &'a Tower {
        let levels = self.node().levels.into();
        // SAFETY: the tower of a complete node lies at this place of its memory, is initialized, and is only
        // changed atomically.
        unsafe {
            let tower = self.node.add(1).cast::<AtomicPtr<Node>>();
            std::slice::from_raw_parts(tower.as_ptr(), levels)
        }
    }

    pub(super) fn record(&self) -> RecordRef<'a> {
        let node = self.node();
        RecordRef { key: self.key(), seqno: node.seqno, kind: node.kind }
    }

    /// The value, where it lies.
    pub(super) fn value(&self) -> &'a [u8] {
        let node = self.node();
        if let Some(shared) = &node.shared {
            return shared;
        }
        let parts = Parts::of(node.levels.into(), node.key_len as usize, 0);
        self.stretch(parts.value, node.value_len as usize)
    }

    /// The value for longer than the list lives: a copy, if it is inline.
    pub(super) fn value_owned(&self) -> Bytes {
        match &self.node().shared {
            Some(shared) => Bytes::clone(shared),
            None => Bytes::copy_from_slice(self.value()),
        }
    }

    fn compare(&self, place: Place<'_>) -> Order {
        let node = self.node();
        let keys = || node.head.cmp(&place.head).then_with(|| self.key().cmp(place.key));
        keys().then_with(|| place.seqno.cmp(&node.seqno))
    }

    /// Moves to the next record; false, without moving, at the end.
    pub(super) fn advance(&mut self) -> bool {
        match self.list.linked(&self.tower()[0]) {
            Some(next) => {
                *self = next;
                true
            }
            None => false,
        }
    }
}

/// Where a record belongs: by key, then newest first.
#[derive(Clone, Copy)]
struct Place<'a> {
    head: u128,
    key: &'a [u8],
    seqno: Seqno,
}

impl<'a> Place<'a> {
    fn new(key: &'a [u8], seqno: Seqno) -> Self {
        Self { head: head(key), key, seqno }
    }
}

/// The list.
pub(super) struct SkipList {
    first: [AtomicPtr<Node>; LEVELS],
    /// Levels in use.
    levels: AtomicUsize,
    /// Records so far: from their numbers come the heights of their towers.
    records: AtomicU64,
    /// Whether a value is not inline: only then has a node anything to drop.
    shares_values: AtomicBool,
    arena: Arena,
}

impl Default for SkipList {
    fn default() -> Self {
        Self {
            first: Default::default(),
            levels: AtomicUsize::new(1),
            records: AtomicU64::new(0),
            shares_values: AtomicBool::new(false),
            arena: Arena::default(),
        }
    }
}

impl fmt::Debug for SkipList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SkipList").field("records", &self.records).finish_non_exhaustive()
    }
}

// SAFETY: nodes belong to the list and hold only `Send` data; links are atomic, all else of a linked node
// never changes.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

/// The height of the tower of record `number`: one of four goes a level higher.
fn levels_of(number: u64) -> usize {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^= mixed >> 32;
    (1 + mixed.trailing_zeros() as usize / 2).min(LEVELS)
}

impl SkipList {
    /// The record that a link leads to.
    fn linked(&self, link: &AtomicPtr<Node>) -> Option<Record<'_>> {
        // Pairs with the release of the writer that linked the node: it is complete.
        NonNull::new(link.load(Ordering::Acquire)).map(|node| Record { node, list: self })
    }

    /// The links that lead to the first record at or after `place`, from the lowest level up.
    fn links_to<'s>(&'s self, place: Place<'_>) -> [&'s AtomicPtr<Node>; LEVELS] {
        let mut found = std::array::from_fn(|level| &self.first[level]);
        let mut tower: &Tower = &self.first;
        for level in (0..self.levels.load(Ordering::Relaxed)).rev() {
            tower = self.pass(tower, level, place);
            found[level] = &tower[level];
        }
        found
    }

    /// Goes on along a level, from `tower` to that of the last record before `place`.
    fn pass<'s>(&'s self, mut tower: &'s Tower, level: usize, place: Place<'_>) -> &'s Tower {
        while let Some(next) = self.linked(&tower[level])
            && next.compare(place).is_lt()
        {
            tower = next.tower();
        }
        tower
    }

    /// The last record for which `is_before` holds, as it does for all records before that. Expected O(log
    /// n).
    fn last_where(&self, is_before: impl Fn(&Record<'_>) -> bool) -> Option<Record<'_>> {
        let mut last: Option<Record<'_>> = None;
        for level in (0..self.levels.load(Ordering::Relaxed)).rev() {
            let mut tower = last.as_ref().map_or(&self.first[..], Record::tower);
            while let Some(next) = self.linked(&tower[level])
                && is_before(&next)
            {
                tower = next.tower();
                last = Some(next);
            }
        }
        last
    }

    /// The last record before `place`.
    fn last_before(&self, place: Place<'_>) -> Option<Record<'_>> {
        self.last_where(|record| record.compare(place).is_lt())
    }

    /// Expected O(log n). Of equal records (key and seqno) that come in at the same time any may be the
    /// first.
    pub(super) fn insert(&self, key: &[u8], seqno: Seqno, kind: RecordKind, value: &Bytes) -> Growth {
        let levels = levels_of(1 + self.records.fetch_add(1, Ordering::Relaxed));
        let (record, growth) = self.new_node(levels, key, seqno, kind, value);
        self.levels.fetch_max(levels, Ordering::Relaxed);
        let place = Place::new(key, seqno);
        let links = self.links_to(place);
        for (level, &found) in links.iter().enumerate().take(levels) {
            let mut link = found;
            loop {
                let next = self.linked(link);
                if let Some(next) = next
                    && next.compare(place).is_lt()
                {
                    // Another writer put a record in between.
                    link = &self.pass(next.tower(), level, place)[level];
                    continue;
                }
                let next = next.map_or(ptr::null_mut(), |next| next.node.as_ptr());
                record.tower()[level].store(next, Ordering::Relaxed);
                let linked =
                    link.compare_exchange(next, record.node.as_ptr(), Ordering::Release, Ordering::Relaxed);
                if linked.is_ok() {
                    break;
                }
            }
        }
        growth
    }

    /// A complete node that nothing links to yet, and what it takes.
    fn new_node(
        &self,
        levels: usize,
        key: &[u8],
        seqno: Seqno,
        kind: RecordKind,
        value: &Bytes,
    ) -> (Record<'_>, Growth) {
        let is_inline = value.len() <= VALUE_BYTES_INLINE;
        let inline: &[u8] = if is_inline { value } else { &[] };
        let parts = Parts::of(levels, key.len(), inline.len());
        let node = Node {
            head: head(key),
            seqno,
            key_len: key.len() as u32,
            value_len: inline.len() as u32,
            kind,
            levels: levels as u8,
            shared: (!is_inline).then(|| Box::new(value.clone())),
        };
        let Given { memory, bytes_taken } = self.arena.allocate(parts.layout);
        // SAFETY: the arena gave this much memory, aligned for a node, to no other caller; all parts lie in
        // it, one behind the other, as `Parts::of` computed them.
        unsafe {
            let start = memory.as_ptr();
            memory.cast::<Node>().write(node);
            let tower = memory.cast::<Node>().add(1).cast::<AtomicPtr<Node>>();
            for level in 0..levels {
                tower.add(level).write(AtomicPtr::default());
            }
            ptr::copy_nonoverlapping(key.as_ptr(), start.add(parts.key), key.len());
            ptr::copy_nonoverlapping(inline.as_ptr(), start.add(parts.value), inline.len());
        }
        let mut growth =
            Growth { bytes: parts.layout.size(), memory_bytes: bytes_taken, ..Growth::default() };
        if !is_inline {
            self.shares_values.store(true, Ordering::Relaxed);
            growth += Growth::of(value.len() + SHARED_OVERHEAD_BYTES);
        }
        (Record { node: memory.cast(), list: self }, growth)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.front().is_none()
    }

    fn front(&self) -> Option<Record<'_>> {
        self.linked(&self.first[0])
    }

    /// The first record at or after `(key, seqno)` in record order. Expected O(log n).
    pub(super) fn seek(&self, key: &[u8], seqno: Seqno) -> Option<Record<'_>> {
        let mut tower: &Tower = &self.first;
        let place = Place::new(key, seqno);
        for level in (1..self.levels.load(Ordering::Relaxed)).rev() {
            tower = self.pass(tower, level, place);
        }
        // What is returned is what was compared: a link that is read again may lead to a newer record by now.
        let mut next = self.linked(&tower[0]);
        while let Some(record) = next
            && record.compare(place).is_lt()
        {
            next = self.linked(&record.tower()[0]);
        }
        next
    }

    /// The last record before all versions of `key`. Expected O(log n).
    fn seek_before(&self, key: &[u8]) -> Option<Record<'_>> {
        self.last_before(Place::new(key, Seqno::MAX))
    }

    /// The last record of all. Expected O(log n).
    fn back(&self) -> Option<Record<'_>> {
        self.last_where(|_| true)
    }
}

/// Memory that a shared value takes beyond its bytes (bytes): the handle and its allocation.
const SHARED_OVERHEAD_BYTES: usize = 48;

impl Drop for SkipList {
    fn drop(&mut self) {
        if !*self.shares_values.get_mut() {
            return;
        }
        let mut link = *self.first[0].get_mut();
        while let Some(node) = NonNull::new(link) {
            let record = Record { node, list: self };
            link = record.tower()[0].load(Ordering::Relaxed);
            // SAFETY: no other thread has the list any more, each record comes by once, and its memory is not
            // looked at again: the arena gives it back without dropping anything.
            unsafe { ptr::drop_in_place(node.as_ptr()) };
        }
    }
}

/// A walk over a list that keeps the list alive.
pub(super) struct Cursor {
    /// One of `list`: only [`Cursor::stand`] and [`Cursor::next`] set it.
    node: Option<NonNull<Node>>,
    list: Arc<SkipList>,
}

// SAFETY: the node is one of `list`, which lives as long as the cursor and may be read by any thread.
unsafe impl Send for Cursor {}

impl Cursor {
    pub(super) fn new(list: Arc<SkipList>) -> Self {
        Self { node: None, list }
    }

    pub(super) fn record(&self) -> Option<Record<'_>> {
        self.node.map(|node| Record { node, list: &self.list })
    }

    /// Moves to the record that `find` gives.
    fn stand(&mut self, find: impl FnOnce(&SkipList) -> Option<Record<'_>>) {
        self.node = find(&self.list).map(|record| record.node);
    }

    pub(super) fn seek(&mut self, key: &[u8], seqno: Seqno) {
        self.stand(|list| list.seek(key, seqno));
    }

    pub(super) fn seek_before(&mut self, key: &[u8]) {
        self.stand(|list| list.seek_before(key));
    }

    pub(super) fn first(&mut self) {
        self.stand(SkipList::front);
    }

    pub(super) fn last(&mut self) {
        self.stand(SkipList::back);
    }

    pub(super) fn next(&mut self) {
        let next = self.record().and_then(|mut record| record.advance().then_some(record.node));
        self.node = next;
    }

    pub(super) fn prev(&mut self) {
        let before = self.record().and_then(|record| {
            let at = record.record();
            record.list.last_before(Place::new(at.key, at.seqno))
        });
        self.node = before.map(|record| record.node);
    }
}

#[cfg(test)]
mod tests;
