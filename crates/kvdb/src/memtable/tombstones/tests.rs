use super::*;
use crate::memtable::testing::{Rng, for_seeds};

fn tombstone(start: u64, end: u64, seqno: Seqno) -> RangeTombstone {
    let key = |n: u64| Bytes::copy_from_slice(&n.to_be_bytes());
    RangeTombstone { start: key(start), end: key(end), seqno }
}

fn random(rng: &mut Rng, count: u64, keys: u64) -> Vec<RangeTombstone> {
    (0..count).map(|seqno| tombstone(rng.below(keys), rng.below(keys), seqno + 1)).collect()
}

fn naive(list: &[RangeTombstone], key: &[u8], snapshot: Seqno) -> Option<Seqno> {
    list.iter().filter(|t| t.covers(key) && t.seqno <= snapshot).map(|t| t.seqno).max()
}

#[test]
fn covering_agrees_with_a_linear_search() {
    for_seeds(60, |rng| {
        let count = rng.below(40);
        let list = random(rng, count, 50);
        let set = TombstoneSet::new(list.clone());
        for key in 0..50_u64 {
            for snapshot in 0..=count {
                let key = key.to_be_bytes();
                assert_eq!(set.covering(&key, snapshot), naive(&list, &key, snapshot));
            }
            let covering = set.fragment_at(&key.to_be_bytes()).map(|f| f.seqnos().collect::<Vec<_>>());
            let mut expected: Vec<_> =
                list.iter().filter(|t| t.covers(&key.to_be_bytes())).map(|t| t.seqno).collect();
            expected.sort_unstable_by(|a, b| b.cmp(a));
            assert_eq!(covering.unwrap_or_default(), expected);
        }
    });
}

#[test]
fn fragments_are_sorted_disjoint_and_not_empty() {
    for_seeds(60, |rng| {
        let list = random(rng, 30, 40);
        let set = TombstoneSet::new(list);
        let fragments: Vec<_> = set.fragments().collect();
        assert!(fragments.iter().all(|f| f.start < f.end && f.seqnos().next().is_some()));
        assert!(fragments.windows(2).all(|w| w[0].end <= w[1].start));
        for key in 0..40_u64 {
            let key = key.to_be_bytes();
            let ahead = set.fragments_from(&key).next().map(|f| f.start.clone());
            let expected = fragments.iter().find(|f| f.end[..] > key[..]).map(|f| f.start.clone());
            assert_eq!(ahead, expected);
            let behind = set.fragments_before(&key).next_back().map(|f| f.start.clone());
            let expected = fragments.iter().rfind(|f| f.start[..] < key[..]).map(|f| f.start.clone());
            assert_eq!(behind, expected);
        }
    });
}

#[test]
fn clip_keeps_the_inside_and_nothing_else() {
    for_seeds(60, |rng| {
        let list = random(rng, 20, 40);
        let (start, end) = (rng.below(40), rng.below(40));
        let set = TombstoneSet::new(list.clone());
        let clipped = set.clip(&start.to_be_bytes(), Some(&end.to_be_bytes()));
        let behind = set.clip(&start.to_be_bytes(), None);
        for key in 0..40_u64 {
            let inside = (start..end).contains(&key);
            let expected = naive(&list, &key.to_be_bytes(), 99).filter(|_| inside);
            assert_eq!(clipped.covering(&key.to_be_bytes(), 99), expected);
            let expected = naive(&list, &key.to_be_bytes(), 99).filter(|_| start <= key);
            assert_eq!(behind.covering(&key.to_be_bytes(), 99), expected);
        }
        let meets = (start..end).any(|key| naive(&list, &key.to_be_bytes(), 99).is_some());
        assert_eq!(start < end && set.overlaps(&start.to_be_bytes(), Some(&end.to_be_bytes())), meets);
    });
}

#[test]
fn touching_pieces_of_one_tombstone_become_one_fragment_again() {
    let set = TombstoneSet::new([tombstone(5, 9, 3), tombstone(1, 5, 3), tombstone(4, 6, 3)]);
    assert_eq!(set.fragments().len(), 1);
    assert_eq!(set.seqno_range(), Some((3, 3)));
    assert_eq!(set.len(), 3);
    let union = TombstoneSet::union([&set, &set]);
    assert_eq!(union.list(), set.list());
}

#[test]
fn nested_tombstones_share_their_seqno_sets() {
    let count = 20_000_u64;
    let set = TombstoneSet::new((0..count).map(|n| tombstone(n, 3 * count - n, n + 1)));
    assert_eq!(set.fragments().len() as u64, 2 * count - 1);
    assert!(set.bytes() < 40 << 20, "{} bytes: not n log n", set.bytes());
    assert_eq!(set.covering(&count.to_be_bytes(), 77), Some(77));
    assert_eq!(set.covering(&7_u64.to_be_bytes(), u64::MAX), Some(8));
    assert_eq!(set.covering(&7_u64.to_be_bytes(), 3), Some(3));
}

#[test]
fn an_empty_set_covers_nothing() {
    let set = TombstoneSet::new([tombstone(5, 5, 1), tombstone(7, 2, 2)]);
    assert!(set.is_empty() && set.bounds().is_none() && set.covering(b"x", 9).is_none());
    assert!(!set.overlaps(b"", None));
}

#[test]
fn keys_of_any_length_are_found_behind_any_common_beginning() {
    for_seeds(100, |rng| {
        let common = b"common beginning\0\0"[..rng.below(19) as usize].to_vec();
        let key = |rng: &mut Rng| {
            let mut key = common.clone();
            for _ in 0..rng.below(12) {
                key.push([0, 0, 1, 0xff][rng.below(4) as usize]);
            }
            Bytes::from(key)
        };
        let list: Vec<_> = (1..=25)
            .map(|seqno| RangeTombstone { start: key(rng), end: key(rng), seqno })
            .filter(|tombstone| tombstone.start < tombstone.end)
            .collect();
        let set = TombstoneSet::new(list.clone());
        let probes = list.iter().flat_map(|t| [t.start.clone(), t.end.clone()]);
        let others = (0..20).map(|_| key(rng)).collect::<Vec<_>>();
        let outside = ["", "a", "common", "commos", "z"].map(Bytes::from);
        for probe in probes.chain(others).chain(outside) {
            assert_eq!(set.covering(&probe, 99), naive(&list, &probe, 99), "{probe:?}");
        }
    });
}
