//! Steps where there is hardly any space, and merges that go on after any of them.

use std::sync::Arc;

use kvfs_device::{CrashMode, Device, Rng};
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Store, StoreError};

use crate::Db;
use crate::format::Extent;
use crate::merge::reclaim::ReclaimReason;
use crate::merge::step::Progress;
use crate::merge::tests::{
    CAPACITY, Free, KEYS, Model, ZONE_BYTES, change_and_flush, compare, config, crash_device, four_runs, key,
    memory, open_with, options,
};
use crate::merge::{Merge, StepConfig};
use crate::space::{Budget, Lane, Stream};
use crate::version::{Edit, bytes_of};

/// A store whose flushes make one piece of each table.
fn open_with_long_pieces(device: Arc<dyn Device>) -> Arc<Db> {
    let mut options = options();
    options.merge.piece_bytes = 64 << 20;
    open_with(device, options)
}

/// In what is free for deletions, however little.
fn tight(db: &Db) -> StepConfig {
    let config = db.parts.merger.stepper.step_config(Lane::FIRST, Budget::Reserve, None);
    StepConfig { is_tight: true, tries_least: true, ..config }
}

fn merge_in_low_space(db: &Db, rows: Keyspace) -> kvfs_store::Result<()> {
    db.parts.merger.merge_whole(rows.0, &tight(db)).map(drop)
}

fn merges(db: &Db, rows: Keyspace) -> usize {
    db.parts.live.view().version.merges(rows.0).len()
}

fn runs(db: &Db, rows: Keyspace) -> usize {
    db.parts.live.view().version.runs(rows.0).len()
}

/// Takes zones until so many are left.
pub(crate) fn leave(db: &Db, zones: u64) -> Vec<Extent> {
    let free = || db.parts.runtime.ctx.zones.free_bytes(Budget::Reserve) / u64::from(ZONE_BYTES);
    let mut taken = Vec::new();
    while free() > zones {
        taken.push(
            db.parts
                .runtime
                .ctx
                .zones
                .allocate(Stream::MergeBlock(Lane::FIRST), ZONE_BYTES, Budget::Reserve)
                .expect("is free"),
        );
    }
    taken
}

/// Takes zones until no more than so many bytes are left for writes.
fn leave_for_writes(db: &Db, bytes: u64) -> Vec<Extent> {
    let mut taken = Vec::new();
    while db.parts.space.space_left() > bytes {
        taken.push(
            db.parts
                .runtime
                .ctx
                .zones
                .allocate(Stream::MergeBlock(Lane::FIRST), ZONE_BYTES, Budget::Ordinary)
                .expect("is free"),
        );
    }
    taken
}

fn bytes(db: &Db, rows: Keyspace) -> u64 {
    bytes_of(db.parts.live.view().version.runs(rows.0))
}

fn bytes_copied(db: &Db) -> u64 {
    let counted =
        db.parts.runtime.counters.list().into_iter().find(|(name, _)| name == "merge.bytes_written");
    counted.expect("is counted").1
}

/// Pieces of this length are cut first (bytes).
const LONG: u64 = 64 << 20;

