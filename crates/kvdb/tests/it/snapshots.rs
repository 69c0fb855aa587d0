//! Named snapshots of the engine: reopening, and the space that they hold and give back.

use kvfs_kvdb::Db;
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, KeyRange, Keyspace, NamedSnapshots, Read, Store, StoreError,
};

use crate::basics::{data, get, make, open, put, rows, stat};

/// Writes `files` files of 256 KiB, and as many rows.
fn write_files(db: &Db, rows: Keyspace, data: Keyspace, files: u64, fill: u8) {
    for file in 0..files {
        let mut batch = Batch::new();
        batch.put(rows, format!("row{file:05}").into_bytes(), vec![fill; 300]);
        batch.put_blocks(data, file.to_be_bytes().to_vec(), 0, vec![fill; 64 * BLOCK_BYTES]);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
    db.flush().expect("flushes");
    db.compact().expect("merges");
}

#[test]
fn named_snapshots_survive_reopening_in_runs_and_in_the_journal() {
    let device = make(200);
    let db = open(&device, |_| {});
    let rows = rows(&db);
    put(&db, rows, "key", "1");
    let first = db.create_snapshot("first").expect("creates");
    put(&db, rows, "key", "2");
    db.flush().expect("flushes");
    put(&db, rows, "key", "3");
    let second = db.create_snapshot("second").expect("creates");
    put(&db, rows, "key", "4");
    db.create_snapshot("gone").expect("creates");
    db.delete_snapshot("gone").expect("deletes");
    // Not closed: what was created is durable all the same.
    drop(db);
    for round in 0..3 {
        let db = open(&device, |_| {});
        let rows = crate::basics::rows(&db);
        assert_eq!(db.named_snapshots(), [first.clone(), second.clone()], "round {round}");
        for (name, value) in [("first", "1"), ("second", "3")] {
            let snapshot = db.open_snapshot(name).expect("opens");
            let found = snapshot.get(rows, b"key").expect("reads");
            assert_eq!(found.as_deref(), Some(value.as_bytes()), "{name}, round {round}");
        }
        put(&db, rows, "key", "5");
        db.reclaim().expect("reclaims");
        assert!(db.check().expect("checks").findings.is_empty());
        db.close().expect("closes");
    }
}

#[test]
fn a_store_that_is_read_only_or_closed_makes_no_snapshots() {
    let device = make(200);
    let db = open(&device, |_| {});
    db.create_snapshot("kept").expect("creates");
    db.close().expect("closes");
    assert!(matches!(db.create_snapshot("late"), Err(StoreError::Failed { .. })));
    drop(db);
    let db = open(&device, |options| options.read_only = true);
    assert!(matches!(db.create_snapshot("new"), Err(StoreError::ReadOnly)));
    assert!(matches!(db.delete_snapshot("kept"), Err(StoreError::ReadOnly)));
    db.open_snapshot("kept").expect("opens");
}

#[test]
fn the_space_of_a_deleted_snapshot_comes_back() {
    for stitch_bytes_min in [0, 32 << 10, u64::MAX] {
        let device = make(400);
        let db = open(&device, |options| options.merge.stitch_bytes_min = stitch_bytes_min);
        let rows = rows(&db);
        let data = data(&db);
        write_files(&db, rows, data, 40, 1);
        db.reclaim().expect("reclaims");
        let (live_once, free_once) = (stat(&db, "zones.live_bytes"), stat(&db, "zones.free"));
        db.create_snapshot("old").expect("creates");
        // A half is overwritten, a half deleted.
        write_files(&db, rows, data, 20, 2);
        let mut batch = Batch::new();
        batch.delete_range(rows, "row00020", "row99999");
        batch.delete_range(data, 20_u64.to_be_bytes().to_vec(), u64::MAX.to_be_bytes().to_vec());
        db.apply(batch, Durability::Buffered).expect("applies");
        db.reclaim().expect("reclaims");
        let live_both = stat(&db, "zones.live_bytes");
        assert!(live_both > live_once * 5 / 4, "{live_both} hold what the snapshot sees and {live_once}");
        let old = db.open_snapshot("old").expect("opens");
        let mut buf = vec![0; 64 * BLOCK_BYTES];
        for file in 0..40_u64 {
            old.read_blocks(data, &file.to_be_bytes(), 0, &mut buf).expect("reads");
            assert!(buf.iter().all(|&byte| byte == 1), "file {file}");
        }
        drop(old);
        db.delete_snapshot("old").expect("deletes");
        // Without any write in between.
        db.reclaim().expect("reclaims");
        let (live, free) = (stat(&db, "zones.live_bytes"), stat(&db, "zones.free"));
        assert!(live < live_once * 6 / 10, "{live} of {live_once} bytes, threshold {stitch_bytes_min}");
        assert!(free > free_once, "{free} free zones, {free_once} before");
        assert_eq!(get(&db, rows, "row00019").map(|value| value.len()), Some(300));
        let mut cursor = db.cursor(rows, KeyRange::all()).expect("opens");
        cursor.last().expect("moves");
        assert_eq!(cursor.entry().map(|(key, _)| key), Some(&b"row00019"[..]));
        assert!(db.check().expect("checks").findings.is_empty());
    }
}
