use bytes::Bytes;
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Position, StoreError, TxnOptions};

use super::*;

const CAPACITY_BYTES: u64 = 1 << 20;

fn store() -> (MemoryStore, Keyspace, Keyspace) {
    let store = MemoryStore::new(CAPACITY_BYTES, [1; 16]);
    let tuples = store.open_keyspace("tuples", KeyspaceKind::Tuple, None).expect("opens");
    let blocks = store.open_keyspace("blocks", KeyspaceKind::Block, None).expect("opens");
    (store, tuples, blocks)
}

fn put(store: &MemoryStore, keyspace: Keyspace, number: u32) -> Result<Position> {
    let mut batch = Batch::new();
    batch.put(keyspace, number.to_be_bytes().to_vec(), Vec::new());
    store.apply(batch, Durability::Synced)
}

#[test]
fn many_small_keys_fill_the_store_as_large_ones_do() {
    let (store, tuples, _) = store();
    let full = (0..1 << 20).find_map(|number| put(&store, tuples, number).err().map(|error| (number, error)));
    let (count, error) = full.expect("ends");
    assert!(matches!(error, StoreError::Full));
    assert!(u64::from(count) <= CAPACITY_BYTES / ENTRY_BYTES, "{count} keys");
}

#[test]
fn deletes_make_room_on_a_full_store() {
    let (store, tuples, _) = store();
    let count = (0..1 << 20).find(|&number| put(&store, tuples, number).is_err()).expect("ends");
    let mut batch = Batch::new();
    batch.delete_range(tuples, 0_u32.to_be_bytes().to_vec(), 100_u32.to_be_bytes().to_vec());
    store.apply(batch, Durability::Buffered).expect("deletes");
    put(&store, tuples, count).expect("has room");
}

#[test]
fn one_block_of_a_large_write_keeps_no_more_than_itself() {
    let (store, _, blocks) = store();
    let buffer = Bytes::from(vec![1; 16 * 4096]);
    let mut batch = Batch::new();
    batch.put_blocks(blocks, "f", 0, buffer.clone());
    store.apply(batch, Durability::Buffered).expect("applies");
    assert!(buffer.is_unique(), "the store shares the caller's buffer");
}

#[test]
fn private_writes_of_transactions_take_room_until_they_end() {
    let (store, tuples, _) = store();
    let txn = store.transactions().expect("has them").begin(TxnOptions::default()).expect("begins");
    let before = store.space().available_bytes;
    let mut batch = Batch::new();
    batch.put(tuples, "k", vec![0; 600_000]);
    txn.apply(batch.clone()).expect("fits");
    assert!(store.space().available_bytes < before - 600_000);
    assert!(matches!(store.apply(batch.clone(), Durability::Buffered), Err(StoreError::Full)));
    // It counts once where it is committed: a store half full is enough.
    txn.commit(Durability::Buffered).expect("commits");
    assert!(store.get(tuples, b"k").expect("reads").is_some());
    let txn = store.transactions().expect("has them").begin(TxnOptions::default()).expect("begins");
    let mut second = Batch::new();
    second.put(tuples, "l", vec![0; 600_000]);
    assert!(matches!(txn.apply(second), Err(StoreError::Full)));
    drop(txn);
    let used = store.space().used_bytes;
    assert!((600_000..600_000 + 2 * ENTRY_BYTES).contains(&used), "{used}");
}
