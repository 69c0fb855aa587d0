//! Writers that are ahead of flushes.

use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{Device, MemoryDevice};
use kvfs_store::clock::SystemClock;
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, Position, Store, StoreError, Transactions,
    TxnOptions,
};

use crate::pressure::throttle::SEALED_MAX;
use crate::space::{Budget, Stream};
use crate::{Background, CreateOptions, Db, Options};

const CAPACITY: u64 = 256 << 20;

fn open(memtable_bytes: u64, journal_bytes: u64) -> Arc<Db> {
    open_of(CAPACITY, memtable_bytes, journal_bytes)
}

fn open_of(capacity: u64, memtable_bytes: u64, journal_bytes: u64) -> Arc<Db> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, capacity));
    let create = CreateOptions {
        zone_bytes: 256 << 10,
        journal_bytes: Some(journal_bytes),
        ..CreateOptions::new(capacity, [7; 16])
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
fn last_table_fills_slowly_before_a_writer_is_stopped() {
    let db = open(1 << 20, 32 << 20);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let write = |key: u32| {
        let mut batch = Batch::new();
        batch.put(rows, key.to_be_bytes().to_vec(), vec![7; 100 << 10]);
        db.apply(batch, Durability::Buffered).expect("applies");
    };
    // Nothing is flushed meanwhile.
    let flushing = db.parts.undo.lock_flushes();
    let mut key = 0;
    while db.parts.live.view().sealed.len() < SEALED_MAX || db.parts.live.view().active.bytes() < 1 << 20 {
        key += 1;
        write(key);
    }
    assert!(db.parts.live.view().memtable_bytes() < 5 << 20, "four tables, and what the last write added");
    assert_eq!(db.parts.live.view().sealed.len(), SEALED_MAX);
    let held = stat(&db, "write.stall_us_max");
    assert!(held > 0, "it cost something");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(key + 1));
        let seen = db.parts.runtime.progress.count();
        db.parts.runtime.progress.wait_after(seen, Duration::from_millis(20));
        assert!(!writer.is_finished(), "memory is full");
        drop(flushing);
        writer.join().expect("goes on");
    });
    assert!(stat(&db, "write.stalls") > 0);
    assert!(stat(&db, "write.stall_us_max") >= 10_000);
    db.close().expect("closes");
}

#[test]
fn writer_not_held_back_is_not_counted() {
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
    assert_eq!(db.parts.runtime.table_bytes, 1 << 20);
    db.close().expect("closes");
}

/// A store full of one file, which is deleted then: what a pass gives back.
fn full_of_what_is_deleted() -> (Arc<Db>, Keyspace) {
    let (db, data, ()) = full_of_what_is_deleted_beside(|_| ());
    (db, data)
}

/// As [`full_of_what_is_deleted`], beside what is made before the deletion.
fn full_of_what_is_deleted_beside<T>(make: impl FnOnce(&Db) -> T) -> (Arc<Db>, Keyspace, T) {
    let db = open_of(16 << 20, 1 << 20, 4 << 20);
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    let mut block = 0;
    while fill(&db, data, block).is_ok() {
        block += BLOCKS;
    }
    assert!(block >= 20 * BLOCKS, "{block} blocks fill it");
    let made = make(&db);
    // No other thread looks for space from now on.
    let tending = db.parts.merger.lock_tending();
    let mut batch = Batch::new();
    batch.delete_range(data, Vec::new(), vec![u8::MAX]);
    db.apply(batch, Durability::Buffered).expect("deletes on a full store");
    std::mem::forget(tending);
    (db, data, made)
}

const BLOCKS: u64 = 64;

fn fill(db: &Db, data: Keyspace, block: u64) -> kvfs_store::Result<Position> {
    let mut batch = Batch::new();
    batch.put_blocks(data, b"file".to_vec(), block, vec![7; BLOCKS as usize * BLOCK_BYTES]);
    db.apply(batch, Durability::Buffered)
}

#[test]
fn refused_writer_has_waited_for_readers_about_to_end() {
    let (db, data) = full_of_what_is_deleted();
    let reader = db.parts.live.view();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fill(&db, data, 0));
        // The pass is through, and nothing has become free.
        while db.parts.merger.reclaim_wanted(Budget::Ordinary) {
            std::thread::yield_now();
        }
        drop(reader);
        writer.join().expect("no panic").expect("there is space");
    });
    db.close().expect("closes");
}

