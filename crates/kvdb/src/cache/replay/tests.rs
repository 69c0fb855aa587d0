use std::io;

use kvfs_device::Rng;
use kvfs_store::Tier;

use super::*;
use crate::cache::CacheKey;
use crate::cache::trace::CacheTrace;
use crate::cache::trace::tests::Shared;

/// A cache that is read and filled by `steps` lookups of some blocks, most often of the first ones.
fn work(cache: &BlockCache, seed: u64, steps: usize) {
    let mut rng = Rng::new(seed);
    for step in 0..steps {
        let (zone, limit) = (rng.below(8), 1 + rng.below(64));
        let block = rng.below(limit);
        let key = CacheKey { zone: ZoneId(zone as u32), generation: 0, offset: block as u32 * 4096 };
        let tier = Tier::ALL[zone as usize % 2];
        if cache.get(key, tier).is_none() {
            let len = if zone < 4 { 4096 } else { 16 << 10 };
            cache.insert(key, tier, Bytes::new(), len);
        }
        if step == steps / 2 {
            cache.forget(&[(ZoneId(0), 0)]);
        }
    }
}

#[test]
fn replay_with_the_same_policy_and_size_hits_where_the_cache_did() {
    for policy in Policy::ALL {
        let cache = BlockCache::new(Accountant::new(1 << 20), policy);
        let file = Shared::default();
        cache.start_trace(Box::new(file.clone()), u64::MAX).expect("begins");
        assert!(cache.start_trace(Box::new(io::sink()), u64::MAX).is_err(), "one at a time");
        work(&cache, 7, 5000);
        let stats = cache.stats();
        let info = cache.stop_trace().expect("ends");
        assert_eq!(
            info.events,
            5000 + stats.insertions + 1,
            "lookups, blocks that came in, one zone that is free"
        );
        work(&cache, 8, 10);
        assert!(cache.stop_trace().is_err(), "none is under way");
        let bytes = file.bytes();
        let replay = CacheReplay::new(policy, 1 << 20);
        for access in CacheTrace::new(&bytes).expect("is one") {
            let access = access.expect("is whole");
            let expected = match access.event {
                CacheEvent::Hit => Some(true),
                CacheEvent::Miss => Some(false),
                _ => None,
            };
            assert_eq!(replay.apply(&access), expected, "{policy}: {access:?}");
        }
        let larger = CacheReplay::new(policy, 64 << 20);
        let hits = |replay: &CacheReplay| {
            let trace = CacheTrace::new(&bytes).expect("is one");
            trace.filter(|access| replay.apply(access.as_ref().expect("is whole")) == Some(true)).count()
        };
        assert!(hits(&larger) > hits(&CacheReplay::new(policy, 1 << 20)), "{policy}: more room, more hits");
    }
}
