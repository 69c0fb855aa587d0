//! What one layer of a block piece has of a fill: read in as few requests as can be, each block verified.
//!
//! Thread safety: of one thread.
//! Invariant: a position is marked as decided only after its block was verified.

mod packed;

use std::ops::Range;
use std::sync::Arc;

use kvfs_store::{BLOCK_BYTES, Result};

use super::block_read::fill_block;
use super::piece::Piece;
use super::read_ahead::Direction;
use super::storage::Storage;
use super::windows::Window;
use crate::format::Layer;
use crate::memtable::BlockFill;

/// Blocks of a fill that one region has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    /// Position in the fill.
    pub(super) position: usize,
    pub(super) count: usize,
    pub(super) region: usize,
}

impl Stretch {
    pub(super) fn positions(&self) -> Range<usize> {
        self.position..self.position + self.count
    }
}

/// One layer's part of a fill.
pub(super) struct LayerFill<'a, 'f> {
    piece: &'a Piece,
    storage: &'a Storage,
    layer: &'a Layer,
    fill: &'a mut BlockFill<'f>,
}

impl<'a, 'f> LayerFill<'a, 'f> {
    /// Of a layer of `piece`.
    pub(super) fn new(piece: &'a Piece, layer: &'a Layer, fill: &'a mut BlockFill<'f>) -> Self {
        Self { piece, storage: piece.storage(), layer, fill }
    }

    /// Reads what was found, neighbours in one request.
    pub(super) fn read_stretches(&mut self, found: &[Stretch]) -> Result<()> {
        let is_packed = |stretch: &Stretch| self.layer.region(stretch.region).unit.is_some();
        let (packed, found): (Vec<Stretch>, Vec<Stretch>) = found.iter().copied().partition(is_packed);
        if !packed.is_empty() {
            self.read_packed(&packed)?;
        }
        let addr_of = |stretch: &Stretch| {
            let region = self.layer.region(stretch.region);
            region.addr_of(fill_block(self.fill, stretch.position))
        };
        let continues = |left: &Stretch, right: &Stretch| {
            left.position + left.count == right.position
                && addr_of(left) + (left.count * BLOCK_BYTES) as u64 == addr_of(right)
        };
        let mut requests = Vec::new();
        for request in found.chunk_by(continues) {
            requests.push((addr_of(&request[0]), request));
        }
        for (addr, request) in requests {
            if blocks_of(request) * BLOCK_BYTES >= self.storage.ctx().options.bypass_bytes {
                self.read_large(addr, request)?;
            } else {
                self.read_cached(request)?;
            }
        }
        Ok(())
    }

    /// Stretches that lie one behind the other from `addr` on, past the cache: what was read ahead of them,
    /// and the rest straight into the caller's buffer. What will be asked for next is read meanwhile, where
    /// such reads follow one another.
    fn read_large(&mut self, addr: u64, stretches: &[Stretch]) -> Result<()> {
        let (mut addr, mut rest) = (addr, stretches.to_vec());
        while let Some(first) = rest.first() {
            let start = first.position;
            let count = blocks_of(&rest);
            let len = count * BLOCK_BYTES;
            if let Some(window) = self.storage.window_at(addr, BLOCK_BYTES) {
                let held = (window.bytes_from(addr) / BLOCK_BYTES).min(count);
                let next = window.range().end;
                if window.note_use(addr, held * BLOCK_BYTES, Direction::Forward)
                    && goes_on(self.layer, &rest, next)
                {
                    window.follow(|| self.storage.plan_large(&window.range(), len));
                }
                let (head, tail) = split_stretches(&rest, held);
                if self.copy_window(&window, addr, &head) {
                    addr += (held * BLOCK_BYTES) as u64;
                    rest = tail;
                    continue;
                }
            }
            let end = addr + len as u64;
            if self.storage.passed(addr, len) && goes_on(self.layer, &rest, end) {
                self.storage.plan_large(&(addr..end), len);
            }
            self.read_request(addr, start..start + count, &rest)?;
            self.fill.mark_data(start..start + count);
            return Ok(());
        }
        Ok(())
    }

    /// One request straight into the caller's buffer.
    fn read_request(&mut self, addr: u64, positions: Range<usize>, stretches: &[Stretch]) -> Result<()> {
        let first = self.fill.first();
        let Some(buf) = self.fill.buffer(positions.clone()) else { return Ok(()) };
        self.storage.read(buf, addr)?;
        for stretch in stretches {
            let at = (stretch.position - positions.start) * BLOCK_BYTES;
            let block = first + stretch.position as u64;
            let data = &buf[at..at + stretch.count * BLOCK_BYTES];
            self.piece.verify_data(&self.layer.region(stretch.region), block, data)?;
        }
        Ok(())
    }

