//! Transactions: what is seen inside and outside, conflicts, net changes, ends.

use kvfs_store::{
    BLOCK_BYTES, Batch, Change, Durability, Extent, ExtentKind, Isolation, KeyRange, Position, Records,
    Result, StoreError, Touch, Txn, TxnId, TxnOptions, TxnOutcome,
};
use std::sync::Arc;

use super::Fixture;
use crate::{listing, text};

fn begin(f: &Fixture, isolation: Isolation) -> Arc<dyn Txn> {
    f.store.begin(TxnOptions { isolation }).unwrap()
}

fn try_write(txn: &dyn Txn, fill: impl FnOnce(&mut Batch)) -> Result<()> {
    let mut batch = Batch::new();
    fill(&mut batch);
    txn.apply(batch)
}

fn write(txn: &dyn Txn, fill: impl FnOnce(&mut Batch)) {
    try_write(txn, fill).unwrap();
}

const BOTH: [Isolation; 2] = [Isolation::Snapshot, Isolation::Serializable];

#[test]
fn private_writes_are_seen_inside_only_until_the_commit() {
    for isolation in BOTH {
        let f = Fixture::new();
        f.apply(|b| {
            b.put(f.plain, "a", "1");
            b.put(f.plain, "b", "1");
            b.put(f.plain, "c", "1");
            b.put(f.merging, "m", "base");
            b.put_blocks(f.blocks, "f", 0, vec![1; 4 * BLOCK_BYTES]);
        });
        let txn = begin(&f, isolation);
        let before = f.store.position();
        write(&*txn, |b| {
            b.put(f.plain, "a", "2");
            b.delete(f.plain, "b");
            b.put(f.plain, "bb", "2");
            b.merge(f.merging, "m", "+1");
            b.merge(f.merging, "new", "x");
            b.put_blocks(f.blocks, "f", 1, vec![2; BLOCK_BYTES]);
            b.delete(f.blocks, [&b"f"[..], &3_u64.to_be_bytes()].concat());
            b.put_blocks(f.blocks, "f", 6, vec![2; BLOCK_BYTES]);
        });
        let outside = [("a".into(), "1".into()), ("b".into(), "1".into()), ("c".into(), "1".into())];
        let inside = [("a".into(), "2".into()), ("bb".into(), "2".into()), ("c".into(), "1".into())];
        assert_eq!(listing(&*f.store, f.plain), outside);
        assert_eq!(listing(&*txn, f.plain), inside);
        assert_eq!(f.store.position(), before);
        assert_eq!(f.store.txn_outcome(txn.id()), TxnOutcome::Open);
        assert_eq!(txn.isolation(), isolation);
        let values = txn.multi_get(f.merging, &[b"m", b"new", b"none"]).unwrap();
        assert_eq!(
            values.into_iter().map(text).collect::<Vec<_>>(),
            [Some("base+1".into()), Some("x".into()), None]
        );
        let mut found = vec![9; 8 * BLOCK_BYTES];
        txn.read_blocks(f.blocks, b"f", 0, &mut found).unwrap();
        let fills: Vec<u8> = found.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
        assert_eq!(fills, [1, 2, 1, 0, 0, 0, 2, 0]);
        let next = |from, kind| txn.next_extent(f.blocks, b"f", from..u64::MAX, kind).unwrap();
        assert_eq!(next(0, ExtentKind::Data), Some(Extent { first: 0, count: 3 }));
        assert_eq!(next(0, ExtentKind::Hole), Some(Extent { first: 3, count: 3 }));
        assert_eq!(next(4, ExtentKind::Data), Some(Extent { first: 6, count: 1 }));

        let position = txn.commit(Durability::Synced).unwrap();
        assert!(position > before);
        assert_eq!(f.store.position(), position);
        assert_eq!(listing(&*f.store, f.plain), inside);
        assert_eq!(text(f.store.get(f.merging, b"m").unwrap()), Some("base+1".into()));
        f.store.read_blocks(f.blocks, b"f", 0, &mut found).unwrap();
        let fills: Vec<u8> = found.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
        assert_eq!(fills, [1, 2, 1, 0, 0, 0, 2, 0]);
        assert_eq!(f.store.txn_outcome(txn.id()), TxnOutcome::Committed(position));
    }
}

#[test]
fn a_snapshot_transaction_reads_its_snapshot_and_a_serializable_one_the_newest() {
    let f = Fixture::new();
    f.put("a", "1");
    let [snapshot, serializable] = BOTH.map(|isolation| begin(&f, isolation));
    assert_eq!(snapshot.snapshot_seqno(), f.store.position().0);
    f.put("a", "2");
    f.put("b", "2");
    write(&*snapshot, |b| b.put(f.plain, "own", "s"));
    write(&*serializable, |b| b.put(f.plain, "own", "n"));
    assert_eq!(listing(&*snapshot, f.plain), [("a".into(), "1".into()), ("own".into(), "s".into())]);
    assert_eq!(
        listing(&*serializable, f.plain),
        [("a".into(), "2".into()), ("b".into(), "2".into()), ("own".into(), "n".into())]
    );
}

