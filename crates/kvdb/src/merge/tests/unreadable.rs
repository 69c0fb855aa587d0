//! Merges that come to what can't be read.

use std::sync::Arc;

use kvfs_device::{Call, Device, FaultDevice, FaultError, FaultRule, MemoryDevice};
use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, Compression, Durability, Keyspace, KeyspaceKind, Read, Result, Store,
    StoreError, Transactions, TxnOptions,
};

use crate::format::Extent;
use crate::merge::reclaim::ReclaimReason;
use crate::merge::tests::{CAPACITY, KEYS, create, key, open_on, open_with, options, write_run};
use crate::space::Budget;
use crate::{Db, DefragLimit, DefragPolicy, Options};

type Faulty = Arc<FaultDevice<MemoryDevice>>;

fn faulty() -> Faulty {
    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, CAPACITY)));
    create(&(Arc::clone(&device) as Arc<dyn Device>));
    device
}

fn lose(device: &Faulty, extents: &[Extent]) {
    for extent in extents {
        device.lose(extent.addr..extent.addr + u64::from(extent.len));
    }
}

/// Five runs with every key, newly opened; a block in the middle of the oldest one can't be read.
fn with_lost_block() -> (Faulty, Arc<Db>, Keyspace) {
    let device = faulty();
    let db = open_on(Arc::clone(&device) as Arc<dyn Device>);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    (1..=5).for_each(|value| write_run(&db, rows, value, 500));
    db.close().expect("closes");
    drop(db);
    let db = open_on(Arc::clone(&device) as Arc<dyn Device>);
    let view = db.parts.live.view();
    let oldest = view.version.runs(rows.0).last().expect("has runs");
    let piece = &oldest.pieces[oldest.pieces.len() / 2];
    lose(&device, &[piece.index().expect("reads").tuple_entries()[0].extent]);
    drop(view);
    (device, db, rows)
}

fn holds(db: &Db, rows: Keyspace, value: u8) {
    for number in 0..KEYS {
        let found = db.get(rows, &key(number)).expect("reads").expect("is there");
        assert_eq!(found, vec![value; 500], "key {number}");
    }
}

fn runs(db: &Db, rows: Keyspace) -> usize {
    db.parts.live.view().version.runs(rows.0).len()
}

#[test]
fn a_merge_that_meets_what_can_not_be_read_ends_no_store_and_is_not_begun_again() {
    type Act = fn(&Db) -> Result<()>;
    let acts: [(&str, Act); 4] = [
        ("a merge", |db| db.compact()),
        ("a pass that is waited for", |db| db.parts.merger.reclaim(Budget::Deleting)),
        ("a pass at leisure", |db| db.parts.merger.background_reclaim(ReclaimReason::OldGarbage)),
        ("a defragmentation", |db| {
            db.defragment(DefragPolicy::Rewrite, &DefragLimit::default(), &mut |_| true).map(drop)
        }),
    ];
    for (what, act) in acts {
        let (device, mut db, rows) = with_lost_block();
        for opening in ["the first opening", "another one"] {
            let met = act(&db);
            assert!(matches!(met, Ok(()) | Err(StoreError::Io { .. })), "{what}, {opening}: {met:?}");
            assert_eq!(db.failure(), None, "{what}, {opening}");
            assert!(
                db.parts.live.view().version.merges(rows.0).is_empty(),
                "{what}: nothing goes on with it"
            );
            let left = runs(&db, rows);
            assert!(left >= 5, "{what}, {opening}: {left}");
            assert!(!db.parts.merger.merge_once().expect("looks"), "{what}: it is not begun again");
            assert_eq!(db.parts.pressure.payable_bytes(), 0, "{what}: no writer waits for it");
            db.parts.merger.reclaim(Budget::Deleting).expect("leaves it out");
            db.parts.merger.background_reclaim(ReclaimReason::OldGarbage).expect("leaves it out");
            assert!(!db.parts.merger.has_much_garbage(), "{what}: it is no reason for another pass");
            // All else goes on.
            (6..=9).for_each(|value| write_run(&db, rows, value, 500));
            db.compact().expect("merges the new ones");
            assert_eq!(runs(&db, rows), left + 1, "{what}, {opening}");
            holds(&db, rows, 9);
            db.close().expect("closes");
            drop(db);
            db = open_on(Arc::clone(&device) as Arc<dyn Device>);
        }
        device.clear();
        db.compact().expect("reads it again");
        db.parts.merger.reclaim(Budget::Deleting).expect("merges all");
        assert_eq!(runs(&db, rows), 1, "{what}");
        holds(&db, rows, 9);
        assert!(db.check().expect("checks").findings.is_empty(), "{what}");
    }
}

