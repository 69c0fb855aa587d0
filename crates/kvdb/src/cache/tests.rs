use std::collections::HashMap;

use kvfs_device::Rng;

use super::*;

const ALL: [Tier; 2] = Tier::ALL;

fn key(n: u32) -> CacheKey {
    CacheKey { zone: ZoneId(n / 16), generation: 0, offset: (n % 16) * 4096 }
}

fn put(cache: &BlockCache, key: CacheKey, tier: Tier, n: u32) -> Arc<CachedBlock> {
    cache.insert(key, tier, Bytes::from(vec![n as u8; 4096]), 4096)
}

#[test]
fn cache_keeps_within_what_the_other_pools_leave() {
    for policy in Policy::ALL {
        let accountant = Accountant::new(1 << 20);
        let cache = BlockCache::new(Arc::clone(&accountant), policy);
        for n in 0..1000 {
            put(&cache, key(n), Tier::Fast, n);
            assert!(cache.bytes() <= 1 << 20, "{policy}: over the ceiling at block {n}");
        }
        assert!(cache.bytes() > 900 << 10, "{policy}: the cache uses what it may");
        let memtable = accountant.charge(Pool::Memtable, 600 << 10);
        put(&cache, key(5000), Tier::Fast, 1);
        assert!(accountant.used_total() <= 1 << 20, "{policy}");
        drop(memtable);
        assert_eq!(accountant.used(Pool::Memtable), 0);
        assert_eq!(accountant.peak(Pool::Memtable), 600 << 10);
        drop(cache);
        assert_eq!(accountant.used_total(), 0, "{policy}");
    }
}

#[test]
fn floor_remains_when_others_take_all() {
    for policy in Policy::ALL {
        let accountant = Accountant::new(1 << 20);
        let _others = accountant.charge(Pool::Memtable, 4 << 20);
        let cache = BlockCache::new(Arc::clone(&accountant), policy);
        for n in 0..100 {
            put(&cache, key(n), Tier::Fast, n);
        }
        assert!(cache.bytes() > 32 << 10 && cache.bytes() <= 64 << 10, "{policy}");
    }
}

#[test]
fn generation_separates_lives_of_a_zone() {
    let cache = BlockCache::new(Accountant::new(1 << 20), Policy::default());
    put(&cache, key(3), Tier::Slow, 3);
    assert_eq!(cache.get(key(3), Tier::Slow).map(|b| b.bytes()[0]), Some(3));
    assert!(cache.get(CacheKey { generation: 1, ..key(3) }, Tier::Slow).is_none());
    let first = put(&cache, key(3), Tier::Slow, 9);
    assert_eq!(first.bytes()[0], 3, "the first block stays");
    assert!(cache.get(key(4), Tier::Fast).is_none());
    let stats = cache.stats();
    assert_eq!((stats.hits.total(), stats.misses.total(), stats.insertions), (1, 2, 1));
    assert_eq!(ALL.map(|tier| (stats.hits.of(tier), stats.misses.of(tier))), [(0, 1), (1, 1)]);
}

#[test]
fn shrink_to_zero_empties() {
    for policy in Policy::ALL {
        let accountant = Accountant::new(1 << 20);
        let cache = BlockCache::new(Arc::clone(&accountant), policy);
        for n in 0..100 {
            put(&cache, key(n), Tier::Fast, n);
        }
        cache.shrink_to(0);
        assert_eq!(accountant.used_total(), 0);
        assert_eq!(cache.stats().evictions, 100);
        assert!((0..100).all(|n| cache.get(key(n), Tier::Fast).is_none()));
    }
}

#[test]
fn blocks_of_a_life_that_has_ended_give_their_memory_back_at_once() {
    for policy in Policy::ALL {
        let accountant = Accountant::new(1 << 20);
        let cache = BlockCache::new(Arc::clone(&accountant), policy);
        for n in 0..64 {
            put(&cache, key(n), Tier::Fast, n);
            (0..n % 4).for_each(|_| assert!(cache.get(key(n), Tier::Fast).is_some()));
        }
        cache.forget(&[(ZoneId(1), 0), (ZoneId(2), 7)]);
        let found = |n: &u32| cache.get(key(*n), Tier::Fast).is_some();
        assert_eq!((0..64).filter(found).collect::<Vec<_>>(), (0..16).chain(32..64).collect::<Vec<_>>());
        assert_eq!(cache.stats().blocks, 48);
        cache.shrink_to(0);
        assert_eq!((accountant.used_total(), cache.stats().evictions), (0, 48), "{policy}");
    }
}

