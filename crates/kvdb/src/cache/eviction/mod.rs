//! Which block goes when the cache is over its budget: the policy seam, and the policies.
//!
//! Thread safety: a policy belongs to one shard of the cache and is called under its lock. Invariants: a
//! policy knows exactly the slots that were inserted and neither evicted nor removed since; what it remembers
//! of evicted blocks is their keys' hashes, at most about one and a half times as many as it had slots when
//! it last evicted one (see [`ghosts`]).

mod arc;
mod ghosts;
mod list;
mod lru;
mod s3_fifo;
#[cfg(test)]
mod tests;
mod tiered;

use std::fmt;
use std::str::FromStr;

use kvfs_store::Tier;

use arc::Arc;
use lru::Lru;
use s3_fifo::S3Fifo;
use tiered::Tiered;

/// What a policy is told of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockInfo {
    /// Of its key.
    pub hash: u64,
    /// Memory that it takes.
    pub bytes: u32,
    /// Class of the device from which it would be read again.
    pub tier: Tier,
}

impl BlockInfo {
    /// For what remembers blocks without their class.
    fn gone(hash: u64, bytes: u32) -> Self {
        Self { hash, bytes, tier: Tier::Fast }
    }
}

/// Decides the order of eviction inside one shard of the cache.
///
/// Slots are small numbers that the cache reuses after [`Eviction::evict`] and [`Eviction::remove`]. Called
/// on every hit: all methods must be O(1), or amortized so, and [`Eviction::hit`] must not allocate.
pub(crate) trait Eviction: Send {
    /// A block came into `slot`.
    fn insert(&mut self, slot: u32, block: BlockInfo);

    /// The block in `slot` was used.
    fn hit(&mut self, slot: u32);

    /// Takes out the slot that is worth least; `None` when there is none.
    fn evict(&mut self) -> Option<u32>;

    /// Takes out `slot`, whose block can't be asked for any more: there is nothing to remember.
    fn remove(&mut self, slot: u32);

    /// How many blocks are remembered that are gone.
    fn ghosts(&self) -> usize;
}

/// The policies that a cache can be made with (docs/decisions/block-cache.md tells which is chosen, and why).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Least recently used first.
    Lru,
    /// Three queues: what is used once passes through quickly.
    S3Fifo,
    /// Recency against frequency, balanced by what was missed.
    Arc,
    /// The three queues for each class of devices, so that what costs most to read again stays longest.
    #[default]
    Tiered,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::S3Fifo, Self::Arc, Self::Tiered];

    /// By which users choose it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::S3Fifo => "s3fifo",
            Self::Arc => "arc",
            Self::Tiered => "tiered",
        }
    }

    /// A policy for one shard.
    pub(crate) fn eviction(self) -> Box<dyn Eviction> {
        match self {
            Self::Lru => Box::new(Lru::default()),
            Self::S3Fifo => Box::new(S3Fifo::default()),
            Self::Arc => Box::new(Arc::default()),
            Self::Tiered => Box::new(Tiered::default()),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is no cache policy; there are {}", Policy::ALL.map(Policy::name).join(", "))]
pub struct UnknownPolicy {
    word: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy { word: text.to_owned() })
    }
}
