//! What a store holds after it was closed, and after its process was killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use kvfs_store::{EngineStore, StoreError, progress};
use tempfile::TempDir;

use super::*;

/// Set for a child: the directory of the store that it writes to until it is killed.
const VICTIM: &str = "KVFS_SLATEDB_VICTIM";

#[test]
fn reopened_store_has_its_keyspaces_values_merges_and_position() {
    let (dir, f, store) = new_store();
    f.put("a", "1");
    f.apply(|b| b.merge(f.merging, "list", "x"));
    let position = f.apply(|b| {
        b.merge(f.merging, "list", "y");
        b.put_blocks(f.blocks, "f", 3, vec![7; 4096]);
        b.patch_block(f.blocks, "f", 3, 1, "p");
    });
    let names = f.store.keyspaces().into_iter().map(|info| info.name).collect::<Vec<_>>();
    store.close().unwrap();
    assert!(matches!(f.try_apply(|b| b.put(f.plain, "b", "1")), Err(StoreError::Failed { .. })));
    drop((f, store));

    let (f, store) = fixture(dir.path());
    assert_eq!(f.store.keyspaces().into_iter().map(|info| info.name).collect::<Vec<_>>(), names);
    assert_eq!((f.store.position(), f.store.uuid()), (position, [7; 16]));
    assert_eq!(listing(&*f.store, f.plain), [("a".to_owned(), "1".to_owned())]);
    assert_eq!(text(f.store.get(f.merging, b"list").unwrap()), Some("xy".to_owned()));
    let mut block = vec![0; 4096];
    f.store.read_blocks(f.blocks, b"f", 3, &mut block).unwrap();
    assert_eq!(block[..3], [7, b'p', 7]);
    let verified = store.verify().unwrap();
    assert!(
        verified.findings.is_empty() && verified.counts.contains(&("keys".to_owned(), 3)),
        "{verified:?}"
    );
    let given_up = progress::while_wanted(|| false, || store.verify());
    assert!(matches!(given_up, Err(StoreError::GivenUp)), "{given_up:?}");
}

#[test]
fn read_only_store_shows_what_was_durable_and_refuses_writes() {
    let (dir, f, store) = new_store();
    f.put("a", "1");
    store.close().unwrap();
    drop((f, store));
    // Another one is open to be written to, and is not disturbed.
    let (f, writer) = fixture(dir.path());
    writer.sync(f.put("b", "1")).unwrap();
    let options = SlateOptions { read_only: true, ..SlateOptions::with_memory(MEMORY_BYTES) };
    let store = SlateStore::open(&place(dir.path()), &options).unwrap();
    let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
    let both = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "1".to_owned())];
    assert_eq!(listing(&store, plain), both);
    writer.sync(f.put("c", "1")).unwrap();
    assert_eq!(listing(&store, plain), both, "it stays as it was");
    assert!(matches!(store.open_keyspace("new", KeyspaceKind::Tuple, None), Err(StoreError::ReadOnly)));
    let mut batch = Batch::new();
    batch.put(plain, "a", "2");
    assert!(matches!(store.apply(batch, Durability::Buffered), Err(StoreError::ReadOnly)));
    store.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn ranges_of_few_and_of_many_keys_are_deleted_alike() {
    let (_dir, f, _store) = new_store();
    for count in [3_u32, 63, 64, 65, 66, 67, 500] {
        let key = |number: u32| format!("{number:04}");
        f.apply(|b| (0..count).for_each(|number| b.put(f.plain, key(number), "v")));
        let before = f.store.snapshot().unwrap();
        f.apply(|b| {
            b.delete_range(f.plain, key(1), key(count - 1));
            b.put(f.plain, key(1), "new");
        });
        let left: Vec<_> = listing(&*f.store, f.plain).into_iter().map(|(key, _)| key).collect();
        assert_eq!(left, [key(0), key(1), key(count - 1)], "{count}");
        assert_eq!(listing(&*before, f.plain).len(), count as usize);
        // In one batch with what it deletes.
        f.apply(|b| {
            b.put(f.plain, "5", "v");
            b.merge(f.merging, "5", "v");
            b.delete_range(f.plain, "0", "9");
        });
        assert!(listing(&*f.store, f.plain).is_empty(), "{count}");
    }
}

#[test]
fn deleted_range_is_empty_at_once_for_new_readers_alone_and_its_keys_go_in_the_background() {
    const COUNT: u64 = 10_000;
    let (dir, f, store) = new_store();
    for first in (0..COUNT).step_by(1000) {
        f.apply(|b| (first..first + 1000).for_each(|n| b.put(f.plain, n.to_be_bytes().to_vec(), "old")));
    }
    let before = f.store.snapshot().unwrap();
    f.apply(|b| b.delete_range(f.plain, vec![0], vec![1]));
    assert!(listing(&*f.store, f.plain).is_empty());
    // What is written into it from now on stays, while the reaper is at it.
    let kept = (0..COUNT).rev().step_by(100);
    kept.clone().for_each(|n| _ = f.apply(|b| b.put(f.plain, n.to_be_bytes().to_vec(), "new")));
    let plain = f.plain;
    let count = |read: &dyn Read, value: &str| {
        let found = entries(read, plain);
        for found in found.values() {
            assert_eq!(found, value.as_bytes());
        }
        found.len() as u64
    };
    assert_eq!(count(&*f.store, "new"), 100);
    wait_until("the range goes", || f.stat("slatedb.deleted_ranges") == 0);
    assert_eq!(count(&*f.store, "new"), 100);
    assert_eq!(count(&*before, "old"), COUNT, "an older snapshot sees what it saw");
    drop(before);
    store.close().unwrap();
    drop((f, store));
    let (f, _store) = fixture(dir.path());
    assert_eq!(count(&*f.store, "new"), 100);
}

