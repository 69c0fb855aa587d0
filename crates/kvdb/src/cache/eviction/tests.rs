use std::collections::HashMap;

use super::*;

fn block(key: u64, bytes: u32) -> BlockInfo {
    BlockInfo { hash: key.wrapping_mul(0x9e37_79b9_7f4a_7c15), bytes, tier: Tier::Fast }
}

/// A cache of `capacity` blocks in front of `policy`; counts hits.
struct Toy {
    policy: Box<dyn Eviction>,
    slots: HashMap<u64, u32>,
    keys: Vec<u64>,
    free: Vec<u32>,
    hits: usize,
}

impl Toy {
    fn new(policy: Policy, capacity: u32) -> Self {
        let (keys, free) = (vec![0; capacity as usize], (0..capacity).collect());
        Self { policy: policy.eviction(), slots: HashMap::new(), keys, free, hits: 0 }
    }

    fn touch(&mut self, key: u64) {
        if let Some(&slot) = self.slots.get(&key) {
            self.hits += 1;
            return self.policy.hit(slot);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = self.policy.evict().expect("it is full");
            assert_eq!(self.slots.remove(&self.keys[slot as usize]), Some(slot), "evicts what is there");
            slot
        });
        self.keys[slot as usize] = key;
        self.slots.insert(key, slot);
        self.policy.insert(slot, block(key, 4096));
    }
}

#[test]
fn lru_evicts_the_least_recently_used() {
    let mut lru = Lru::default();
    for slot in 0..4 {
        lru.insert(slot, block(u64::from(slot), 4096));
    }
    lru.hit(0);
    let order: Vec<_> = std::iter::from_fn(|| lru.evict()).collect();
    assert_eq!(order, [1, 2, 3, 0]);
}

#[test]
fn every_policy_gives_back_each_slot_once() {
    for policy in Policy::ALL {
        let mut toy = Toy::new(policy, 50);
        for step in 0..20_000_u64 {
            toy.touch(step.wrapping_mul(step) % 331);
            assert!(toy.slots.len() <= 50);
        }
        let mut slots: Vec<_> = std::iter::from_fn(|| toy.policy.evict()).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..50).collect::<Vec<_>>(), "{policy:?}");
        assert_eq!(toy.policy.evict(), None, "{policy:?}");
    }
}

#[test]
fn a_scan_leaves_what_is_used_often_but_with_lru() {
    let often = |policy| {
        let mut toy = Toy::new(policy, 100);
        // Half of the cache is in use all the time; then comes a scan over ten times the cache.
        for _ in 0..5 {
            (0..50).for_each(|key| toy.touch(key));
        }
        (1000..2000).for_each(|key| toy.touch(key));
        let before = toy.hits;
        (0..50).for_each(|key| toy.touch(key));
        toy.hits - before
    };
    assert_eq!(often(Policy::Lru), 0);
    assert_eq!(often(Policy::S3Fifo), 50);
    assert_eq!(often(Policy::Arc), 50);
    assert_eq!(often(Policy::Tiered), 50);
}

#[test]
fn what_comes_back_after_its_eviction_stays() {
    for policy in [Policy::S3Fifo, Policy::Arc, Policy::Tiered] {
        let mut toy = Toy::new(policy, 100);
        (0..120).for_each(|key| toy.touch(key));
        // Evicted above, and remembered.
        toy.touch(0);
        (1000..1095).for_each(|key| toy.touch(key));
        let before = toy.hits;
        toy.touch(0);
        assert_eq!(toy.hits - before, 1, "{policy:?}");
    }
}

#[test]
fn ghosts_are_bounded_and_recalled_once() {
    let mut ghosts = ghosts::Ghosts::default();
    let bound = ghosts::GhostBound { len_max: 10, bytes_max: 1 << 20 };
    for hash in 0..1000 {
        ghosts.remember(BlockInfo::gone(hash, 4096), bound);
        assert!(ghosts.len() <= 10);
    }
    assert!(!ghosts.recall(989) && ghosts.recall(990));
    assert!(!ghosts.recall(990));
    for _ in 0..1000 {
        ghosts.remember(BlockInfo::gone(7, 4096), bound);
        ghosts.recall(7);
    }
    assert!(ghosts.len() <= 10);
    let bound = ghosts::GhostBound { len_max: 10, bytes_max: 3 * 4096 };
    for hash in 0..10 {
        ghosts.remember(BlockInfo::gone(hash, 4096), bound);
        assert!(ghosts.bytes() <= 3 * 4096);
    }
    assert_eq!(ghosts.len(), 3);
}

