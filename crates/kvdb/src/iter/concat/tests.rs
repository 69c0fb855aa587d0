use super::*;
use crate::{
    iter::testing::{Record, VecIter, random_key, random_layers, sort},
    memtable::testing::for_seeds,
};

/// Parts with bounds that may reach beyond their records.
struct TestParts(Vec<(Bytes, Bytes, Vec<Record>)>);

impl Parts for TestParts {
    type Walk = VecIter;

    fn count(&self) -> usize {
        self.0.len()
    }

    fn first_key(&self, at: usize) -> &[u8] {
        &self.0[at].0
    }

    fn last_key(&self, at: usize) -> &[u8] {
        &self.0[at].1
    }

    fn open(&self, at: usize) -> Result<VecIter> {
        Ok(VecIter::new(self.0[at].2.clone()))
    }
}

#[test]
fn mixed_moves_agree_with_the_whole_list_above_the_bound() {
    for_seeds(150, |rng| {
        let mut all: Vec<Record> = random_layers(rng, 1, 60, 40).remove(0).records;
        sort(&mut all);
        let mut parts: Vec<(Bytes, Bytes, Vec<Record>)> = Vec::new();
        for record in &all {
            let key = &record.key;
            match parts.last_mut() {
                Some((_, last, records)) if last == key || rng.below(5) > 0 => {
                    last.clone_from(key);
                    records.push(record.clone());
                }
                _ => {
                    if rng.below(3) == 0 {
                        // A part of tombstones only, up to the next part's first key.
                        let from = parts.last().map_or_else(|| "a".into(), |part| part.1.clone());
                        parts.push((from, key.clone(), Vec::new()));
                    }
                    parts.push((key.clone(), key.clone(), vec![record.clone()]));
                }
            }
        }
        let bound = if rng.below(2) == 0 { Bytes::new() } else { random_key(rng, 40) };
        all.retain(|record| record.key >= bound);
        let mut iter = ConcatIter::new(TestParts(parts), bound.clone());
        let mut at: Option<usize> = None;
        for _ in 0..80 {
            let (key, seqno) = (random_key(rng, 42), rng.below(70));
            match rng.below(10) {
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
                4..=6 => {
                    iter.next().unwrap();
                    at = at.map(|at| at + 1);
                }
                _ => {
                    iter.prev().unwrap();
                    at = at.and_then(|at| at.checked_sub(1));
                }
            }
            at = at.filter(|&at| at < all.len());
            let stands = iter.record().map(|r| (Bytes::copy_from_slice(r.key), r.seqno));
            assert_eq!(stands, at.map(|at| (all[at].key.clone(), all[at].seqno)), "bound {bound:?}");
            if let Some(at) = at {
                assert_eq!(iter.value().unwrap(), all[at].value);
            }
        }
    });
}
