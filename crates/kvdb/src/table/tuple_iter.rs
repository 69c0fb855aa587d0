//! A walk over the records of a tuple piece, with read-ahead.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{Result, Seqno};

use super::Access;
use super::index::Index;
use super::piece::Piece;
use super::read_ahead::Direction;
use crate::cache::{Charge, Pool};
use crate::format::{RecordIter, RecordRef, TupleCursor, TupleEntry};

/// Of which blocks a walk leaves out all records, without reading them.
pub(crate) type LeavesOut = Arc<dyn Fn(&TupleEntry) -> bool + Send + Sync>;

/// Stands on a record of one of the blocks, or nowhere.
pub(super) struct TupleIter {
    piece: Arc<Piece>,
    /// Held from the first step on.
    held: Option<Index>,
    reader: BlockReader,
    /// The block that `cursor` stands in.
    index: usize,
    cursor: Option<TupleCursor>,
}

impl TupleIter {
    pub(super) fn new(piece: Arc<Piece>, access: Access, leaves_out: Option<LeavesOut>) -> Self {
        let reader = BlockReader::new(&piece, access, leaves_out);
        Self { reader, piece, held: None, index: 0, cursor: None }
    }

    /// The index, which stays in memory with the walk.
    fn held(&mut self) -> Result<Index> {
        match &self.held {
            Some(index) => Ok(index.clone()),
            None => Ok(self.held.insert(self.piece.index()?).clone()),
        }
    }

    fn nowhere(&mut self) {
        self.cursor = None;
    }

    /// Puts the cursor into the block at `index` and moves it there.
    fn enter(
        &mut self,
        entries: &[TupleEntry],
        index: usize,
        go: impl FnOnce(&mut TupleCursor) -> Result<(), crate::format::DecodeError>,
    ) -> Result<()> {
        let old = self.cursor.take();
        let bytes = self.reader.block(&self.piece, entries, index)?;
        let shift = entries[index].shift;
        let moved = match old {
            Some(mut cursor) => cursor.reset(bytes, shift).map(|()| cursor),
            None => TupleCursor::new(bytes, shift),
        };
        let moved = moved.and_then(|mut cursor| go(&mut cursor).map(|()| cursor));
        self.cursor = Some(moved.map_err(|error| self.piece.malformed_block(&entries[index], error))?);
        self.index = index;
        Ok(())
    }

    fn is_somewhere(&self) -> bool {
        self.record().is_some()
    }

    /// Moves to the last record of the blocks before `index`.
    fn last_before(&mut self, entries: &[TupleEntry], index: usize) -> Result<()> {
        for index in (0..index).rev() {
            if self.reader.passes(&entries[index]) {
                continue;
            }
            self.enter(entries, index, TupleCursor::last)?;
            if self.is_somewhere() {
                return Ok(());
            }
        }
        self.nowhere();
        Ok(())
    }

    /// Moves to the first record of the blocks from `index` on.
    fn first_from(&mut self, index: usize) -> Result<()> {
        let held = self.held()?;
        let entries = held.tuple_entries();
        for index in index..entries.len() {
            if self.reader.passes(&entries[index]) {
                continue;
            }
            self.enter(entries, index, TupleCursor::first)?;
            if self.is_somewhere() {
                return Ok(());
            }
        }
        self.nowhere();
        Ok(())
    }

    /// Moves within the current block; says whether there was a record to go to.
    fn step(
        &mut self,
        go: impl FnOnce(&mut TupleCursor) -> Result<(), crate::format::DecodeError>,
    ) -> Result<bool> {
        let Some(cursor) = &mut self.cursor else { return Ok(false) };
        if let Err(error) = go(cursor) {
            self.nowhere();
            let index = self.held()?;
            return Err(self.piece.malformed_block(&index.tuple_entries()[self.index], error));
        }
        Ok(cursor.record().is_some())
    }
}

impl RecordIter for TupleIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        let held = self.held()?;
        let entries = held.tuple_entries();
        let first = entries.partition_point(|entry| entry.last_key[..] < *key);
        for index in first..entries.len() {
            if self.reader.passes(&entries[index]) {
                continue;
            }
            // Older versions of the key, or the next key, may be in a following block.
            self.enter(entries, index, |cursor| cursor.seek(key, seqno))?;
            if self.is_somewhere() {
                return Ok(());
            }
        }
        self.nowhere();
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        let held = self.held()?;
        let entries = held.tuple_entries();
        let index = entries.partition_point(|entry| entry.last_key[..] < *key);
        if entries.get(index).is_some_and(|entry| entry.first_key[..] < *key && !self.reader.passes(entry)) {
            self.enter(entries, index, |cursor| cursor.seek_before(key))?;
            if self.is_somewhere() {
                return Ok(());
            }
        }
        self.last_before(entries, index)
    }

    fn first(&mut self) -> Result<()> {
        self.first_from(0)
    }

    fn last(&mut self) -> Result<()> {
        let held = self.held()?;
        self.last_before(held.tuple_entries(), held.tuple_entries().len())
    }

    fn next(&mut self) -> Result<()> {
        if !self.is_somewhere() || self.step(TupleCursor::next)? {
            return Ok(());
        }
        self.first_from(self.index + 1)
    }

    fn prev(&mut self) -> Result<()> {
        if !self.is_somewhere() || self.step(TupleCursor::prev)? {
            return Ok(());
        }
        let held = self.held()?;
        self.last_before(held.tuple_entries(), self.index)
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.cursor.as_ref()?.record()
    }

    fn value(&mut self) -> Result<Bytes> {
        Ok(self.cursor.as_ref().map(TupleCursor::value).unwrap_or_default())
    }
}

