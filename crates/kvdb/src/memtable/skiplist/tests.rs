use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::memtable::testing::{Rng, for_seeds};

/// Key, seqno, value.
type Row = (Vec<u8>, Seqno, Vec<u8>);

fn rows(rng: &mut Rng, count: u64) -> Vec<Row> {
    let row = |seqno| {
        // Few keys, of which some share their heads; values inline and shared.
        let key = format!("{}{}", "k".repeat(rng.below(20) as usize), rng.below(30)).into_bytes();
        let len = [0, 10, VALUE_BYTES_INLINE, VALUE_BYTES_INLINE + 1][rng.below(4) as usize];
        (key, seqno, vec![seqno as u8; len])
    };
    (1..=count).map(row).collect()
}

fn insert(list: &SkipList, (key, seqno, value): &Row) {
    list.insert(key, *seqno, RecordKind::Put, &Bytes::from(value.clone()));
}

fn here(cursor: &Cursor) -> Option<Row> {
    let record = cursor.record()?;
    let at = record.record();
    assert_eq!(record.value(), &record.value_owned()[..]);
    Some((at.key.to_vec(), at.seqno, record.value().to_vec()))
}

#[test]
fn walks_both_ways_and_seeks_agree_with_a_sorted_list() {
    for_seeds(20, |rng| {
        let list = Arc::new(SkipList::default());
        let mut model = rows(rng, 300);
        for row in &model {
            insert(&list, row);
        }
        model.sort_by(|a, b| (&a.0, Reverse(a.1)).cmp(&(&b.0, Reverse(b.1))));
        let mut cursor = Cursor::new(Arc::clone(&list));
        cursor.first();
        for row in &model {
            assert_eq!(here(&cursor).as_ref(), Some(row));
            cursor.next();
        }
        assert!(here(&cursor).is_none());
        cursor.last();
        for row in model.iter().rev() {
            assert_eq!(here(&cursor).as_ref(), Some(row));
            cursor.prev();
        }
        assert!(here(&cursor).is_none());
        for (key, seqno, _) in rows(rng, 100) {
            let at = model.partition_point(|row| (&row.0, Reverse(row.1)) < (&key, Reverse(seqno)));
            cursor.seek(&key, seqno);
            assert_eq!(here(&cursor).as_ref(), model.get(at));
            let before = model.partition_point(|row| row.0 < key);
            cursor.seek_before(&key);
            assert_eq!(here(&cursor).as_ref(), before.checked_sub(1).map(|at| &model[at]));
        }
    });
}

#[test]
fn many_writers_and_a_reader_meet_whole_records_in_order() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 5000;
    let list = Arc::new(SkipList::default());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let list = &list;
                scope.spawn(move || {
                    let mut rng = Rng::new(writer + 1);
                    for number in 0..EACH {
                        let key = rng.below(1000).to_be_bytes();
                        let seqno = number * WRITERS + writer + 1;
                        list.insert(
                            &key,
                            seqno,
                            RecordKind::Put,
                            &Bytes::copy_from_slice(&seqno.to_be_bytes()),
                        );
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                let mut cursor = Cursor::new(Arc::clone(&list));
                cursor.first();
                let mut last: Option<Row> = None;
                while let Some(row) = here(&cursor) {
                    assert_eq!(row.2, row.1.to_be_bytes());
                    assert!(last.is_none_or(|last| (&last.0, Reverse(last.1)) < (&row.0, Reverse(row.1))));
                    last = Some(row);
                    cursor.next();
                }
            }
        });
        for writer in writers {
            writer.join().expect("a writer ends");
        }
        is_over.store(true, Ordering::Release);
        reader.join().expect("the reader ends");
    });
    let mut cursor = Cursor::new(Arc::clone(&list));
    cursor.first();
    let mut count = 0;
    while here(&cursor).is_some() {
        count += 1;
        cursor.next();
    }
    assert_eq!(count, WRITERS * EACH);
}

#[test]
fn records_of_all_shapes_lie_beside_each_other() {
    let list = Arc::new(SkipList::default());
    // Around the sizes of heads, of inline values, and of chunks.
    let key_lens = [0, 1, 15, 16, 17, 31, 4096, 70_000, 300_000];
    let value_lens = [0, 1, 1023, 1024, 1025, 9000];
    let mut model = Vec::new();
    for (number, key_len) in (0_u8..).zip(key_lens) {
        for value_len in value_lens {
            // A key that ends in zeros comes behind its prefix, though their heads are the same.
            for last in [0, number] {
                let mut key = vec![number / 2; key_len];
                key.extend(last.checked_sub(1));
                model.push((key, 1 + model.len() as u64, vec![number ^ 0x55; value_len]));
            }
        }
    }
    for row in &model {
        insert(&list, row);
    }
    model.sort_by(|a, b| (&a.0, Reverse(a.1)).cmp(&(&b.0, Reverse(b.1))));
    let mut cursor = Cursor::new(Arc::clone(&list));
    cursor.first();
    for row in &model {
        let record = cursor.record().expect("is there");
        assert_eq!(record.node.as_ptr() as usize % align_of::<Node>(), 0);
        assert!(here(&cursor).as_ref() == Some(row), "key of {} bytes, seqno {}", row.0.len(), row.1);
        cursor.next();
    }
    assert!(cursor.record().is_none());
    for row in &model {
        cursor.seek(&row.0, row.1);
        assert!(here(&cursor).as_ref() == Some(row));
    }
}