#[test]
fn merges_wait_for_the_base_of_the_commit_unless_they_have_a_private_one() {
    let f = Fixture::new();
    f.apply(|b| b.put(f.merging, "shared", "1"));
    let txn = begin(&f, Isolation::Serializable);
    write(&*txn, |b| {
        b.merge(f.merging, "shared", "+t");
        b.put(f.merging, "own", "p");
        b.delete_range(f.merging, "x", "y");
        b.merge(f.merging, "xx", "after");
    });
    write(&*txn, |b| {
        b.merge(f.merging, "shared", "+u");
        b.merge(f.merging, "own", "+q");
    });
    f.apply(|b| b.merge(f.merging, "shared", "+o"));
    f.apply(|b| b.put(f.merging, "xx", "outside"));
    assert_eq!(text(txn.get(f.merging, b"shared").unwrap()), Some("1+o+t+u".into()));
    let mut cursor = txn.cursor(f.merging, KeyRange::all()).unwrap();
    cursor.last().unwrap();
    assert_eq!(cursor.entry().unwrap().1, "after");
    cursor.prev().unwrap();
    assert_eq!(cursor.entry().unwrap().1, "1+o+t+u");
    txn.commit(Durability::Buffered).unwrap();
    assert_eq!(
        listing(&*f.store, f.merging),
        [("own".into(), "p+q".into()), ("shared".into(), "1+o+t+u".into()), ("xx".into(), "after".into())]
    );
}

#[test]
fn a_cursor_of_a_transaction_stays_at_its_position() {
    for isolation in BOTH {
        let f = Fixture::new();
        f.put("a", "1");
        f.put("c", "1");
        let txn = begin(&f, isolation);
        write(&*txn, |b| b.put(f.plain, "b", "own"));
        let mut cursor = txn.cursor(f.plain, KeyRange::new("a", "z")).unwrap();
        write(&*txn, |b| {
            b.put(f.plain, "bb", "later");
            b.delete_range(f.plain, "a", "c");
        });
        f.put("cc", "outside");
        let mut keys = Vec::new();
        cursor.next().unwrap();
        while let Some((key, _)) = cursor.entry() {
            keys.push(String::from_utf8_lossy(key).into_owned());
            cursor.next().unwrap();
        }
        assert_eq!(keys, ["a", "b", "c"], "{isolation:?}");
    }
}

#[test]
fn the_first_updater_wins() {
    let f = Fixture::new();
    f.apply(|b| {
        b.put(f.plain, "a", "1");
        b.put_blocks(f.blocks, "f", 0, vec![1; 8 * BLOCK_BYTES]);
    });
    let txn = begin(&f, Isolation::Snapshot);
    let serializable = begin(&f, Isolation::Serializable);
    f.apply(|b| {
        b.put(f.plain, "a", "2");
        b.delete_range(f.plain, "r", "s");
        b.put_blocks(f.blocks, "f", 4, vec![2; BLOCK_BYTES]);
    });
    let refused = |fill: &dyn Fn(&mut Batch)| {
        let result = try_write(&*txn, |b| {
            b.put(f.plain, "trace", "x");
            fill(b);
        });
        match result {
            Err(StoreError::Conflict { changed }) => {
                assert!(changed.seqno > txn.snapshot_seqno());
                assert_eq!(txn.get(f.plain, b"trace").unwrap(), None, "wholly or not at all");
                true
            }
            other => {
                other.unwrap();
                write(&*txn, |b| b.delete(f.plain, "trace"));
                false
            }
        }
    };
    assert!(refused(&|b| b.put(f.plain, "a", "3")));
    assert!(refused(&|b| b.delete(f.plain, "a")));
    assert!(refused(&|b| b.delete_range(f.plain, "Z", "b")));
    assert!(refused(&|b| b.put(f.plain, "rr", "3")), "the key may be there or not");
    assert!(refused(&|b| b.delete_range(f.plain, "ra", "rb")));
    assert!(!refused(&|b| b.delete_range(f.plain, "s", "t")), "ranges are half open");
    assert!(!refused(&|b| b.delete_range(f.plain, "b", "c")));
    assert!(!refused(&|b| b.put(f.plain, "b", "3")));
    assert!(refused(&|b| b.put_blocks(f.blocks, "f", 3, vec![3; 2 * BLOCK_BYTES])));
    assert!(!refused(&|b| b.put_blocks(f.blocks, "f", 2, vec![3; 2 * BLOCK_BYTES])));
    assert!(!refused(&|b| b.put_blocks(f.blocks, "f", 5, vec![3; 2 * BLOCK_BYTES])));
    assert!(!refused(&|b| b.put_blocks(f.blocks, "g", 4, vec![3; BLOCK_BYTES])));
    assert!(refused(&|b| b.delete_range(f.blocks, "f", "g")));
    write(&*serializable, |b| b.put(f.plain, "a", "3"));
}

