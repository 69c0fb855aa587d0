//! What a piece has on the device: where, how it is read and cached, and how errors name it.
//!
//! Thread safety: shared by `Arc` with its piece; immutable but for the walks over it that are noticed.
//! Invariant: owns the references on its zones that the descriptor lists, so what is in the cache under its
//! keys is its own.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs_store::{Result, StoreError, Tier};

use super::RunContext;
use super::meta_read::place;
use super::read_ahead::ReadAhead;
use crate::cache::{CacheKey, CachedBlock};
use crate::format::{PieceDesc, ZoneId, ZoneUse};

/// A zone from the time when it was filled to the time when it is free.
#[derive(Clone, Copy)]
struct ZoneLife {
    generation: u32,
    tier: Tier,
}

impl ZoneLife {
    fn of(ctx: &RunContext, zone: ZoneId) -> Self {
        let addr = u64::from(zone.0) * u64::from(ctx.zones.zone_bytes());
        Self { generation: ctx.zones.generation(zone), tier: ctx.zones.tier_at(addr) }
    }
}

/// See the module.
pub(super) struct Storage {
    ctx: Arc<RunContext>,
    /// Not shared for long: it goes when the references on the zones have gone.
    desc: Arc<PieceDesc>,
    keyspace: u32,
    /// Of each zone in `desc.zones`; fixed while this lives.
    lives: Vec<ZoneLife>,
    read_ahead: ReadAhead,
}

impl Storage {
    /// Takes over the references on `desc.zones`.
    pub(super) fn new(ctx: Arc<RunContext>, keyspace: u32, desc: Arc<PieceDesc>) -> Self {
        let lives = desc.zones.iter().map(|zone_use| ZoneLife::of(&ctx, zone_use.zone)).collect();
        let read_ahead = ReadAhead::new(ctx.windows.new_owner());
        Self { ctx, desc, keyspace, lives, read_ahead }
    }

    pub(super) fn ctx(&self) -> &Arc<RunContext> {
        &self.ctx
    }

    pub(super) fn desc(&self) -> &Arc<PieceDesc> {
        &self.desc
    }

    pub(super) fn keyspace(&self) -> u32 {
        self.keyspace
    }

    pub(super) fn read_ahead(&self) -> &ReadAhead {
        &self.read_ahead
    }

    /// The part of the zone of `addr` that the piece has, all of which is written.
    pub(super) fn zone_extent(&self, addr: u64) -> Option<Range<u64>> {
        let start = addr - u64::from(self.ctx.zone_offset(addr).1);
        Some(start..start + u64::from(self.zone_use(addr)?.end))
    }

    /// What the piece has in the zone of `addr`.
    pub(super) fn zone_use(&self, addr: u64) -> Option<&ZoneUse> {
        Some(&self.desc.zones[self.zone_index(self.ctx.zones.zone_of(addr))?])
    }

    /// Where `zone` is in `desc.zones`, and in `lives`.
    fn zone_index(&self, zone: ZoneId) -> Option<usize> {
        self.desc.zones.binary_search_by_key(&zone, |zone_use| zone_use.zone).ok()
    }

    /// Fills `buf` from the device, past the cache. Nothing is verified.
    pub(super) fn read(&self, buf: &mut [u8], addr: u64) -> Result<()> {
        if self.cache_key(addr).1 == Tier::Slow {
            self.ctx.slow_reads.fetch_add(1, Ordering::Relaxed);
        }
        let read = self.ctx.device.read_at(buf, addr);
        read.map_err(|error| StoreError::io(format!("reading {}", self.place("data", addr)), error))
    }

    /// The words for a place in this piece.
    fn place(&self, what: &str, addr: u64) -> String {
        place(what, &self.desc, self.keyspace, addr)
    }

    /// The error for what is wrong at `addr`.
    pub(super) fn corrupt(&self, what: &str, addr: u64, detail: &str) -> StoreError {
        StoreError::corrupt(self.place(what, addr), detail)
    }

    /// The key in the block cache of what lies at `addr`, and on which class of devices it lies.
    fn cache_key(&self, addr: u64) -> (CacheKey, Tier) {
        let (zone, offset) = self.ctx.zone_offset(addr);
        let life = self.zone_index(zone).map_or_else(|| ZoneLife::of(&self.ctx, zone), |at| self.lives[at]);
        (CacheKey { zone, generation: life.generation, offset }, life.tier)
    }

    /// The `len` verified bytes that come of what lies at `addr`, if the cache has them. What has another
    /// length is what a damaged index took the place for.
    pub(super) fn cached(&self, addr: u64, len: usize) -> Option<Arc<CachedBlock>> {
        let (key, tier) = self.cache_key(addr);
        self.ctx.cache.get(key, tier).filter(|block| block.bytes().len() == len)
    }

    /// Whether [`Self::cached`] would find them; asking counts for nothing.
    pub(super) fn is_cached(&self, addr: u64) -> bool {
        self.ctx.cache.holds(self.cache_key(addr).0)
    }

    /// Puts verified bytes, which no other holds, into the cache.
    #[track_caller]
    pub(super) fn cache_own(&self, addr: u64, bytes: Bytes) -> Bytes {
        let len = bytes.len() as u64;
        let (key, tier) = self.cache_key(addr);
        self.ctx.cache.insert(key, tier, bytes, len).bytes().clone()
    }

    /// Puts verified bytes into the cache, in memory of their own.
    #[track_caller]
    pub(super) fn cache_copy(&self, addr: u64, bytes: &[u8]) -> Bytes {
        self.cache_own(addr, Bytes::copy_from_slice(bytes))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.ctx.windows.forget(self.read_ahead.owner());
        let mut ended = Vec::new();
        for (zone_use, life) in self.desc.zones.iter().zip(&self.lives) {
            self.ctx.zones.release_use(zone_use);
            if self.ctx.zones.generation(zone_use.zone) != life.generation {
                ended.push((zone_use.zone, life.generation));
            }
        }
        self.ctx.cache.forget(&ended);
    }
}
