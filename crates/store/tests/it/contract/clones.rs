//! Clones of blocks inside of transactions.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, Compression, Durability, Isolation, Read, Snapshot, StoreError,
    Transactions, Txn, TxnOptions,
};

use super::Fixture;
use super::patches::{block, patched};

fn clone(
    source: &'static str,
    first: u64,
    count: u64,
    target: &'static str,
    target_first: u64,
) -> BlockClone {
    let (source, target) = (Bytes::from(source), Bytes::from(target));
    BlockClone { source, first, count, target, target_first, compression: Compression::None }
}

fn read(f: &Fixture, read: &dyn Read, prefix: &str, first: u64, count: usize) -> Vec<Vec<u8>> {
    let mut buf = vec![9; count * BLOCK_BYTES];
    read.read_blocks(f.blocks, prefix.as_bytes(), first, &mut buf).unwrap();
    buf.chunks(BLOCK_BYTES).map(<[u8]>::to_vec).collect()
}

fn apply(txn: &dyn Txn, fill: impl FnOnce(&mut Batch)) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    fill(&mut batch);
    txn.apply(batch)
}

#[test]
fn a_clone_is_what_the_transaction_sees() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let f = Fixture::new();
        f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(1), block(2), block(3), block(4)].concat()));
        f.apply(|b| b.delete_range(f.blocks, key("f", 2), key("f", 3)));
        f.apply(|b| b.patch_block(f.blocks, "f", 1, 5, "main"));
        let txn = f.store.begin(TxnOptions { isolation }).unwrap();
        apply(&*txn, |b| {
            b.put_blocks(f.blocks, "f", 3, block(7));
            b.put_blocks(f.blocks, "f", 5, block(8));
            b.put_blocks(f.blocks, "g", 12, [block(5), block(6)].concat());
        })
        .unwrap();
        apply(&*txn, |b| b.delete_range(f.blocks, key("g", 13), key("g", 14))).unwrap();
        txn.clone_blocks(f.blocks, &[clone("f", 0, 100, "g", 10), clone("f", 1, 1, "h", 0)]).unwrap();
        let expected = [
            block(1),
            patched(block(2), 5, b"main"),
            // What is absent leaves the target as it is.
            block(5),
            block(7),
            block(0),
            block(8),
            block(0),
        ];
        assert_eq!(read(&f, &*txn, "g", 10, 7), expected);
        assert_eq!(read(&f, &*f.store, "g", 10, 7), vec![block(0); 7], "nothing is seen outside");
        // Both sides go their own way.
        apply(&*txn, |b| b.put_blocks(f.blocks, "f", 0, block(9))).unwrap();
        apply(&*txn, |b| b.patch_block(f.blocks, "g", 13, 0, "own")).unwrap();
        assert_eq!(read(&f, &*txn, "f", 3, 1), [block(7)]);
        txn.commit(Durability::Buffered).unwrap();
        f.apply(|b| b.delete_range(f.blocks, key("f", 0), key("f", 100)));
        let mut expected = expected;
        expected[3] = patched(block(7), 0, b"own");
        assert_eq!(read(&f, &*f.store, "g", 10, 7), expected);
        assert_eq!(read(&f, &*f.store, "h", 0, 2), [patched(block(2), 5, b"main"), block(0)]);
        let gone = f.store.begin(TxnOptions { isolation }).unwrap();
        gone.clone_blocks(f.blocks, &[clone("g", 0, 20, "i", 0)]).unwrap();
        assert_eq!(read(&f, &*gone, "i", 10, 7), expected, "a clone of a clone");
        gone.abort();
        assert_eq!(read(&f, &*f.store, "i", 10, 7), vec![block(0); 7]);
    }
}