/// Tells when it is dropped.
struct Counted(Arc<AtomicU64>, Vec<u8>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn long_values_live_as_long_as_the_list_and_its_cursors_and_are_dropped_once() {
    const EACH: u64 = 500;
    let dropped = Arc::new(AtomicU64::new(0));
    let list = Arc::new(SkipList::default());
    std::thread::scope(|scope| {
        for writer in 0..4_u64 {
            let (list, dropped) = (&list, &dropped);
            scope.spawn(move || {
                for number in 0..EACH {
                    let value = Bytes::from_owner(Counted(Arc::clone(dropped), vec![writer as u8; 2000]));
                    list.insert(&(number % 50).to_be_bytes(), number * 4 + writer, RecordKind::Put, &value);
                }
            });
        }
    });
    let mut cursor = Cursor::new(Arc::clone(&list));
    cursor.last();
    drop(list);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    let kept = cursor.record().expect("is there").value_owned();
    drop(cursor);
    assert_eq!(dropped.load(Ordering::Relaxed), 4 * EACH - 1, "one is kept");
    assert_eq!(kept.len(), 2000);
    drop(kept);
    assert_eq!(dropped.load(Ordering::Relaxed), 4 * EACH);
}

#[test]
fn what_was_inserted_before_is_met_by_every_search_while_others_insert() {
    const EACH: u64 = 4000;
    for_seeds(3, |rng| {
        let list = Arc::new(SkipList::default());
        let published: [AtomicU64; 2] = Default::default();
        let key = |writer: u64, number: u64| {
            let mixed = (number * 2 + writer).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            [&mixed.to_be_bytes()[..], &number.to_be_bytes(), &[writer as u8]].concat()
        };
        let seeds: Vec<u64> = (0..2).map(|_| rng.below(u64::MAX)).collect();
        std::thread::scope(|scope| {
            for (writer, published) in (0..).zip(&published) {
                let list = &list;
                scope.spawn(move || {
                    for number in 0..EACH {
                        list.insert(&key(writer, number), 1, RecordKind::Put, &Bytes::new());
                        published.store(number + 1, Ordering::Release);
                    }
                });
            }
            for seed in seeds {
                let (list, published) = (&list, &published);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    let mut cursor = Cursor::new(Arc::clone(list));
                    while published.iter().any(|count| count.load(Ordering::Acquire) < EACH) {
                        let writer = rng.below(2);
                        let count = published[writer as usize].load(Ordering::Acquire);
                        if count == 0 {
                            continue;
                        }
                        let wanted = key(writer, rng.below(count));
                        let is_here = |cursor: &Cursor| cursor.record().is_some_and(|at| at.key() == wanted);
                        cursor.seek(&wanted, 1);
                        assert!(is_here(&cursor), "by its place");
                        cursor.next();
                        let behind = cursor.record().map(|at| at.key().to_vec());
                        cursor.seek(&wanted, 0);
                        // Others may have come in between, on either way.
                        assert!(cursor.record().is_none_or(|at| at.key() > &wanted[..]));
                        if let Some(behind) = behind {
                            cursor.seek_before(&behind);
                            let mut steps = 0;
                            while cursor.record().is_some_and(|at| at.key() > &wanted[..]) {
                                cursor.prev();
                                steps += 1;
                                assert!(steps < 10_000, "goes back");
                            }
                            assert!(is_here(&cursor), "from behind");
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn equal_records_of_several_writers_are_all_there_and_searches_pass_them() {
    const WRITERS: u64 = 4;
    const KEYS: u64 = 300;
    let list = Arc::new(SkipList::default());
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                for number in 0..KEYS {
                    list.insert(&number.to_be_bytes(), 7, RecordKind::Put, &Bytes::from_static(b"same"));
                }
            });
        }
    });
    let mut cursor = Cursor::new(Arc::clone(&list));
    let (mut count, mut keys) = (0, BTreeSet::new());
    cursor.first();
    while let Some(row) = here(&cursor) {
        keys.insert(row.0);
        count += 1;
        cursor.next();
    }
    assert_eq!((count, keys.len() as u64), (WRITERS * KEYS, KEYS));
    for number in 0..KEYS {
        cursor.seek(&number.to_be_bytes(), 7);
        assert_eq!(here(&cursor).expect("is there").0, number.to_be_bytes());
        cursor.seek(&number.to_be_bytes(), 6);
        assert_eq!(
            here(&cursor).map(|row| row.0),
            (number + 1 < KEYS).then(|| (number + 1).to_be_bytes().to_vec())
        );
        cursor.seek_before(&number.to_be_bytes());
        assert_eq!(here(&cursor).map(|row| row.0), number.checked_sub(1).map(|n| n.to_be_bytes().to_vec()));
    }
}
