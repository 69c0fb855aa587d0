use bytes::Bytes;

use super::*;
use crate::format::Extent;
use crate::memtable::testing::for_seeds;
use crate::memtable::{Merger, RangeTombstone};

fn key(number: u64) -> Bytes {
    vec![number as u8].into()
}

/// A block of keys from `first` to `last`.
fn block(first: u64, last: u64, seqno_min: u64, seqno_max: u64) -> TupleEntry {
    TupleEntry {
        first_key: key(first),
        last_key: key(last),
        extent: Extent { addr: 0, len: 0 },
        bytes: 0,
        records: 1,
        crc: 0,
        flags: 0,
        seqno_min,
        seqno_max,
        shift: 0,
        packed: None,
    }
}

#[test]
fn a_block_is_left_out_just_when_a_newer_tombstone_of_its_stripe_is_over_all_its_keys() {
    for_seeds(200, |rng| {
        let list: Vec<RangeTombstone> = (0..rng.below(6))
            .map(|_| {
                let (start, end) = (rng.below(40), rng.below(40));
                RangeTombstone { start: key(start), end: key(end), seqno: 1 + rng.below(20) }
            })
            .collect();
        let mut boundaries: Vec<u64> = (0..rng.below(3)).map(|_| rng.below(20)).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        let rules = KeepRules { boundaries, bottom: rng.below(2) == 0, merger: Merger::new("rows", None) };
        let tombstones = Arc::new(TombstoneSet::new(list.clone()));
        let pruning = Pruning::new(&tombstones, &rules);
        for _ in 0..50 {
            let (first, seqno_min) = (rng.below(40), 1 + rng.below(20));
            let (last, seqno_max) = (first + rng.below(10), seqno_min + rng.below(3));
            let entry = block(first, last, seqno_min, seqno_max);
            let stripe = rules.stripe(seqno_max);
            let is_hidden = |number: u64| {
                let hides = |t: &RangeTombstone| {
                    t.covers(&key(number)) && t.seqno > seqno_max && rules.stripe(t.seqno) == stripe
                };
                list.iter().any(hides)
            };
            let expected = rules.stripe(seqno_min) == stripe && (first..=last).all(is_hidden);
            assert_eq!(pruning.drops(&entry), expected, "{entry:?} below {list:?}, {:?}", rules.boundaries);
        }
    });
}

#[test]
fn a_block_with_one_key_beyond_the_tombstone_is_kept() {
    let everything = RangeTombstone { start: key(0), end: key(40), seqno: 30 };
    let rules = KeepRules { boundaries: Vec::new(), bottom: true, merger: Merger::new("rows", None) };
    let pruning = Pruning::new(&Arc::new(TombstoneSet::new([everything])), &rules);
    assert!(pruning.drops(&block(0, 39, 1, 29)));
    assert!(!pruning.drops(&block(0, 40, 1, 29)));
}
