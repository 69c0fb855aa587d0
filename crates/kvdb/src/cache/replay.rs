//! Replay: the block cache itself, with blocks that have a size and no bytes, for what a load would have
//! found in it.
//!
//! Thread safety: as the cache. Invariant: a replay with the policy and the size that a trace was recorded
//! with hits where that one did, but for what other pools took from the cache meanwhile, and for the order of
//! accesses of several threads.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;

use super::trace::{CacheAccess, CacheEvent};
use super::{Accountant, BlockCache, Policy};
use crate::format::ZoneId;

/// See the module.
pub struct CacheReplay {
    cache: Arc<BlockCache>,
}

impl CacheReplay {
    /// An empty cache of so many bytes.
    pub fn new(policy: Policy, bytes: u64) -> Self {
        Self { cache: BlockCache::new(Accountant::new(bytes), policy) }
    }

    /// Does what the engine would do. For a lookup, whether the block was there; `None` for all else. A block
    /// that was there when the trace was recorded and is not here comes in, as it would have.
    pub fn apply(&self, access: &CacheAccess) -> Option<bool> {
        match access.event {
            CacheEvent::Hit => {
                let is_hit = self.get(access);
                if !is_hit {
                    self.insert(access);
                }
                Some(is_hit)
            }
            CacheEvent::Miss => Some(self.get(access)),
            CacheEvent::Insert => {
                self.insert(access);
                None
            }
            CacheEvent::Forget => {
                self.cache.forget(&[(ZoneId(access.zone), access.generation)]);
                None
            }
        }
    }

    /// Bytes held, bookkeeping included.
    pub fn bytes(&self) -> u64 {
        self.cache.bytes()
    }

    fn get(&self, access: &CacheAccess) -> bool {
        self.cache.get(access.key(), access.tier).is_some()
    }

    fn insert(&self, access: &CacheAccess) {
        self.cache.insert(access.key(), access.tier, Bytes::new(), access.bytes.into());
    }
}
