//! What a store says is free after deletions, and what it then gives.

use std::sync::Arc;
use std::time::Duration;

use kvfs_device::Rng;
use kvfs_store::{BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, NamedSnapshots, Store, StoreError};

use crate::pressure::throttle::SEALED_MAX;
use crate::testing::{ZONE_BYTES, small_store};
use crate::{Background, Db};

const FILE_BLOCKS: u64 = 256;
const FILE_BYTES: u64 = FILE_BLOCKS * BLOCK_BYTES as u64;

fn open() -> (Arc<Db>, Keyspace) {
    open_with(Background::Manual)
}

fn open_with(background: Background) -> (Arc<Db>, Keyspace) {
    let db = small_store(240, |options| {
        (options.background, options.memtable_bytes) = (background, 1 << 20);
    });
    let blocks = db.open_keyspace("blocks", KeyspaceKind::Block, None).expect("opens");
    (db, blocks)
}

fn name(file: u64) -> Vec<u8> {
    file.to_be_bytes().to_vec()
}

fn write(db: &Db, blocks: Keyspace, file: u64, first: u64, count: u64) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    batch.put_blocks(blocks, name(file), first, vec![file as u8; count as usize * BLOCK_BYTES]);
    db.apply(batch, Durability::Buffered).map(drop)
}

fn write_file(db: &Db, blocks: Keyspace, file: u64) -> Result<(), StoreError> {
    (0..FILE_BLOCKS / 16).try_for_each(|part| write(db, blocks, file, part * 16, 16))
}

fn delete(db: &Db, blocks: Keyspace, file: u64, from: u64) {
    let mut batch = Batch::new();
    let start = [&name(file)[..], &from.to_be_bytes()].concat();
    batch.delete_range(blocks, start, name(file + 1));
    db.apply(batch, Durability::Buffered).expect("deletes");
}

#[test]
fn deleted_range_counts_as_free_at_once_unless_a_snapshot_sees_it() {
    let (db, blocks) = open();
    for file in 0..24 {
        write_file(&db, blocks, file).expect("there is space");
    }
    db.flush().expect("flushes");
    let full = db.space();
    // At the ends of zones a few blocks were copied: the space that they were bound in goes with their zones.
    let copied =
        db.stats().into_iter().find(|(name, _)| *name == "flush.bytes").map_or(0, |(_, bytes)| bytes);
    for file in 0..16 {
        delete(&db, blocks, file, 0);
    }
    let deleted = db.space();
    let gained = full.used_bytes - deleted.used_bytes;
    assert!((15 * FILE_BYTES..=16 * FILE_BYTES + copied).contains(&gained), "{gained} bytes are free");
    db.create_snapshot("kept").expect("makes it");
    delete(&db, blocks, 16, 0);
    delete(&db, blocks, 17, FILE_BLOCKS / 2);
    assert_eq!(db.space().used_bytes, deleted.used_bytes, "the snapshot sees these");
    assert_eq!(deleted.used_bytes, db.space().used_bytes);
    // In runs it is the same.
    db.flush().expect("flushes");
    assert!(db.space().used_bytes <= deleted.used_bytes + 4 * u64::from(ZONE_BYTES));
    db.delete_snapshot("kept").expect("deletes it");
    let gained = deleted.used_bytes - db.space().used_bytes;
    assert!(gained >= FILE_BYTES, "{gained} bytes more are free");
    let before = db.space();
    db.reclaim().expect("reclaims");
    let after = db.space();
    assert!(after.used_bytes <= before.used_bytes + 4 * u64::from(ZONE_BYTES), "{before:?}, then {after:?}");
}

#[test]
fn what_a_store_says_is_free_after_deletions_can_be_written() {
    for seed in 0..6 {
        let (db, blocks) = open();
        let mut rng = Rng::new(seed);
        let mut files = 0;
        while write_file(&db, blocks, files).is_ok() {
            files += 1;
        }
        assert!(files > 30, "{files} files fitted");
        // Whole files, tails and pieces of others.
        for file in 0..files {
            match rng.below(4) {
                0 => delete(&db, blocks, file, 0),
                1 => delete(&db, blocks, file, rng.below(FILE_BLOCKS)),
                2 => {
                    let first = rng.below(FILE_BLOCKS - 4);
                    // As much as fits.
                    let _ = write(&db, blocks, file, first, 4);
                }
                _ => {}
            }
        }
        let promised = db.space().available_bytes;
        let mut written = 0;
        // Indexes, and zones of which less is dead than one can count on.
        while written + FILE_BYTES <= promised / 20 * 19 {
            let done = write_file(&db, blocks, 1000 + written / FILE_BYTES);
            done.unwrap_or_else(|error| panic!("seed {seed}: {error} after {written} of {promised} bytes"));
            written += FILE_BYTES;
        }
        assert!(written > 4 * FILE_BYTES, "seed {seed}: {promised} bytes were promised");
        assert!(db.check().expect("checks").findings.is_empty(), "seed {seed}");
    }
}