    /// Takes stretches that lie one behind the other from `addr` on out of a window, verifies and decides
    /// them. False: the window could not be read, or was read wrong and is dropped; nothing is decided.
    fn copy_window(&mut self, window: &Arc<Window>, addr: u64, stretches: &[Stretch]) -> bool {
        let Some(bytes) = window.bytes() else { return false };
        let mut addr = addr;
        for stretch in stretches {
            let len = stretch.count * BLOCK_BYTES;
            let first = fill_block(self.fill, stretch.position);
            let Some(buf) = self.fill.buffer(stretch.positions()) else { return false };
            buf.copy_from_slice(bytes.at(addr, len));
            if self.piece.verify_data(&self.layer.region(stretch.region), first, buf).is_err() {
                self.storage.discard_window(window);
                return false;
            }
            addr += len as u64;
        }
        for stretch in stretches {
            self.fill.mark_data(stretch.positions());
        }
        true
    }

    /// Block by block from the cache or from what was read ahead; what they lack is read, neighbours in one
    /// request, and cached.
    fn read_cached(&mut self, request: &[Stretch]) -> Result<()> {
        for stretch in request {
            let region = self.layer.region(stretch.region);
            let end = stretch.position + stretch.count;
            let mut position = stretch.position;
            while position < end {
                let addr = region.addr_of(fill_block(self.fill, position));
                if let Some(block) = self.storage.cached(addr, BLOCK_BYTES) {
                    self.fill.set_data(position, block.bytes());
                    position += 1;
                    continue;
                }
                let len = (end - position) * BLOCK_BYTES;
                if let Some(window) = self.storage.blocks_ahead(addr, len) {
                    let count = (window.bytes_from(addr) / BLOCK_BYTES).min(end - position);
                    let part = Stretch { position, count, region: stretch.region };
                    if self.copy_window(&window, addr, &[part]) {
                        position += count;
                        continue;
                    }
                }
                let mut missing = position + 1;
                let mut hit = None;
                while missing < end && hit.is_none() {
                    let addr = region.addr_of(fill_block(self.fill, missing));
                    hit = self.storage.cached(addr, BLOCK_BYTES);
                    missing += usize::from(hit.is_none());
                }
                let part = Stretch { position, count: missing - position, region: stretch.region };
                self.read_request(addr, position..missing, &[part])?;
                if let Some(buf) = self.fill.buffer(position..missing) {
                    for (index, data) in buf.chunks_exact(BLOCK_BYTES).enumerate() {
                        self.storage.cache_copy(addr + (index * BLOCK_BYTES) as u64, data);
                    }
                }
                self.fill.mark_data(position..missing);
                position = missing;
                if let Some(block) = hit {
                    self.fill.set_data(position, block.bytes());
                    position += 1;
                }
            }
        }
        Ok(())
    }
}

/// How many blocks all of these stretches have.
fn blocks_of(stretches: &[Stretch]) -> usize {
    stretches.iter().map(|stretch| stretch.count).sum()
}

/// Whether the file of these stretches, which are one behind the other, has more at or behind the device
/// address `next`: a reader that reads it to its end seldom goes on with its neighbour.
fn goes_on(layer: &Layer, stretches: &[Stretch], next: u64) -> bool {
    let Some(last) = stretches.last() else { return false };
    let region = layer.region(last.region);
    let extent = region.extent();
    let is_followed = || {
        let behind = last.region + 1;
        behind < layer.len() && layer.region(behind).prefix[..] == region.prefix[..]
    };
    next < extent.addr + u64::from(extent.len) || is_followed()
}

/// The first `count` blocks of stretches, and the others.
fn split_stretches(stretches: &[Stretch], count: usize) -> (Vec<Stretch>, Vec<Stretch>) {
    let (mut head, mut tail, mut left) = (Vec::new(), Vec::new(), count);
    for &Stretch { position, count, region } in stretches {
        let taken = count.min(left);
        left -= taken;
        if taken > 0 {
            head.push(Stretch { position, count: taken, region });
        }
        if taken < count {
            tail.push(Stretch { position: position + taken, count: count - taken, region });
        }
    }
    (head, tail)
}
