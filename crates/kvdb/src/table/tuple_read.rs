//! Point reads in tuple pieces, and the verified way from the device to a tuple block.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::Result;

use super::Access;
use super::piece::{Piece, is_intact};
use super::read_ahead::{Direction, GAP_BYTES_MAX, Jump, is_near};
use super::windows::Window;
use crate::format::{DecodeError, PackedBlock, RecordIter, TupleBlock, TupleCursor, TupleEntry, unpack};
use crate::memtable::Lookup;

/// How much is read around a block, itself included (bytes). On the disks that this was measured on 16 KiB
/// take 0.1 ms, 64 KiB 0.15, 128 KiB 0.23.
const AROUND_BYTES: u64 = 64 << 10;

/// Blocks that are looked at to find out how a walk goes on: more than a window has.
const LOOK_MAX: usize = 128;

/// Those of `entries` that are read together with the one at `at`: they begin in the same aligned stretch,
/// with nothing in between, and are neither large nor packed, because to unpack what was not asked for takes
/// longer than to read it.
fn neighbours(entries: &[TupleEntry], at: usize) -> Range<usize> {
    let is_light =
        |entry: &TupleEntry| entry.packed.is_none() && u64::from(entry.extent.len) <= AROUND_BYTES / 2;
    let go_together = |pair: &[TupleEntry]| {
        let (a, b) = (pair[0].extent, pair[1].extent);
        pair.iter().all(is_light)
            && a.addr + u64::from(a.len) == b.addr
            && a.addr / AROUND_BYTES == b.addr / AROUND_BYTES
    };
    let before = entries[..=at].windows(2).rev().take_while(|pair| go_together(pair)).count();
    let behind = entries[at..].windows(2).take_while(|pair| go_together(pair)).count();
    at - before..at + behind + 1
}

/// The device addresses of a block.
fn range_of(entry: &TupleEntry) -> Range<u64> {
    entry.extent.addr..entry.extent.addr + u64::from(entry.extent.len)
}

/// How a walk may come to `entries[at]` if that is not close to the one before: with it comes what follows
/// there closely.
fn jump_to(entries: &[TupleEntry], at: usize, direction: Direction) -> Option<Jump> {
    let range = |at: usize| entries.get(at).map(range_of);
    let step = |at: usize| match direction {
        Direction::Forward => Some(at + 1),
        Direction::Backward => at.checked_sub(1),
    };
    let from = match direction {
        Direction::Forward => range(at.checked_sub(1)?)?,
        Direction::Backward => range(at + 1)?,
    };
    let first = range(at)?;
    if is_near(&from, &first) {
        return None;
    }
    let ranges = std::iter::successors(Some(at), |&at| step(at)).skip(1).map_while(range);
    let mut last = first.clone();
    for range in ranges.take(LOOK_MAX) {
        if !is_near(&last, &range) {
            break;
        }
        last = range;
    }
    Some(Jump { from, bytes_max: first.end.max(last.end) - first.start.min(last.start) })
}

impl Piece {
    pub(super) fn lookup_tuple(&self, lookup: &mut Lookup<'_>) -> Result<()> {
        let (key, snapshot) = (lookup.key(), lookup.snapshot());
        let tombstone = self.tombstones().covering(key, snapshot);
        let filtered = self.metadata().filter().resident_says(key);
        if filtered == Some(false) {
            // Not even the index is needed.
            lookup.end_layer(tombstone);
            return Ok(());
        }
        let index = self.metadata().glance()?;
        let entries = index.tuple_entries();
        let first = entries.partition_point(|entry| entry.last_key[..] < *key);
        // The versions of a key may go on in the next blocks.
        let mut must_ask = filtered.is_none();
        for (at, entry) in entries.iter().enumerate().skip(first) {
            if entry.first_key[..] > *key || (must_ask && !self.metadata().passes_filter(key)) {
                break;
            }
            must_ask = false;
            let block = self.tuple_block_among(entries, at)?;
            let malformed = |error| self.malformed_block(entry, error);
            let mut cursor = TupleCursor::new(block, entry.shift).map_err(malformed)?;
            cursor.seek(key, snapshot).map_err(malformed)?;
            while let Some(record) = cursor.record() {
                let go_on = record.key == key
                    && lookup.visit(record.seqno, record.kind, || cursor.value(), tombstone);
                if !go_on {
                    lookup.end_layer(tombstone);
                    return Ok(());
                }
                cursor.next().map_err(malformed)?;
            }
        }
        lookup.end_layer(tombstone);
        Ok(())
    }

