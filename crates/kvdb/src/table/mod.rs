//! Pieces: the immutable tables that runs consist of.
//!
//! Purpose: a run is a sorted list of pieces with disjoint key ranges. A [`PieceWriter`] turns
//! sorted records or blocks into a piece, or *stitches* in what other pieces hold without reading it
//! (KVFS thesis, 3.2: VT-tree); a [`Piece`] answers lookups, fills and scans from it.
//!
//! A tuple piece is a list of tuple blocks; a block piece is a list of layers of regions, raw 4 KiB blocks in
//! long contiguous stretches. The sparse index of both, and the filters of tuple pieces, are in memory while
//! they are used and there is room for them ([`crate::cache::Pages`]).
//!
//! A piece consists of its range tombstones, its `storage` (where its bytes lie, how they are read, read
//! ahead and cached), and its `metadata` (index and filter, in memory or not); what one layer of it has of a
//! fill is read by a `layer_fill`.
//!
//! Thread safety: a [`Piece`] is shared by `Arc` and read by many threads; writers and iterators
//! belong to one thread.
//!
//! Invariants:
//! * every block is verified against its checksum before a reader sees a byte of it;
//! * an open piece owns one reference on the bytes of its zones (data and metadata) and gives it
//!   back when dropped; so does a writer for what it has allocated or stitched in so far;
//! * nothing here flushes the device: a caller that installs pieces in the manifest must flush once before.

mod advice;
mod block_iter;
mod block_read;
mod block_writer;
mod changes;
mod filter;
mod filtering;
mod held;
mod index;
mod layer_fill;
mod meta_read;
mod metadata;
mod piece;
mod piece_iter;
mod read_ahead;
pub(crate) mod salvage;
mod storage;
#[cfg(test)]
mod tests;
mod tuple_iter;
mod tuple_read;
mod tuple_writer;
mod unit_buffer;
mod unit_read;
mod upcoming;
mod windows;
mod writer;

pub(crate) use advice::load_advised;
pub(crate) use block_read::Location;
pub(crate) use filter::fingerprint;
pub(crate) use index::Index;
pub(crate) use piece::Piece;
pub(crate) use piece_iter::PieceIter;
pub use salvage::LostPart;
pub(crate) use tuple_iter::LeavesOut;
pub(crate) use windows::Windows;
pub(crate) use writer::{Packing, PieceWriter};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvfs_device::Device;

use crate::cache::{Accountant, BlockCache, Pages, Policy};
use crate::format::ZoneId;
use crate::space::Zones;

/// Sizes that runs are written and read with.
#[derive(Debug, Clone)]
pub(crate) struct RunOptions {
    /// Tuple blocks are closed at about this size (bytes).
    pub tuple_block_bytes: usize,
    /// Scans read this much at a time (bytes).
    pub read_ahead_bytes: usize,
    /// Data is buffered and written in requests of this size (bytes).
    pub write_chunk_bytes: usize,
    /// Most blocks in one region.
    pub region_blocks_max: u32,
    /// Reads of blocks from this size on go past the cache (bytes).
    pub bypass_bytes: usize,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            tuple_block_bytes: 16 << 10,
            read_ahead_bytes: 1 << 20,
            write_chunk_bytes: 1 << 20,
            region_blocks_max: 2048,
            bypass_bytes: 64 << 10,
        }
    }
}

/// What pieces and their writers need of the rest of the engine.
pub(crate) struct RunContext {
    /// Where the bytes are.
    pub device: Arc<dyn Device>,
    /// Gives out space.
    pub zones: Arc<Zones>,
    /// Of the store: what its pieces are stamped with.
    pub salt: u32,
    /// Verified blocks.
    pub cache: Arc<BlockCache>,
    /// Indexes and filters.
    pub pages: Arc<Pages>,
    /// What was read ahead.
    pub windows: Windows,
    /// Memory.
    pub accountant: Arc<Accountant>,
    /// Sizes.
    pub options: RunOptions,
    /// Whether a device has refused a write: nothing that was made since may be counted on.
    write_failed: AtomicBool,
    /// See [`Self::slow_reads`].
    slow_reads: AtomicU64,
}

impl RunContext {
    /// With caches of its own, which have so much memory with all else (bytes).
    pub(crate) fn new(
        device: Arc<dyn Device>,
        zones: Arc<Zones>,
        salt: u32,
        memory_bytes: u64,
        cache_policy: Policy,
        options: RunOptions,
    ) -> Arc<Self> {
        let accountant = Accountant::new(memory_bytes);
        let cache = BlockCache::new(Arc::clone(&accountant), cache_policy);
        let pages = Pages::new(Arc::clone(&accountant));
        let windows = Windows::new(Arc::clone(&accountant));
        let (write_failed, slow_reads) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self {
            device,
            zones,
            salt,
            cache,
            pages,
            windows,
            accountant,
            options,
            write_failed,
            slow_reads,
        })
    }

    /// Whether a device has refused a write of a piece.
    pub(crate) fn has_write_failed(&self) -> bool {
        self.write_failed.load(Ordering::Relaxed)
    }

    /// How often pieces were read on slow devices for those who wait for it, not by what copies blocks.
    pub(crate) fn slow_reads(&self) -> u64 {
        self.slow_reads.load(Ordering::Relaxed)
    }

    /// The block cache lives from what others leave, but learns of it only when a block comes in: so a thread
    /// that reads an index or a filter of so many bytes tells it.
    fn make_room_for(&self, bytes: usize) {
        self.cache.shrink_to(self.accountant.cache_budget().saturating_sub(bytes as u64));
    }

    /// The zone of a device address, and the offset in it.
    fn zone_offset(&self, addr: u64) -> (ZoneId, u32) {
        let zone_bytes = u64::from(self.zones.zone_bytes());
        (self.zones.zone_of(addr), (addr % zone_bytes) as u32)
    }
}

/// How an iterator is going to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// Short reads anywhere: through the cache; reads ahead more and more when they turn out to be
    /// sequential.
    Random,
    /// From one end to the other, once (merges): reads ahead at once and leaves the cache alone.
    Sequential,
    /// As `Sequential`, but one of `walks` that go on together: they share the memory for reading ahead.
    Crowded {
        /// All of them.
        walks: usize,
    },
}

impl Access {
    /// Many walks together read ahead so many times what one alone does.
    const CROWD_SHARE: usize = 8;
    /// Less is not worth a request (bytes).
    const CROWDED_AHEAD_MIN: usize = 64 << 10;

    /// How far to read ahead of a walk from one end to the other (bytes).
    fn bytes_ahead(self, options: &RunOptions) -> usize {
        let most = options.read_ahead_bytes;
        match self {
            Self::Random | Self::Sequential => most,
            Self::Crowded { walks } => {
                (most * Self::CROWD_SHARE / walks.max(1)).clamp(Self::CROWDED_AHEAD_MIN.min(most), most)
            }
        }
    }
}
