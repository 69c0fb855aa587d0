//! Merges where there is hardly any space.

use std::sync::Arc;

use kvfs_device::{CrashMode, Device, Rng};
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Store, StoreError};

use super::{
    Free, Model, Terms, ZONE_BYTES, change_and_flush, compare, crash_device, four_runs, memory, open_with,
    options, terms,
};
use crate::Db;
use crate::compaction::Victims;
use crate::format::Extent;
use crate::zone::{Budget, Stream};

/// A store whose flushes make one piece of each table.
fn open_with_long_pieces(device: Arc<dyn Device>) -> Arc<Db> {
    let mut options = options();
    options.merge.piece_bytes = 64 << 20;
    open_with(device, options)
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
        let db = open_with_long_pieces(memory());
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
            let db = open_with_long_pieces(memory());
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
        let device = crash_device();
        let db = open_with_long_pieces(Arc::clone(&device) as _);
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

#[test]
fn where_merges_find_no_space_deletions_may_take_what_is_left() {
    let db = open_with_long_pieces(memory());
    let (rows, model) = four_runs(&db, 1);
    let delete = |key: &[u8]| {
        let mut batch = Batch::new();
        batch.delete(rows, key.to_vec());
        db.apply(batch, Durability::Buffered)
    };
    let taken = leave(&db, 4);
    let mut keys = model.keys();
    delete(keys.next().expect("there are some")).expect("merges have no use for it");
    for extent in taken {
        db.inner.ctx.zones.release(extent);
    }
    db.inner.reclaim(Budget::Deleting).expect("merges");
    // Where they have, it is theirs.
    let _taken = leave(&db, 11);
    let deleted = delete(keys.next().expect("there are some"));
    assert!(matches!(deleted, Err(StoreError::Full)), "{deleted:?}");
}

#[test]
fn what_a_merge_that_ended_early_has_left_is_not_merged_past_its_output() {
    const CLASS_BYTES: u64 = 1040 << 10;
    for seed in 1..6 {
        let mut options = options();
        // So that the output is of another class than the older runs, and what it has left is to be merged with these.
        (options.merge.class_runs, options.merge.class_bytes_min) = (4, CLASS_BYTES / 4);
        let db = open_with(memory(), options);
        let (rows, mut model) = four_runs(&db, seed);
        change_and_flush(&db, rows, &mut model, &mut Rng::new(seed + 100));
        let runs = |db: &Db| db.inner.view().version.runs(rows.0).to_vec();
        let bytes = |id| runs(&db).iter().find(|run| run.id == id).map_or(0, |run| run.data_bytes());
        let all = runs(&db);
        assert!(all.iter().all(|run| run.data_bytes() < CLASS_BYTES), "seed {seed}");
        let mut slice = db.inner.merge_of(rows.0, &all[..3], &all[3..]);
        let inputs: Vec<_> = all[..3].iter().map(|run| run.id).collect();
        drop(all);
        while bytes(slice.output) < CLASS_BYTES {
            let terms = Terms { is_tight: true, ..terms(Free) };
            assert!(!db.inner.run_merge(&slice, terms).expect("merges"), "seed {seed}: it is through");
            slice.inputs = runs(&db).into_iter().filter(|run| inputs.contains(&run.id)).collect();
        }
        drop(slice);
        same(&db, rows, &model, &format!("seed {seed}, half-way"));
        db.inner.compact().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        same(&db, rows, &model, &format!("seed {seed}"));
        db.inner.reclaim(Budget::Deleting).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        same(&db, rows, &model, &format!("seed {seed}, in the end"));
    }
}
