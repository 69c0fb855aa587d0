use super::*;
use crate::{
    iter::testing::{Record, VecIter, random_key, random_layers, sort},
    memtable::testing::for_seeds,
};

fn stands(iter: &MergingIter) -> Option<(Bytes, Seqno)> {
    iter.record().map(|record| (Bytes::copy_from_slice(record.key), record.seqno))
}

#[test]
fn mixed_moves_agree_with_one_sorted_list() {
    for_seeds(150, |rng| {
        let count = rng.below(5);
        let layers = random_layers(rng, count, 12, 15);
        let mut all: Vec<Record> = layers.iter().flat_map(|layer| layer.records.clone()).collect();
        sort(&mut all);
        let children = layers.iter().map(|layer| VecIter::boxed(layer.records.clone())).collect();
        let mut iter = MergingIter::new(children);
        let mut at: Option<usize> = None;
        let mut is_forward = true;
        for _ in 0..80 {
            let key = random_key(rng, 17);
            let seqno = rng.below(70);
            let moves = rng.below(10);
            is_forward = match moves {
                0 | 2 => true,
                1 | 3 => false,
                _ => is_forward,
            };
            match moves {
                0 => {
                    iter.seek(&key, seqno).unwrap();
                    at = Some(all.partition_point(|r| r.key < key || r.key == key && r.seqno > seqno));
                }
                1 => {
                    iter.seek_before(&key).unwrap();
                    at = all.partition_point(|r| r.key < key).checked_sub(1);
                }
                2 => {
                    iter.first().unwrap();
                    at = Some(0);
                }
                3 => {
                    iter.last().unwrap();
                    at = all.len().checked_sub(1);
                }
                4..=9 if is_forward && at.is_some() => {
                    iter.next().unwrap();
                    at = at.map(|at| at + 1);
                }
                4..=9 if at.is_some() => {
                    iter.prev().unwrap();
                    at = at.and_then(|at| at.checked_sub(1));
                }
                _ => {}
            }
            at = at.filter(|&at| at < all.len());
            assert_eq!(stands(&iter), at.map(|at| (all[at].key.clone(), all[at].seqno)));
            if let Some(at) = at {
                assert_eq!(iter.value().unwrap(), all[at].value);
            }
        }
    });
}

#[test]
fn skips_move_only_the_older_children() {
    let record = |key: &'static str, seqno| Record {
        key: key.into(),
        seqno,
        kind: crate::format::RecordKind::Put,
        value: Bytes::new(),
    };
    let newer = VecIter::boxed(vec![record("b", 9), record("d", 8)]);
    let older = VecIter::boxed(vec![record("a", 4), record("b", 3), record("c", 2), record("e", 1)]);
    let mut iter = MergingIter::new(vec![newer, older]);
    iter.first().unwrap();
    iter.skip_to(1, b"d").unwrap();
    assert_eq!(stands(&iter), Some(("b".into(), 9)));
    iter.next().unwrap();
    assert_eq!(stands(&iter), Some(("d".into(), 8)));
    iter.last().unwrap();
    iter.skip_before(1, b"b").unwrap();
    assert_eq!(stands(&iter), Some(("d".into(), 8)));
    iter.prev().unwrap();
    iter.prev().unwrap();
    assert_eq!(stands(&iter), Some(("a".into(), 4)));
}

#[test]
fn a_failed_move_leaves_it_nowhere() {
    let layers = random_layers(&mut crate::memtable::testing::Rng::new(3), 3, 20, 20);
    let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(25));
    let children = layers
        .iter()
        .map(|layer| {
            let mut iter = VecIter::new(layer.records.clone());
            iter.moves_left = Some(std::sync::Arc::clone(&left));
            Box::new(iter) as Box<dyn RecordIter>
        })
        .collect();
    let mut iter = MergingIter::new(children);
    iter.first().unwrap();
    let failure = std::iter::repeat_with(|| iter.next()).take(60).find(Result::is_err);
    assert!(matches!(failure, Some(Err(kvfs_store::StoreError::Corrupt { .. }))));
    assert!(iter.record().is_none());
    left.store(1000, std::sync::atomic::Ordering::Relaxed);
    iter.last().unwrap();
    assert!(iter.record().is_some());
}
