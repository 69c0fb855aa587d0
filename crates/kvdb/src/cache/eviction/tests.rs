use std::collections::HashMap;

use super::*;

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
        self.policy.insert(slot, key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

#[test]
fn lru_evicts_the_least_recently_used() {
    let mut lru = Lru::default();
    for slot in 0..4 {
        lru.insert(slot, u64::from(slot));
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
}

#[test]
fn what_comes_back_after_its_eviction_stays() {
    for policy in [Policy::S3Fifo, Policy::Arc] {
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
    for hash in 0..1000 {
        ghosts.remember(hash, 10);
        assert!(ghosts.len() <= 10);
    }
    assert!(!ghosts.recall(989) && ghosts.recall(990));
    assert!(!ghosts.recall(990));
    for _ in 0..1000 {
        ghosts.remember(7, 10);
        ghosts.recall(7);
    }
    assert!(ghosts.len() <= 10);
}