#[test]
fn a_clone_of_a_snapshot_is_what_that_sees() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let f = Fixture::new();
        f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(1), block(2), block(3)].concat()));
        f.apply(|b| b.patch_block(f.blocks, "f", 1, 5, "main"));
        let then = f.store.snapshot().unwrap();
        let expected = [block(1), patched(block(2), 5, b"main"), block(3)];
        f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(4), block(5)].concat()));
        f.apply(|b| b.delete_range(f.blocks, key("f", 2), key("f", 3)));
        let txn = f.store.begin(TxnOptions { isolation }).unwrap();
        apply(&*txn, |b| b.put_blocks(f.blocks, "f", 1, [block(6), block(7)].concat())).unwrap();
        // Over what it was, too.
        txn.clone_blocks_of(&*then, f.blocks, &[clone("f", 0, 9, "g", 2), clone("f", 1, 2, "f", 1)]).unwrap();
        assert_eq!(read(&f, &*txn, "g", 2, 3), expected);
        assert_eq!(read(&f, &*txn, "f", 0, 3), [block(4), expected[1].clone(), block(3)]);
        txn.commit(Durability::Buffered).unwrap();
        drop(then);
        assert_eq!(read(&f, &*f.store, "g", 2, 3), expected);
        assert_eq!(read(&f, &*f.store, "f", 0, 3), [block(4), expected[1].clone(), block(3)]);
    }
}

#[test]
fn a_clone_over_what_others_have_written_since_is_a_conflict() {
    let f = Fixture::new();
    f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(1), block(2)].concat()));
    let txn = f.store.begin(TxnOptions::default()).unwrap();
    f.apply(|b| b.put_blocks(f.blocks, "f", 0, block(3)));
    f.apply(|b| b.put_blocks(f.blocks, "g", 1, block(4)));
    let refused = txn.clone_blocks(f.blocks, &[clone("f", 0, 2, "g", 0)]);
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
    txn.clone_blocks(f.blocks, &[clone("f", 0, 2, "g", 2)]).unwrap();
    txn.commit(Durability::Buffered).unwrap();
    assert_eq!(read(&f, &*f.store, "g", 0, 5), [block(0), block(4), block(1), block(2), block(0)]);
}

#[test]
fn a_clone_reaches_to_the_last_block_and_no_farther() {
    let f = Fixture::new();
    f.apply(|b| b.put_blocks(f.blocks, "f", u64::MAX - 1, block(1)));
    let txn = f.store.begin(TxnOptions::default()).unwrap();
    txn.clone_blocks(f.blocks, &[clone("f", u64::MAX - 5, 5, "g", 3)]).unwrap();
    assert_eq!(read(&f, &*txn, "g", 7, 1), [block(1)]);
    for beyond in [clone("f", u64::MAX - 1, 2, "g", 0), clone("f", 0, 2, "g", u64::MAX - 1)] {
        let refused = txn.clone_blocks(f.blocks, &[beyond]);
        assert!(matches!(refused, Err(StoreError::BlockShape { .. })), "{refused:?}");
    }
    let refused = txn.clone_blocks(f.plain, &[clone("f", 0, 1, "g", 0)]);
    assert!(matches!(refused, Err(StoreError::WrongKind { .. })), "{refused:?}");
}

fn key(prefix: &str, block: u64) -> Vec<u8> {
    [prefix.as_bytes(), &block.to_be_bytes()].concat()
}

#[test]
fn changed_prefixes_are_told_without_their_blocks() {
    let f = Fixture::new();
    f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(1), block(2), block(3)].concat()));
    let txn = f.store.begin(TxnOptions::default()).unwrap();
    apply(&*txn, |b| {
        b.put_blocks(f.blocks, "a", 7, [block(4), block(5)].concat());
        b.put_blocks(f.blocks, "a", 90, block(4));
        b.delete_range(f.blocks, key("b", 3), key("b", 9));
        b.delete_range(f.blocks, key("c", 3), key("c", 9));
        // More than one prefix.
        b.delete_range(f.blocks, "d", "e");
        b.put_blocks(f.blocks, "g", 0, block(6));
    })
    .unwrap();
    txn.clone_blocks(f.blocks, &[clone("f", 0, 3, "c", 0), clone("f", 0, 2, "e", 0)]).unwrap();
    apply(&*txn, |b| b.patch_block(f.blocks, "f", 1, 0, "own")).unwrap();
    let mut changes = txn.changes(f.blocks).unwrap();
    let mut prefixes = Vec::new();
    while let Some(key) = changes.next_place().unwrap() {
        prefixes.push(String::from_utf8(key[..1].to_vec()).unwrap());
    }
    prefixes.dedup();
    assert_eq!(prefixes, ["a", "b", "c", "d", "e", "f", "g"]);
}

