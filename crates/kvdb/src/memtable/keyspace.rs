//! The records of one keyspace in a memtable.
//!
//! Thread safety: readers and writers at once; see [`SkipList`] and [`GrowingTombstones`].

use std::collections::BTreeMap;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use kvfs_locks::{RwLock, class};
use kvfs_store::{BLOCK_BYTES, Compression, Seqno};

use super::{
    UNREADABLE,
    changes::{ChangeVisitor, ChangeWalk},
    fill::BlockFill,
    growing::GrowingTombstones,
    growth::Growth,
    lookup::Lookup,
    search::BlockSearch,
    skiplist::{Record, SkipList},
    tombstones::RangeTombstone,
};
use crate::format::RecordKind;

/// Memory that a wish takes beyond its prefix (bytes).
const WISH_OVERHEAD_BYTES: usize = 96;

/// Versions of a key that are passed one by one; over more of them a search is quicker.
const PASS_STEPS: usize = 8;

/// Below all versions.
const NO_VERSION: Seqno = 0;

#[derive(Debug, Default)]
pub(super) struct KeyspaceTable {
    /// Shared with the walks over it.
    pub(super) records: Arc<SkipList>,
    /// See [`super::folds`].
    pub(super) folds: SkipList,
    tombstones: GrowingTombstones,
    /// Whether any value is [`UNREADABLE`].
    has_unreadable: AtomicBool,
    /// How blocks of a prefix are to be stored; empty where there are no wishes.
    wishes: RwLock<BTreeMap<Bytes, Compression>, class::KvdbMemtableKeyspaceWishes>,
}

impl KeyspaceTable {
    pub(super) fn tombstones(&self) -> &GrowingTombstones {
        &self.tombstones
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.tombstones.is_empty()
    }

    /// Key and short values are copied, long values shared.
    pub(super) fn insert(&self, key: &[u8], seqno: Seqno, kind: RecordKind, value: &Bytes) -> Growth {
        self.records.insert(key, seqno, kind, value)
    }

    pub(super) fn insert_tombstone(&self, start: Bytes, end: Bytes, seqno: Seqno) -> Growth {
        let keys = start.len() + end.len();
        Growth::of(keys + self.tombstones.insert(RangeTombstone { start, end, seqno }))
    }

    /// A delete of one key of a block keyspace: a range tombstone over exactly that key.
    pub(super) fn insert_block_delete(&self, key: &[u8], seqno: Seqno) -> Growth {
        let mut end = Vec::with_capacity(key.len() + 1);
        end.extend_from_slice(key);
        end.push(0);
        let end = Bytes::from(end);
        self.insert_tombstone(end.slice(..key.len()), end, seqno)
    }

