//! Transactions that can be taken back: which, and what their two states are.

use kvfs_store::{
    BLOCK_BYTES, Batch, Differences, Durability, Isolation, KeyRange, NOTE_LEN_MAX, Result, StoreError,
    TxnId, TxnOptions, UndoViews,
};

use super::Fixture;
use crate::{listing, text};

/// Commits after `meanwhile`, which others do while it is open.
fn commit(f: &Fixture, note: &'static str, fill: impl FnOnce(&mut Batch), meanwhile: impl FnOnce()) -> TxnId {
    let txn = f.store.begin(TxnOptions { isolation: Isolation::Serializable }).unwrap();
    txn.describe(note.into());
    let mut batch = Batch::new();
    fill(&mut batch);
    txn.apply(batch).unwrap();
    meanwhile();
    txn.commit(Durability::Buffered).unwrap();
    txn.id()
}

fn set(f: &Fixture, value: &'static str) -> TxnId {
    commit(f, "", |b| b.put(f.plain, "key", value), || ())
}

fn kept(f: &Fixture) -> Vec<TxnId> {
    f.store.undo_points().into_iter().map(|point| point.txn).collect()
}

#[test]
fn both_states_differ_by_the_transaction_alone() -> Result<()> {
    let f = Fixture::keeping(4);
    f.apply(|b| {
        b.put(f.plain, "a", "1");
        b.put(f.plain, "b", "1");
        b.merge(f.merging, "list", "x");
        b.put_blocks(f.blocks, "file", 0, vec![1; 3 * BLOCK_BYTES]);
    });
    let fill = |b: &mut Batch| {
        b.put(f.plain, "a", "2");
        b.delete(f.plain, "b");
        b.merge(f.merging, "list", "y");
        b.put_blocks(f.blocks, "file", 1, vec![2; BLOCK_BYTES]);
    };
    let id = commit(&f, "who", fill, || {
        f.apply(|b| {
            b.put(f.plain, "meanwhile", "1");
            b.merge(f.merging, "list", "m");
        });
    });
    f.apply(|b| {
        b.put(f.plain, "a", "3");
        b.put(f.plain, "later", "1");
        b.merge(f.merging, "list", "z");
        b.delete_range(f.blocks, "f", "g");
    });
    let point = f.store.undo_points().remove(0);
    assert_eq!((point.txn, &point.note[..]), (id, &b"who"[..]));
    let UndoViews { before, after } = f.store.open_undo(id)?;
    assert_eq!((before.seqno(), after.seqno()), (point.before.0, point.after.0));
    let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(listing(&*before, f.plain), [entry("a", "1"), entry("b", "1"), entry("meanwhile", "1")]);
    assert_eq!(listing(&*after, f.plain), [entry("a", "2"), entry("meanwhile", "1")]);
    assert_eq!(text(before.get(f.merging, b"list")?), Some("xm".to_owned()));
    assert_eq!(text(after.get(f.merging, b"list")?), Some("xmy".to_owned()));
    for (view, middle) in [(&before, 1), (&after, 2)] {
        let mut buf = vec![0; 3 * BLOCK_BYTES];
        view.read_blocks(f.blocks, b"file", 0, &mut buf)?;
        assert_eq!((buf[0], buf[BLOCK_BYTES], buf[2 * BLOCK_BYTES]), (1, middle, 1));
    }
    let ranges = f.store.changed_ranges(f.plain, KeyRange::all(), before.seqno(), after.seqno())?;
    let mut differences = Differences::new(f.plain, &*before, &*after, ranges);
    let mut keys = Vec::new();
    while let Some(difference) = differences.next()? {
        keys.push(difference.key);
    }
    assert_eq!(keys, ["a", "b"]);
    // Two keys of plain, one of merging, and a block.
    assert_eq!(f.store.undo_bytes(id)?, 2 + 2 + 6 + u64::from(block_bytes(&f)));
    Ok(())
}

/// What a pre-image of one block counts.
fn block_bytes(f: &Fixture) -> u16 {
    let with_key = if f.store.capabilities().durable { 0 } else { 12 };
    BLOCK_BYTES as u16 + with_key
}

#[test]
fn the_last_ones_with_writes_are_kept() -> Result<()> {
    let f = Fixture::keeping(2);
    assert_eq!(kept(&f), []);
    let empty = f.store.begin(TxnOptions::default())?;
    empty.commit(Durability::Buffered)?;
    let aborted = f.store.begin(TxnOptions::default())?;
    let mut batch = Batch::new();
    batch.put(f.plain, "key", "lost");
    aborted.apply(batch)?;
    aborted.abort();
    assert_eq!(kept(&f), []);
    let [first, second] = [set(&f, "1"), set(&f, "2")];
    assert_eq!(kept(&f), [first, second]);
    let UndoViews { before, after } = f.store.open_undo(first)?;
    let third = set(&f, "3");
    assert_eq!(kept(&f), [second, third]);
    for gone in [f.store.open_undo(first).map(drop), f.store.undo_bytes(first).map(drop)] {
        assert!(matches!(gone, Err(StoreError::NotKept(id)) if id == first), "{gone:?}");
    }
    // A caller that has them open keeps them.
    assert_eq!(text(before.get(f.plain, b"key")?), None);
    assert_eq!(text(after.get(f.plain, b"key")?), Some("1".to_owned()));
    Ok(())
}

#[test]
fn nothing_is_kept_unless_asked_for_and_notes_are_cut() {
    let f = Fixture::new();
    let id = set(&f, "1");
    assert!(matches!(f.store.open_undo(id).map(drop), Err(StoreError::NotKept(_))));
    assert_eq!(kept(&f), []);
    let f = Fixture::keeping(1);
    let txn = f.store.begin(TxnOptions::default()).unwrap();
    txn.describe(vec![7; 2 * NOTE_LEN_MAX].into());
    let mut batch = Batch::new();
    batch.put(f.plain, "key", "1");
    txn.apply(batch).unwrap();
    txn.commit(Durability::Buffered).unwrap();
    assert_eq!(f.store.undo_points()[0].note, vec![7; NOTE_LEN_MAX]);
}