/// With more rows than there is space left, in so many runs that a merge of all is due.
fn more_rows_than_space(seed: u64, piece_bytes: u64) -> (Arc<Db>, Keyspace, Model, Vec<Extent>) {
    const RUNS: usize = 5;
    let mut options = options();
    (options.merge.piece_bytes, options.merge.class_runs) = (piece_bytes, RUNS);
    let db = open_with(memory(), options);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let (mut model, mut rng) = (Model::new(), Rng::new(seed));
    for _ in 0..RUNS {
        let mut batch = Batch::new();
        for number in 0..KEYS {
            if rng.below(4) == 0 {
                continue;
            }
            let mut value = vec![0; 1000 + rng.index(3000)];
            rng.fill(&mut value);
            batch.put(rows, key(number), value.clone());
            model.insert(key(number), value);
        }
        db.apply(batch, Durability::Synced).expect("applies");
        db.parts.sequencer.seal_if(|active| active.bytes() > 0);
        db.parts.flusher.flush_all().expect("flushes");
    }
    assert_eq!(runs(&db, rows), RUNS);
    let taken = leave_for_writes(&db, bytes(&db, rows) * 4 / 5);
    (db, rows, model, taken)
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
        let bytes = bytes(&db, rows);
        assert!(bytes > 20 * u64::from(ZONE_BYTES), "seed {seed}: {bytes} bytes");
        let _taken = leave(&db, 12);
        merge_in_low_space(&db, rows).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
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
            let merged = merge_in_low_space(&db, rows);
            assert!(matches!(merged, Ok(()) | Err(StoreError::Full)), "{what}: {merged:?}");
            same(&db, rows, &model, &what);
            for extent in taken {
                db.parts.runtime.ctx.zones.release(extent);
            }
            merge_in_low_space(&db, rows).unwrap_or_else(|error| panic!("{what}: {error}"));
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
        let run_bytes = bytes(&db, rows) / 4;
        let _taken = leave(&db, 13);
        merge_in_low_space(&db, rows).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let after = device.events_len();
        let (mut released, mut half_way) = (0, 0);
        for event in before..=after {
            let what = format!("seed {seed}, event {event} of {before}..{after}");
            let mode = [CrashMode::KeepSubset, CrashMode::Tear][event % 2];
            let image = device.image_at(event, seed, mode).expect("is in the log");
            let opened = open_with_long_pieces(Arc::new(image));
            let rows = opened.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
            let view = opened.parts.live.view();
            let all = view.version.runs(rows.0);
            let is_rest = |run: &&Arc<crate::version::Run>| {
                !run.lower_bound.is_empty() && run.data_bytes() < run_bytes - u64::from(ZONE_BYTES)
            };
            released += usize::from(all.iter().any(|run| is_rest(&run)));
            half_way += usize::from(merges(&opened, rows) > 0);
            drop(view);
            same(&opened, rows, &model, &what);
            if event % 5 == 0 {
                merge_in_low_space(&opened, rows).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(runs(&opened, rows), 1, "{what}");
                same(&opened, rows, &model, &what);
            }
        }
        assert!(released > 10 && half_way > 10, "seed {seed}: {released} with a rest, {half_way} half-way");
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
        db.parts.runtime.ctx.zones.release(extent);
    }
    db.parts.merger.reclaim(Budget::Deleting).expect("merges");
    // Where they have, it is theirs.
    let _taken = leave(&db, 11);
    let deleted = delete(keys.next().expect("there are some"));
    assert!(matches!(deleted, Err(StoreError::Full)), "{deleted:?}");
}

/// As stores of before version 5 have them.
#[test]
fn merge_that_nothing_records_is_not_merged_past_its_output() {
    const CLASS_BYTES: u64 = 1040 << 10;
    for seed in 1..6 {
        let mut options = options();
        // So that the output is of another class than the older runs, and what it has left is to be merged
        // with these.
        (options.merge.class_runs, options.merge.class_bytes_min) = (4, CLASS_BYTES / 4);
        let db = open_with(memory(), options);
        let (rows, mut model) = four_runs(&db, seed);
        change_and_flush(&db, rows, &mut model, &mut Rng::new(seed + 100));
        let runs = |db: &Db| db.parts.live.view().version.runs(rows.0).to_vec();
        let bytes = |id| runs(&db).iter().find(|run| run.id == id).map_or(0, |run| run.data_bytes());
        assert!(runs(&db).iter().all(|run| run.data_bytes() < CLASS_BYTES), "seed {seed}");
        let mut merge = db.parts.merger.stepper.merge_of(rows.0, &runs(&db)[..3]);
        while bytes(merge.output) < CLASS_BYTES {
            let stepped = db.parts.merger.stepper.step(&mut merge, &config(&db, Free)).expect("merges");
            assert!(stepped == Progress::More, "seed {seed}: it is through");
        }
        assert_eq!(merges(&db, rows), 1);
        let forgotten = Edit::RecordMerge { keyspace: rows.0, output: merge.output, inputs: Vec::new() };
        db.parts.live.install(vec![forgotten], &[rows.0], &[], |view| view).expect("installs");
        assert_eq!(merges(&db, rows), 0);
        same(&db, rows, &model, &format!("seed {seed}, half-way"));
        db.parts.merger.compact().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        same(&db, rows, &model, &format!("seed {seed}"));
        db.parts.merger.reclaim(Budget::Deleting).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        same(&db, rows, &model, &format!("seed {seed}, in the end"));
    }
}

#[test]
fn rows_that_do_not_fit_beside_their_copy_are_merged_while_no_caller_waits() {
    for seed in 1..4 {
        let (db, rows, model, _taken) = more_rows_than_space(seed, LONG);
        assert_eq!(bytes_copied(&db), 0);
        let mut steps = 0;
        while db.parts.merger.merge_once().expect("merges") {
            steps += 1;
        }
        assert!(steps > 1 && runs(&db, rows) == 1, "seed {seed}: {steps} steps");
        let (copied, merged) = (bytes_copied(&db), bytes(&db, rows));
        assert!(copied > merged * 9 / 10, "seed {seed}: all steps count: {copied} bytes for {merged}");
        same(&db, rows, &model, &format!("seed {seed}"));
    }
}

