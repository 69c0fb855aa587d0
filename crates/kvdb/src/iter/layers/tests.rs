use super::*;
use crate::memtable::{
    RangeTombstone,
    testing::{Rng, for_seeds},
};

fn key(n: u64) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

fn tombstones(rng: &mut Rng, within: std::ops::Range<u64>) -> Vec<RangeTombstone> {
    let len = within.end - within.start;
    (0..rng.below(6))
        .map(|_| {
            let (a, b) = (within.start + rng.below(len), within.start + rng.below(len + 1));
            RangeTombstone { start: key(a.min(b)), end: key(a.max(b)), seqno: 1 + rng.below(30) }
        })
        .collect()
}

#[test]
fn answers_agree_with_a_linear_search_for_overlapping_and_disjoint_sets() {
    for_seeds(200, |rng| {
        let is_disjoint = rng.below(2) == 0;
        let parts: Vec<_> = (0..4)
            .map(|part| tombstones(rng, if is_disjoint { part * 10..part * 10 + 10 } else { 0..40 }))
            .collect();
        let all: Vec<_> = parts.concat();
        let mut layer = LayerTombstones::new(parts.into_iter().map(|part| Arc::new(TombstoneSet::new(part))));
        let naive = |at: u64, snapshot| {
            all.iter().filter(|t| t.covers(&key(at)) && t.seqno <= snapshot).map(|t| t.seqno).max()
        };
        let snapshot = rng.below(35);
        let mut at = 0_u64;
        for _ in 0..120 {
            at = match rng.below(4) {
                0 => rng.below(42),
                1 => at.saturating_sub(1),
                _ => at + 1,
            };
            let expected = naive(at, snapshot);
            assert_eq!(layer.covering(&key(at), snapshot), expected);
            let (from, until) =
                (layer.covered_from(&key(at), snapshot), layer.covered_until(&key(at), snapshot));
            assert_eq!((from.is_some(), until.is_some()), (expected.is_some(), expected.is_some()));
            if let (Some(from), Some(until)) = (from, until) {
                assert!(from <= key(at) && key(at) < until);
                let covered = (0..50).filter(|&n| from <= key(n) && key(n) < until);
                assert!(covered.into_iter().all(|n| naive(n, snapshot).is_some()));
            }
        }
    });
}
