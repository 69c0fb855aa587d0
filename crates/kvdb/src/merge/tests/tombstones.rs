//! Merges of very many range tombstones.

use kvfs_device::Rng;
use kvfs_store::{BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, NamedSnapshots, Read, Store};

use crate::Db;
use crate::merge::tests::open;
use crate::space::Budget;

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

/// Of each piece with any, how many.
fn tombstones(db: &Db, keyspaces: [Keyspace; 2]) -> Vec<u64> {
    let view = db.parts.live.view();
    let runs = keyspaces.iter().flat_map(|keyspace| view.version.runs(keyspace.0));
    let counts = runs.flat_map(|run| &run.pieces).map(|piece| piece.desc().tombstones);
    counts.filter(|&count| count > 0).collect()
}

#[test]
fn range_tombstones_above_a_snapshot_are_merged_a_part_at_a_time() {
    let db = open();
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    let both = [rows, data];
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
