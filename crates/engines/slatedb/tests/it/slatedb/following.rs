//! Stores that are only read, and go on to what a writer elsewhere has made durable.

use kvfs_store::{EngineStore, Follow, KeyRange, Keyspace};

use super::*;

struct Reader {
    store: SlateStore,
    plain: Keyspace,
}

impl Reader {
    fn open(path: &Path) -> Self {
        let options =
            SlateOptions { read_only: true, follows: true, ..SlateOptions::with_memory(MEMORY_BYTES) };
        let store = SlateStore::open(&place(path), &options).unwrap();
        let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
        Self { store, plain }
    }

    fn follow(&self) -> &dyn Follow {
        Store::follow(&self.store).unwrap()
    }

    /// Goes on to what is newest.
    fn look(&self) -> bool {
        let is_newer = self.follow().find_newer().unwrap();
        self.follow().show_newer();
        is_newer
    }

    fn count(&self, read: &dyn Read) -> u64 {
        counted(read, self.plain)
    }
}

/// How many numbers are there; there is none of which one before is missing.
fn counted(read: &dyn Read, keyspace: Keyspace) -> u64 {
    let mut cursor = read.cursor(keyspace, KeyRange::all()).unwrap();
    let mut count = 0_u64;
    cursor.first().unwrap();
    while let Some((key, _)) = cursor.entry() {
        assert_eq!(key, count.to_be_bytes(), "a hole at {count}");
        count += 1;
        cursor.next().unwrap();
    }
    count
}

fn put(f: &Fixture<Slate>, number: u64) {
    f.apply(|b| b.put(f.plain, number.to_be_bytes().to_vec(), "v"));
}

#[test]
fn followers_show_a_prefix_of_what_is_durable_and_snapshots_of_theirs_stay() {
    const COUNT: u64 = 400;
    let (dir, f, writer) = new_store();
    put(&f, 0);
    writer.sync(writer.position()).unwrap();
    let readers = [Reader::open(dir.path()), Reader::open(dir.path())];
    let plain = f.plain;
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            for number in 1..COUNT {
                put(&f, number);
                if number % 7 == 0 {
                    writer.sync(writer.position()).unwrap();
                }
            }
            writer.sync(writer.position()).unwrap();
        });
        for reader in &readers {
            scope.spawn(move || {
                let mut snapshots = Vec::new();
                let mut last = reader.count(&reader.store);
                while last < COUNT {
                    if reader.look() {
                        let now = reader.count(&reader.store);
                        assert!(now > last, "{now} after {last}");
                        last = now;
                        let snapshot = reader.store.snapshot().unwrap();
                        assert_eq!(snapshot.seqno(), reader.store.position().0);
                        snapshots.push((now, snapshot));
                    }
                    for (count, snapshot) in &snapshots {
                        assert_eq!(counted(&**snapshot, plain), *count);
                    }
                    snapshots.truncate(3);
                }
            });
        }
        written.join().unwrap();
    });
    for reader in &readers {
        assert!(!reader.look(), "nothing is newer");
        reader.store.close().unwrap();
        assert!(!reader.look(), "it is over");
    }
    writer.close().unwrap();
}

#[test]
fn follower_sees_ranges_go_and_keyspaces_come_and_goes_on_with_the_next_writer() {
    let (dir, old, old_store) = new_store();
    old_store.set_commit_interval(Duration::from_hours(1));
    (0..500).for_each(|number| put(&old, number));
    old_store.sync(old_store.position()).unwrap();
    let reader = Reader::open(dir.path());
    assert_eq!(reader.count(&reader.store), 500);
    old.apply(|b| b.delete_range(old.plain, 100_u64.to_be_bytes().to_vec(), vec![255]));
    let new_space = old_store.open_keyspace("later", KeyspaceKind::Tuple, None).unwrap();
    old.apply(|b| b.put(new_space, "key", "value"));
    old_store.sync(old_store.position()).unwrap();
    let unsynced = old.apply(|b| b.put(old.plain, 100_u64.to_be_bytes().to_vec(), "v"));
    wait_until("all that is durable is shown", || {
        reader.look();
        reader.count(&reader.store) == 100
    });
    assert!(reader.store.position() < unsynced);
    let later = reader.store.open_keyspace("later", KeyspaceKind::Tuple, None).unwrap();
    assert_eq!(text(reader.store.get(later, b"key").unwrap()), Some("value".to_owned()));

    let (new, new_store) = take_over(dir.path());
    // Of what the first one had not made durable nothing is shown, and from now on the second one's.
    (100..110).for_each(|number| put(&new, number));
    new_store.sync(new_store.position()).unwrap();
    wait_until("the next writer's is shown", || {
        reader.look();
        reader.count(&reader.store) == 110
    });
    assert!(old_store.sync(old_store.position()).is_err());
    // Enough for tables and their compaction: what is read moves from one to the other.
    for round in 0..6_u64 {
        new.apply(|b| {
            (0..500).for_each(|n: u64| {
                b.put(new.merging, [round.to_be_bytes(), n.to_be_bytes()].concat(), vec![round as u8; 8192]);
            });
        });
        new_store.sync(new_store.position()).unwrap();
        reader.look();
        assert_eq!(reader.count(&reader.store), 110);
    }
    new_store.close().unwrap();
    reader.look();
    let merging = reader.store.open_keyspace("merging", KeyspaceKind::Tuple, None).unwrap();
    let mut cursor = reader.store.cursor(merging, KeyRange::all()).unwrap();
    cursor.last().unwrap();
    assert_eq!(cursor.entry().unwrap().1[..], [5; 8192]);
    assert!(reader.store.verify().unwrap().findings.is_empty());
}

#[test]
fn store_that_does_not_follow_stays_as_it_was_opened() {
    let (dir, f, writer) = new_store();
    assert!(Store::follow(&*writer).is_none());
    let options = SlateOptions { read_only: true, ..SlateOptions::with_memory(MEMORY_BYTES) };
    put(&f, 0);
    writer.sync(writer.position()).unwrap();
    let reader = SlateStore::open(&place(dir.path()), &options).unwrap();
    assert!(Store::follow(&reader).is_none());
    writer.close().unwrap();
}
