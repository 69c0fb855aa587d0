//! What a power cut leaves of logs that were not synced, made by hand: bytes that are others, an end that is
//! missing, and a later log that is there.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use kvfs_store::EngineStore;
use tempfile::TempDir;

use super::*;

fn key(number: u32) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// The logs, oldest first.
fn logs(path: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<_> = names.filter(|name| name.extension().is_some_and(|end| end == "log")).collect();
    logs.sort();
    logs
}

/// A copy of the directory as it is while the database is open, which is what a power cut leaves of what is
/// durable.
fn copy(path: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in fs::read_dir(path).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, copy.path().join(from.file_name().unwrap())).unwrap();
    }
    copy
}

/// Batches are a prefix: each adds a key, and raises the count.
fn check_prefix(path: &Path) -> u32 {
    let store = open(path);
    let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
    let found = listing(&store, plain).len() as u32;
    for number in 0..found {
        assert!(store.get(plain, &key(number)).unwrap().is_some(), "{number} of {found}");
    }
    assert!(store.verify().unwrap().findings.is_empty());
    found
}

fn fill(store: &TestStore, numbers: std::ops::Range<u32>, len: usize) {
    let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
    for number in numbers {
        let mut batch = Batch::new();
        batch.put(plain, key(number), vec![b'v'; len]);
        store.apply(batch, Durability::Buffered).unwrap();
    }
}

#[test]
fn log_with_a_hole_keeps_the_batches_in_front_of_it_and_none_behind() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let store = open(dir.path());
    fill(&store, 0..2000, 200);
    let log = logs(dir.path()).pop().unwrap();
    let len = fs::metadata(&log).unwrap().len();
    assert!(len > 400_000);
    let name = log.file_name().unwrap().to_owned();
    let mut found = Vec::new();
    for at in [len - 1, len / 2, 100_000, 40_000, 5_000] {
        let copy = copy(dir.path());
        let log = OpenOptions::new().write(true).open(copy.path().join(&name)).unwrap();
        log.write_all_at(&[0xff; 2], at - 1).unwrap();
        found.push(check_prefix(copy.path()));
        // What is there is the same at the next opening, and goes on.
        assert_eq!(check_prefix(copy.path()), found[found.len() - 1]);
    }
    assert!(found.is_sorted_by(|a, b| a > b) && found[0] >= 1998 && found[4] > 10, "{found:?}");
    let copy = copy(dir.path());
    OpenOptions::new().write(true).open(copy.path().join(&name)).unwrap().set_len(len / 2).unwrap();
    assert!((900..1100).contains(&check_prefix(copy.path())));
}

#[test]
fn log_behind_one_that_is_torn_is_not_replayed() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let store = open(dir.path());
    fill(&store, 0..100, 1000);
    let before = copy(dir.path());
    let first = logs(before.path()).pop().unwrap();
    drop(store);
    // The next opening has a new log, which goes on where the first one ended.
    let store = open(dir.path());
    fill(&store, 100..200, 1000);
    let second = logs(dir.path()).pop().unwrap();
    assert_ne!(first.file_name(), second.file_name());
    let len = fs::metadata(&first).unwrap().len();
    // `None`: it is missing. The record of the keyspace is in it; where that is lost it is made anew.
    let cases = [(Some(len), 200..201), (Some(len - 1), 99..100), (Some(len / 2), 40..60)];
    for (whole, range) in cases.into_iter().chain([(Some(0), 0..1), (None, 0..1)]) {
        let both = copy(before.path());
        fs::copy(&second, both.path().join(second.file_name().unwrap())).unwrap();
        let first = both.path().join(first.file_name().unwrap());
        match whole {
            Some(whole) => OpenOptions::new().write(true).open(first).unwrap().set_len(whole).unwrap(),
            None => fs::remove_file(first).unwrap(),
        }
        let found = check_prefix(both.path());
        assert!(range.contains(&found), "{found} with {whole:?} of {len} bytes");
        assert_eq!(check_prefix(both.path()), found);
    }
}

#[test]
fn log_that_compaction_ends_is_never_empty() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let store = open(dir.path());
    fill(&store, 0..10, 1000);
    for _ in 0..3 {
        let before = logs(dir.path());
        assert_eq!(before.len(), 1, "what was compacted is in tables");
        // It stays when its memtable is in a table.
        let kept = dir.path().join("kept");
        fs::hard_link(&before[0], &kept).unwrap();
        store.database().close(&[]).unwrap();
        assert_ne!(logs(dir.path()), before);
        assert!(fs::metadata(&kept).unwrap().len() > 0);
        fs::remove_file(kept).unwrap();
    }
    assert_eq!(check_prefix(copy(dir.path()).path()), 10);
}