/// A large block takes the share of many small ones, so it is the bytes that decide which queue gives.
#[test]
fn s3_fifo_measures_its_small_queue_in_bytes() {
    let mut policy = S3Fifo::default();
    for slot in 0..20 {
        policy.insert(slot, block(u64::from(slot), 4096));
        (0..2).for_each(|_| policy.hit(slot));
    }
    // The first eviction moves all of those to the main queue.
    policy.insert(20, block(20, 4096));
    assert_eq!(policy.evict(), Some(20), "not used since it came");
    // One of 20 slots, and most of the bytes.
    policy.insert(20, block(21, 1 << 20));
    assert_eq!(policy.evict(), Some(20), "the small queue is too large");
    // One of 20 slots, and few of the bytes.
    policy.insert(20, block(22, 4096));
    assert_eq!(policy.evict(), Some(0), "the main queue gives");
}

/// How many of the next victims have slots from 1000 on.
fn evicted_slow(policy: &mut Tiered, count: usize) -> usize {
    (0..count).filter(|_| policy.evict().expect("has some") >= 1000).count()
}

#[test]
fn tiered_takes_fast_blocks_first_until_they_are_asked_for_again() {
    let mut policy = Tiered::default();
    let slow = |key: u32| BlockInfo { tier: Tier::Slow, ..block(key.into(), 4096) };
    (0..1000).for_each(|slot| policy.insert(slot, block(slot.into(), 4096)));
    (1000..2000).for_each(|slot| policy.insert(slot, slow(slot)));
    assert_eq!(evicted_slow(&mut policy, 500), 0, "slow blocks cost more");
    // Each fast block that goes is asked for again at once; no slow one ever is, and fast ones come in their
    // place.
    let mut keys: Vec<u64> = (0..2000).collect();
    for _ in 0..100_000 {
        let slot = policy.evict().expect("has some");
        if (1000..2000).contains(&keys[slot as usize]) {
            keys[slot as usize] += 10_000;
        }
        policy.insert(slot, block(keys[slot as usize], 4096));
    }
    assert!(policy.bytes_of(Tier::Slow) < 900 * 4096, "fast blocks have got some of the room");
    assert!(policy.bytes_of(Tier::Fast) > 500 * 4096);
}

#[test]
fn tiered_is_s3_fifo_where_there_is_one_class() {
    for tier in Tier::ALL {
        let (mut tiered, mut plain) = (Tiered::default(), S3Fifo::default());
        let mut rng = kvfs_device::Rng::new(1);
        let (mut slots, mut free): (HashMap<u64, u32>, Vec<u32>) = (HashMap::new(), (0..64).collect());
        for _ in 0..20_000 {
            let limit = 1 + rng.below(400);
            let key = rng.below(limit);
            if let Some(&slot) = slots.get(&key) {
                tiered.hit(slot);
                plain.hit(slot);
                continue;
            }
            if free.is_empty() {
                let slot = tiered.evict().expect("is full");
                assert_eq!(plain.evict(), Some(slot));
                slots.retain(|_, held| *held != slot);
                free.push(slot);
            }
            let slot = free.pop().expect("was made free");
            let info = BlockInfo { tier, ..block(key, 4096) };
            tiered.insert(slot, info);
            plain.insert(slot, info);
            slots.insert(key, slot);
        }
        assert_eq!(tiered.ghosts(), plain.ghosts(), "nothing more is remembered");
    }
}

#[test]
fn names_lead_to_policies_and_other_words_to_the_list() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let error = "clock".parse::<Policy>().expect_err("is none");
    assert_eq!(error.to_string(), "\"clock\" is no cache policy; there are lru, s3fifo, arc, tiered");
}
