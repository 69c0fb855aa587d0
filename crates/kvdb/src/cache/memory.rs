//! The memory accountant: one ceiling, and which pool uses how much of it.
//!
//! Thread safety: all methods take `&self` and are lock-free.
//!
//! Invariants: what is charged is given back when its [`Charge`] is dropped ([`Charges`]); indexes and
//! filters have a share of what memtables leave; the block cache lives from what the other pools leave.
//! Neither has ever less than its floor, so that reading always works.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_memory::{Charge, Charges};

/// What holds memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pool {
    /// Write buffers, active and sealed.
    Memtable,
    /// Verified blocks of runs.
    BlockCache,
    /// Sparse indexes of the open pieces that are in memory, and their range tombstones.
    Index,
    /// Quotient filters of the open pieces that are in memory.
    Filter,
    /// Buffers of reads, writes and merges under way.
    Io,
}

impl Pool {
    /// Every pool, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] = [Self::Memtable, Self::BlockCache, Self::Index, Self::Filter, Self::Io];

    /// Name for statistics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memtable => "memtable",
            Self::BlockCache => "block_cache",
            Self::Index => "index",
            Self::Filter => "filter",
            Self::Io => "io",
        }
    }
}

/// Share of the ceiling that the block cache keeps whatever the others use: one in this many parts.
const CACHE_FLOOR_DIVISOR: u64 = 16;
/// Share of what the memtables leave that indexes and filters may take: one in this many parts.
const INDEX_SHARE_DIVISOR: u64 = 2;
/// As [`CACHE_FLOOR_DIVISOR`], for indexes and filters.
const INDEX_FLOOR_DIVISOR: u64 = 16;

/// Counts the bytes of every pool against one ceiling.
#[derive(Debug)]
pub(crate) struct Accountant {
    bytes_ceiling: AtomicU64,
    charges: Arc<Charges>,
}

impl Accountant {
    /// An accountant with nothing in use under a ceiling (bytes).
    pub(crate) fn new(bytes_ceiling: u64) -> Arc<Self> {
        let charges = Charges::new(&Pool::ALL.map(Pool::name));
        Arc::new(Self { bytes_ceiling: AtomicU64::new(bytes_ceiling), charges })
    }

    /// What is charged, by pool, size and place in the code.
    pub(crate) fn charges(&self) -> &Arc<Charges> {
        &self.charges
    }

    /// The ceiling (bytes).
    pub(crate) fn bytes_ceiling(&self) -> u64 {
        self.bytes_ceiling.load(Ordering::Relaxed)
    }

    /// Moves the ceiling, as memory pressure asks; the block cache follows at its next insertion.
    pub(crate) fn set_bytes_ceiling(&self, bytes: u64) {
        self.bytes_ceiling.store(bytes, Ordering::Relaxed);
    }

    /// Charges to a pool until the result is dropped, at the place of the caller. Never refuses.
    #[track_caller]
    pub(crate) fn charge(&self, pool: Pool, bytes: u64) -> Charge {
        self.charges.charge(pool as usize, bytes)
    }

    /// Bytes in use by a pool.
    pub(crate) fn used(&self, pool: Pool) -> u64 {
        self.charges.used(pool as usize)
    }

    /// The most that a pool ever used (bytes).
    pub(crate) fn peak(&self, pool: Pool) -> u64 {
        self.charges.peak(pool as usize)
    }

    /// Bytes in use by all pools.
    pub(crate) fn used_total(&self) -> u64 {
        self.charges.used_total()
    }

    /// The most that all pools together ever used (bytes).
    pub(crate) fn peak_total(&self) -> u64 {
        self.charges.peak_total()
    }

    /// What indexes and filters together may hold now (bytes): half of what memtables leave, or the floor.
    pub(crate) fn index_budget(&self) -> u64 {
        let left = self.bytes_ceiling().saturating_sub(self.used(Pool::Memtable));
        (left / INDEX_SHARE_DIVISOR).max(self.index_floor())
    }

    /// What those of them that can be read again may hold in any case (bytes).
    pub(crate) fn index_floor(&self) -> u64 {
        self.bytes_ceiling() / INDEX_FLOOR_DIVISOR
    }

    /// What the block cache may hold now (bytes): the ceiling less the other pools, or the floor.
    pub(crate) fn cache_budget(&self) -> u64 {
        let ceiling = self.bytes_ceiling();
        let others = self.used_total().saturating_sub(self.used(Pool::BlockCache));
        ceiling.saturating_sub(others).max(ceiling / CACHE_FLOOR_DIVISOR)
    }
}
