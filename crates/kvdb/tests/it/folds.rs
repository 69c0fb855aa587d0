//! Long chains of merge records on one key: what reads keep of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use kvfs_device::Rng;
use kvfs_kvdb::Db;
use kvfs_store::{
    Batch, Durability, Keyspace, KeyspaceKind, MergeFunction, Read, Result, Snapshot, Store, Transactions,
    TxnOptions,
};

use super::basics::{make, open};

/// Appends, at most so many bytes; counts the operands that it is given.
#[derive(Default)]
struct Tail {
    operands: AtomicUsize,
}

const TAIL_BYTES: usize = 64;

impl MergeFunction for Tail {
    fn resolve(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        self.operands.fetch_add(operands.len(), Ordering::Relaxed);
        let mut value = base.map(Bytes::copy_from_slice);
        for operand in operands {
            value = append(value, operand);
        }
        Ok(value)
    }

    fn fold(&self, _: &[u8], _: &[u8], _: &[u8]) -> Option<Bytes> {
        None
    }
}

/// Nothing is left behind an exclamation mark.
fn append(value: Option<Bytes>, operand: &[u8]) -> Option<Bytes> {
    let mut all = [&value.unwrap_or_default(), operand].concat();
    all.drain(..all.len().saturating_sub(TAIL_BYTES));
    (all.last() != Some(&b'!')).then(|| all.into())
}

fn rows(db: &Db) -> (Arc<Tail>, Keyspace) {
    let merge = Arc::new(Tail::default());
    let function = Arc::clone(&merge) as Arc<dyn MergeFunction>;
    (merge, db.open_keyspace("rows", KeyspaceKind::Tuple, Some(function)).expect("opens"))
}

fn apply(db: &Db, change: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    change(&mut batch);
    db.apply(batch, Durability::Buffered).expect("applies");
}

type Rows = BTreeMap<Vec<u8>, Bytes>;

fn assert_same(db: &dyn Read, rows: Keyspace, expected: &Rows, key: &[u8], seed: u64) {
    let found = db.get(rows, key).expect("reads");
    assert_eq!(found.as_ref(), expected.get(key), "seed {seed}, key {key:?}");
}

#[test]
fn what_reads_keep_of_merged_rows_is_right_at_every_position() {
    for seed in 1..=6 {
        let mut rng = Rng::new(seed);
        let device = make(200);
        let db = open(&device, |_| {});
        let (_, rows) = rows(&db);
        let mut now = Rows::new();
        let mut past: Vec<(Arc<dyn Snapshot>, Rows)> = Vec::new();
        for step in 0..3000_u64 {
            let key = vec![b'a' + rng.below(3) as u8];
            match rng.below(400) {
                0 => apply(&db, |batch| {
                    batch.delete(rows, key.clone());
                    now.remove(&key);
                }),
                1 => apply(&db, |batch| {
                    batch.delete_range(rows, b"a".to_vec(), key.clone());
                    now.retain(|held, _| *held >= key);
                }),
                2 => apply(&db, |batch| {
                    batch.put(rows, key.clone(), "put");
                    now.insert(key.clone(), "put".into());
                }),
                3 => db.flush().expect("flushes"),
                4 => past.push((db.snapshot().expect("pins"), now.clone())),
                _ => apply(&db, |batch| {
                    let operand = if rng.below(100) == 0 { "!".to_owned() } else { format!("{step},") };
                    let value = append(now.remove(&key), operand.as_bytes());
                    now.extend(value.map(|value| (key.clone(), value)));
                    batch.merge(rows, key.clone(), operand);
                }),
            }
            if rng.below(4) == 0 {
                assert_same(&*db, rows, &now, &key, seed);
            }
            if let Some((snapshot, then)) = past.get(rng.below(past.len() as u64 + 1) as usize) {
                assert_same(&**snapshot, rows, then, &key, seed);
            }
        }
    }
}

#[test]
fn a_row_that_is_merged_without_end_costs_a_read_no_more_than_the_last_operands() {
    let device = make(200);
    let db = open(&device, |options| options.memtable_bytes = 16 << 20);
    let (merge, rows) = rows(&db);
    apply(&db, |batch| {
        batch.put(rows, "r", "below");
    });
    db.flush().expect("flushes");
    let count = 20_000;
    for number in 0..count {
        apply(&db, |batch| {
            batch.merge(rows, "r", format!("{number},"));
        });
        let found = db.get(rows, b"r").expect("reads").expect("is there");
        assert!(found.ends_with(format!("{number},").as_bytes()));
    }
    let operands = merge.operands.load(Ordering::Relaxed);
    assert!(operands <= count * 33, "{operands} operands for {count} reads");
}

#[test]
fn what_a_transaction_has_merged_is_kept_for_no_other_reader() {
    let device = make(200);
    let db = open(&device, |_| {});
    let (_, rows) = rows(&db);
    for number in 0..100 {
        apply(&db, |batch| {
            batch.merge(rows, "r", format!("{number},"));
        });
    }
    let txn = db.begin(TxnOptions::default()).expect("begins");
    let mut batch = Batch::new();
    batch.merge(rows, "r", "mine");
    txn.apply(batch).expect("applies");
    for _ in 0..2 {
        let found = txn.get(rows, b"r").expect("reads").expect("is there");
        assert!(found.ends_with(b"99,mine"), "{found:?}");
        let found = db.get(rows, b"r").expect("reads").expect("is there");
        assert!(found.ends_with(b"99,"), "{found:?}");
    }
    txn.abort();
    let found = db.get(rows, b"r").expect("reads").expect("is there");
    assert!(found.ends_with(b"99,"), "{found:?}");
}
