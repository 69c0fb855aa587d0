//! Which block goes when the cache is over its budget: the policy seam, and three policies.
//!
//! Thread safety: a policy belongs to one shard of the cache and is called under its lock. Invariants: a policy knows
//! exactly the slots that were inserted and not evicted since; what it remembers of evicted blocks is their keys'
//! hashes, no more than it has slots (see [`ghosts`]).

mod arc;
mod ghosts;
mod list;
mod lru;
mod s3_fifo;
#[cfg(test)]
mod tests;

use arc::Arc;
use lru::Lru;
use s3_fifo::S3Fifo;

/// Decides the order of eviction inside one shard of the cache.
///
/// Slots are small numbers that the cache reuses after [`Eviction::evict`]. Called on every hit: all methods must be
/// O(1), or amortized so.
pub trait Eviction: Send {
    /// `slot` came in, for a block whose key hashes to `hash`.
    fn insert(&mut self, slot: u32, hash: u64);

    /// `slot` was used.
    fn hit(&mut self, slot: u32);

    /// Takes out the slot that is worth least; `None` when there is none.
    fn evict(&mut self) -> Option<u32>;
}

/// The policies that a cache can be made with (docs/decisions/block-cache.md tells which is chosen, and why).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Least recently used first.
    Lru,
    /// Three queues: what is used once passes through quickly.
    #[default]
    S3Fifo,
    /// Recency against frequency, balanced by what was missed.
    Arc,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lru, Self::S3Fifo, Self::Arc];

    /// A policy for one shard.
    pub fn eviction(self) -> Box<dyn Eviction> {
        match self {
            Self::Lru => Box::new(Lru::default()),
            Self::S3Fifo => Box::new(S3Fifo::default()),
            Self::Arc => Box::new(Arc::default()),
        }
    }
}
