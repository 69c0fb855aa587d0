//! Writers that are ahead of flushes.

use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{Device, MemoryDevice};
use kvfs_store::clock::SystemClock;
use kvfs_store::{Batch, Durability, KeyspaceKind, Store};

use crate::db::throttle::SEALED_MAX;
use crate::{Background, CreateOptions, Db, Options};

const CAPACITY: u64 = 256 << 20;

fn open(memtable_bytes: u64, journal_bytes: u64) -> Arc<Db> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
    let create = CreateOptions {
        zone_bytes: 256 << 10,
        journal_bytes: Some(journal_bytes),
        ..CreateOptions::new(CAPACITY, [7; 16])
    };
    Db::create(Arc::clone(&device), &create).expect("creates");
    let options =
        Options { background: Background::Threads, memtable_bytes, ..Options::with_memory(64 << 20) };
    Db::open(device, options, Arc::new(SystemClock::new())).expect("opens")
}

fn stat(db: &Db, name: &str) -> u64 {
    db.stats().into_iter().find(|(known, _)| known == name).map_or(0, |(_, value)| value)
}

#[test]
fn the_last_table_fills_slowly_before_anybody_is_stopped() {
    let db = open(1 << 20, 32 << 20);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let write = |key: u32| {
        let mut batch = Batch::new();
        batch.put(rows, key.to_be_bytes().to_vec(), vec![7; 100 << 10]);
        db.apply(batch, Durability::Buffered).expect("applies");
    };
    // Nothing is flushed meanwhile.
    let flushing = db.inner.flushing.lock();
    let mut key = 0;
    while db.inner.view().sealed.len() < SEALED_MAX || db.inner.view().active.bytes() < 1 << 20 {
        key += 1;
        write(key);
    }
    assert!(db.inner.view().memtable_bytes() < 5 << 20, "four tables, and what the last write added");
    assert_eq!(db.inner.view().sealed.len(), SEALED_MAX);
    let held = stat(&db, "write.stall_us_max");
    assert!(held > 0, "it cost something");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(key + 1));
        let seen = db.inner.progress.rings();
        db.inner.progress.wait_after(seen, Duration::from_millis(20));
        assert!(!writer.is_finished(), "memory is full");
        drop(flushing);
        writer.join().expect("goes on");
    });
    assert!(stat(&db, "write.stalls") > 0);
    assert!(stat(&db, "write.stall_us_max") >= 10_000);
    db.close().expect("closes");
}

#[test]
fn who_is_not_held_back_is_not_counted() {
    let db = open(1 << 20, 32 << 20);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    for key in 0..10_u32 {
        let mut batch = Batch::new();
        batch.put(rows, key.to_be_bytes().to_vec(), vec![7; 100]);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
    assert_eq!(stat(&db, "write.stalls"), 0);
}

#[test]
fn tables_are_small_enough_for_the_journal() {
    let db = open(8 << 20, 5 << 20);
    assert_eq!(db.inner.table_bytes, 1 << 20);
    db.close().expect("closes");
}
