//! Checkpointed transactions: what they go back to, how they go on, their end.

use kvfs_store::{
    BLOCK_BYTES, Batch, CHECKPOINT_OWNER_LEN_MAX, Change, Durability, Isolation, KeyRange, Records, Result,
    StoreError, Touch, Txn, TxnOptions, TxnOutcome,
};
use std::sync::Arc;

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
