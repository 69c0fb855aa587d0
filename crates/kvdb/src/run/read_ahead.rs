//! Read-ahead over the files of a block piece.
//!
//! Files that were written together lie one behind the other, and are mostly read in that order. A
//! walk over many small files then costs one large request for many of them instead of one small
//! request each (limits of the medium: a small read costs as much as a large one).
//!
//! Thread safety: one small lock for each piece, held for a few instructions.

use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result};
use parking_lot::Mutex;

use super::piece::{Piece, is_intact};
use crate::format::Layer;

/// The first window when a walk is noticed (bytes); it doubles up to the piece's read-ahead.
const WINDOW_BYTES_MIN: u64 = 64 << 10;

/// A read that begins this close behind the last window still belongs to the walk (bytes).
const GAP_BYTES_MAX: u64 = 256 << 10;

#[derive(Debug, Default)]
struct Walk {
    /// Device address behind the last window.
    end: u64,
    window_bytes: u64,
}

/// Notices walks over the device addresses of one piece.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    walk: Mutex<Walk>,
}

impl ReadAhead {
    /// How much to read at `addr` when `wanted` bytes are needed and not cached: more than that, up to
    /// `bytes_max`, when the reads so far ascend.
    fn window(&self, addr: u64, wanted: u64, bytes_max: u64) -> u64 {
        let mut walk = self.walk.lock();
        let goes_on = addr >= walk.end && addr - walk.end <= GAP_BYTES_MAX;
        walk.window_bytes =
            if goes_on { (walk.window_bytes * 2).clamp(WINDOW_BYTES_MIN, bytes_max) } else { 0 };
        let window = walk.window_bytes.max(wanted);
        walk.end = addr + window;
        window
    }
}

impl Piece {
    /// Reads the blocks of `region` from `first` on, and what lies behind them on the device if a walk
    /// is under way; everything read ahead is cached. `None`: no walk, read just what is needed.
    ///
    /// # Errors
    /// I/O errors; corruption of the `wanted` blocks.
    pub(super) fn read_walk(
        &self,
        layer: &Layer,
        region: usize,
        first: u64,
        wanted: usize,
    ) -> Result<Option<AlignedBuf>> {
        let addr = layer.region(region).addr_of(first);
        let wanted_bytes = (wanted * BLOCK_BYTES) as u64;
        // Room for the window must not push out what else is in use.
        let bytes_max =
            (self.ctx().options.read_ahead_bytes as u64).min(self.ctx().accountant.cache_budget() / 16);
        let window = self.read_ahead().window(addr, wanted_bytes, bytes_max.max(WINDOW_BYTES_MIN));
        if window <= wanted_bytes {
            return Ok(None);
        }
        let stretch = adjacent(layer, region, first, window / BLOCK_BYTES as u64);
        let blocks: u64 = stretch.iter().map(|part| part.count).sum();
        let mut buf = AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES);
        self.read(buf.as_mut(), addr)?;
        let mut data = buf.as_ref().chunks_exact(BLOCK_BYTES);
        let mut done = 0;
        for part in stretch {
            let region = layer.region(part.region);
            for (offset, bytes) in (0..part.count).zip(&mut data) {
                let block = part.first + offset;
                if is_intact(bytes, region.crc_of(block)) {
                    self.cache_copy(region.addr_of(block), bytes);
                } else if done < wanted {
                    let detail = format!("checksum of block {block} does not match");
                    return Err(self.corrupt("data block", region.addr_of(block), &detail));
                }
                done += 1;
            }
        }
        Ok(Some(buf))
    }
}

/// Blocks of one region within a stretch.
struct Part {
    region: usize,
    first: u64,
    count: u64,
}

/// The blocks from `first` of `region` on that lie one behind the other on the device, at most
/// `blocks_max`.
fn adjacent(layer: &Layer, region: usize, first: u64, blocks_max: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut index, mut first, mut left) = (region, first, blocks_max);
    loop {
        let region = layer.region(index);
        let count = (region.end() - first).min(left);
        parts.push(Part { region: index, first, count });
        left -= count;
        index += 1;
        if left == 0 || index == layer.len() {
            return parts;
        }
        let next = layer.region(index);
        if region.addr_of(region.end() - 1) + BLOCK_BYTES as u64 != next.addr {
            return parts;
        }
        first = next.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_along_a_walk_and_not_for_scattered_reads() {
        let ahead = ReadAhead::default();
        let max = 512 << 10;
        assert_eq!(ahead.window(10 << 20, 4096, max), 4096, "the first read says nothing");
        let mut addr = (10 << 20) + 4096;
        for expected in [64, 128, 256, 512, 512] {
            assert_eq!(ahead.window(addr, 8192, max), expected << 10);
            addr += (expected << 10) + 4096;
        }
        assert_eq!(ahead.window(1 << 20, 4096, max), 4096, "backwards");
        assert_eq!(ahead.window(90 << 20, 4096, max), 4096, "far away");
    }
}