#[test]
fn deleted_part_of_a_file_counts_as_far_as_the_range_goes() {
    let (db, blocks) = open();
    for file in 0..8 {
        write_file(&db, blocks, file).expect("there is space");
    }
    db.flush().expect("flushes");
    assert!(db.parts.deleted.dead_bytes().is_empty());
    delete(&db, blocks, 3, 100);
    assert_eq!(db.parts.deleted.dead_bytes().values().sum::<u64>(), (FILE_BLOCKS - 100) * BLOCK_BYTES as u64);
    let mut batch = Batch::new();
    let key = |block: u64| [&name(5)[..], &block.to_be_bytes()].concat();
    batch.delete_range(blocks, key(10), key(30));
    batch.delete_range(blocks, key(20), key(40));
    db.apply(batch, Durability::Buffered).expect("deletes");
    let dead = (FILE_BLOCKS - 100 + 30) * BLOCK_BYTES as u64;
    assert_eq!(
        db.parts.deleted.dead_bytes().values().sum::<u64>(),
        dead,
        "what two ranges have is counted once"
    );
    write(&db, blocks, 5, 12, 2).expect("there is space");
    assert_eq!(db.parts.deleted.dead_bytes().values().sum::<u64>(), dead, "what is written again is new");
}

#[test]
fn version_of_the_last_count_leaves_its_address_to_no_other() {
    let (db, blocks) = open();
    write_file(&db, blocks, 0).expect("there is space");
    db.parts.deleted.dead_bytes();
    let counted = db
        .parts
        .deleted
        .counted
        .lock()
        .as_ref()
        .map(|counted| counted.version.as_ptr())
        .expect("was counted");
    db.flush().expect("flushes");
    assert_ne!(Arc::as_ptr(&db.parts.live.view().version), counted, "this one is new");
    for file in 1..100 {
        write(&db, blocks, file, 0, 1).expect("there is space");
        db.flush().expect("flushes");
        assert_ne!(Arc::as_ptr(&db.parts.live.view().version), counted, "version {file}");
    }
}

#[test]
fn deleted_ranges_without_blocks_are_within_the_bound_of_a_count() {
    let (db, blocks) = open();
    for file in [0, 2000] {
        write(&db, blocks, file, 0, 4).expect("there is space");
    }
    db.flush().expect("flushes");
    for file in (1..1000).step_by(2) {
        delete(&db, blocks, file, 0);
    }
    let left_of = |stretches_left| {
        let pins = db.parts.history.boundaries();
        let mut count = super::Count {
            deleted: &db.parts.deleted,
            pins: &pins,
            stretches_left,
            dead: super::DeadBytes::new(),
        };
        count.all(&db.parts.live.view()).expect("counts");
        count.stretches_left
    };
    assert_eq!(left_of(100), 0);
    assert!(left_of(10_000) <= 10_000 - 500, "{} are left", left_of(10_000));
}

#[test]
fn deletions_seal_no_table_that_memory_has_no_room_for() {
    let (db, blocks) = open_with(Background::Threads);
    let parts = &db.parts;
    let no_flush = parts.undo.lock_flushes();
    for file in 0..SEALED_MAX as u64 {
        write(&db, blocks, file, 0, 1).expect("there is space");
        parts.sequencer.seal_if(|_| true);
    }
    for file in 0..1500 {
        delete(&db, blocks, file, 0);
    }
    let seen = parts.deleted.count();
    for _ in 0..3 {
        assert_eq!(parts.deleted.flush_deleted(seen), seen);
        assert_eq!(parts.live.view().sealed.len(), SEALED_MAX);
        assert!(parts.deleted.has_deletions_to_flush(), "they are not forgotten");
    }
    drop(no_flush);
    while parts.deleted.has_deletions_to_flush() {
        let flushes = parts.runtime.progress.count();
        parts.deleted.flush_deleted(seen);
        parts.runtime.progress.wait_after(flushes, Duration::from_millis(10));
    }
    assert_eq!(parts.live.view().active.bytes(), 0, "they were in the table that was sealed");
}
