use bytes::Bytes;

use super::*;
use crate::memtable::testing::{Rng, for_seeds};

fn tombstone(start: u64, end: u64, seqno: Seqno) -> RangeTombstone {
    let key = |n: u64| Bytes::copy_from_slice(&n.to_be_bytes());
    RangeTombstone { start: key(start), end: key(end), seqno }
}

#[test]
fn covering_agrees_with_a_linear_search_at_every_size() {
    for_seeds(10, |rng| {
        let growing = GrowingTombstones::default();
        let mut list = Vec::new();
        for seqno in 1..=400 {
            let tombstone = tombstone(rng.below(60), rng.below(60), seqno);
            list.push(tombstone.clone());
            growing.insert(tombstone);
            if rng.below(50) == 0 {
                assert_eq!(growing.whole().list(), TombstoneSet::new(list.clone()).list());
            }
            let (key, snapshot) = (rng.below(60).to_be_bytes(), rng.below(seqno + 1));
            let expected =
                list.iter().filter(|t| t.covers(&key) && t.seqno <= snapshot).map(|t| t.seqno).max();
            assert_eq!(growing.covering(&key, snapshot), expected);
            let sets = growing.sets();
            assert_eq!(sets.iter().filter_map(|set| set.covering(&key, snapshot)).max(), expected);
        }
    });
}

#[test]
fn the_number_of_sets_stays_logarithmic() {
    let growing = GrowingTombstones::default();
    for n in 0..50_000_u64 {
        growing.insert(tombstone(2 * n, 2 * n + 1, n + 1));
    }
    let state = growing.state.read();
    assert!(state.tail.len() < TAIL_LEN);
    assert!(state.sets.len() <= 30, "{} sets", state.sets.len());
    assert_eq!(state.sets.iter().map(|set| set.len()).sum::<usize>() + state.tail.len(), 50_000);
}

#[test]
fn readers_meet_every_tombstone_that_was_inserted_before() {
    let growing = GrowingTombstones::default();
    let inserted = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20_000_u64 {
                growing.insert(tombstone(n, n + 1, n + 1));
                inserted.store(n + 1, Ordering::Release);
            }
        });
        scope.spawn(|| {
            let mut rng = Rng::new(5);
            loop {
                let count = inserted.load(Ordering::Acquire);
                if count > 0 {
                    let n = rng.below(count);
                    assert_eq!(growing.covering(&n.to_be_bytes(), Seqno::MAX), Some(n + 1));
                }
                if count == 20_000 {
                    break;
                }
            }
        });
        scope.spawn(|| {
            while inserted.load(Ordering::Acquire) < 20_000 {
                let before = inserted.load(Ordering::Acquire);
                assert!(growing.whole().len() as u64 >= before);
                std::thread::yield_now();
            }
        });
    });
    assert_eq!(growing.whole().len(), 20_000);
}

#[test]
fn tombstones_over_each_other_are_charged_with_what_they_take() {
    type Ranges = fn(u64) -> (u64, u64);
    let count = 20_000_u64;
    let apart: Ranges = |n| (2 * n, 2 * n + 1);
    let nested: Ranges = |n| (n, (1 << 40) - n);
    let shifted: Ranges = |n| (n, n + (1 << 30));
    for (name, ranges, is_beyond_rule) in
        [("apart", apart, false), ("nested", nested, true), ("shifted", shifted, true)]
    {
        let growing = GrowingTombstones::default();
        let charged: usize = (0..count)
            .map(|n| {
                let (start, end) = ranges(n);
                growing.insert(tombstone(start, end, n + 1))
            })
            .sum();
        let state = growing.state.read();
        let taken: usize = state.sets.iter().map(|set| set.overhead_bytes()).sum();
        assert!(charged >= taken, "{name}: {taken} bytes, and {charged} are charged");
        let by_rule = count as usize * OVERHEAD_BYTES;
        assert_eq!(charged > by_rule, is_beyond_rule, "{name}: {charged} bytes");
        assert!(charged < 3 * taken.max(by_rule), "{name}: {taken} bytes, and {charged} are charged");
    }
}