/// Not a test by itself: the child that is killed.
#[test]
fn victim() {
    let Ok(path) = std::env::var(VICTIM) else { return };
    let (f, _store) = fixture(Path::new(&path));
    let key = |number: u64, part: u64| (number * 1000 + part).to_be_bytes().to_vec();
    for number in 0_u64.. {
        let mut batch = Batch::new();
        batch.put(f.plain, number.to_be_bytes().to_vec(), "v");
        batch.merge(f.counting, "count", "1");
        // A range of a hundred keys, which is gone with the next batch.
        (0..100).for_each(|part| batch.merge(f.merging, key(number, part), "v"));
        if number > 0 {
            batch.delete_range(f.merging, key(number - 1, 0), key(number - 1, 100));
        }
        f.store.apply(batch, Durability::Synced).unwrap();
        println!("\nacknowledged {number}");
    }
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there_and_batches_are_whole() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "slatedb::lasting::victim", "--nocapture"])
            .env(VICTIM, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        let mut numbers = lines.filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        let last = numbers.by_ref().take(50 + 30 * round).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let (f, store) = fixture(dir.path());
        for number in 0..=last {
            let value = f.store.get(f.plain, &number.to_be_bytes()).unwrap();
            assert!(value.is_some(), "{number} of {last} is lost");
        }
        // What is left of ranges is that of the newest batch, or of the last one of an earlier round.
        let left = entries(&*f.store, f.merging).len();
        assert_eq!(left, 100 * (round + 1).min(left / 100), "a range is there in part");
        assert!(left / 100 <= round + 1, "{left} keys");
        let keys = store.verify().unwrap();
        assert!(keys.findings.is_empty(), "{keys:?}");
        drop((f, store));
    }
}

#[test]
fn what_nothing_syncs_is_durable_within_the_commit_interval() {
    let (dir, f, store) = new_store();
    store.set_commit_interval(Duration::from_millis(10));
    let syncs = f.stat("slatedb.syncs");
    f.put("a", "1");
    wait_until("it is synced", || f.stat("slatedb.syncs") > syncs);
    // As after a kill: nothing is written at the end.
    let reader = SlateOptions { read_only: true, ..SlateOptions::with_memory(MEMORY_BYTES) };
    let reader = SlateStore::open(&place(dir.path()), &reader).unwrap();
    let plain = reader.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
    assert_eq!(text(reader.get(plain, b"a").unwrap()), Some("1".to_owned()));
}

#[test]
fn syncs_of_many_threads_are_shared() {
    const THREADS: u64 = 16;
    const BATCHES: u64 = 20;
    let (_dir, f, _store) = new_store();
    let syncs = f.stat("slatedb.syncs");
    let (done, acknowledged) = mpsc::channel();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (f, done) = (&f, done.clone());
            scope.spawn(move || {
                for number in 0..BATCHES {
                    let mut batch = Batch::new();
                    batch.put(f.plain, format!("{thread}-{number}"), "v");
                    done.send(f.store.apply(batch, Durability::Synced)).unwrap();
                }
            });
        }
    });
    drop(done);
    assert_eq!(acknowledged.iter().flatten().count() as u64, THREADS * BATCHES);
    let syncs = f.stat("slatedb.syncs") - syncs;
    assert!(syncs <= THREADS * BATCHES / 2, "{syncs} syncs of {} batches", THREADS * BATCHES);
}

#[test]
fn local_cache_is_bounded_and_its_loss_or_damage_is_only_a_miss() {
    const BYTES_MAX: u64 = 4 << 20;
    let (dir, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    create(dir.path());
    let open = || {
        // So little memory that it is read from the disk.
        let cache = Some((cache.path().join("cache"), BYTES_MAX));
        let options = SlateOptions { memory_bytes: 1 << 20, cache, ..options() };
        let store = Arc::new(SlateStore::open(&place(dir.path()), &options).unwrap());
        (Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>), store)
    };
    let key = |number: u32| number.to_be_bytes().to_vec();
    let value = |number: u32| vec![number as u8; 64 << 10];
    let (f, store) = open();
    for number in 0..256 {
        f.apply(|b| b.put(f.plain, key(number), value(number)));
    }
    store.close().unwrap();
    drop((f, store));
    let files = || {
        let mut paths = vec![cache.path().join("cache")];
        let mut files = Vec::new();
        while let Some(path) = paths.pop() {
            for entry in std::fs::read_dir(path).into_iter().flatten() {
                let entry = entry.unwrap();
                let is_dir = entry.file_type().unwrap().is_dir();
                if is_dir { &mut paths } else { &mut files }.push(entry.path());
            }
        }
        files
    };
    let read_all = |f: &Fixture<Slate>| {
        for number in 0..256 {
            assert_eq!(f.store.get(f.plain, &key(number)).unwrap().unwrap(), value(number), "{number}");
        }
    };
    let (f, store) = open();
    read_all(&f);
    assert!(f.stat("slatedb.disk_cache_lookups") > 0);
    // The bound is kept in the background.
    let bytes =
        || -> u64 { files().iter().filter_map(|path| path.metadata().ok()).map(|found| found.len()).sum() };
    wait_until("it is bounded", || (1..BYTES_MAX + (1 << 20)).contains(&bytes()));
    for path in files() {
        let len = path.metadata().map_or(0, |found| found.len());
        let _ = std::fs::write(&path, vec![0xa5; len as usize]);
    }
    store.set_memory_bytes(0);
    read_all(&f);
    store.close().unwrap();
    drop((f, store));
    std::fs::remove_dir_all(cache.path().join("cache")).unwrap();
    let (f, store) = open();
    read_all(&f);
    assert!(store.verify().unwrap().findings.is_empty());
    store.close().unwrap();
}
