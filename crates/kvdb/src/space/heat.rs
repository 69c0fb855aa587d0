//! How often parts of files are asked for, so that what is hot lies on fast devices and what is cold on slow
//! ones.
//!
//! Counted is by name, a file's prefix and a *stretch* of its blocks, not by place: so a count stays true
//! wherever merges move the blocks. The counters are a sketch, as `TinyLFU` has it (Einziger, Friedman, Manes
//! 2017): each stretch has a few cells among many, shared with others, and the smallest of them is its count.
//! From time to time all are halved, after so many accesses as the fast devices hold stretches, many times
//! over: so what was hot cools down as fast as something else is asked for, and an idle store forgets
//! nothing.
//!
//! What is hot, and what is cold, is decided anew at each *settling*: hot is as much as fits on the fast
//! devices; cold, where these are crowded, what is asked for half as often.
//!
//! Thread safety: atomics without order: a count that is lost among threads makes no difference. Memory: one
//! byte for each cell, from when it is turned on. Invariant: there are cells for all that the fast devices
//! hold, else what was never asked for would have the counts of others: where there would be too many,
//! stretches are longer, and where fast devices have come, counting begins anew.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use kvfs_store::{BLOCK_BYTES, Tier};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Blocks of a stretch: of 256 KiB (nDiskFS 3.3), or of a multiple where fast devices hold very much.
pub(crate) const STRETCH_BLOCKS: u64 = 64;

/// A stretch has so many cells.
const CELLS_OF_STRETCH: u32 = 4;
/// Cells for each stretch that the fast devices hold: few stretches then share all their cells with others.
const CELLS_PER_STRETCH: u64 = 8;
const CELLS_MIN: u64 = 1 << 14;
const CELLS_MAX: u64 = 1 << 23;

/// All counts are halved after so many accesses for each stretch that the fast devices hold: what is asked
/// for an eighth as often as the mean of what they hold is still told from what is not asked for.
const ACCESSES_PER_STRETCH: u64 = 16;
const ACCESSES_MIN: u64 = 1 << 12;

/// After fewer accesses a settling comes to no other result.
const UNSETTLED_MIN: u64 = 1 << 10;

/// What is asked for less often than this between halvings is not hot.
const HOT_MIN: u8 = 3;

/// So much of the fast devices is left to what is new, and to what has just become hot: one part in so many.
pub(crate) const SHARE_LEFT_FREE: u64 = 4;

/// See the module.
#[derive(Default)]
pub(crate) struct Heat {
    sketch: ArcSwapOption<Sketch>,
    /// From this count on a stretch is hot; 0: none is.
    hot_from: AtomicU8,
    /// Up to this count, not with it, a stretch is cold; 0: none is.
    cold_below: AtomicU8,
    /// Accesses since the last settling.
    unsettled: AtomicU64,
}

struct Sketch {
    /// Blocks of a stretch.
    stretch_blocks: u64,
    cells: Box<[AtomicU8]>,
    /// Until the next halving.
    accesses_left: AtomicU64,
    accesses_per_halving: u64,
}

/// What the fast devices have for blocks of files (bytes): without what is kept for rows and metadata.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FastSpace {
    pub(crate) bytes_total: u64,
    pub(crate) bytes_free: u64,
}

impl Heat {
    /// Counts from now on; the fast devices hold so many bytes. Where these are many more than before, it
    /// begins anew.
    pub(crate) fn turn_on(&self, fast_bytes: u64) {
        self.renew(fast_bytes);
    }

    /// Whether it has begun anew.
    fn renew(&self, fast_bytes: u64) -> bool {
        let is_new = !self.sketch.load().as_ref().is_some_and(|sketch| sketch.is_enough_for(fast_bytes));
        if is_new {
            self.forget_levels();
            self.sketch.store(Some(Arc::new(Sketch::for_bytes(fast_bytes))));
        }
        is_new
    }

    /// Blocks were asked for.
    pub(crate) fn note(&self, prefix: &[u8], first: u64, blocks: u64) {
        let sketch = self.sketch.load();
        let Some(sketch) = &*sketch else { return };
        for stretch in sketch.stretches(first, blocks) {
            sketch.note(hash(prefix, stretch));
        }
        self.unsettled.fetch_add(1, Relaxed);
    }

