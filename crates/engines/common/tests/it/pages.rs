//! Ranges that are deleted in pages: what readers see meanwhile, and what a process finds that comes after
//! one that ended in the middle.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvfs_store::{Batch, KeyspaceKind, Store, StoreError};
use tempfile::TempDir;

use super::*;
use crate::store::{create, open};

/// More than two pages.
const KEYS: u32 = 9000;

fn fixture(path: &Path) -> Fixture<Plain> {
    Fixture::over(Arc::new(open(path)) as Arc<dyn Store>)
}

fn key(number: u32) -> String {
    format!("{number:06}")
}

/// All keys, then a batch that writes before and behind them and among them, before and after it deletes most
/// of them.
fn change(f: &Fixture<Plain>, batch: &mut Batch) {
    batch.put(f.plain, key(5), "before the delete");
    batch.merge(f.merging, "list", "y");
    batch.put(f.plain, "a", "new");
    batch.delete_range(f.plain, key(3), key(KEYS - 3));
    batch.put(f.plain, key(7), "behind the delete");
    batch.delete_range(f.merging, "m", "n");
}

fn prepare(f: &Fixture<Plain>) {
    f.apply(|b| (0..KEYS).for_each(|number| b.put(f.plain, key(number), "v")));
    f.apply(|b| b.merge(f.merging, "list", "x"));
}

/// Whether the batch is there, which is whole or not at all.
fn is_changed(f: &Fixture<Plain>) -> bool {
    let found = listing(&*f.store, f.plain);
    let list = text(f.store.get(f.merging, b"list").unwrap());
    if found.len() == KEYS as usize {
        assert!(found.iter().all(|(_, value)| value == "v"));
        assert_eq!(list.as_deref(), Some("x"));
        return false;
    }
    let kept = [0, 1, 2, KEYS - 3, KEYS - 2, KEYS - 1].map(|number| (key(number), "v".to_owned()));
    let new = [(key(7), "behind the delete".to_owned()), ("a".to_owned(), "new".to_owned())];
    let mut expected = [&kept[..], &new].concat();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(list.as_deref(), Some("xy"));
    true
}

#[test]
fn batch_with_a_long_range_is_whole_wherever_its_process_ends() {
    let dir = TempDir::new().unwrap();
    let mut ends = Vec::new();
    for writes in 0.. {
        let path = dir.path().join(writes.to_string());
        std::fs::create_dir(&path).unwrap();
        create(&path);
        let f = fixture(&path);
        prepare(&f);
        let position = f.store.position();
        Tested::at(&path).fail_behind(Some(writes));
        let applied = f.try_apply(|b| change(&f, b));
        if let Err(error) = &applied {
            assert!(matches!(error, StoreError::Failed { .. }), "{error}");
            assert!(!is_changed(&f), "readers see the state from before");
        }
        drop(f);
        Tested::at(&path).fail_behind(None);
        let f = fixture(&path);
        ends.push(is_changed(&f));
        assert_eq!(f.store.position() > position, ends[writes]);
        assert_eq!(Tested::at(&path).keys(), keys_of(&f), "no record is left");
        f.put("b", "1");
        if applied.is_ok() {
            break;
        }
    }
    // The record, three pages, and the last write.
    assert_eq!(ends, [false, true, true, true, true, true]);
}

/// What is in the keyspaces, and beside them version, uuid and seqno.
fn keys_of(f: &Fixture<Plain>) -> usize {
    listing(&*f.store, f.plain).len() + listing(&*f.store, f.merging).len() + 3
}

#[test]
fn what_waits_while_a_batch_with_a_long_range_fails_is_refused() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let f = fixture(dir.path());
    prepare(&f);
    let tested = Tested::at(dir.path());
    let failing = tested.failing();
    let held = failing.lock().unwrap();
    // The record, and a page.
    tested.fail_behind(Some(2));
    std::thread::scope(|scope| {
        let torn = scope.spawn(|| f.try_apply(|b| change(&f, b)).map(drop));
        while tested.keys() > keys_of(&f) + 1 - 4096 {
            std::thread::yield_now();
        }
        let batch = scope.spawn(|| f.try_apply(|b| b.put(f.plain, key(9), "waited")).map(drop));
        let keyspace = scope.spawn(|| f.store.open_keyspace("waited", KeyspaceKind::Tuple, None).map(drop));
        // Both are before the failure by then.
        std::thread::park_timeout(Duration::from_millis(100));
        // Only one that is known does not wait.
        assert_eq!(f.store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap(), f.plain);
        drop(held);
        for waited in [torn, batch, keyspace] {
            let waited = waited.join().unwrap();
            assert!(matches!(waited, Err(StoreError::Failed { .. })), "{waited:?}");
        }
    });
    drop(f);
    tested.fail_behind(None);
    let f = Fixture::<Plain>::over(Arc::new(open(dir.path())) as Arc<dyn Store>);
    assert!(is_changed(&f));
    assert!(f.store.keyspaces().iter().all(|info| info.name != "waited"));
}

#[test]
fn snapshot_from_before_a_long_range_delete_sees_all_of_it() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let f = fixture(dir.path());
    prepare(&f);
    let before = f.store.snapshot().unwrap();
    f.apply(|b| change(&f, b));
    assert!(is_changed(&f));
    assert_eq!(listing(&*before, f.plain).len(), KEYS as usize);
}