    /// The verified bytes of `entries[at]`, from the cache or the device; reads ahead along a walk in
    /// `direction`.
    pub(super) fn tuple_block(
        &self,
        entries: &[TupleEntry],
        at: usize,
        direction: Direction,
    ) -> Result<Bytes> {
        match self.tuple_block_at_hand(entries, at, direction) {
            Some(block) => Ok(block),
            None => self.tuple_block_alone(&entries[at]),
        }
    }

    /// The verified bytes of `entries[at]`; while the cache is not full, its neighbours come into it along
    /// with the block.
    fn tuple_block_among(&self, entries: &[TupleEntry], at: usize) -> Result<Bytes> {
        if let Some(block) = self.tuple_block_at_hand(entries, at, Direction::Forward) {
            return Ok(block);
        }
        let entry = &entries[at];
        let group = neighbours(entries, at);
        // What lies next to it may be asked for soon or never: nothing is pushed out for it. The last one may
        // go beyond the end.
        if group.len() > 1
            && self.ctx().cache.has_room(2 * AROUND_BYTES)
            && let Some(block) = self.read_around(&entries[group], entry)?
        {
            return Ok(block);
        }
        self.tuple_block_alone(entry)
    }

    /// As [`Self::tuple_block`], if the cache has it or a walk leads to it.
    fn tuple_block_at_hand(&self, entries: &[TupleEntry], at: usize, direction: Direction) -> Option<Bytes> {
        let (addr, len) = (entries[at].extent.addr, entries[at].extent.len as usize);
        if let Some(block) = self.storage().cached(addr, entries[at].bytes as usize) {
            return Some(block.bytes().clone());
        }
        let jump = || jump_to(entries, at, direction);
        let window = self.storage().ahead(addr, (len, len), jump, direction)?;
        if window.note_use(addr, len, direction) && self.storage().can_plan() {
            self.plan_behind(&window, entries, at, direction);
        }
        let block = self.admit(&entries[at], window.bytes()?.at(addr, len));
        if block.is_err() {
            self.storage().discard_window(&window);
        }
        block.ok()
    }

    /// Lets the blocks be read that come after those of `window`, in which a walk has come to `entries[at]`:
    /// those that follow it on the device, if it has any, before those that it jumps to.
    fn plan_behind(&self, window: &Window, entries: &[TupleEntry], at: usize, direction: Direction) {
        let held = window.range();
        let is_beyond = |&at: &usize| {
            let range = range_of(&entries[at]);
            range.start < held.start || range.end > held.end
        };
        let follows = |&at: &usize| match direction {
            Direction::Forward => {
                (held.start..=held.end + GAP_BYTES_MAX).contains(&range_of(&entries[at]).start)
            }
            Direction::Backward => {
                (held.start.saturating_sub(GAP_BYTES_MAX)..=held.end).contains(&range_of(&entries[at]).end)
            }
        };
        let mut to_come: Vec<usize> = match direction {
            Direction::Forward => (at..entries.len().min(at + LOOK_MAX)).collect(),
            Direction::Backward => (at.saturating_sub(LOOK_MAX)..at).rev().collect(),
        };
        to_come.retain(is_beyond);
        let elsewhere =
            || to_come.iter().copied().find(|&at| !self.storage().has_window(&range_of(&entries[at])));
        let next = to_come.iter().copied().find(follows).or_else(elsewhere);
        if let Some(next) = next {
            let jump = jump_to(entries, next, direction);
            self.storage().plan(window, range_of(&entries[next]), jump.as_ref(), direction);
        }
    }

