//! What the model alone promises: what it holds in memory, and when it is full.

use std::sync::Arc;

use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, DELETING_BYTES_MAX, Durability, KeyRange, StoreError, TxnOptions, VALUE_LEN_MAX};

use crate::text;

type Fixture = crate::Fixture<crate::Model>;

#[test]
fn an_operand_that_does_not_resolve_fails_its_batch() {
    let f = Fixture::new();
    f.put("a", "1");
    let corrupt = f.try_apply(|b| {
        b.put(f.plain, "a", "2");
        b.merge(f.merging, "k", "?");
    });
    assert!(matches!(corrupt, Err(StoreError::Corrupt { .. })));
    assert_eq!(text(f.store.get(f.plain, b"a").unwrap()), Some("1".into()));
}

#[test]
fn old_versions_leave_with_their_snapshots() {
    let f = Fixture::new();
    f.put("a", "1");
    f.put("b", "1");
    let snapshot = f.store.snapshot().unwrap();
    let bytes_pinned = f.store.space().used_bytes;
    for value in ["2", "3", "4"] {
        f.put("a", value);
    }
    f.apply(|b| b.delete(f.plain, "b"));
    // "a" holds the newest version and the pinned one, "b" its tombstone and the pinned one.
    assert_eq!(f.store.space().used_bytes, bytes_pinned + 2 + 1);
    assert_eq!(f.stat("model.keys.plain"), 2);
    drop(snapshot);
    f.put("c", "1");
    assert_eq!(f.store.space().used_bytes, 2 + 2);
    assert_eq!(f.stat("model.keys.plain"), 2);
    assert_eq!(f.stat("model.keys_outdated"), 0);
    assert_eq!(f.stat("model.pins"), 0);
}

#[test]
fn cursors_and_transactions_leave_nothing_behind() {
    let f = Fixture::new();
    f.put("a", "1");
    let cursor = f.store.cursor(f.plain, KeyRange::all()).unwrap();
    assert_eq!(f.stat("model.pins"), 1);
    drop(cursor);
    let [committed, aborted, dropped] = [0, 1, 2].map(|_| f.store.begin(TxnOptions::default()).unwrap());
    for txn in [&committed, &aborted, &dropped] {
        let mut batch = Batch::new();
        batch.put(f.plain, "b", "1");
        txn.apply(batch).unwrap();
    }
    assert_eq!((f.stat("model.pins"), f.stat("model.transactions")), (3, 3));
    committed.commit(Durability::Buffered).unwrap();
    aborted.abort();
    drop(dropped);
    assert_eq!((f.stat("model.pins"), f.stat("model.transactions")), (0, 0));
    f.put("a", "2");
    assert_eq!(f.stat("model.keys_outdated"), 0);
}

#[test]
fn a_full_store_still_deletes() {
    let f = Fixture::over(Arc::new(ModelStore::with_capacity_bytes(100_000)));
    assert_eq!(f.store.space().available_bytes, 99_000);
    f.apply(|b| b.put(f.plain, "a", vec![0; 98_000]));
    assert_eq!(f.store.space().available_bytes, 999);
    assert!(matches!(f.try_apply(|b| b.put(f.plain, "b", vec![0; 999])), Err(StoreError::Full)));
    assert!(matches!(f.try_apply(|b| b.put_blocks(f.blocks, "f", 0, vec![0; 4096])), Err(StoreError::Full)));
    // A deleting batch may use the reserve for what goes with it.
    f.apply(|b| {
        b.delete(f.merging, "x");
        b.merge(f.merging, "b", vec![0; 1500]);
    });
    assert_eq!(f.store.space().available_bytes, 0);
    let snapshot = f.store.snapshot().unwrap();
    f.apply(|b| b.delete(f.plain, "a"));
    assert!(matches!(f.try_apply(|b| b.put(f.plain, "b", vec![0; 999])), Err(StoreError::Full)));
    drop(snapshot);
    f.apply(|b| b.put(f.plain, "b", vec![0; 999]));
    assert_eq!(f.store.space().used_bytes, 1501 + 1000);
}

#[test]
fn a_full_store_lets_only_small_batches_that_delete_into_its_reserve_and_what_transactions_took() {
    let f = Fixture::over(Arc::new(ModelStore::with_capacity_bytes(100 << 20)));
    let beside_a_deletion = |key: &'static str, bytes: usize| {
        f.try_apply(|b| {
            b.delete(f.plain, "x");
            b.put(f.plain, key, vec![0; bytes - 2]);
        })
    };
    let txn = f.store.begin(TxnOptions::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(f.plain, "t", vec![0; 300 << 10]);
    txn.apply(batch).unwrap();
    while let available @ 9.. = f.store.space().available_bytes {
        let len = VALUE_LEN_MAX.min(available as usize - 8);
        f.apply(|b| b.put(f.plain, available.to_be_bytes().to_vec(), vec![0; len]));
    }
    assert!(matches!(beside_a_deletion("a", DELETING_BYTES_MAX + 1), Err(StoreError::Full)));
    beside_a_deletion("a", DELETING_BYTES_MAX).unwrap();
    txn.commit(Durability::Buffered).unwrap();
    assert_eq!(f.store.get(f.plain, b"t").unwrap().map(|value| value.len()), Some(300 << 10));
}

#[test]
fn transaction_at_a_named_snapshot_that_goes_meanwhile_meets_what_comes_after() {
    let f = Fixture::new();
    let write = |value: u32| {
        let mut batch = Batch::new();
        batch.put(f.plain, "a", value.to_string());
        batch
    };
    for round in 0..4000 {
        f.store.create_snapshot("s").unwrap();
        let begins = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begins.wait();
                while let Ok(txn) = f.store.begin_at("s") {
                    if text(f.store.get(f.plain, b"a").unwrap()) == Some(round.to_string()) {
                        let applied = txn.apply(write(round));
                        assert!(matches!(applied, Err(StoreError::Conflict { .. })), "{applied:?}");
                    }
                }
            });
            begins.wait();
            f.store.delete_snapshot("s").unwrap();
            f.store.apply(write(round), Durability::Buffered).unwrap();
        });
    }
}
