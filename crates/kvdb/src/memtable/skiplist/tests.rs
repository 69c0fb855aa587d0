use std::cmp::Reverse;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::memtable::testing::{Rng, for_seeds};

impl HoldsList for SkipList {
    fn list(&self) -> &SkipList {
        self
    }
}

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

fn here(cursor: &Cursor<SkipList>) -> Option<Row> {
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