    /// Whether it counts.
    pub(crate) fn is_on(&self) -> bool {
        self.sketch.load().is_some()
    }

    /// How often the stretch with this block was asked for.
    pub(crate) fn count(&self, prefix: &[u8], block: u64) -> u8 {
        let sketch = self.sketch.load();
        sketch.as_ref().map_or(0, |sketch| sketch.count(hash(prefix, block / sketch.stretch_blocks)))
    }

    /// Where these blocks belong, if they are hot, or cold.
    pub(crate) fn wish_of(&self, prefix: &[u8], first: u64, blocks: u64) -> Option<Tier> {
        let (hot_from, cold_below) = (self.hot_from.load(Relaxed), self.cold_below.load(Relaxed));
        let sketch = self.sketch.load();
        let sketch = sketch.as_ref().filter(|_| hot_from > 0)?;
        // What is moved is moved as a whole: its hottest part decides.
        let counts = sketch.stretches(first, blocks).map(|stretch| sketch.count(hash(prefix, stretch)));
        match counts.max().unwrap_or(0) {
            count if count >= hot_from => Some(Tier::Fast),
            count if count < cold_below => Some(Tier::Slow),
            _ => None,
        }
    }

    /// Parts of these blocks that may belong on different tiers.
    pub(crate) fn parts_of(&self, first: u64, blocks: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        parts(first, blocks, if self.has_levels() { self.stretch_blocks() } else { u64::MAX })
    }

    /// The stretches that these blocks are of, as far as they are.
    pub(crate) fn stretches_of(&self, first: u64, blocks: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        parts(first, blocks, self.stretch_blocks())
    }

    fn stretch_blocks(&self) -> u64 {
        self.sketch.load().as_ref().map_or(STRETCH_BLOCKS, |sketch| sketch.stretch_blocks)
    }

    /// Whether anything is hot or cold by now.
    pub(crate) fn has_levels(&self) -> bool {
        self.hot_from.load(Relaxed) > 0
    }

    /// From which count on a stretch is hot, and below which it is cold; 0: none is.
    pub(crate) fn levels(&self) -> (u8, u8) {
        (self.hot_from.load(Relaxed), self.cold_below.load(Relaxed))
    }

    /// From which count on a stretch is called hot, settled or not.
    pub(crate) fn hot_from(&self) -> u8 {
        self.hot_from.load(Relaxed).max(HOT_MIN)
    }

    /// Whether there was enough to count for a settling that may come to another result.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Relaxed) >= UNSETTLED_MIN
    }

    /// Decides what is hot and cold from now on.
    pub(crate) fn settle(&self, fast: FastSpace) {
        if !self.is_on() {
            return;
        }
        self.unsettled.store(0, Relaxed);
        if self.renew(fast.bytes_total) {
            return;
        }
        let sketch = self.sketch.load();
        let Some(sketch) = &*sketch else { return };
        let usable = fast.bytes_total - fast.bytes_total / SHARE_LEFT_FREE;
        let hot_from = sketch.count_that_fits(stretches_in(usable, sketch.stretch_blocks)).max(HOT_MIN);
        self.hot_from.store(hot_from, Relaxed);
        self.note_space(fast);
    }

    /// What is cold leaves the fast devices while these are crowded.
    pub(crate) fn note_space(&self, fast: FastSpace) {
        let is_crowded = fast.bytes_free < fast.bytes_total / SHARE_LEFT_FREE;
        let cold_below = if is_crowded { self.hot_from.load(Relaxed) / 2 } else { 0 };
        self.cold_below.store(cold_below, Relaxed);
    }

    /// Nothing is hot or cold from now on.
    pub(crate) fn forget_levels(&self) {
        self.hot_from.store(0, Relaxed);
        self.cold_below.store(0, Relaxed);
    }
}