    fn tuple_block_alone(&self, entry: &TupleEntry) -> Result<Bytes> {
        let mut buf = AlignedBuf::zeroed(entry.extent.len as usize);
        self.storage().read(buf.as_mut(), entry.extent.addr)?;
        self.admit(entry, buf.as_ref())
    }

    /// Reads `group`, which lies in one stretch and has `wanted` in it, by one request: a small one takes
    /// about as long. `None` when that fails, which says nothing about the parts.
    fn read_around(&self, group: &[TupleEntry], wanted: &TupleEntry) -> Result<Option<Bytes>> {
        let bytes = group.iter().map(|entry| entry.extent.len as usize).sum();
        let (mut buf, start) = (AlignedBuf::zeroed(bytes), group[0].extent.addr);
        if self.storage().read(buf.as_mut(), start).is_err() {
            return Ok(None);
        }
        let mut found = None;
        for entry in group {
            let at = (entry.extent.addr - start) as usize;
            let block = self.admit(entry, &buf.as_ref()[at..at + entry.extent.len as usize]);
            if entry.extent.addr == wanted.extent.addr {
                found = Some(block?);
            }
            // What is wrong with another one is told when it is asked for.
        }
        Ok(found)
    }

    /// The block that begins `stored`, verified, unpacked, and in the cache.
    fn admit(&self, entry: &TupleEntry, stored: &[u8]) -> Result<Bytes> {
        let addr = entry.extent.addr;
        if let Some(packed) = &entry.packed {
            return Ok(self.storage().cache_own(addr, self.unpack_block(entry, packed, stored)?));
        }
        let len = self.verify_tuple_block(entry, stored)?;
        // Not the buffer itself: the cache is to hold no more than the block.
        Ok(self.storage().cache_copy(addr, &stored[..len]))
    }

    /// The verified block that is packed at the start of `stored`.
    pub(super) fn unpack_block(
        &self,
        entry: &TupleEntry,
        packed: &PackedBlock,
        stored: &[u8],
    ) -> Result<Bytes> {
        let stored = &stored[..packed.bytes as usize];
        if !is_intact(stored, packed.crc) {
            return Err(self.malformed_block(entry, DecodeError("checksum does not match")));
        }
        let mut raw = vec![0; entry.bytes as usize];
        unpack(packed.codec, stored, &mut raw).map_err(|error| self.malformed_block(entry, error))?;
        self.verify_tuple_block(entry, &raw)?;
        Ok(raw.into())
    }

    /// Checks the block at the start of `bytes` against its checksum and its index entry; returns
    /// its length.
    pub(super) fn verify_tuple_block(&self, entry: &TupleEntry, bytes: &[u8]) -> Result<usize> {
        let block = TupleBlock::verify(bytes).map_err(|error| self.malformed_block(entry, error))?;
        let is_named = block.len() == entry.bytes as usize
            && block.records() == entry.records
            && block.crc() == entry.crc;
        if !is_named {
            let detail = "another block than the index names";
            return Err(self.storage().corrupt("tuple block", entry.extent.addr, detail));
        }
        Ok(block.len())
    }

    pub(super) fn malformed_block(&self, entry: &TupleEntry, error: DecodeError) -> kvfs_store::StoreError {
        self.storage().corrupt("tuple block", entry.extent.addr, error.0)
    }

    pub(super) fn verify_tuples(self: &Arc<Self>) -> Result<u64> {
        let mut iter = self.iter(Access::Sequential);
        let mut last: Option<(Vec<u8>, u64)> = None;
        iter.first()?;
        while let Some(record) = iter.record() {
            let in_order = last.as_ref().is_none_or(|(key, seqno)| {
                (&key[..], std::cmp::Reverse(*seqno)) < (record.key, std::cmp::Reverse(record.seqno))
            });
            if !in_order {
                let addr = self.index()?.tuple_entries().first().map_or(0, |entry| entry.extent.addr);
                return Err(self.storage().corrupt("tuples", addr, "records are not in order"));
            }
            last = Some((record.key.to_vec(), record.seqno));
            iter.next()?;
        }
        Ok(self.desc().data_bytes)
    }
}