/// How many blocks these prefixes share.
fn shared(f: &Fixture, snapshot: &dyn Snapshot) -> BTreeMap<Vec<String>, u64> {
    let mut shared = BTreeMap::new();
    let told = snapshot.each_shared(f.blocks, &mut |blocks, prefixes| {
        let text = |prefix: &&[u8]| String::from_utf8_lossy(prefix).into_owned();
        let mut prefixes: Vec<String> = prefixes.iter().map(text).collect();
        assert!(blocks > 0 && prefixes.len() > 1, "{blocks} blocks of {prefixes:?}");
        prefixes.sort_unstable();
        *shared.entry(prefixes).or_default() += blocks;
        Ok(())
    });
    told.unwrap();
    shared
}

/// An engine may have copied what was in memory, or have no clones: then less is shared, never more.
#[test]
fn shared_blocks_are_at_most_those_that_clones_have_in_common() {
    const BLOCKS: u64 = 64;
    let f = Fixture::new();
    let blocks = |from: u64, to: u64| (from..to).flat_map(|number| block(number as u8)).collect::<Vec<u8>>();
    let assert_within = |snapshot: &dyn Snapshot, when: &str, most: &[(&[&str], u64)]| {
        for (prefixes, count) in shared(&f, snapshot) {
            let most = most.iter().find(|(those, _)| *those == prefixes).map_or(0, |&(_, most)| most);
            assert!(count <= most, "{when}: {prefixes:?} share {count} blocks, at most {most}");
        }
    };
    f.apply(|b| b.put_blocks(f.blocks, "f", 0, blocks(0, BLOCKS)));
    f.apply(|b| b.put_blocks(f.blocks, "other", 0, blocks(0, BLOCKS)));
    let before = f.store.snapshot().unwrap();
    let txn = f.store.begin(TxnOptions::default()).unwrap();
    txn.clone_blocks(f.blocks, &[clone("f", 0, BLOCKS, "g", 10)]).unwrap();
    assert_within(&*f.store.snapshot().unwrap(), "an open transaction", &[]);
    txn.commit(Durability::Buffered).unwrap();
    let cloned = f.store.snapshot().unwrap();
    f.apply(|b| b.put_blocks(f.blocks, "g", 10, blocks(70, 90)));
    f.apply(|b| b.patch_block(f.blocks, "f", 63, 9, "patched"));
    let overwritten = f.store.snapshot().unwrap();
    f.apply(|b| b.delete_range(f.blocks, key("f", 0), key("f", BLOCKS)));
    let removed = f.store.snapshot().unwrap();
    assert_within(&*before, "before the clone", &[]);
    assert_within(&*cloned, "cloned", &[(&["f", "g"], BLOCKS)]);
    assert_within(&*overwritten, "overwritten", &[(&["f", "g"], BLOCKS - 21)]);
    assert_within(&*removed, "without the source", &[]);
    let txn = f.store.begin(TxnOptions::default()).unwrap();
    txn.clone_blocks(f.blocks, &[clone("g", 10, 8, "g", 0)]).unwrap();
    txn.commit(Durability::Buffered).unwrap();
    assert_within(&*f.store.snapshot().unwrap(), "within itself", &[(&["g", "g"], 8)]);
    let refers_twice = f.store.transactions().is_some_and(Transactions::clones_blocks);
    assert!(refers_twice || shared(&f, &*cloned).is_empty());
}