/// Cut at each multiple of `len`.
fn parts(first: u64, blocks: u64, len: u64) -> impl Iterator<Item = Range<u64>> {
    let (mut from, end) = (first, first.saturating_add(blocks));
    std::iter::from_fn(move || {
        let start = from;
        from = (start / len + 1).saturating_mul(len).min(end);
        (start < end).then_some(start..from)
    })
}

fn stretches_in(bytes: u64, stretch_blocks: u64) -> u64 {
    bytes / (stretch_blocks * BLOCK_BYTES as u64)
}

fn hash(prefix: &[u8], stretch: u64) -> u64 {
    xxh3_64_with_seed(prefix, stretch)
}

impl Sketch {
    /// Where fast devices hold so many bytes: the blocks of a stretch, the stretches that fit there, and the
    /// cells.
    fn shape(fast_bytes: u64) -> (u64, u64, u64) {
        let mut stretch_blocks = STRETCH_BLOCKS;
        while stretches_in(fast_bytes, stretch_blocks) > CELLS_MAX / CELLS_PER_STRETCH {
            stretch_blocks *= 2;
        }
        let stretches = stretches_in(fast_bytes, stretch_blocks);
        (stretch_blocks, stretches, (stretches * CELLS_PER_STRETCH).max(CELLS_MIN).next_power_of_two())
    }

    fn is_enough_for(&self, fast_bytes: u64) -> bool {
        let (stretch_blocks, _, cells) = Self::shape(fast_bytes);
        self.stretch_blocks > stretch_blocks
            || (self.stretch_blocks == stretch_blocks && self.cells.len() as u64 >= cells)
    }

    fn for_bytes(fast_bytes: u64) -> Self {
        let (stretch_blocks, stretches, cells) = Self::shape(fast_bytes);
        let accesses_per_halving = stretches.saturating_mul(ACCESSES_PER_STRETCH).max(ACCESSES_MIN);
        Self {
            stretch_blocks,
            cells: (0..cells).map(|_| AtomicU8::new(0)).collect(),
            accesses_left: AtomicU64::new(accesses_per_halving),
            accesses_per_halving,
        }
    }

    /// The numbers of the stretches that these blocks are of.
    fn stretches(&self, first: u64, blocks: u64) -> impl Iterator<Item = u64> + use<> {
        let last = first.saturating_add(blocks.saturating_sub(1));
        first / self.stretch_blocks..=last / self.stretch_blocks
    }

    fn cells_of(&self, hash: u64) -> impl Iterator<Item = &AtomicU8> {
        // Double hashing: the step is odd, so the cells are different ones.
        let (start, step) = (hash, (hash >> 32) | 1);
        let mask = self.cells.len() as u64 - 1;
        (0..u64::from(CELLS_OF_STRETCH))
            .map(move |number| &self.cells[(start.wrapping_add(number.wrapping_mul(step)) & mask) as usize])
    }

    /// Only the smallest ones grow: those that are larger have it from others.
    fn note(&self, hash: u64) {
        let count = self.count(hash);
        if count < u8::MAX {
            for cell in self.cells_of(hash) {
                if cell.load(Relaxed) == count {
                    cell.store(count + 1, Relaxed);
                }
            }
        }
        if self.accesses_left.fetch_sub(1, Relaxed) == 1 {
            self.halve();
        }
    }

    fn count(&self, hash: u64) -> u8 {
        self.cells_of(hash).map(|cell| cell.load(Relaxed)).min().unwrap_or(0)
    }

    fn halve(&self) {
        for cell in &self.cells {
            cell.store(cell.load(Relaxed) / 2, Relaxed);
        }
        self.accesses_left.store(self.accesses_per_halving, Relaxed);
    }

    /// The smallest count that so many stretches have, at most.
    fn count_that_fits(&self, stretches: u64) -> u8 {
        let mut cells = [0_u64; 256];
        for cell in &self.cells {
            cells[usize::from(cell.load(Relaxed))] += 1;
        }
        let mut above = 0;
        for count in (1..=u8::MAX).rev() {
            above += cells[usize::from(count)];
            if above / u64::from(CELLS_OF_STRETCH) > stretches {
                return count.saturating_add(1);
            }
        }
        1
    }
}

#[cfg(test)]
mod tests;
