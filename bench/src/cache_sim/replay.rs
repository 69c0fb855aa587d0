//! One replay, and what came of it.
//!
//! Thread safety: plain values.

use kvfs_kvdb::{CacheReplay, Policy};
use kvfs_store::Tier;
use std::time::Instant;

use crate::load::Load;

/// What a miss costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) fast_ms: f64,
    pub(crate) slow_ms: f64,
}

impl Costs {
    fn of(self, tier: Tier) -> f64 {
        match tier {
            Tier::Fast => self.fast_ms,
            Tier::Slow => self.slow_ms,
        }
    }
}

/// A load, a policy and a size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) policy: Policy,
    pub(crate) cache_bytes: u64,
    hits: [u64; Tier::ALL.len()],
    lookups: [u64; Tier::ALL.len()],
    /// How long it took, for each lookup.
    pub(crate) ns: f64,
}

impl Outcome {
    /// Replays the load.
    pub(crate) fn of(load: &Load, policy: Policy, cache_bytes: u64) -> Self {
        let (mut hits, mut lookups) = ([0; 2], [0; 2]);
        let replay = CacheReplay::new(policy, cache_bytes);
        let start = Instant::now();
        for access in load.accesses() {
            if let Some(is_hit) = replay.apply(&access) {
                lookups[access.tier as usize] += 1;
                hits[access.tier as usize] += u64::from(is_hit);
            }
        }
        let ns = start.elapsed().as_nanos() as f64 / (lookups[0] + lookups[1]).max(1) as f64;
        Self { policy, cache_bytes, hits, lookups, ns }
    }

    /// Part of all lookups that hit.
    pub(crate) fn hit_rate(&self) -> f64 {
        share(self.hits.iter().sum(), self.lookups.iter().sum())
    }

    /// Part of the lookups in a class that hit.
    pub(crate) fn hit_rate_of(&self, tier: Tier) -> f64 {
        share(self.hits[tier as usize], self.lookups[tier as usize])
    }

    /// How long a lookup waits for a device on average (milliseconds).
    pub(crate) fn wait_ms(&self, costs: Costs) -> f64 {
        let wait =
            |tier: Tier| (self.lookups[tier as usize] - self.hits[tier as usize]) as f64 * costs.of(tier);
        Tier::ALL.map(wait).iter().sum::<f64>() / self.lookups.iter().sum::<u64>().max(1) as f64
    }
}

fn share(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Shape, Synthetic};

    #[test]
    fn wait_is_what_the_misses_cost() {
        let outcome =
            Outcome { policy: Policy::Lru, cache_bytes: 1, hits: [50, 20], lookups: [60, 40], ns: 0.0 };
        let costs = Costs { fast_ms: 0.1, slow_ms: 8.0 };
        assert!((outcome.wait_ms(costs) - (10.0 * 0.1 + 20.0 * 8.0) / 100.0).abs() < 1e-9);
        assert!((outcome.hit_rate() - 0.7).abs() < 1e-9);
        assert!((outcome.hit_rate_of(Tier::Slow) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn larger_cache_hits_more_and_one_for_all_misses_only_what_is_new() {
        let wish = Synthetic { shape: Shape::Zipf, blocks: 500, lookups: 5000, seed: 3 };
        let load = wish.load();
        for policy in Policy::ALL {
            let rate = |bytes| Outcome::of(&load, policy, bytes).hit_rate();
            assert!(rate(1 << 20) < rate(64 << 20), "{policy}");
            let blocks: std::collections::HashSet<_> =
                load.accesses().map(|access| (access.zone, access.offset)).collect();
            let expected = 1.0 - blocks.len() as f64 / 5000.0;
            assert!((rate(64 << 20) - expected).abs() < 1e-9, "{policy}");
        }
    }
}
