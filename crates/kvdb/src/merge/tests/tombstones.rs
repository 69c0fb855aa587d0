//! Merges of very many range tombstones.

use std::sync::Arc;

use kvfs_device::{CrashMode, Device, Rng};
use kvfs_store::{BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, NamedSnapshots, Read, Store};

use crate::merge::tests::{crash_device, memory, open, open_with, options};
use crate::space::{Budget, Lane};
use crate::{Db, Options};

const FILES: u64 = 40_000;
/// One of so many has blocks, or a row, before the snapshot, and one of so many after the removals.
const KEPT: u64 = 37;

fn prefix(file: u64) -> Vec<u8> {
    file.to_be_bytes().to_vec()
}

fn flush(db: &Db) {
    db.parts.sequencer.seal_if(|active| active.bytes() > 0);
    db.parts.flusher.flush_all().expect("flushes");
}

/// Writes something of each of these files.
fn write(db: &Db, [rows, data]: [Keyspace; 2], files: impl Iterator<Item = u64>, mark: u8) {
    for file in files {
        let mut batch = Batch::new();
        batch.put(rows, [prefix(file), b"row".to_vec()].concat(), vec![mark; 10]);
        batch.put_blocks(data, prefix(file), file % 3, vec![mark; BLOCK_BYTES]);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
}

/// What is there of a file.
fn mark(read: &dyn Read, [rows, data]: [Keyspace; 2], file: u64) -> [u8; 2] {
    let row = read.get(rows, &[&file.to_be_bytes()[..], b"row"].concat()).expect("reads");
    let mut block = vec![0; BLOCK_BYTES];
    read.read_blocks(data, &file.to_be_bytes(), file % 3, &mut block).expect("reads");
    [row.map_or(0, |row| row[0]), block[0]]
}

fn keyspaces(db: &Db) -> [Keyspace; 2] {
    [("rows", KeyspaceKind::Tuple), ("data", KeyspaceKind::Block)]
        .map(|(name, kind)| db.open_keyspace(name, kind, None).expect("opens"))
}

/// Of each piece with any, how many.
fn tombstones<const N: usize>(db: &Db, keyspaces: [Keyspace; N]) -> Vec<u64> {
    let view = db.parts.live.view();
    let runs = keyspaces.iter().flat_map(|keyspace| view.version.runs(keyspace.0));
    let counts = runs.flat_map(|run| &run.pieces).map(|piece| piece.desc().tombstones);
    counts.filter(|&count| count > 0).collect()
}

#[test]
fn range_tombstones_above_a_snapshot_are_merged_a_part_at_a_time() {
    let db = open();
    let both = keyspaces(&db);
    let kept = || (0..FILES).filter(|file| file % KEPT == 0);
    write(&db, both, kept(), 1);
    flush(&db);
    db.create_snapshot("held").expect("makes");

    // In no order, so that each run has some of all.
    let mut files: Vec<u64> = (0..FILES).collect();
    let mut rng = Rng::new(5);
    (1..files.len()).rev().for_each(|last| files.swap(last, rng.index(last + 1)));
    for part in files.chunks(FILES as usize / 4) {
        for files in part.chunks(100) {
            let mut batch = Batch::new();
            for &file in files {
                for space in both {
                    batch.delete_range(space, prefix(file), prefix(file + 1));
                }
            }
            db.apply(batch, Durability::Buffered).expect("applies");
        }
        flush(&db);
    }
    write(&db, both, kept().step_by(2), 2);
    flush(&db);

    let expected = |file: u64| if file.is_multiple_of(2 * KEPT) { [2; 2] } else { [0; 2] };
    let same = |what: &str| {
        for file in (0..FILES).filter(|file| file % KEPT < 2) {
            assert_eq!(mark(&*db, both, file), expected(file), "{what}: file {file}");
        }
        assert!(db.check().expect("checks").findings.is_empty(), "{what}");
    };
    db.parts.merger.reclaim(Budget::Deleting).expect("merges");
    let counts = tombstones(&db, both);
    assert!(counts.iter().sum::<u64>() >= 2 * FILES, "a conflict may ask for each of them: {counts:?}");
    assert!(counts.iter().all(|&count| count <= 20_000), "{counts:?}");
    same("merged");
    let snapshot = db.open_snapshot("held").expect("opens");
    for file in kept() {
        assert_eq!(mark(&*snapshot, both, file), [1; 2], "file {file}");
    }
    drop(snapshot);

    db.delete_snapshot("held").expect("deletes");
    db.parts.merger.reclaim(Budget::Deleting).expect("merges");
    assert_eq!(tombstones(&db, both), [0; 0], "none is needed any more");
    same("in the end");
}

/// Removes files, a run for each quarter of them, in the order of keys.
fn remove_in_order(db: &Db, both: [Keyspace; 2], files: u64) {
    for quarter in 0..4 {
        for file in files / 4 * quarter..files / 4 * (quarter + 1) {
            let mut batch = Batch::new();
            for space in both {
                batch.delete_range(space, prefix(file), prefix(file + 1));
            }
            db.apply(batch, Durability::Buffered).expect("applies");
        }
        flush(db);
    }
}

fn few_at_once(tombstones_max: usize) -> Options {
    let mut options = options();
    options.merge.tombstones_max = tombstones_max;
    options
}

#[test]
fn tombstones_in_the_order_of_keys_are_merged_in_few_steps() {
    const MAX: usize = 256;
    let files = 4000;
    let db = open_with(memory(), few_at_once(MAX));
    let both = keyspaces(&db);
    write(&db, both, (0..files).step_by(50), 1);
    flush(&db);
    db.create_snapshot("held").expect("makes");
    remove_in_order(&db, both, files);
    db.parts.merger.reclaim(Budget::Deleting).expect("merges");
    for space in both {
        let counts = tombstones(&db, [space]);
        assert!(counts.iter().sum::<u64>() >= files, "{counts:?}");
        assert!(counts.len() <= 2 * files as usize / MAX + 8, "{counts:?}");
        // Those at the edges of pieces are in both.
        assert!(counts.iter().all(|&count| count <= MAX as u64 + 8), "{counts:?}");
    }
    let snapshot = db.open_snapshot("held").expect("opens");
    for file in (0..files).step_by(25) {
        assert_eq!(mark(&*db, both, file), [0; 2], "file {file}");
        assert_eq!(mark(&*snapshot, both, file), [u8::from(file.is_multiple_of(50)); 2], "file {file}");
    }
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn steps_that_drop_all_they_take_come_to_an_end_also_where_each_is_the_last_before_a_restart() {
    const MAX: usize = 16;
    let files = 400;
    let device = crash_device();
    let shared = Arc::clone(&device) as Arc<dyn Device>;
    let db = open_with(Arc::clone(&shared), few_at_once(MAX));
    let both = keyspaces(&db);
    write(&db, both, (0..files).step_by(5), 1);
    flush(&db);
    remove_in_order(&db, both, files);
    db.close().expect("closes");
    drop(db);

    let nothing_is_there = |db: &Db, what: &str| {
        let both = keyspaces(db);
        assert!((0..files).all(|file| mark(db, both, file) == [0; 2]), "{what}");
        assert!(db.check().expect("checks").findings.is_empty(), "{what}");
    };
    let before = device.events_len();
    let mut steps = 0;
    loop {
        let db = open_with(Arc::clone(&shared), few_at_once(MAX));
        let config = db.parts.merger.stepper.step_config(Lane::FIRST, Budget::Ordinary, None);
        let view = db.parts.live.view();
        let left: Vec<_> = both.iter().filter(|space| !view.version.runs(space.0).is_empty()).collect();
        for space in &left {
            let mut merge = db.parts.merger.stepper.merge_of(space.0, view.version.runs(space.0));
            db.parts.merger.stepper.step(&mut merge, &config).expect("merges");
        }
        drop(view);
        nothing_is_there(&db, &format!("behind step {steps}"));
        db.close().expect("closes");
        if left.is_empty() {
            break;
        }
        steps += 1;
        assert!(steps <= 2 * files as usize / MAX + 8, "each passes half as many as it may");
    }
    assert!(steps > files as usize / MAX / 2, "{steps}: they are cut");
    for event in (before..=device.events_len()).step_by(11) {
        let mode = [CrashMode::KeepSubset, CrashMode::Tear][event % 2];
        let image = device.image_at(event, 5, mode).expect("is in the log");
        let db = open_with(Arc::new(image), few_at_once(MAX));
        nothing_is_there(&db, &format!("event {event}"));
        db.parts.merger.reclaim(Budget::Deleting).expect("merges");
        assert_eq!(tombstones(&db, keyspaces(&db)), [0; 0], "event {event}");
    }
}
