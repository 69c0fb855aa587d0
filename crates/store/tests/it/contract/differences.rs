//! What differs between two snapshots.

use kvfs_store::{
    BLOCK_BYTES, Differences, KeyDifference, KeyRange, Keyspace, Result, Seqno, Snapshot, StoreError,
};

use super::Fixture;

fn ranges(f: &Fixture, keyspace: Keyspace, older: Seqno, newer: Seqno) -> Vec<KeyRange> {
    let mut ranges = f.store.changed_ranges(keyspace, KeyRange::all(), older, newer).unwrap();
    let mut all: Vec<KeyRange> = Vec::new();
    while let Some(range) = ranges.next().unwrap() {
        assert!(!range.is_empty());
        let before = all.last().and_then(|last| last.end.clone());
        assert!(before.is_none_or(|end| end <= range.start), "ranges ascend");
        all.push(range);
    }
    all
}

fn differences(
    f: &Fixture,
    keyspace: Keyspace,
    older: &dyn Snapshot,
    newer: &dyn Snapshot,
) -> Vec<KeyDifference> {
    let ranges = f.store.changed_ranges(keyspace, KeyRange::all(), older.seqno(), newer.seqno()).unwrap();
    let mut differences = Differences::new(keyspace, older, newer, ranges);
    std::iter::from_fn(|| differences.next().unwrap()).collect()
}

fn difference(key: &str, older: Option<&str>, newer: Option<&str>) -> KeyDifference {
    let value = |value: &str| value.as_bytes().to_vec().into();
    KeyDifference { key: key.as_bytes().to_vec().into(), older: older.map(value), newer: newer.map(value) }
}

#[test]
fn differences_between_snapshots_are_found_in_key_order() -> Result<()> {
    let f = Fixture::new();
    f.apply(|b| {
        for key in ["a", "b", "c", "d", "e"] {
            b.put(f.plain, key, "old");
        }
        b.merge(f.merging, "m", "x");
    });
    let older = f.store.snapshot()?;
    f.apply(|b| {
        b.put(f.plain, "b", "new");
        b.put(f.plain, "bb", "new");
        b.delete_range(f.plain, "c", "e");
        b.put(f.plain, "e", "old");
        b.put(f.plain, "gone", "soon");
        b.merge(f.merging, "m", "y");
    });
    f.apply(|b| {
        b.delete(f.plain, "gone");
        b.put(f.plain, "d", "back");
    });
    let newer = f.store.snapshot()?;
    f.put("a", "later");
    assert_eq!(
        differences(&f, f.plain, &*older, &*newer),
        [
            difference("b", Some("old"), Some("new")),
            difference("bb", None, Some("new")),
            difference("c", Some("old"), None),
            difference("d", Some("old"), Some("back")),
        ]
    );
    assert_eq!(differences(&f, f.merging, &*older, &*newer), [difference("m", Some("x"), Some("xy"))]);
    assert_eq!(differences(&f, f.counting, &*older, &*newer), []);
    assert_eq!(differences(&f, f.plain, &*older, &*older), []);
    Ok(())
}

#[test]
fn blocks_that_differ_are_found() -> Result<()> {
    let f = Fixture::new();
    f.apply(|b| {
        b.put_blocks(f.blocks, "f", 0, vec![1; 64 * BLOCK_BYTES]);
        b.put_blocks(f.blocks, "g", 0, vec![1; BLOCK_BYTES]);
    });
    let older = f.store.snapshot()?;
    f.apply(|b| {
        b.put_blocks(f.blocks, "f", 10, vec![2; 2 * BLOCK_BYTES]);
        b.delete_range(f.blocks, [&b"f"[..], &60_u64.to_be_bytes()].concat(), "g");
    });
    let newer = f.store.snapshot()?;
    let blocks: Vec<_> = differences(&f, f.blocks, &*older, &*newer)
        .into_iter()
        .map(|difference| (difference.key[0], difference.key[8], difference.newer.is_some()))
        .collect();
    let changed = |block, exists| (b'f', block, exists);
    let expected =
        [changed(10, true), changed(11, true), changed(60, false), changed(61, false), changed(62, false)];
    assert_eq!(blocks, [&expected[..], &[changed(63, false)]].concat());
    Ok(())
}

#[test]
fn what_was_written_again_counts_as_touched() -> Result<()> {
    let f = Fixture::new();
    f.put("same", "value");
    f.put("other", "value");
    let older = f.store.snapshot()?;
    f.put("same", "value");
    let newer = f.store.snapshot()?;
    let touched = ranges(&f, f.plain, older.seqno(), newer.seqno());
    assert!(touched.len() == 1 && touched[0].contains(b"same"), "{touched:?}");
    assert_eq!(differences(&f, f.plain, &*older, &*newer), []);
    Ok(())
}

#[test]
fn what_was_not_touched_is_not_looked_at() -> Result<()> {
    let f = Fixture::new();
    for number in 0..2000 {
        f.apply(|b| b.put(f.plain, format!("{number:05}"), "old"));
    }
    let older = f.store.snapshot()?;
    for number in (0..2000).step_by(500) {
        f.apply(|b| b.put(f.plain, format!("{number:05}"), "new"));
    }
    let middle = f.store.snapshot()?;
    for number in 0..2000 {
        f.apply(|b| b.put(f.plain, format!("{number:05}"), "newest"));
    }
    let newer = f.store.snapshot()?;
    assert_eq!(ranges(&f, f.plain, older.seqno(), middle.seqno()).len(), 4);
    // More than fits one window.
    assert_eq!(differences(&f, f.plain, &*middle, &*newer).len(), 2000);
    assert_eq!(ranges(&f, f.plain, newer.seqno(), newer.seqno()), []);
    let none = f.store.changed_ranges(Keyspace(99), KeyRange::all(), 0, 1);
    assert!(matches!(none.err(), Some(StoreError::NoKeyspace(_))));
    Ok(())
}