/// Gets blocks by index.
struct BlockReader {
    access: Access,
    leaves_out: Option<LeavesOut>,
    /// Neighbouring blocks that were read together for a sequential walk, not verified yet.
    window: Bytes,
    window_blocks: Range<usize>,
    last: Option<usize>,
    charge: Charge,
}

impl BlockReader {
    fn new(piece: &Piece, access: Access, leaves_out: Option<LeavesOut>) -> Self {
        Self {
            access,
            leaves_out,
            window: Bytes::new(),
            window_blocks: 0..0,
            last: None,
            charge: piece.ctx().accountant.charge(Pool::Io, 0),
        }
    }

    /// Whether the walk passes over the block of `entry`.
    fn passes(&self, entry: &TupleEntry) -> bool {
        self.leaves_out.as_ref().is_some_and(|leaves_out| leaves_out(entry))
    }

    /// The verified bytes of the block at `index`. Neighbours that the walk passes over are not read with it.
    fn block(&mut self, piece: &Piece, entries: &[TupleEntry], index: usize) -> Result<Bytes> {
        let direction = match self.last.replace(index) {
            Some(last) if index < last => Direction::Backward,
            _ => Direction::Forward,
        };
        if self.access == Access::Random {
            return piece.tuple_block(entries, index, direction);
        }
        if !self.window_blocks.contains(&index) {
            let bytes_max = self.access.bytes_ahead(&piece.ctx().options);
            let blocks = neighbours(entries, index, direction, bytes_max, |entry| !self.passes(entry));
            self.read_window(piece, entries, blocks)?;
        }
        self.window_block(piece, entries, index)
    }

    fn read_window(&mut self, piece: &Piece, entries: &[TupleEntry], blocks: Range<usize>) -> Result<()> {
        self.window = Bytes::new();
        self.window_blocks = 0..0;
        let entries = &entries[blocks.clone()];
        let bytes: usize = entries.iter().map(|entry| entry.extent.len as usize).sum();
        self.charge.resize(bytes as u64);
        let mut buf = AlignedBuf::zeroed(bytes);
        piece.storage().read(buf.as_mut(), entries[0].extent.addr)?;
        self.window = Bytes::from_owner(buf);
        self.window_blocks = blocks;
        Ok(())
    }

    fn window_block(&self, piece: &Piece, entries: &[TupleEntry], index: usize) -> Result<Bytes> {
        let entry = &entries[index];
        let start = (entry.extent.addr - entries[self.window_blocks.start].extent.addr) as usize;
        let block = self.window.slice(start..start + entry.extent.len as usize);
        if let Some(packed) = &entry.packed {
            return piece.unpack_block(entry, packed, &block);
        }
        let len = piece.verify_tuple_block(entry, &block)?;
        Ok(block.slice(..len))
    }
}

/// The blocks around `index`, in the direction of the walk, that one request of `bytes_max` can read.
fn neighbours(
    entries: &[TupleEntry],
    index: usize,
    direction: Direction,
    bytes_max: usize,
    is_wanted: impl Fn(&TupleEntry) -> bool,
) -> Range<usize> {
    let are_adjacent = |left: usize| {
        let (left, right) = (entries[left].extent, entries[left + 1].extent);
        left.addr + u64::from(left.len) == right.addr
    };
    let mut blocks = index..index + 1;
    let mut bytes = entries[index].extent.len as usize;
    loop {
        let next = match direction {
            Direction::Forward => {
                (blocks.end < entries.len() && are_adjacent(blocks.end - 1)).then_some(blocks.end)
            }
            Direction::Backward => blocks.start.checked_sub(1).filter(|&left| are_adjacent(left)),
        };
        let Some(next) = next.filter(|&next| is_wanted(&entries[next])) else { return blocks };
        bytes += entries[next].extent.len as usize;
        if bytes > bytes_max {
            return blocks;
        }
        blocks = blocks.start.min(next)..blocks.end.max(next + 1);
    }
}
