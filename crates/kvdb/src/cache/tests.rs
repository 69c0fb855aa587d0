use super::*;

fn key(n: u32) -> CacheKey {
    CacheKey { zone: ZoneId(n / 16), generation: 0, offset: (n % 16) * 4096 }
}

fn block(n: u32) -> CachedBlock {
    CachedBlock::new(Bytes::from(vec![n as u8; 4096]), 4096)
}

#[test]
fn cache_keeps_within_what_the_other_pools_leave() {
    let accountant = Accountant::new(1 << 20);
    let cache = BlockCache::new(Arc::clone(&accountant), Policy::default());
    for n in 0..1000 {
        cache.insert(key(n), block(n));
        assert!(cache.bytes() <= 1 << 20, "over the ceiling at block {n}");
    }
    assert!(cache.bytes() > 900 << 10, "the cache uses what it may");
    let memtable = accountant.guard(Pool::Memtable, 600 << 10);
    cache.insert(key(5000), block(1));
    assert!(accountant.used_total() <= 1 << 20);
    drop(memtable);
    assert_eq!(accountant.used(Pool::Memtable), 0);
    assert_eq!(accountant.peak(Pool::Memtable), 600 << 10);
    drop(cache);
    assert_eq!(accountant.used_total(), 0);
}

#[test]
fn floor_remains_when_others_take_all() {
    let accountant = Accountant::new(1 << 20);
    let _others = accountant.guard(Pool::Memtable, 4 << 20);
    let cache = BlockCache::new(Arc::clone(&accountant), Policy::default());
    for n in 0..100 {
        cache.insert(key(n), block(n));
    }
    assert!(cache.bytes() > 32 << 10 && cache.bytes() <= 64 << 10);
}

#[test]
fn generation_separates_lives_of_a_zone() {
    let cache = BlockCache::new(Accountant::new(1 << 20), Policy::default());
    cache.insert(key(3), block(3));
    assert_eq!(cache.get(key(3)).map(|b| b.bytes()[0]), Some(3));
    assert!(cache.get(CacheKey { generation: 1, ..key(3) }).is_none());
    let first = cache.insert(key(3), block(9));
    assert_eq!(first.bytes()[0], 3, "the first block stays");
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.insertions), (1, 1, 1));
}

#[test]
fn shrink_to_zero_empties() {
    let accountant = Accountant::new(1 << 20);
    let cache = BlockCache::new(Arc::clone(&accountant), Policy::default());
    for n in 0..100 {
        cache.insert(key(n), block(n));
    }
    cache.shrink_to(0);
    assert_eq!(accountant.used_total(), 0);
    assert_eq!(cache.stats().evictions, 100);
    assert!((0..100).all(|n| cache.get(key(n)).is_none()));
}
