//! Puts, deletes, merges, snapshots and what they keep in memory.

use std::sync::Arc;

use kvfs_store::{Batch, Durability, KeyspaceKind, Position, StoreError};

use super::Fixture;
use crate::{listing, text};

#[test]
fn later_operations_of_a_batch_win() {
    let f = Fixture::new();
    f.apply(|b| {
        b.put(f.plain, "a", "1");
        b.put(f.plain, "a", "2");
        b.put(f.plain, "b", "1");
        b.delete(f.plain, "b");
        b.delete_range(f.plain, "c", "e");
        b.put(f.plain, "d", "1");
    });
    assert_eq!(listing(&*f.store, f.plain), [("a".into(), "2".into()), ("d".into(), "1".into())]);
}

#[test]
fn n_operations_take_n_seqnos() {
    let f = Fixture::new();
    assert_eq!(f.store.position(), Position(0));
    let position = f.apply(|b| {
        b.put(f.plain, "a", "1");
        b.delete(f.merging, "absent");
        b.delete_range(f.plain, "z", "b");
    });
    assert_eq!(position, Position(3));
    assert_eq!(f.apply(|_| {}), Position(3));
    assert_eq!(f.put("a", "2"), Position(4));
    assert_eq!(f.store.snapshot().unwrap().seqno(), 4);
}

#[test]
fn delete_range_is_half_open_and_bounded_to_its_keyspace() {
    let f = Fixture::new();
    f.apply(|b| {
        for key in ["a", "b", "bb", "c"] {
            b.put(f.plain, key, "1");
            b.put(f.merging, key, "1");
        }
    });
    f.apply(|b| b.delete_range(f.plain, "b", "c"));
    assert_eq!(listing(&*f.store, f.plain).len(), 2);
    assert_eq!(listing(&*f.store, f.merging).len(), 4);
}

#[test]
fn merges_resolve_on_what_the_batch_did_before() {
    let f = Fixture::new();
    f.apply(|b| {
        b.put(f.merging, "k", "base");
        b.merge(f.merging, "k", "+1");
        b.merge(f.merging, "new", "x");
        b.put(f.merging, "ranged", "old");
        b.delete_range(f.merging, "r", "s");
        b.merge(f.merging, "ranged", "y");
    });
    f.apply(|b| {
        b.delete_range(f.merging, "n", "o");
        b.merge(f.merging, "new", "z");
        b.merge(f.merging, "k", "+2");
        b.merge(f.merging, "ranged", "!");
    });
    let expected = [("k".into(), "base+1+2".into()), ("new".into(), "z".into())];
    assert_eq!(listing(&*f.store, f.merging), expected);
}

#[test]
fn a_failed_batch_changes_nothing() {
    let f = Fixture::new();
    f.put("a", "1");
    let unmergeable = f.try_apply(|b| {
        b.put(f.plain, "a", "2");
        b.merge(f.plain, "k", "x");
    });
    assert!(matches!(unmergeable, Err(StoreError::NoMergeFunction(name)) if name == "plain"));
    assert_eq!(text(f.store.get(f.plain, b"a").unwrap()), Some("1".into()));
    assert_eq!(f.store.position(), Position(1));
}

#[test]
fn snapshots_keep_their_answers() {
    let f = Fixture::new();
    f.put("a", "1");
    f.put("b", "1");
    let before = f.store.snapshot().unwrap();
    f.apply(|b| b.delete(f.plain, "b"));
    f.put("a", "2");
    let between = f.store.snapshot().unwrap();
    f.put("a", "3");
    f.put("c", "1");
    let later = f.store.open_keyspace("later", KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.put(later, "x", "1");
    f.store.apply(batch, Durability::Synced).unwrap();

    assert_eq!(listing(&*before, f.plain), [("a".into(), "1".into()), ("b".into(), "1".into())]);
    assert_eq!(listing(&*between, f.plain), [("a".into(), "2".into())]);
    assert_eq!(before.get(later, b"x").unwrap(), None);
    let keys: [&[u8]; 3] = [b"c", b"a", b"b"];
    let values = before.multi_get(f.plain, &keys).unwrap().into_iter().map(text).collect::<Vec<_>>();
    assert_eq!(values, [None, Some("1".into()), Some("1".into())]);
}

#[test]
fn keyspaces_are_found_again_by_name_and_kind() {
    let f = Fixture::new();
    assert_eq!(f.store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap(), f.plain);
    let other = f.store.open_keyspace("plain", KeyspaceKind::Block, None);
    assert!(matches!(other, Err(StoreError::WrongKind { kind: "tuples", .. })));
    let names: Vec<_> = f.store.keyspaces().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["blocks", "counting", "merging", "plain"]);
    // Opening without a merge function keeps the one that is there.
    f.store.open_keyspace("merging", KeyspaceKind::Tuple, None).unwrap();
    f.apply(|b| b.merge(f.merging, "k", "x"));
    // A function may come later.
    f.store.open_keyspace("plain", KeyspaceKind::Tuple, Some(Arc::new(crate::Append))).unwrap();
    f.apply(|b| b.merge(f.plain, "k", "x"));
    assert_eq!(text(f.store.get(f.plain, b"k").unwrap()), Some("x".into()));
}
