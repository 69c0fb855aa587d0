//! Checkpointed transactions: what they go back to, how they go on, their end.

use std::cell::Cell;
use std::sync::Arc;

use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, CHECKPOINT_OWNER_LEN_MAX, Change, ChangeCursor, CheckpointInfo,
    Compression, Durability, Isolation, KeyRange, Records, Result, StoreError, Touch, Txn, TxnOptions,
    TxnOutcome,
};

use super::Fixture;
use crate::{listing, text};

fn begin(f: &Fixture) -> Arc<dyn Txn> {
    f.store.begin(TxnOptions::default()).unwrap()
}

fn write(txn: &dyn Txn, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    txn.apply(batch).unwrap();
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn fills(txn: &dyn Txn, f: &Fixture) -> Vec<u8> {
    let mut buf = vec![9; 4 * BLOCK_BYTES];
    txn.read_blocks(f.blocks, b"f", 0, &mut buf).unwrap();
    buf.chunks(BLOCK_BYTES).map(|block| block[0]).collect()
}

#[test]
fn a_dropped_transaction_goes_back_to_its_checkpoint() -> Result<()> {
    let f = Fixture::new();
    assert!(f.store.checkpoints().is_some());
    f.put("base", "1");
    f.apply(|b| b.merge(f.merging, "m", "base"));
    let txn = begin(&f);
    let (id, snapshot) = (txn.id(), txn.snapshot_seqno());
    write(&*txn, |b| {
        b.put(f.plain, "own", "1");
        b.merge(f.merging, "m", "+1");
        b.put_blocks(f.blocks, "f", 0, vec![1; 3 * BLOCK_BYTES]);
    });
    txn.checkpoint(b"first")?;
    write(&*txn, |b| b.put(f.plain, "own", "2"));
    txn.checkpoint(b"second")?;
    write(&*txn, |b| b.put(f.plain, "own", "lost"));
    let info = f.store.checkpointed().remove(0);
    assert_eq!((info.id, info.isolation, info.snapshot), (id, Isolation::Snapshot, snapshot));
    assert_eq!((&info.owner[..], info.is_open), (&b"second"[..], true));
    assert!(
        matches!(f.store.resume(id).map(|txn| txn.id()), Err(StoreError::CheckpointOpen(of)) if of == id)
    );
    drop(txn);
    assert!(!f.store.checkpointed()[0].is_open);
    assert_eq!(f.store.txn_outcome(id), TxnOutcome::Open);
    f.put("base", "2");
    f.apply(|b| b.merge(f.merging, "m", "outside"));
    for round in 0..2 {
        let txn = f.store.resume(id)?;
        assert_eq!((txn.id(), txn.isolation(), txn.snapshot_seqno()), (id, Isolation::Snapshot, snapshot));
        assert_eq!(listing(&*txn, f.plain), pairs(&[("base", "1"), ("own", "2")]), "round {round}");
        assert_eq!(text(txn.get(f.merging, b"m")?), Some("base+1".to_owned()));
        assert_eq!(fills(&*txn, &f), [1, 1, 1, 0]);
        write(&*txn, |b| {
            b.put(f.plain, "own", "lost again");
            b.put_blocks(f.blocks, "f", 1, vec![7; BLOCK_BYTES]);
        });
        assert_eq!(fills(&*txn, &f), [1, 7, 1, 0]);
    }
    assert_eq!(listing(&*f.store, f.plain), pairs(&[("base", "2")]));
    Ok(())
}

#[test]
fn a_suspended_transaction_is_resumed_while_its_handle_and_a_cursor_are_held() -> Result<()> {
    let f = Fixture::new();
    let held = begin(&f);
    let id = held.id();
    write(&*held, |b| b.put(f.plain, "a", "1"));
    held.checkpoint(b"")?;
    write(&*held, |b| b.put(f.plain, "b", "lost"));
    let mut cursor = held.cursor(f.plain, KeyRange::all())?;
    cursor.first()?;
    held.suspend();
    assert!(!f.store.checkpointed()[0].is_open);
    assert!(matches!(held.get(f.plain, b"a"), Err(StoreError::TxnEnded(of)) if of == id));
    assert!(matches!(held.checkpoint(b""), Err(StoreError::TxnEnded(of)) if of == id));
    let txn = f.store.resume(id)?;
    assert_eq!(listing(&*txn, f.plain), pairs(&[("a", "1")]));
    write(&*txn, |b| b.put(f.plain, "c", "3"));
    // What is left of the first handle ends nothing of the second one.
    held.suspend();
    held.abort();
    drop(held);
    assert!(
        matches!(f.store.resume(id).map(|txn| txn.id()), Err(StoreError::CheckpointOpen(of)) if of == id)
    );
    txn.commit(Durability::Synced)?;
    assert_eq!(listing(&*f.store, f.plain), pairs(&[("a", "1"), ("c", "3")]));
    assert_eq!(cursor.entry().map(|(key, _)| key), Some(&b"a"[..]));
    cursor.next()?;
    assert_eq!(cursor.entry().map(|(_, value)| &value[..]), Some(&b"lost"[..]));
    // One without a checkpoint is aborted.
    let other = begin(&f);
    write(&*other, |b| b.put(f.plain, "d", "4"));
    other.suspend();
    assert_eq!(f.store.txn_outcome(other.id()), TxnOutcome::Unknown);
    assert_eq!(f.store.checkpointed(), []);
    Ok(())
}

#[test]
fn a_resumed_transaction_goes_on_and_commits() -> Result<()> {
    let f = Fixture::new();
    f.put("kept", "1");
    let txn = begin(&f);
    write(&*txn, |b| b.put(f.plain, "a", "1"));
    txn.checkpoint(b"")?;
    let id = txn.id();
    drop(txn);
    let txn = f.store.resume(id)?;
    write(&*txn, |b| {
        b.put(f.plain, "b", "2");
        b.delete(f.plain, "kept");
    });
    txn.checkpoint(b"again")?;
    drop(txn);
    let txn = f.store.resume(id)?;
    write(&*txn, |b| b.merge(f.counting, "n", "5"));
    let mut changes = txn.changes(f.plain)?;
    let mut keys = Vec::new();
    while let Some(change) = changes.next()? {
        match change {
            Change::Put { key, .. } | Change::Delete { key } => keys.push(key),
            Change::DeleteRange { start, .. } => keys.push(start),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(keys, ["a", "b", "kept"]);
    f.put("outside", "1");
    f.apply(|b| b.merge(f.counting, "n", "2"));
    txn.prepare()?;
    let position = txn.commit(Durability::Synced)?;
    assert_eq!(f.store.txn_outcome(id), TxnOutcome::Committed(position));
    assert_eq!(listing(&*f.store, f.plain), pairs(&[("a", "1"), ("b", "2"), ("outside", "1")]));
    assert_eq!(text(f.store.get(f.counting, b"n")?), Some("7".to_owned()));
    drop(txn);
    assert_eq!(f.store.checkpointed(), []);
    assert!(matches!(f.store.resume(id).map(|txn| txn.id()), Err(StoreError::NoCheckpoint(of)) if of == id));
    Ok(())
}

/// No locks protect a transaction that was away: it hears of changes when it asks.
#[test]
fn a_resumed_transaction_is_told_of_changes_when_it_asks() -> Result<()> {
    let f = Fixture::new();
    f.put("both", "1");
    let txn = begin(&f);
    write(&*txn, |b| b.put(f.plain, "own", "1"));
    txn.checkpoint(b"")?;
    let id = txn.id();
    drop(txn);
    f.put("both", "2");
    f.put("own", "outside");
    f.apply(|b| b.merge(f.counting, "n", "1"));
    let txn = f.store.resume(id)?;
    write(&*txn, |b| b.put(f.plain, "both", "mine"));
    let key = |key: &'static str, touch| Records::Key { key: key.into(), touch };
    let changed = |space, records| txn.changed_since_snapshot(space, &[records]).unwrap().is_some();
    assert!(changed(f.plain, key("both", Touch::ALL)));
    assert!(changed(f.plain, key("own", Touch::ALL)));
    assert!(!changed(f.plain, key("none", Touch::ALL)));
    assert!(!changed(f.counting, key("n", Touch { exclusive: 0, increment: 1 })), "increments commute");
    assert!(changed(f.counting, key("n", Touch { exclusive: 1, increment: 0 })));
    Ok(())
}

#[test]
fn an_abort_takes_the_checkpoint_along() -> Result<()> {
    let f = Fixture::new();
    f.put("a", "1");
    for resumes in [false, true] {
        let mut txn = begin(&f);
        write(&*txn, |b| b.put(f.plain, "a", "2"));
        txn.checkpoint(b"")?;
        let id = txn.id();
        if resumes {
            drop(txn);
            txn = f.store.resume(id)?;
        }
        txn.abort();
        assert!(matches!(txn.checkpoint(b""), Err(StoreError::TxnEnded(of)) if of == id));
        drop(txn);
        assert_eq!(f.store.checkpointed(), []);
        assert_eq!(f.store.txn_outcome(id), TxnOutcome::Unknown);
        assert_eq!(listing(&*f.store, f.plain), pairs(&[("a", "1")]));
    }
    Ok(())
}

#[test]
fn a_checkpoint_of_nothing_is_one() -> Result<()> {
    let f = Fixture::new();
    f.put("a", "1");
    let txn = begin(&f);
    txn.checkpoint(&[7; CHECKPOINT_OWNER_LEN_MAX])?;
    let refused = txn.checkpoint(&[7; CHECKPOINT_OWNER_LEN_MAX + 1]);
    assert!(matches!(refused, Err(StoreError::ValueTooLong { .. })), "{refused:?}");
    let id = txn.id();
    drop(txn);
    f.put("a", "2");
    let txn = f.store.resume(id)?;
    assert_eq!(listing(&*txn, f.plain), pairs(&[("a", "1")]));
    let before = f.store.position();
    assert_eq!(txn.commit(Durability::Buffered)?, before, "nothing was written");
    assert_eq!(f.store.checkpointed(), []);
    Ok(())
}

/// The keys and block stretches that a walk tells of.
fn told(mut changes: Box<dyn ChangeCursor>) -> Vec<String> {
    let mut told = Vec::new();
    let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    while let Some(change) = changes.next().unwrap() {
        told.push(match change {
            Change::Put { key, value } => format!("{}={}", name(&key), name(&value)),
            Change::Delete { key } => format!("-{}", name(key.split(|&byte| byte == 0).next().unwrap())),
            Change::DeleteRange { start, end } => format!("-{}..{}", name(&start), name(&end)),
            Change::Merge { key, operands } => {
                let operands: Vec<_> = operands.iter().map(|operand| name(operand)).collect();
                format!("{}<{}", name(&key), operands.join(","))
            }
            Change::Blocks { prefix, first, count } => format!("{}#{first}+{count}", name(&prefix)),
        });
    }
    told
}

/// A transaction with a checkpoint, and a fork of it. Gives its operations up to there.
fn forked(f: &Fixture) -> (Arc<dyn Txn>, Arc<dyn Txn>, u64) {
    f.put("base", "1");
    f.apply(|b| b.merge(f.merging, "m", "base"));
    let parent = begin(f);
    write(&*parent, |b| {
        b.put(f.plain, "a", "1");
        b.put(f.plain, "b", "1");
        b.put(f.plain, "c", "1");
        b.merge(f.merging, "m", "+1");
        b.put_blocks(f.blocks, "f", 0, vec![1; 3 * BLOCK_BYTES]);
    });
    parent.checkpoint(b"parent").unwrap();
    write(&*parent, |b| b.put(f.plain, "b", "after the checkpoint"));
    let at = Cell::new(0);
    let owner = |from: &CheckpointInfo| {
        assert_eq!((from.id, &from.owner[..]), (parent.id(), &b"parent"[..]));
        at.set(from.operations);
        "child".into()
    };
    let id = f.store.fork(parent.id(), &owner).unwrap();
    let child = f.store.resume(id).unwrap();
    assert_eq!(child.snapshot_seqno(), parent.snapshot_seqno());
    (parent, child, at.get())
}

#[test]
fn a_fork_begins_with_the_checkpoint_and_both_go_on_by_themselves() -> Result<()> {
    let f = Fixture::new();
    let (parent, child, at) = forked(&f);
    assert_ne!(child.id(), parent.id());
    assert_eq!(child.stats().operations, at);
    assert_eq!(listing(&*child, f.plain), pairs(&[("a", "1"), ("b", "1"), ("base", "1"), ("c", "1")]));
    assert_eq!(text(child.get(f.merging, b"m")?), Some("base+1".to_owned()));
    assert_eq!(fills(&*child, &f), [1, 1, 1, 0]);
    write(&*child, |b| {
        b.delete(f.plain, "a");
        b.put_blocks(f.blocks, "f", 1, vec![2; BLOCK_BYTES]);
    });
    write(&*parent, |b| {
        b.put(f.plain, "d", "of the parent");
        b.put_blocks(f.blocks, "f", 0, vec![3; BLOCK_BYTES]);
    });
    f.put("base", "2");
    assert_eq!(listing(&*child, f.plain), pairs(&[("b", "1"), ("base", "1"), ("c", "1")]));
    let of_parent = [("a", "1"), ("b", "after the checkpoint"), ("base", "1"), ("c", "1")];
    let of_parent: Vec<_> = of_parent.into_iter().chain([("d", "of the parent")]).collect();
    assert_eq!(listing(&*parent, f.plain), pairs(&of_parent));
    assert_eq!((fills(&*child, &f), fills(&*parent, &f)), (vec![1, 2, 1, 0], vec![3, 1, 1, 0]));
    // Each has a checkpoint of its own.
    child.checkpoint(b"later")?;
    let owners: Vec<_> = f.store.checkpointed().into_iter().map(|info| info.owner).collect();
    assert_eq!(owners, ["parent", "later"]);
    let ids = [parent.id(), child.id()];
    drop((parent, child));
    let [parent, child] = ids.map(|id| f.store.resume(id).unwrap());
    assert_eq!((fills(&*child, &f), fills(&*parent, &f)), (vec![1, 2, 1, 0], vec![1, 1, 1, 0]));
    // The end of one is none of the other's.
    parent.abort();
    assert_eq!((listing(&*child, f.plain).len(), fills(&*child, &f)), (3, vec![1, 2, 1, 0]));
    child.commit(Durability::Synced)?;
    assert_eq!(listing(&*f.store, f.plain), pairs(&[("b", "1"), ("base", "2"), ("c", "1")]));
    assert_eq!(f.store.checkpointed(), []);
    Ok(())
}

#[test]
fn a_fork_tells_what_was_changed_since_and_what_it_began_with() -> Result<()> {
    let f = Fixture::new();
    let (_parent, child, at) = forked(&f);
    assert_eq!(told(child.changes_after(at, f.plain)?), Vec::<String>::new());
    write(&*child, |b| {
        b.put(f.plain, "a", "1");
        b.delete(f.plain, "b");
        b.put(f.plain, "d", "4");
        b.merge(f.merging, "m", "+2");
        b.put_blocks(f.blocks, "f", 2, vec![2; 2 * BLOCK_BYTES]);
    });
    for round in 0..2 {
        // A value that was there already is written, too; what the fork began with is told of nowhere.
        assert_eq!(told(child.changes_after(at, f.plain)?), ["a=1", "-b", "d=4"], "round {round}");
        assert_eq!(told(child.changes_after(at, f.merging)?), ["m<+2"]);
        assert_eq!(told(child.changes_after(at, f.blocks)?), ["f#2+2"]);
        assert_eq!(told(child.changes(f.plain)?), ["a=1", "-b", "c=1", "d=4"]);
        let began = child.as_of(at)?;
        assert_eq!(listing(&*began, f.plain), pairs(&[("a", "1"), ("b", "1"), ("base", "1"), ("c", "1")]));
        assert_eq!(text(began.get(f.merging, b"m")?), Some("base+1".to_owned()));
        assert_eq!(text(child.get(f.merging, b"m")?), Some("base+1+2".to_owned()));
        let mut buf = vec![9; 4 * BLOCK_BYTES];
        began.read_blocks(f.blocks, b"f", 0, &mut buf)?;
        assert_eq!((buf[2 * BLOCK_BYTES], buf[3 * BLOCK_BYTES]), (1, 0));
        // The same in runs.
        child.prepare()?;
    }
    write(&*child, |b| b.delete_range(f.plain, "a", "c"));
    write(&*child, |b| b.put(f.plain, "aa", "5"));
    assert_eq!(told(child.changes_after(at, f.plain)?), ["-a..c", "aa=5", "d=4"]);
    let now = child.as_of(child.stats().operations)?;
    write(&*child, |b| b.put(f.plain, "z", "later"));
    assert_eq!(listing(&*now, f.plain), pairs(&[("aa", "5"), ("c", "1"), ("d", "4")]));
    let id = child.id();
    child.checkpoint(b"")?;
    drop(child);
    let child = f.store.resume(id)?;
    assert_eq!(told(child.changes_after(at, f.plain)?), ["-a..c", "aa=5", "d=4", "z=later"]);
    child.abort();
    assert!(matches!(child.as_of(at).map(drop), Err(StoreError::TxnEnded(of)) if of == id));
    Ok(())
}

#[test]
fn what_is_forked_tells_what_it_has_changed_itself_since() -> Result<()> {
    let f = Fixture::new();
    let (parent, child, at) = forked(&f);
    let key = |key: &'static str, touch| Records::Key { key: key.into(), touch };
    let changed =
        |txn: &Arc<dyn Txn>, space, records| txn.changed_after(at, space, &[records]).unwrap().is_some();
    write(&*child, |b| b.put(f.plain, "a", "of the child"));
    f.put("c", "of the main line");
    // What was written after the checkpoint, before the fork, is none of what the fork began with.
    assert!(changed(&parent, f.plain, key("b", Touch::ALL)));
    for unchanged in ["a", "c", "base"] {
        assert!(!changed(&parent, f.plain, key(unchanged, Touch::ALL)), "{unchanged}");
    }
    write(&*parent, |b| {
        b.delete_range(f.plain, "x", "y");
        b.merge(f.counting, "n", "1");
        b.put_blocks(f.blocks, "f", 1, vec![2; BLOCK_BYTES]);
    });
    for round in 0..2 {
        assert!(changed(&parent, f.plain, key("xx", Touch::ALL)), "round {round}");
        assert!(changed(&parent, f.plain, Records::Range(KeyRange::new("a", "c"))));
        assert!(!changed(&parent, f.plain, Records::Range(KeyRange::new("c", "x"))));
        let increment = Touch { exclusive: 0, increment: 1 };
        assert!(!changed(&parent, f.counting, key("n", increment)), "increments commute");
        assert!(changed(&parent, f.counting, key("n", Touch { exclusive: 1, increment: 0 })));
        let blocks = |first| Records::Blocks { prefix: "f".into(), first, count: 1 };
        assert!(!changed(&parent, f.blocks, blocks(0)) && changed(&parent, f.blocks, blocks(1)));
        assert_eq!(told(parent.changes_after(at, f.plain)?), ["b=after the checkpoint", "-x..y"]);
        assert_eq!(told(parent.changes_after(at, f.counting)?), ["n<1"]);
        assert_eq!(told(parent.changes_after(at, f.blocks)?), ["f#1+1"]);
        parent.prepare()?;
    }
    Ok(())
}

#[test]
fn a_fork_is_brought_into_what_it_came_of() -> Result<()> {
    let f = Fixture::new();
    let (parent, child, _) = forked(&f);
    write(&*child, |b| b.put_blocks(f.blocks, "f", 1, vec![2; 2 * BLOCK_BYTES]));
    child.prepare()?;
    write(&*child, |b| b.put_blocks(f.blocks, "f", 3, vec![3; BLOCK_BYTES]));
    let clone = |first, count| BlockClone {
        source: "f".into(),
        first,
        count,
        target: "f".into(),
        target_first: first,
        compression: Compression::None,
    };
    let now = child.as_of(child.stats().operations)?;
    parent.clone_blocks_of(&*now, f.blocks, &[clone(1, 3)])?;
    parent.checkpoint(b"merged")?;
    drop(now);
    child.abort();
    assert_eq!(fills(&*parent, &f), [1, 2, 2, 3]);
    let id = parent.id();
    drop(parent);
    let parent = f.store.resume(id)?;
    parent.commit(Durability::Synced)?;
    let mut buf = vec![9; 4 * BLOCK_BYTES];
    f.store.read_blocks(f.blocks, b"f", 0, &mut buf)?;
    assert_eq!(buf.chunks(BLOCK_BYTES).map(|block| block[0]).collect::<Vec<_>>(), [1, 2, 2, 3]);
    Ok(())
}

#[test]
fn forks_of_forks_and_of_what_has_ended() -> Result<()> {
    let f = Fixture::new();
    let (parent, child, _) = forked(&f);
    let owner = |_: &CheckpointInfo| "next".into();
    write(&*child, |b| b.put(f.plain, "d", "4"));
    child.checkpoint(b"child")?;
    let third = f.store.fork(child.id(), &owner)?;
    let at = child.stats().operations;
    drop(child);
    let third = f.store.resume(third)?;
    write(&*third, |b| b.put(f.plain, "e", "5"));
    assert_eq!(told(third.changes_after(at, f.plain)?), ["e=5"]);
    assert_eq!(third.get(f.plain, b"d")?.as_deref(), Some(&b"4"[..]));
    let long = |_: &CheckpointInfo| vec![7; CHECKPOINT_OWNER_LEN_MAX + 1].into();
    assert!(matches!(f.store.fork(third.id(), &long), Err(StoreError::ValueTooLong { .. })));
    let id = parent.id();
    parent.abort();
    assert!(matches!(f.store.fork(id, &owner), Err(StoreError::NoCheckpoint(of)) if of == id));
    let open = begin(&f);
    assert!(matches!(f.store.fork(open.id(), &owner), Err(StoreError::NoCheckpoint(_))), "no checkpoint yet");
    assert_eq!(f.store.checkpointed().len(), 2);
    Ok(())
}