    /// One record per block; they share `data`.
    pub(super) fn insert_blocks(&self, prefix: &[u8], first: u64, data: &Bytes, seqno: Seqno) -> Growth {
        let mut key = super::block_key(prefix, first);
        let numbers = first..;
        let blocks =
            (0..data.len() / BLOCK_BYTES).map(|at| data.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES));
        let mut growth = Growth::default();
        for (block, number) in blocks.zip(numbers) {
            key[prefix.len()..].copy_from_slice(&number.to_be_bytes());
            growth += self.insert(&key, seqno, RecordKind::Put, &block);
        }
        growth
    }

    /// One record per block that is there, but can't be read.
    pub(super) fn insert_unreadable(&self, prefix: &[u8], first: u64, blocks: u64, seqno: Seqno) -> Growth {
        self.has_unreadable.store(true, Ordering::Release);
        (first..).zip(0..blocks).fold(Growth::default(), |mut growth, (block, _)| {
            growth += self.insert(&super::block_key(prefix, block), seqno, RecordKind::Put, &UNREADABLE);
            growth
        })
    }

    /// Whether there are blocks that can't be read.
    pub(super) fn has_unreadable(&self) -> bool {
        self.has_unreadable.load(Ordering::Acquire)
    }

    /// One record for a patch. More than it takes here its flush may have to write: a whole block, unless the
    /// flush writes one for patches above `pinned` anyway. (What was put there may be bound, and be written
    /// already.)
    pub(super) fn insert_patch(
        &self,
        prefix: &[u8],
        block: u64,
        operand: &Bytes,
        seqno: Seqno,
        pinned: Seqno,
    ) -> Growth {
        let key = super::block_key(prefix, block);
        let newest = self.records.seek(&key, Seqno::MAX);
        let newest = newest.map(|node| node.record()).filter(|record| record.key == key);
        let is_patched =
            newest.is_some_and(|newest| newest.seqno > pinned && newest.kind == RecordKind::Merge);
        let patched_bytes = if is_patched { 0 } else { BLOCK_BYTES };
        Growth { patched_bytes, ..self.insert(&key, seqno, RecordKind::Merge, operand) }
    }

    /// Notes how blocks of `prefix` are to be stored.
    pub(super) fn wish(&self, prefix: &Bytes, compression: Compression) -> Growth {
        let known = self.wishes.read().get(prefix).copied();
        if known.unwrap_or_default() == compression {
            return Growth::default();
        }
        self.wishes.write().insert(Bytes::copy_from_slice(prefix), compression);
        Growth::of(if known.is_none() { prefix.len() + WISH_OVERHEAD_BYTES } else { 0 })
    }

    pub(super) fn compression(&self, prefix: &[u8]) -> Compression {
        self.wishes.read().get(prefix).copied().unwrap_or_default()
    }

    pub(super) fn lookup(&self, lookup: &mut Lookup<'_>) {
        if lookup.is_decided() {
            return;
        }
        let (key, snapshot) = (lookup.key(), lookup.snapshot());
        let tombstone = self.tombstones.covering(key, snapshot);
        for version in self.versions(key, snapshot) {
            let record = version.record();
            if !lookup.visit(record.seqno, record.kind, || version.value_owned(), tombstone) {
                break;
            }
        }
        lookup.end_layer(tombstone);
    }

    /// Keeps what `key` comes to at `seqno`, as a [fold](super::folds).
    pub(super) fn keep(&self, key: &[u8], seqno: Seqno, value: Option<&Bytes>) -> Growth {
        match value {
            Some(value) => self.folds.insert(key, seqno, RecordKind::Put, value),
            None => self.folds.insert(key, seqno, RecordKind::Delete, &Bytes::new()),
        }
    }

    /// Returns what is taken from now on because the read kept what it found out.
    pub(super) fn fill(&self, fill: &mut BlockFill<'_>) -> Growth {
        if fill.is_complete() {
            return Growth::default();
        }
        let covered = self.tombstones.covered(fill);
        let hidden = newest_by_position(&covered, fill.count());
        let (mut from, mut growth) = (0, Growth::default());
        while let Some(range) = fill.next_undecided(from) {
            growth += self.fill_stretch(fill, range.clone(), &hidden);
            from = range.end;
        }
        fill.end_layer(&covered);
        growth
    }

    /// Fills the undecided stretch `range` from the records. Returns what [`Self::fill`] does.
    fn fill_stretch(
        &self,
        fill: &mut BlockFill<'_>,
        range: std::ops::Range<usize>,
        hidden: &[Seqno],
    ) -> Growth {
        let prefix = fill.prefix();
        let mut growth = Growth::default();
        let Some(mut node) = self.records.seek(&fill.key(range.start), fill.snapshot()) else {
            return growth;
        };
        loop {
            let record = node.record();
            if record.key.get(..prefix.len()) != Some(prefix) {
                return growth;
            }
            let mut wanted = NO_VERSION;
            if let Ok(number) = record.key[prefix.len()..].try_into() {
                let position = (u64::from_be_bytes(number).saturating_sub(fill.first())) as usize;
                if position >= range.end {
                    return growth;
                }
                if record.seqno > fill.snapshot() {
                    wanted = fill.snapshot();
                } else {
                    growth += self.fill_block(fill, position, node, hidden);
                    if position + 1 == range.end {
                        return growth;
                    }
                }
            }
            if !self.pass(&mut node, wanted) {
                return growth;
            }
        }
    }

    /// Takes the undecided block at `position`, of which `newest` is the newest version that the read sees,
    /// through this table. Returns what [`Self::fill`] does.
    fn fill_block(
        &self,
        fill: &mut BlockFill<'_>,
        position: usize,
        newest: Record<'_>,
        hidden: &[Seqno],
    ) -> Growth {
        let record = newest.record();
        let hidden = hidden.get(position).copied().unwrap_or(0);
        if hidden > record.seqno {
            fill.mark_absent(position..position + 1);
        } else if record.kind == RecordKind::Merge {
            return self.fill_patched(fill, position, hidden);
        } else {
            fill.set_data(position, newest.value());
        }
        Growth::default()
    }

    pub(super) fn walk_changes(&self, walk: &mut ChangeWalk<impl ChangeVisitor>) {
        for set in self.tombstones.sets() {
            walk.visit_tombstones(&set, &[]);
        }
        let mut node = self.records.seek(walk.start(&[]), Seqno::MAX);
        while let Some(at) = &mut node {
            let record = at.record();
            if walk.is_over() || walk.is_beyond(record.key) {
                break;
            }
            let goes_on = if record.seqno > walk.up_to() {
                self.pass(at, walk.up_to())
            } else if walk.visit(record.key, record.seqno, record.kind, || at.value_owned()) {
                at.advance()
            } else {
                self.pass(at, NO_VERSION)
            };
            if !goes_on {
                break;
            }
        }
    }

    /// Moves to the next record that is not a version of the same key above `wanted`; false at the end. A few
    /// steps, and then a search: a block may have any number of versions.
    fn pass<'a>(&'a self, at: &mut Record<'a>, wanted: Seqno) -> bool {
        let key = at.record().key;
        for _ in 0..PASS_STEPS {
            if !at.advance() {
                return false;
            }
            let record = at.record();
            if record.seqno <= wanted || record.key != key {
                return true;
            }
        }
        let found = self.records.seek(key, wanted);
        let is_found = found.is_some();
        *at = found.unwrap_or(*at);
        is_found
    }

    /// Takes a search for the next block through this table.
    pub(super) fn search(&self, search: &mut BlockSearch<'_>) {
        if let Some(block) = self.next_block(search) {
            search.note(block);
        }
        self.tombstones.pass_covered(search);
    }

    /// The smallest block that `search` looks for, tombstones ignored.
    fn next_block(&self, search: &BlockSearch<'_>) -> Option<u64> {
        let (prefix, snapshot, end) = (search.prefix(), search.snapshot(), search.blocks().end);
        let mut node = self.records.seek(&search.key(), snapshot)?;
        loop {
            let record = node.record();
            let number = record.key.strip_prefix(prefix)?.try_into().map(u64::from_be_bytes);
            if number.is_ok_and(|number| number >= end) {
                return None;
            }
            if let Ok(number) = number
                && record.seqno <= snapshot
            {
                return Some(number);
            }
            if !self.pass(&mut node, snapshot) {
                return None;
            }
        }
    }
}

/// The newest covering seqno per position, 0 where there is none; empty when nothing is covered.
fn newest_by_position(covered: &[(std::ops::Range<usize>, Seqno)], count: usize) -> Vec<Seqno> {
    if covered.is_empty() {
        return Vec::new();
    }
    let mut newest = vec![0; count];
    for (range, seqno) in covered {
        for slot in &mut newest[range.clone()] {
            *slot = (*slot).max(*seqno);
        }
    }
    newest
}