#[test]
fn refused_writer_does_not_wait_for_readers_that_read_on() {
    let (db, data) = full_of_what_is_deleted();
    let reader = db.parts.live.view();
    assert!(matches!(fill(&db, data, 0), Err(StoreError::Full)));
    assert!(!db.parts.merger.reclaim_wanted(Budget::Ordinary), "there was a pass");
    drop(reader);
    fill(&db, data, 0).expect("there is space");
    db.close().expect("closes");
}

#[test]
fn refused_writer_finds_what_a_snapshot_held_when_that_has_gone_without_an_operation() {
    let (db, data, snapshot) = full_of_what_is_deleted_beside(|db| db.snapshot().expect("pins"));
    assert!(matches!(fill(&db, data, 0), Err(StoreError::Full)), "it is held");
    assert!(!db.parts.merger.reclaim_wanted(Budget::Deleting), "there was a pass");
    drop(snapshot);
    fill(&db, data, 0).expect("there is space");
    db.close().expect("closes");
}

#[test]
fn refused_writer_waits_for_readers_once_for_each_pass_also_of_others() {
    let (db, data) = full_of_what_is_deleted();
    let had_reader_timeout = || db.parts.pressure.passes().had_reader_timeout();
    let reader = db.parts.live.view();
    for _ in 0..2 {
        db.parts.merger.reclaim(Budget::Ordinary).expect("goes over all");
        assert!(!db.parts.merger.reclaim_wanted(Budget::Ordinary), "the next one has nothing to do");
        assert!(!had_reader_timeout(), "it is worth waiting");
        assert!(matches!(fill(&db, data, 0), Err(StoreError::Full)));
        assert!(had_reader_timeout(), "it was not");
    }
    assert!(db.parts.live.is_old_version_read());
    let free_bytes = || db.parts.runtime.ctx.zones.free_bytes(Budget::Ordinary);
    let before = free_bytes();
    drop(reader);
    while db.parts.live.is_anything_old_read() {
        std::thread::yield_now();
    }
    assert!(free_bytes() > before, "what is not read any more has given its space back");
    fill(&db, data, 0).expect("there is space");
    db.close().expect("closes");
}

#[test]
fn prepared_commit_has_made_its_pass_before_and_makes_none_itself() {
    let (db, data) = full_of_what_is_deleted();
    let txn = db.begin(TxnOptions::default()).expect("begins");
    let mut batch = Batch::new();
    batch.delete(data, b"other\0\0\0\0\0\0\0\0".to_vec());
    txn.apply(batch).expect("deletes on a full store");
    let passes = || db.parts.pressure.passes().ended();
    // What merges may take at any time.
    let (zones, mut taken) = (&db.parts.runtime.ctx.zones, Vec::new());
    let has_space = || db.parts.space.has_space(0, Budget::Deleting);
    while has_space() {
        taken.push(zones.allocate(Stream::Meta, zones.zone_bytes(), Budget::Reserve).expect("is there"));
    }
    let before = passes();
    txn.prepare().expect("finds what is deleted");
    assert!(has_space());
    let prepared = passes();
    assert!(prepared > before, "there was a pass");
    txn.commit(Durability::Buffered).expect("commits");
    assert_eq!(passes(), prepared, "and no other one");
    for extent in taken {
        zones.release(extent);
    }
    db.close().expect("closes");
}

#[test]
fn transaction_without_writes_is_prepared_and_committed_without_space() {
    let db = open_of(16 << 20, 1 << 20, 4 << 20);
    let txn = db.begin(TxnOptions::default()).expect("begins");
    let (zones, mut taken) = (&db.parts.runtime.ctx.zones, Vec::new());
    while let Ok(extent) = zones.allocate(Stream::Meta, zones.zone_bytes(), Budget::Reserve) {
        taken.push(extent);
    }
    assert!(!db.parts.space.has_space(0, Budget::Deleting));
    txn.prepare().expect("needs nothing");
    txn.commit(Durability::Buffered).expect("commits");
    for extent in taken {
        zones.release(extent);
    }
    db.close().expect("closes");
}