#[test]
fn increments_conflict_with_sets_only() {
    let f = Fixture::new();
    let count =
        |key: &'static str, amount: &'static str| move |b: &mut Batch| b.merge(f.counting, key, amount);
    f.apply(|b| {
        b.put(f.counting, "added", "1");
        b.put(f.counting, "set", "1");
    });
    let txn = begin(&f, Isolation::Snapshot);
    f.apply(count("added", "5"));
    f.apply(count("set", "=7"));
    f.apply(count("looked at", "?"));
    write(&*txn, count("added", "2"));
    assert!(matches!(try_write(&*txn, count("added", "=2")), Err(StoreError::Conflict { .. })));
    assert!(matches!(try_write(&*txn, count("set", "2")), Err(StoreError::Conflict { .. })));
    write(&*txn, count("set", "?"));
    write(&*txn, |b| b.put(f.counting, "looked at", "1"));
    let put = try_write(&*txn, |b| b.put(f.counting, "added", "1"));
    assert!(matches!(put, Err(StoreError::Conflict { .. })));
    assert_eq!(text(txn.get(f.counting, b"added").unwrap()), Some("3".into()));
    txn.commit(Durability::Buffered).unwrap();
    assert_eq!(text(f.store.get(f.counting, b"added").unwrap()), Some("8".into()), "no update is lost");
}

#[test]
fn changes_of_others_since_the_snapshot_are_found() {
    let f = Fixture::new();
    f.put("old", "1");
    for isolation in BOTH {
        let txn = begin(&f, isolation);
        write(&*txn, |b| b.put(f.plain, "own", "1"));
        let changed = |records: Records| {
            let keyspace = if matches!(records, Records::Blocks { .. }) { f.blocks } else { f.plain };
            txn.changed_since_snapshot(keyspace, &[records]).unwrap()
        };
        let key = |key: &'static str, touch| Records::Key { key: key.into(), touch };
        assert_eq!(changed(Records::Range(KeyRange::all())), None);
        let position = f.put("new", "1");
        f.apply(|b| b.put_blocks(f.blocks, "f", 10, vec![1; 3 * BLOCK_BYTES]));
        let found = changed(Records::Range(KeyRange::all())).unwrap();
        assert_eq!((found.keyspace, &found.key[..], found.seqno), (f.plain, &b"new"[..], position.0));
        assert!(changed(key("new", Touch::ALL)).is_some());
        assert_eq!(changed(key("new", Touch::default())), None);
        assert_eq!(changed(key("old", Touch::ALL)), None);
        assert_eq!(changed(key("own", Touch::ALL)), None, "own changes do not count");
        assert!(changed(Records::Range(KeyRange::prefix(b"n"))).is_some());
        assert_eq!(changed(Records::Range(KeyRange::new("o", "p"))), None);
        let blocks = |first, count| Records::Blocks { prefix: "f".into(), first, count };
        assert_eq!(changed(blocks(0, 10)), None);
        assert!(changed(blocks(0, 11)).is_some() && changed(blocks(12, u64::MAX)).is_some());
        assert_eq!(changed(blocks(13, u64::MAX)), None);
        let of_all = txn.changed_since_snapshot(f.plain, &[key("old", Touch::ALL), key("new", Touch::ALL)]);
        assert!(of_all.unwrap().is_some());
        txn.abort();
        f.apply(|b| b.delete(f.plain, "new"));
    }
}

