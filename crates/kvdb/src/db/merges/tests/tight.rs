//! Merges where there is hardly any space.

use std::sync::Arc;

use kvfs_device::{CrashDevice, CrashMode, Device, MemoryDevice, Rng};
use kvfs_store::clock::ManualClock;
use kvfs_store::{Keyspace, KeyspaceKind, Store, StoreError};

use super::{CAPACITY, Model, ZONE_BYTES, change_and_flush, compare, create, four_runs, options};
use crate::Db;
use crate::compaction::Victims;
use crate::format::Extent;
use crate::zone::{Budget, Stream};

/// A store whose flushes make one piece of each table.
fn open_with_long_pieces(device: Arc<dyn Device>) -> Arc<Db> {
    let mut options = options();
    options.merge.piece_bytes = 64 << 20;
    Db::open(device, options, Arc::new(ManualClock::default())).expect("opens")
}

fn merge_tightly(db: &Db, rows: Keyspace) -> kvfs_store::Result<()> {
    db.inner.merge_tightly(rows.0, &Victims::default(), Budget::Deleting)
}

fn runs(db: &Db, rows: Keyspace) -> usize {
    db.inner.view().version.runs(rows.0).len()
}

/// Takes zones until so many are left.
fn leave(db: &Db, zones: u64) -> Vec<Extent> {
    let free = || db.inner.ctx.zones.free_bytes(Budget::Reserve) / u64::from(ZONE_BYTES);
    let mut taken = Vec::new();
    while free() > zones {
        taken.push(
            db.inner.ctx.zones.allocate(Stream::MergeBlock, ZONE_BYTES, Budget::Reserve).expect("is free"),
        );
    }
    taken
}

fn same(db: &Db, rows: Keyspace, model: &Model, what: &str) {
    compare(db, rows, model).unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn all_runs_become_one_with_space_for_a_part_of_them() {
    for seed in 1..5 {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
        create(&device);
        let db = open_with_long_pieces(device);
        let (rows, mut model) = four_runs(&db, seed);
        let mut rng = Rng::new(seed + 100);
        (0..4).for_each(|_| change_and_flush(&db, rows, &mut model, &mut rng));
        let bytes: u64 = db.inner.view().version.runs(rows.0).iter().map(|run| run.data_bytes()).sum();
        assert!(bytes > 20 * u64::from(ZONE_BYTES), "seed {seed}: {bytes} bytes");
        let _taken = leave(&db, 12);
        merge_tightly(&db, rows).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(runs(&db, rows), 1, "seed {seed}");
        same(&db, rows, &model, &format!("seed {seed}"));
    }
}

#[test]
fn one_that_finds_too_little_space_loses_nothing_and_goes_on_later() {
    for seed in 1..5 {
        for zones in [1, 3, 5, 7] {
            let what = format!("seed {seed}, {zones} zones");
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
            create(&device);
            let db = open_with_long_pieces(device);
            let (rows, model) = four_runs(&db, seed);
            let taken = leave(&db, zones);
            let merged = merge_tightly(&db, rows);
            assert!(matches!(merged, Ok(()) | Err(StoreError::Full)), "{what}: {merged:?}");
            same(&db, rows, &model, &what);
            for extent in taken {
                db.inner.ctx.zones.release(extent);
            }
            merge_tightly(&db, rows).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(runs(&db, rows), 1, "{what}");
            same(&db, rows, &model, &what);
        }
    }
}

#[test]
fn a_power_cut_at_any_step_of_a_tight_merge_loses_nothing() {
    for seed in 1..3 {
        let device = Arc::new(CrashDevice::in_memory(0, CAPACITY).with_log().expect("is new"));
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        create(&shared);
        let db = open_with_long_pieces(shared);
        let (rows, model) = four_runs(&db, seed);
        let before = device.events_len();
        let _taken = leave(&db, 13);
        merge_tightly(&db, rows).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let after = device.events_len();
        let (mut cut, mut half_way) = (0, 0);
        for event in before..=after {
            let what = format!("seed {seed}, event {event} of {before}..{after}");
            let mode = [CrashMode::KeepSubset, CrashMode::Tear][event % 2];
            let image = device.image_at(event, seed, mode).expect("is in the log");
            let opened = open_with_long_pieces(Arc::new(image));
            let rows = opened.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
            let pieces = |run: &Arc<crate::version::Run>| run.pieces.len();
            let view = opened.inner.view();
            cut += usize::from(view.version.runs(rows.0).iter().map(pieces).max() > Some(2));
            half_way += usize::from(view.version.runs(rows.0).iter().any(|run| !run.lower_bound.is_empty()));
            drop(view);
            same(&opened, rows, &model, &what);
            if event % 5 == 0 {
                merge_tightly(&opened, rows).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(runs(&opened, rows), 1, "{what}");
                same(&opened, rows, &model, &what);
            }
        }
        assert!(cut > 10 && half_way > 10, "seed {seed}: {cut} images after a cut, {half_way} half-way");
    }
}
