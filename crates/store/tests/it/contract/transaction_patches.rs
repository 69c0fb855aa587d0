//! Patches of blocks inside of transactions.

use kvfs_store::{Batch, Durability, Isolation, StoreError, TxnOptions};

use super::Fixture;
use super::patches::{block, key, patched, read};

#[test]
fn transactions_patch_what_they_see() {
    let f = Fixture::new();
    f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(1), block(2)].concat()));
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let txn = f.store.begin(TxnOptions { isolation }).unwrap();
        let apply = |change: &dyn Fn(&mut Batch)| {
            let mut batch = Batch::new();
            change(&mut batch);
            txn.apply(batch)
        };
        apply(&|b| b.patch_block(f.blocks, "f", 0, 0, "own")).unwrap();
        apply(&|b| {
            b.patch_block(f.blocks, "f", 0, 1, "W");
            b.delete(f.blocks, key(1));
            b.patch_block(f.blocks, "f", 1, 0, "x");
            b.patch_block(f.blocks, "f", 2, 0, "y");
        })
        .unwrap();
        assert_eq!(txn.get(f.blocks, &key(0)).unwrap().unwrap(), patched(block(1), 0, b"oWn"));
        assert_eq!(txn.get(f.blocks, &key(1)).unwrap().unwrap(), patched(block(0), 0, b"x"));
        assert_eq!(f.store.get(f.blocks, &key(0)).unwrap().unwrap()[1..], block(1)[1..]);
        txn.commit(Durability::Buffered).unwrap();
        assert_eq!(read(&f, 0), patched(block(1), 0, b"oWn"));
        assert_eq!(read(&f, 1), patched(block(0), 0, b"x"));
        assert_eq!(read(&f, 2), patched(block(0), 0, b"y"));
        f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(1), block(2)].concat()));
    }
}

#[test]
fn a_patch_on_the_main_line_is_a_conflict_like_any_change() {
    let f = Fixture::new();
    f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(1), block(2)].concat()));
    let txn = f.store.begin(TxnOptions::default()).unwrap();
    f.apply(|b| b.patch_block(f.blocks, "f", 0, 0, "first"));
    let try_apply = |number: u64| {
        let mut batch = Batch::new();
        batch.patch_block(f.blocks, "f", number, 2000, "second");
        txn.apply(batch)
    };
    assert!(matches!(try_apply(0), Err(StoreError::Conflict { .. })));
    try_apply(1).unwrap();
    txn.commit(Durability::Buffered).unwrap();
    assert_eq!(read(&f, 0), patched(block(1), 0, b"first"));
    assert_eq!(read(&f, 1), patched(block(2), 2000, b"second"));
}