#[test]
fn net_changes_come_in_key_order_with_range_deletes_first() {
    let f = Fixture::new();
    let txn = begin(&f, Isolation::Snapshot);
    write(&*txn, |b| {
        b.put(f.merging, "e", "inside, before");
        b.put(f.merging, "a", "1");
        b.put(f.merging, "a", "2");
        b.delete(f.merging, "b");
        b.delete_range(f.merging, "d", "g");
        b.put(f.merging, "f", "inside, after");
        b.delete(f.merging, "ff");
        b.merge(f.merging, "m", "+1");
        b.put_blocks(f.blocks, "f", 2, vec![1; 2 * BLOCK_BYTES]);
        b.put_blocks(f.blocks, "f", 3, vec![2; 2 * BLOCK_BYTES]);
        b.put_blocks(f.blocks, "f", 9, vec![2; BLOCK_BYTES]);
    });
    let list = |keyspace| {
        let mut cursor = txn.changes(keyspace).unwrap();
        std::iter::from_fn(|| cursor.next().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(
        list(f.merging),
        [
            Change::Put { key: "a".into(), value: "2".into() },
            Change::Delete { key: "b".into() },
            Change::DeleteRange { start: "d".into(), end: "g".into() },
            Change::Put { key: "f".into(), value: "inside, after".into() },
            Change::Merge { key: "m".into(), operands: vec!["+1".into()] },
        ]
    );
    assert_eq!(
        list(f.blocks),
        [
            Change::Blocks { prefix: "f".into(), first: 2, count: 3 },
            Change::Blocks { prefix: "f".into(), first: 9, count: 1 },
        ]
    );
    assert_eq!(list(f.plain), []);
    let stats = txn.stats();
    assert_eq!((stats.batches, stats.operations), (1, 11));
    let bytes_held = stats.bytes_memory + stats.bytes_spilled;
    assert!(stats.bytes_written > 5 * BLOCK_BYTES as u64 && bytes_held > 4 * BLOCK_BYTES as u64);
}

#[test]
fn a_transaction_ends_once() {
    let f = Fixture::new();
    let txn = begin(&f, Isolation::Snapshot);
    write(&*txn, |b| b.put(f.plain, "a", "1"));
    txn.prepare().unwrap();
    let position = txn.commit(Durability::Buffered).unwrap();
    let ended = |result: Result<()>| matches!(result, Err(StoreError::TxnEnded(id)) if id == txn.id());
    assert!(ended(try_write(&*txn, |b| b.put(f.plain, "b", "1"))));
    assert!(ended(txn.commit(Durability::Buffered).map(drop)));
    assert!(ended(txn.prepare()));
    assert!(ended(txn.get(f.plain, b"a").map(drop)));
    assert!(ended(txn.cursor(f.plain, KeyRange::all()).map(drop)));
    txn.abort();
    assert_eq!(f.store.position(), position);
    assert_eq!(f.store.txn_outcome(txn.id()), TxnOutcome::Committed(position));

    let aborted = begin(&f, Isolation::Snapshot);
    write(&*aborted, |b| b.put(f.plain, "c", "1"));
    aborted.abort();
    assert!(matches!(aborted.commit(Durability::Buffered), Err(StoreError::TxnEnded(_))));
    assert_eq!(f.store.txn_outcome(aborted.id()), TxnOutcome::Unknown);
    let dropped = begin(&f, Isolation::Serializable);
    let dropped_id = dropped.id();
    write(&*dropped, |b| b.put(f.plain, "d", "1"));
    drop(dropped);
    assert_eq!(f.store.txn_outcome(dropped_id), TxnOutcome::Unknown);
    assert_eq!(f.store.position(), position);
    assert_eq!(listing(&*f.store, f.plain), [("a".into(), "1".into())]);
    assert!(txn.id() < aborted.id() && aborted.id() < dropped_id && txn.id() > TxnId(0));
    assert_eq!(f.store.txn_outcome(TxnId(u64::MAX)), TxnOutcome::Unknown);
}

#[test]
fn a_commit_without_writes_moves_nothing() {
    let f = Fixture::new();
    f.put("a", "1");
    let txn = begin(&f, Isolation::Serializable);
    let before = f.store.position();
    assert_eq!(txn.commit(Durability::Synced).unwrap(), before);
    assert_eq!(f.store.position(), before);
}

#[test]
fn a_refused_batch_leaves_no_trace_in_the_transaction() {
    let f = Fixture::new();
    let txn = begin(&f, Isolation::Snapshot);
    write(&*txn, |b| b.put(f.plain, "a", "1"));
    let refused = [
        try_write(&*txn, |b| {
            b.put(f.plain, "a", "2");
            b.merge(f.plain, "k", "x");
        }),
        try_write(&*txn, |b| {
            b.delete(f.plain, "a");
            b.put(f.blocks, "k", "x");
        }),
        try_write(&*txn, |b| {
            b.delete(f.plain, "a");
            b.put(f.plain, "", "x");
        }),
    ];
    assert!(refused.iter().all(Result::is_err));
    assert_eq!(text(txn.get(f.plain, b"a").unwrap()), Some("1".into()));
    assert_eq!(txn.stats().batches, 1);
}

#[test]
fn transactions_commit_in_any_order_and_each_at_one_position() {
    let f = Fixture::new();
    let [a, b, c] = [0, 1, 2].map(|at| {
        let txn = begin(&f, Isolation::Snapshot);
        for key in ["x", "y"] {
            write(&*txn, |b| b.put(f.plain, format!("{key}{at}"), "1"));
        }
        txn
    });
    let third = c.commit(Durability::Buffered).unwrap();
    b.abort();
    let first = a.commit(Durability::Buffered).unwrap();
    assert!(Position(0) < third && third < first);
    assert_eq!(listing(&*f.store, f.plain).len(), 4);
}