#[test]
fn merge_that_no_caller_waits_for_gives_way_to_readers_of_what_it_replaces() {
    let (db, rows, model, _taken) = more_rows_than_space(1, LONG);
    let reader = db.parts.live.view();
    let before = db.parts.space.space_left();
    while db.parts.merger.merge_once().expect("gives way") {}
    assert!(runs(&db, rows) > 1, "it is not through");
    assert!(db.parts.merger.stepper.readers_hold_much(Budget::Ordinary));
    let held = before - db.parts.space.space_left();
    assert!(held < CAPACITY / 16, "writers keep what is theirs: {held} bytes are held");
    same(&db, rows, &model, "half-way");
    drop(reader);
    while db.parts.merger.merge_once().expect("merges") {}
    db.parts.merger.reclaim(Budget::Deleting).expect("merges the rest");
    assert_eq!(runs(&db, rows), 1);
    same(&db, rows, &model, "in the end");
}

#[test]
fn at_leisure_rows_that_do_not_fit_give_back_what_was_deleted() {
    let (db, rows, mut model, _taken) = more_rows_than_space(1, LONG);
    let mut batch = Batch::new();
    for key in model.keys() {
        batch.delete(rows, key.clone());
    }
    model.clear();
    db.apply(batch, Durability::Buffered).expect("deletes");
    let before = db.parts.space.space_left();
    db.parts.merger.background_reclaim(ReclaimReason::ShortSpace).expect("merges");
    assert_eq!(runs(&db, rows), 0, "everything is gone");
    assert!(db.parts.space.space_left() > 2 * before);
    same(&db, rows, &model, "empty");
}

#[test]
fn at_leisure_rows_are_left_alone_of_which_hardly_any_have_changed() {
    let db = open_with_long_pieces(memory());
    let (rows, mut model) = four_runs(&db, 1);
    db.parts.merger.background_reclaim(ReclaimReason::ShortSpace).expect("merges");
    assert_eq!(runs(&db, rows), 1);
    let all = [
        (3, ReclaimReason::ShortSpace, 2),
        (3, ReclaimReason::OldGarbage, 1),
        (KEYS / 8, ReclaimReason::MuchGarbage, 2),
        (KEYS / 8, ReclaimReason::ShortSpace, 1),
    ];
    for (changed, why, left) in all {
        let mut batch = Batch::new();
        for number in 0..changed {
            batch.put(rows, key(number), vec![9; 100]);
            model.insert(key(number), vec![9; 100]);
        }
        db.apply(batch, Durability::Buffered).expect("applies");
        db.parts.merger.background_reclaim(why).expect("merges");
        assert_eq!(runs(&db, rows), left, "{changed} rows changed, {why:?}");
    }
    same(&db, rows, &model, "in the end");
}

#[test]
fn when_half_of_the_rows_were_deleted_they_are_merged_at_leisure() {
    let (db, rows, mut model, _taken) = more_rows_than_space(1, LONG);
    db.parts.merger.reclaim(Budget::Deleting).expect("merges");
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    let mut delete = |part: std::ops::Range<usize>| {
        let mut batch = Batch::new();
        for key in &keys[part] {
            batch.delete(rows, key.clone());
            model.remove(key);
        }
        db.apply(batch, Durability::Buffered).expect("deletes");
        db.parts.sequencer.seal_if(|active| active.bytes() > 0);
        db.parts.flusher.flush_all().expect("flushes");
        db.parts.merger.has_much_garbage()
    };
    assert!(!delete(0..keys.len() / 3), "a third may stay");
    assert!(delete(keys.len() / 3..keys.len() * 2 / 3));
    let before = bytes(&db, rows);
    db.parts.merger.background_reclaim(ReclaimReason::MuchGarbage).expect("merges");
    assert!(!db.parts.merger.has_much_garbage() && bytes(&db, rows) < before / 2);
    same(&db, rows, &model, "in the end");
}

#[test]
fn merge_goes_on_where_it_ended_after_each_opening() {
    let device = memory();
    let mut options = options();
    options.merge.class_runs = 4;
    let db = open_with(Arc::clone(&device), options.clone());
    let (rows, model) = four_runs(&db, 1);
    let (mut db, mut outputs) = (Some(db), Vec::new());
    for opening in 0..5 {
        let this = db.take().expect("is open");
        for _ in 0..3 {
            assert!(this.parts.merger.merge_once().expect("merges"), "opening {opening}: it is through");
        }
        outputs.extend(this.parts.live.view().version.merges(rows.0).iter().map(|merge| merge.output));
        same(&this, rows, &model, &format!("opening {opening}"));
        this.close().expect("closes");
        drop(this);
        let next = open_with(Arc::clone(&device), options.clone());
        next.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
        db = Some(next);
    }
    let db = db.take().expect("is open");
    while db.parts.merger.merge_once().expect("merges") {}
    outputs.extend(db.parts.live.view().version.runs(rows.0).iter().map(|run| run.id));
    assert!(outputs.len() == 6 && outputs.iter().all(|id| *id == outputs[0]), "one run: {outputs:?}");
    assert_eq!(merges(&db, rows), 0);
    same(&db, rows, &model, "in the end");
}

