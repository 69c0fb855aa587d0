//! What is this layer's own: memory, names and outcomes over openings, commits of any size, much that others
//! change.

use std::sync::Arc;

use kvfs_engine_transactions::Transacted;
use kvfs_store::model::ModelStore;
use kvfs_store::{
    BATCH_BYTES_MAX, Batch, Durability, Isolation, KeyRange, Records, StoreError, Txn, TxnOptions, TxnOutcome,
};

use crate::{Bare, Fixture, MEMORY_BYTES, Plain, text};

fn over(bare: &Bare) -> Fixture<Plain> {
    Fixture::over(Arc::new(Transacted::new(bare.clone(), MEMORY_BYTES)))
}

fn begin(f: &Fixture<Plain>, isolation: Isolation) -> Arc<dyn Txn> {
    f.store.begin(TxnOptions { isolation }).unwrap()
}

fn write(txn: &dyn Txn, fill: impl FnOnce(&mut Batch)) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    fill(&mut batch);
    txn.apply(batch)
}

#[test]
fn names_are_never_given_twice_and_outcomes_outlast_the_store() {
    let bare = Bare::default();
    let f = over(&bare);
    let [committed, aborted, open] = [0, 1, 2].map(|_| begin(&f, Isolation::Snapshot));
    write(&*committed, |b| b.put(f.plain, "a", "1")).unwrap();
    write(&*aborted, |b| b.put(f.plain, "b", "1")).unwrap();
    committed.commit(Durability::Synced).unwrap();
    aborted.abort();
    let names: Vec<String> = f.store.keyspaces().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["blocks", "counting", "merging", "plain"], "its own is hidden");
    // As after a crash: nothing is closed.
    let again = over(&bare);
    let next = begin(&again, Isolation::Snapshot);
    assert!(next.id() > open.id());
    assert!(matches!(again.store.txn_outcome(committed.id()), TxnOutcome::Committed(_)));
    for id in [aborted.id(), open.id()] {
        assert_eq!(again.store.txn_outcome(id), TxnOutcome::Unknown);
    }
}

#[test]
fn transactions_hold_no_more_than_their_memory_and_give_it_back() {
    let f = over(&Bare::default());
    let (big, small) = (begin(&f, Isolation::Serializable), begin(&f, Isolation::Snapshot));
    let value = vec![7; 1 << 20];
    let mut count = 0_u32;
    let refused = loop {
        match write(&*big, |b| b.put(f.plain, count.to_be_bytes().to_vec(), value.clone())) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::TransactionsFull { .. }), "{refused}");
    assert!(u64::from(count) << 20 > MEMORY_BYTES / 4 * 3 / 4, "{count} MiB only");
    assert!(matches!(
        write(&*small, |b| b.put(f.plain, "z", value.clone())),
        Err(StoreError::TransactionsFull { .. })
    ));
    // Others write, and what there was is committed whole, beyond the bound of a batch if need be.
    f.put("other", "1");
    assert_eq!(f.stat("a model.transactions.open"), 2);
    big.commit(Durability::Buffered).unwrap();
    write(&*small, |b| b.put(f.plain, "z", value.clone())).unwrap();
    small.commit(Durability::Buffered).unwrap();
    for stat in ["bytes_memory", "open", "changes_remembered"] {
        assert_eq!(f.stat(&format!("a model.transactions.{stat}")), 0, "{stat}");
    }
    for number in 0..count {
        assert_eq!(f.store.get(f.plain, &number.to_be_bytes()).unwrap().unwrap().len(), value.len());
    }
}

#[test]
fn commit_may_be_larger_than_a_batch() {
    let f = Fixture::<Plain>::over(Arc::new(Transacted::new(Bare::default(), 16 * BATCH_BYTES_MAX as u64)));
    let txn = begin(&f, Isolation::Snapshot);
    let each = BATCH_BYTES_MAX as u64 / 4096 / 8;
    for part in 0..12 {
        write(&*txn, |b| b.put_blocks(f.blocks, "f", part * each, vec![part as u8; each as usize * 4096]))
            .unwrap();
    }
    txn.commit(Durability::Synced).unwrap();
    let mut block = vec![0; 4096];
    for part in 0..12 {
        f.store.read_blocks(f.blocks, b"f", part * each + 5, &mut block).unwrap();
        assert!(block.iter().all(|&byte| byte == part as u8), "{part}");
    }
}

