//! What a store holds after it was closed, and after its process was killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use kvfs_store::{EngineStore, StoreError, progress};
use tempfile::TempDir;

use super::*;

/// Set for a child: the directory of the store that it writes to until it is killed.
const VICTIM: &str = "KVFS_ENGINE_VICTIM";

fn fixture(path: &Path) -> (Fixture<Plain>, Arc<TestStore>) {
    let store = Arc::new(open(path));
    (Fixture::over(Arc::clone(&store) as Arc<dyn Store>), store)
}

#[test]
fn reopened_store_has_its_keyspaces_values_merges_and_position() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let (f, store) = fixture(dir.path());
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
fn read_only_store_shows_everything_and_refuses_writes() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let (f, store) = fixture(dir.path());
    f.put("a", "1");
    store.close().unwrap();
    drop((f, store));
    let options = DatabaseOptions { read_only: true, ..DatabaseOptions::with_memory(MEMORY_BYTES) };
    let store = TestStore::open(dir.path(), options).unwrap();
    let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
    assert_eq!(text(store.get(plain, b"a").unwrap()), Some("1".to_owned()));
    assert!(matches!(store.open_keyspace("new", KeyspaceKind::Tuple, None), Err(StoreError::ReadOnly)));
    let mut batch = Batch::new();
    batch.put(plain, "a", "2");
    assert!(matches!(store.apply(batch, Durability::Buffered), Err(StoreError::ReadOnly)));
    store.close().unwrap();
}

#[test]
fn ranges_of_few_and_of_many_keys_are_deleted_alike() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let (f, _store) = fixture(dir.path());
    for count in [3_u32, 63, 64, 65, 500] {
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

/// How many batches the victims have written, by what they have merged.
fn count(f: &Fixture<Plain>) -> u64 {
    text(f.store.get(f.counting, b"count").unwrap()).map_or(0, |count| count.parse().unwrap())
}

/// Not a test by itself: the child that is killed.
#[test]
fn victim() {
    let Ok(path) = std::env::var(VICTIM) else { return };
    let (f, _store) = fixture(Path::new(&path));
    for number in count(&f).. {
        let mut batch = Batch::new();
        batch.put(f.plain, number.to_be_bytes().to_vec(), "v");
        batch.merge(f.counting, "count", "1");
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
            .args(["--exact", "lasting::victim", "--nocapture"])
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
        // Each has a key and one of the count, in two keyspaces.
        let mut keys = Vec::new();
        let mut cursor = f.store.cursor(f.plain, kvfs_store::KeyRange::all()).unwrap();
        cursor.first().unwrap();
        while let Some((key, _)) = cursor.entry() {
            keys.push(u64::from_be_bytes(key.try_into().unwrap()));
            cursor.next().unwrap();
        }
        assert!(keys.len() as u64 > last, "{} of {last} are there", keys.len());
        assert_eq!(keys, (0..count(&f)).collect::<Vec<_>>());
        drop(cursor);
        let keys = store.verify().unwrap();
        assert!(keys.findings.is_empty(), "{keys:?}");
        drop((f, store));
    }
}