/// Steps of all kinds, of merges that are narrowed and left, after openings, beside new runs.
#[test]
fn steps_in_any_order_keep_all_rows() {
    for seed in 1..13 {
        let device = memory();
        let mut db = open_with_long_pieces(Arc::clone(&device));
        let (rows, mut model) = four_runs(&db, seed);
        let mut rng = Rng::new(seed + 200);
        let mut taken = Vec::new();
        for step in 0..60 {
            let what = format!("seed {seed}, step {step}");
            match rng.below(10) {
                0 => {
                    for extent in taken.drain(..) {
                        db.parts.runtime.ctx.zones.release(extent);
                    }
                    change_and_flush(&db, rows, &mut model, &mut rng);
                }
                1 => {
                    taken.clear();
                    db.close().unwrap_or_else(|error| panic!("{what}: {error}"));
                    db = open_with_long_pieces(Arc::clone(&device));
                    db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
                }
                2 => taken.extend(leave(&db, 10 + rng.below(20))),
                3 => {
                    for extent in taken.drain(..) {
                        db.parts.runtime.ctx.zones.release(extent);
                    }
                }
                4 => drop(db.parts.merger.merge_once()),
                _ => {
                    let view = db.parts.live.view();
                    let begun = view.version.merges(rows.0).first().cloned();
                    let all = view.version.runs(rows.0).to_vec();
                    drop(view);
                    let mut merge = if let Some(state) = begun {
                        Merge::resumed(rows.0, &state)
                    } else {
                        let first = rng.index(all.len());
                        let len = 1 + rng.index(all.len() - first);
                        db.parts.merger.stepper.merge_of(rows.0, &all[first..first + len])
                    };
                    if rng.below(3) == 0 {
                        merge.inputs.truncate(1 + rng.index(merge.inputs.len()));
                    }
                    let config = if rng.below(4) == 0 { config(&db, Free) } else { tight(&db) };
                    let stepped = db.parts.merger.stepper.step(&mut merge, &config);
                    assert!(matches!(stepped, Ok(_) | Err(StoreError::Full)), "{what}: {stepped:?}");
                }
            }
            same(&db, rows, &model, &what);
        }
        for extent in taken.drain(..) {
            db.parts.runtime.ctx.zones.release(extent);
        }
        db.parts.merger.reclaim(Budget::Deleting).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(runs(&db, rows) == 1 && merges(&db, rows) == 0, "seed {seed}");
        same(&db, rows, &model, &format!("seed {seed}, in the end"));
    }
}

#[test]
fn deletions_may_go_further_than_a_pass_for_writers_that_found_too_little_space() {
    let db = open_with_long_pieces(memory());
    let (rows, model) = four_runs(&db, 1);
    let taken = leave(&db, 5);
    let ended = db.parts.merger.reclaim(Budget::Ordinary);
    assert!(matches!(ended, Err(StoreError::Full)), "{ended:?}");
    assert!(!db.parts.merger.reclaim_wanted(Budget::Ordinary), "writers would find as little again");
    assert!(db.parts.merger.reclaim_wanted(Budget::Deleting));
    same(&db, rows, &model, "as before");
    for extent in taken {
        db.parts.runtime.ctx.zones.release(extent);
    }
    db.parts.merger.reclaim(Budget::Deleting).expect("merges");
    assert!(!db.parts.merger.reclaim_wanted(Budget::Deleting) && runs(&db, rows) == 1);
    same(&db, rows, &model, "in the end");
}

#[test]
fn merge_of_more_runs_than_there_is_space_for_is_narrowed() {
    for seed in 1..4 {
        let db = open_with_long_pieces(memory());
        let (rows, mut model) = four_runs(&db, seed);
        let mut rng = Rng::new(seed + 100);
        (0..4).for_each(|_| change_and_flush(&db, rows, &mut model, &mut rng));
        let _taken = leave(&db, 11);
        let mut merge = db.parts.merger.stepper.merge_of(rows.0, db.parts.live.view().version.runs(rows.0));
        let mut steps = 0;
        while db.parts.merger.stepper.step(&mut merge, &tight(&db)).expect("there is space for two")
            == Progress::More
        {
            steps += 1;
        }
        assert!(
            merge.inputs.len() < 8 && steps > 2,
            "seed {seed}: {} inputs, {steps} steps",
            merge.inputs.len()
        );
        assert!(runs(&db, rows) > 1 && merges(&db, rows) == 0, "seed {seed}");
        same(&db, rows, &model, &format!("seed {seed}, half-way"));
        merge_in_low_space(&db, rows).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(runs(&db, rows), 1, "seed {seed}");
        same(&db, rows, &model, &format!("seed {seed}, in the end"));
    }
}