#[test]
fn a_pass_goes_on_behind_a_run_whose_index_can_not_be_read() {
    let device = faulty();
    let db = open_on(Arc::clone(&device) as Arc<dyn Device>);
    let lost = db.open_keyspace("lost", KeyspaceKind::Tuple, None).expect("opens");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    assert!(lost.0 < rows.0, "it comes first");
    write_run(&db, lost, 1, 500);
    (1..=3).for_each(|value| write_run(&db, rows, value, 500));
    db.close().expect("closes");
    drop(db);

    // No metadata stays in memory.
    let db = open_with(Arc::clone(&device) as Arc<dyn Device>, Options { memory_bytes: 1, ..options() });
    let places: Vec<_> = db.parts.live.view().version.runs(lost.0)[0].pieces[0].metadata_places();
    lose(&device, &places);
    db.parts.merger.background_reclaim(ReclaimReason::OldGarbage).expect("goes on");
    assert_eq!(runs(&db, rows), 1);
    assert_eq!(db.parts.merger.merging.left_pass(), None, "it is not done again at once");
    db.parts.merger.reclaim(Budget::Deleting).expect("goes on");
    assert_eq!(db.failure(), None);
    holds(&db, rows, 3);
}

#[test]
fn a_clone_of_what_can_not_be_read_ends_no_store() {
    let device = faulty();
    let db = open_on(Arc::clone(&device) as Arc<dyn Device>);
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    for first in (0..64).step_by(8) {
        let mut batch = Batch::new();
        batch.put_blocks(data, "one".to_owned(), first, vec![1; 8 * BLOCK_BYTES]);
        db.apply(batch, Durability::Synced).expect("applies");
        db.flush().expect("flushes");
    }
    db.close().expect("closes");
    drop(db);

    // Hardly any metadata stays in memory.
    let db = open_with(Arc::clone(&device) as Arc<dyn Device>, Options { memory_bytes: 1, ..options() });
    let pieces = runs(&db, data) as u64;
    let clone = |target: &str| {
        let clone = BlockClone {
            source: "one".into(),
            first: 0,
            count: 64,
            target: target.to_owned().into(),
            target_first: 0,
            compression: Compression::None,
        };
        let txn = db.begin(TxnOptions::default())?;
        txn.clone_blocks(data, &[clone])?;
        txn.commit(Durability::Synced)
    };
    for nth in 0.. {
        // The copy of an index can't be read either.
        let faults = device.faults();
        device.add(FaultRule::from(Call::Read, nth, FaultError::EIO));
        let cloned = clone("two");
        device.clear();
        assert_eq!(db.failure(), None, "read {nth}");
        if device.faults() == faults {
            cloned.expect("no read has failed");
            assert!(nth > pieces, "indexes are read to find the blocks, and to write the clone: {nth}");
            break;
        }
        assert!(matches!(cloned, Err(StoreError::Io { .. })), "read {nth}: {cloned:?}");
    }
    let mut found = vec![0; 64 * BLOCK_BYTES];
    db.read_blocks(data, b"two", 0, &mut found).expect("reads");
    assert!(found.iter().all(|byte| *byte == 1));
}
