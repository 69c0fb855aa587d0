//! Named snapshots: what they show, their names, their end.

use std::time::Duration;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Durability, Position, Result, StoreError, TxnOptions};

use super::Fixture;
use crate::{listing, text};

fn names(f: &Fixture) -> Vec<String> {
    f.store.named_snapshots().into_iter().map(|info| info.name).collect()
}

#[test]
fn a_named_snapshot_keeps_its_answers() -> Result<()> {
    let f = Fixture::new();
    f.apply(|b| {
        b.put(f.plain, "kept", "old");
        b.put(f.plain, "removed", "old");
        b.merge(f.merging, "list", "a");
        b.put_blocks(f.blocks, "file", 3, vec![7; 2 * BLOCK_BYTES]);
    });
    let info = f.store.create_snapshot("before")?;
    assert_eq!((&info.name[..], info.position), ("before", f.store.position()));
    let reader = f.store.open_snapshot("before")?;
    f.apply(|b| {
        b.put(f.plain, "kept", "new");
        b.delete(f.plain, "removed");
        b.put(f.plain, "added", "new");
        b.merge(f.merging, "list", "b");
        b.delete_range(f.blocks, Bytes::from_static(b"file"), Bytes::from_static(b"filf"));
    });
    for read in [reader, f.store.open_snapshot("before")?] {
        assert_eq!(read.seqno(), info.position.0);
        let old = |key: &str| (key.to_owned(), "old".to_owned());
        assert_eq!(listing(&*read, f.plain), [old("kept"), old("removed")]);
        assert_eq!(text(read.get(f.merging, b"list")?), Some("a".to_owned()));
        let mut buf = vec![0; 2 * BLOCK_BYTES];
        read.read_blocks(f.blocks, b"file", 3, &mut buf)?;
        assert_eq!(buf, vec![7; 2 * BLOCK_BYTES]);
    }
    assert_eq!(text(f.store.get(f.merging, b"list")?), Some("ab".to_owned()));
    Ok(())
}

#[test]
fn named_snapshots_are_listed_oldest_first() -> Result<()> {
    let f = Fixture::new();
    assert_eq!(f.store.named_snapshots(), []);
    let first = f.store.create_snapshot("z")?;
    f.put("key", "1");
    let second = f.store.create_snapshot("a")?;
    assert!(first.position < second.position);
    assert_eq!(f.store.named_snapshots(), [first, second]);
    f.store.delete_snapshot("z")?;
    assert_eq!(names(&f), ["a"]);
    Ok(())
}

#[test]
fn an_adopted_snapshot_has_the_time_that_it_had_elsewhere() -> Result<()> {
    let f = Fixture::new();
    f.put("key", "1");
    let created = Duration::from_nanos(1_234_567_890_123_456_789);
    let info = f.store.adopt_snapshot("theirs", created)?;
    assert_eq!((info.created, info.position), (created, f.store.position()));
    assert_eq!(f.store.named_snapshots(), [info]);
    let refused = f.store.adopt_snapshot("theirs", created);
    assert!(matches!(refused, Err(StoreError::SnapshotExists(_))), "{refused:?}");
    Ok(())
}

#[test]
fn names_of_snapshots_are_unique_and_have_limits() -> Result<()> {
    let f = Fixture::new();
    f.store.create_snapshot("one")?;
    let again = f.store.create_snapshot("one");
    assert!(matches!(&again, Err(StoreError::SnapshotExists(name)) if name == "one"), "{again:?}");
    for bad in ["", ".", "..", "a/b", "a\0b", &"n".repeat(256)] {
        let refused = f.store.create_snapshot(bad);
        assert!(matches!(refused, Err(StoreError::SnapshotName { .. })), "{bad:?}: {refused:?}");
    }
    let longest = "ü".repeat(127);
    f.store.create_snapshot(&longest)?;
    assert_eq!(names(&f).len(), 2);
    for gone in [f.store.delete_snapshot("two"), f.store.open_snapshot("two").map(drop)] {
        assert!(matches!(&gone, Err(StoreError::NoSnapshot(name)) if name == "two"), "{gone:?}");
    }
    Ok(())
}

#[test]
fn a_reader_outlives_the_deletion_of_its_name() -> Result<()> {
    let f = Fixture::new();
    f.put("key", "old");
    let old = f.store.create_snapshot("s")?;
    let reader = f.store.open_snapshot("s")?;
    f.store.delete_snapshot("s")?;
    f.put("key", "new");
    let new = f.store.create_snapshot("s")?;
    assert!(new.position > old.position);
    assert_eq!(text(reader.get(f.plain, b"key")?), Some("old".to_owned()));
    assert_eq!(text(f.store.open_snapshot("s")?.get(f.plain, b"key")?), Some("new".to_owned()));
    Ok(())
}

#[test]
fn a_snapshot_is_between_commits_of_transactions() -> Result<()> {
    let f = Fixture::new();
    // Where there is none, nothing is committed.
    let Some(transactions) = f.store.transactions() else { return Ok(()) };
    let txn = transactions.begin(TxnOptions::default())?;
    let mut batch = kvfs_store::Batch::new();
    batch.put(f.plain, "x", "1");
    batch.put(f.plain, "y", "1");
    txn.apply(batch)?;
    let before = f.store.create_snapshot("before")?;
    let committed = txn.commit(Durability::Buffered)?;
    f.store.create_snapshot("after")?;
    // The engine may have put a record of its own beside them.
    assert!(committed >= Position(before.position.0 + 2));
    assert_eq!(listing(&*f.store.open_snapshot("before")?, f.plain), []);
    assert_eq!(listing(&*f.store.open_snapshot("after")?, f.plain).len(), 2);
    Ok(())
}