/// What a cache must keep to whatever its policy does: within its bound after each operation, a hit is what
/// was put in last under that key, what was forgotten is never found, the counts are right, and no more is
/// remembered than there was room for.
#[test]
fn random_operations_like_the_model_with_each_policy() {
    for policy in Policy::ALL {
        for seed in 0..6 {
            check_against_model(policy, seed);
        }
    }
}

fn check_against_model(policy: Policy, seed: u64) {
    let mut rng = Rng::new(seed);
    let accountant = Accountant::new(512 << 10);
    let cache = BlockCache::new(Arc::clone(&accountant), policy);
    // Content by key of all that may still be there; which life of each zone is under way.
    let (mut model, mut lives) = (HashMap::new(), [0_u32; 8]);
    let (mut lookups, mut others, mut blocks_max) = (0, accountant.charge(Pool::Memtable, 0), 0);
    for step in 0..6000_u32 {
        let zone = rng.below(8) as u32;
        let offset = (rng.below(16) * rng.below(16) / 16) as u32 * 4096;
        let (tier, generation) = (ALL[(zone % 2) as usize], lives[zone as usize]);
        let key = CacheKey { zone: ZoneId(zone), generation, offset };
        match rng.below(200) {
            0 => {
                lives[zone as usize] += 1;
                cache.forget(&[(ZoneId(zone), generation)]);
                model.retain(|key: &CacheKey, _| key.zone != ZoneId(zone));
                assert!(cache.get(key, tier).is_none(), "{policy}, seed {seed}, step {step}");
                lookups += 1;
            }
            1 => {
                others.resize(rng.below(600 << 10));
                cache.shrink_to(accountant.cache_budget());
            }
            2 => cache.shrink_to(rng.below(512 << 10)),
            _ => {
                lookups += 1;
                let found = cache.get(key, tier).map(|block| block.bytes().clone());
                if let Some(found) = found {
                    assert_eq!(Some(&found), model.get(&key), "{policy}, seed {seed}, step {step}");
                } else {
                    let len = [100, 4096, 4096, 16 << 10, 64 << 10][rng.index(5)];
                    let bytes = Bytes::from(vec![step as u8; len]);
                    assert_eq!(cache.insert(key, tier, bytes.clone(), len as u64).bytes(), &bytes);
                    model.insert(key, bytes);
                }
            }
        }
        assert!(cache.bytes() <= accountant.cache_budget(), "{policy}, seed {seed}, step {step}");
        let stats = cache.stats();
        let ghosts = stats.ghosts;
        blocks_max = blocks_max.max(stats.blocks);
        assert!(
            ghosts <= blocks_max * 3 / 2 + 2 * SHARDS,
            "{policy}, seed {seed}, step {step}: {ghosts} ghosts"
        );
    }
    let stats = cache.stats();
    assert_eq!(stats.hits.total() + stats.misses.total(), lookups, "{policy}, seed {seed}");
    assert!(stats.hits.total() > lookups / 10, "{policy}, seed {seed}: {stats:?}");
    assert_eq!(stats.hits.of(Tier::Fast) > 0, stats.hits.of(Tier::Slow) > 0);
    let held: u64 = model
        .iter()
        .filter(|(key, _)| {
            let shard = cache.shards[shard_of(**key)].lock();
            shard.peek(**key).is_some()
        })
        .map(|(_, bytes)| bytes.len() as u64 + OVERHEAD_BYTES)
        .sum();
    assert_eq!(held, cache.bytes(), "{policy}, seed {seed}: what is charged is there");
    drop((cache, others));
    assert_eq!(accountant.used_total(), 0);
}