#[test]
fn commit_that_finds_no_room_can_be_tried_again() {
    let bare = Bare(Arc::new(ModelStore::with_capacity_bytes(1 << 20)));
    let f = over(&bare);
    f.apply(|b| b.put(f.plain, "ballast", vec![0; 800 << 10]));
    let txn = begin(&f, Isolation::Snapshot);
    write(&*txn, |b| b.put(f.plain, "a", vec![1; 500 << 10])).unwrap();
    assert!(matches!(txn.commit(Durability::Synced), Err(StoreError::Full)));
    assert_eq!(f.store.txn_outcome(txn.id()), TxnOutcome::Open);
    f.apply(|b| b.delete(f.plain, "ballast"));
    // The snapshot still needs it.
    assert!(txn.get(f.plain, b"ballast").unwrap().is_some());
    txn.abort();
    let again = begin(&f, Isolation::Snapshot);
    write(&*again, |b| b.put(f.plain, "a", vec![1; 500 << 10])).unwrap();
    again.commit(Durability::Synced).unwrap();
}

#[test]
fn transaction_begins_on_a_full_store_and_deletes() {
    let bare = Bare(Arc::new(ModelStore::with_capacity_bytes(1 << 20)));
    let f = over(&bare);
    begin(&f, Isolation::Snapshot).abort();
    f.put("a", "1");
    let mut count = 0_u32;
    for value in [vec![0; 64 << 10], vec![0; 64], Vec::new()] {
        while f.try_apply(|b| b.put(f.plain, count.to_be_bytes().to_vec(), value.clone())).is_ok() {
            count += 1;
        }
    }
    drop(f);
    let f = over(&bare);
    assert!(matches!(f.try_apply(|b| b.put(f.plain, "more", "1")), Err(StoreError::Full)));
    let txn = begin(&f, Isolation::Snapshot);
    write(&*txn, |b| b.delete(f.plain, "a")).unwrap();
    txn.commit(Durability::Synced).unwrap();
    assert_eq!(f.store.get(f.plain, b"a").unwrap(), None);
}

#[test]
fn transaction_that_is_too_old_to_know_its_conflicts_is_refused() {
    // Of which a quarter of a quarter is for 2,048 changes.
    let f = Fixture::<Plain>::over(Arc::new(Transacted::new(Bare::default(), 8 << 20)));
    let old = begin(&f, Isolation::Snapshot);
    for number in 0..2049_u32 {
        f.apply(|b| b.put(f.plain, [b"k", &number.to_be_bytes()[..]].concat(), "1"));
    }
    let young = begin(&f, Isolation::Snapshot);
    for (txn, is_old) in [(&old, true), (&young, false)] {
        let written = write(&**txn, |b| b.put(f.plain, "untouched", "1"));
        assert_eq!(matches!(written, Err(StoreError::Conflict { .. })), is_old, "{written:?}");
    }
    assert!(f.stat("a model.transactions.changes_remembered") < 2049);
    f.put("k", "2");
    let of = Records::Range(KeyRange::new("k", "k\0"));
    assert!(young.changed_since_snapshot(f.plain, &[of]).unwrap().is_some());
}

#[test]
fn many_increments_of_one_key_stay_few() {
    let f = over(&Bare::default());
    let txn = begin(&f, Isolation::Serializable);
    for _ in 0..2000 {
        write(&*txn, |b| b.merge(f.counting, "n", "1")).unwrap();
    }
    assert_eq!(text(txn.get(f.counting, b"n").unwrap()), Some("2000".into()));
    txn.commit(Durability::Buffered).unwrap();
    assert_eq!(text(f.store.get(f.counting, b"n").unwrap()), Some("2000".into()));
}
