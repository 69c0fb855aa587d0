//! The memory accountant: one ceiling, and which pool uses how much of it.
//!
//! Thread safety: all methods take `&self` and are lock-free.
//!
//! Invariants: what is charged is discharged, by the guard or explicitly; indexes and filters have a share of what
//! memtables leave; the block cache lives from what the other pools leave. Neither has ever less than its floor, so
//! that reading always works.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Nodes of the file system.
    Nodes,
    /// Buffers of reads, writes and merges under way.
    Io,
}

impl Pool {
    /// Every pool, in the order of their numbers.
    pub(crate) const ALL: [Self; 6] =
        [Self::Memtable, Self::BlockCache, Self::Index, Self::Filter, Self::Nodes, Self::Io];

    /// Name for statistics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memtable => "memtable",
            Self::BlockCache => "block_cache",
            Self::Index => "index",
            Self::Filter => "filter",
            Self::Nodes => "nodes",
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

#[derive(Debug, Default)]
struct PoolUse {
    bytes: AtomicU64,
    bytes_peak: AtomicU64,
}

/// Counts the bytes of every pool against one ceiling.
#[derive(Debug)]
pub(crate) struct Accountant {
    bytes_ceiling: AtomicU64,
    pools: [PoolUse; Pool::ALL.len()],
    total: PoolUse,
}

impl Accountant {
    /// An accountant with nothing in use under a ceiling (bytes).
    pub(crate) fn new(bytes_ceiling: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_ceiling: AtomicU64::new(bytes_ceiling),
            pools: Default::default(),
            total: PoolUse::default(),
        })
    }

    /// The ceiling (bytes).
    pub(crate) fn bytes_ceiling(&self) -> u64 {
        self.bytes_ceiling.load(Ordering::Relaxed)
    }

    /// Moves the ceiling, as memory pressure asks; the block cache follows at its next insertion.
    pub(crate) fn set_bytes_ceiling(&self, bytes: u64) {
        self.bytes_ceiling.store(bytes, Ordering::Relaxed);
    }

    /// Adds to a pool. Never refuses.
    pub(crate) fn charge(&self, pool: Pool, bytes: u64) {
        add(&self.pools[pool as usize], bytes);
        add(&self.total, bytes);
    }

    /// Takes from a pool what was charged before.
    pub(crate) fn discharge(&self, pool: Pool, bytes: u64) {
        let before = self.pools[pool as usize].bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{pool:?} discharged {bytes} of {before} bytes");
        self.total.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Charges until the guard is dropped.
    pub(crate) fn guard(self: &Arc<Self>, pool: Pool, bytes: u64) -> Charge {
        self.charge(pool, bytes);
        Charge { accountant: Arc::clone(self), pool, bytes }
    }

    /// Bytes in use by a pool.
    pub(crate) fn used(&self, pool: Pool) -> u64 {
        self.pools[pool as usize].bytes.load(Ordering::Relaxed)
    }

    /// The most that a pool ever used (bytes).
    pub(crate) fn peak(&self, pool: Pool) -> u64 {
        self.pools[pool as usize].bytes_peak.load(Ordering::Relaxed)
    }

    /// Bytes in use by all pools.
    pub(crate) fn used_total(&self) -> u64 {
        self.total.bytes.load(Ordering::Relaxed)
    }

    /// The most that all pools together ever used (bytes).
    pub(crate) fn peak_total(&self) -> u64 {
        self.total.bytes_peak.load(Ordering::Relaxed)
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

fn add(pool: &PoolUse, bytes: u64) {
    let now = pool.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if now > pool.bytes_peak.load(Ordering::Relaxed) {
        pool.bytes_peak.fetch_max(now, Ordering::Relaxed);
    }
}

/// Bytes charged to a pool for as long as this lives.
#[derive(Debug)]
pub(crate) struct Charge {
    accountant: Arc<Accountant>,
    pool: Pool,
    bytes: u64,
}

impl Charge {
    /// Bytes charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Charges another number of bytes from now on.
    pub(crate) fn resize(&mut self, bytes: u64) {
        if bytes >= self.bytes {
            self.accountant.charge(self.pool, bytes - self.bytes);
        } else {
            self.accountant.discharge(self.pool, self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.accountant.discharge(self.pool, self.bytes);
    }
}
