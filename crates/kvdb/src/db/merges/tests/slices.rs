//! Merges where there is hardly any space.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvfs_device::{CrashMode, Device, Rng};
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Store, StoreError};

use super::{
    CAPACITY, Free, KEYS, Model, Terms, ZONE_BYTES, change_and_flush, compare, crash_device, four_runs, key,
    memory, open_with, options, terms, write_run,
};
use crate::Db;
use crate::compaction::MergeOptions;
use crate::db::merges::slices::{Tight, unfinished};
use crate::db::merges::{Due, Leisure, bytes_of};
use crate::format::Extent;
use crate::zone::{Budget, Lane, Stream};

/// A store whose flushes make one piece of each table.
fn open_with_long_pieces(device: Arc<dyn Device>) -> Arc<Db> {
    let mut options = options();
    options.merge.piece_bytes = 64 << 20;
    open_with(device, options)
}

fn merge_tightly(db: &Db, rows: Keyspace) -> kvfs_store::Result<()> {
    let tight = Tight { budget: Budget::Deleting, space: Budget::Reserve, pace: None };
    db.inner.merge_tightly(rows.0, &tight).map(drop)
}

fn runs(db: &Db, rows: Keyspace) -> usize {
    db.inner.view().version.runs(rows.0).len()
}

/// Takes zones until so many are left.
pub(super) fn leave(db: &Db, zones: u64) -> Vec<Extent> {
    let free = || db.inner.ctx.zones.free_bytes(Budget::Reserve) / u64::from(ZONE_BYTES);
    let mut taken = Vec::new();
    while free() > zones {
        taken.push(
            db.inner
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
    while db.inner.space_left() > bytes {
        taken.push(
            db.inner
                .ctx
                .zones
                .allocate(Stream::MergeBlock(Lane::FIRST), ZONE_BYTES, Budget::Ordinary)
                .expect("is free"),
        );
    }
    taken
}

fn bytes(db: &Db, rows: Keyspace) -> u64 {
    bytes_of(db.inner.view().version.runs(rows.0))
}

fn bytes_copied(db: &Db) -> u64 {
    let counted = db.inner.counters.list().into_iter().find(|(name, _)| name == "merge.bytes_written");
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
        db.inner.seal_if(|active| active.bytes() > 0);
        db.inner.flush_all().expect("flushes");
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
            let terms = Terms { is_sliced: true, ..terms(Free) };
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

#[test]
fn rows_that_do_not_fit_at_once_are_merged_in_slices_while_nobody_waits() {
    for seed in 1..4 {
        let (db, rows, model, _taken) = more_rows_than_space(seed, LONG);
        let (due, claim) = db.inner.claim_merge().expect("looks").expect("one is due");
        assert!(matches!(due, Due::InSlices(_)), "seed {seed}: it fits");
        assert_eq!(due.runs().len(), 2 * runs(&db, rows) + 1, "seed {seed}: it claims all that it makes");
        drop((due, claim));
        assert_eq!(bytes_copied(&db), 0);
        assert!(db.inner.merge_once().expect("merges"), "seed {seed}");
        assert_eq!(runs(&db, rows), 1, "seed {seed}");
        let (copied, merged) = (bytes_copied(&db), bytes(&db, rows));
        assert!(copied > merged * 9 / 10, "seed {seed}: all slices count: {copied} bytes for {merged}");
        same(&db, rows, &model, &format!("seed {seed}"));
    }
}

#[test]
fn who_reads_what_slices_replace_ends_those_that_nobody_waits_for() {
    let (db, rows, model, _taken) = more_rows_than_space(1, LONG);
    let reader = db.inner.view();
    let before = db.inner.space_left();
    assert!(!db.inner.merge_once().expect("gives way"), "it ended early");
    assert!(db.inner.readers_hold_much(Budget::Ordinary));
    let held = before - db.inner.space_left();
    assert!(held < CAPACITY / 16, "writers keep what is theirs: {held} bytes are held");
    let runs_then = runs(&db, rows);
    assert!(!db.inner.merge_once().expect("looks") && runs(&db, rows) == runs_then, "nothing begins");
    same(&db, rows, &model, "half-way");
    drop(reader);
    while db.inner.merge_once().expect("merges") {}
    db.inner.reclaim(Budget::Deleting).expect("merges the rest");
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
    let before = db.inner.space_left();
    db.inner.reclaim_at_leisure(Leisure::ShortSpace).expect("merges");
    assert_eq!(runs(&db, rows), 0, "everything is gone");
    assert!(db.inner.space_left() > 2 * before);
    same(&db, rows, &model, "empty");
}

#[test]
fn at_leisure_rows_are_left_alone_of_which_hardly_any_have_changed() {
    let db = open_with_long_pieces(memory());
    let (rows, mut model) = four_runs(&db, 1);
    db.inner.reclaim_at_leisure(Leisure::ShortSpace).expect("merges");
    assert_eq!(runs(&db, rows), 1);
    let all = [
        (3, Leisure::ShortSpace, 2),
        (3, Leisure::OldGarbage, 1),
        (KEYS / 8, Leisure::MuchGarbage, 2),
        (KEYS / 8, Leisure::ShortSpace, 1),
    ];
    for (changed, why, left) in all {
        let mut batch = Batch::new();
        for number in 0..changed {
            batch.put(rows, key(number), vec![9; 100]);
            model.insert(key(number), vec![9; 100]);
        }
        db.apply(batch, Durability::Buffered).expect("applies");
        db.inner.reclaim_at_leisure(why).expect("merges");
        assert_eq!(runs(&db, rows), left, "{changed} rows changed, {why:?}");
    }
    same(&db, rows, &model, "in the end");
}

#[test]
fn when_half_of_the_rows_were_deleted_they_are_merged_at_leisure() {
    let (db, rows, mut model, _taken) = more_rows_than_space(1, LONG);
    db.inner.reclaim(Budget::Deleting).expect("merges");
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    let mut delete = |part: std::ops::Range<usize>| {
        let mut batch = Batch::new();
        for key in &keys[part] {
            batch.delete(rows, key.clone());
            model.remove(key);
        }
        db.apply(batch, Durability::Buffered).expect("deletes");
        db.inner.seal_if(|active| active.bytes() > 0);
        db.inner.flush_all().expect("flushes");
        db.inner.has_much_garbage()
    };
    assert!(!delete(0..keys.len() / 3), "a third may stay");
    assert!(delete(keys.len() / 3..keys.len() * 2 / 3));
    let before = bytes(&db, rows);
    db.inner.reclaim_at_leisure(Leisure::MuchGarbage).expect("merges");
    assert!(!db.inner.has_much_garbage() && bytes(&db, rows) < before / 2);
    same(&db, rows, &model, "in the end");
}

#[test]
fn slices_that_ended_early_go_on_where_they_ended() {
    let (db, rows, model, _taken) = more_rows_than_space(1, 64 << 10);
    let is_begun = |db: &Db| unfinished(db.inner.view().version.runs(rows.0)).is_some();
    let mut outputs = Vec::new();
    db.inner.stopping.store(true, Ordering::Release);
    for _ in 0..5 {
        assert!(!db.inner.merge_once().expect("ends early"));
        let view = db.inner.view();
        let all = view.version.runs(rows.0);
        outputs.push(all[unfinished(all).expect("a part is merged").output].id);
    }
    db.inner.stopping.store(false, Ordering::Release);
    same(&db, rows, &model, "half-way");
    assert!(db.inner.merge_once().expect("merges") && !is_begun(&db));
    outputs.extend(db.inner.view().version.runs(rows.0).iter().map(|run| run.id));
    assert!(outputs.len() == 6 && outputs.iter().all(|id| *id == outputs[0]), "one run: {outputs:?}");
    let (copied, merged) = (bytes_copied(&db), bytes(&db, rows));
    assert!(copied < merged * 21 / 20, "nothing is copied twice: {copied} bytes for {merged}");
    same(&db, rows, &model, "in the end");
}

#[test]
fn what_is_cut_beside_the_output_of_a_merge_that_ended_early_goes_into_it() {
    for (seed, ends_early) in [(1, false), (2, true), (3, true)] {
        let what = format!("seed {seed}, ends early: {ends_early}");
        let db = open_with_long_pieces(memory());
        let (rows, model) = four_runs(&db, seed);
        let all = || db.inner.view().version.runs(rows.0).to_vec();
        let options = MergeOptions { piece_bytes: 32 << 10, ..db.inner.options.merge };
        let merge = db.inner.merge_of(rows.0, &all(), &[]);
        let output = merge.output;
        let slice = Terms { is_sliced: true, options, ..terms(Free) };
        assert!(!db.inner.run_merge(&merge, slice.clone()).expect("merges"), "{what}: one piece");
        drop(merge);
        // The runs are as long as they were, but for that piece.
        db.inner.stopping.store(ends_early, Ordering::Release);
        let mut steps = 0;
        while runs(&db, rows) > 1 {
            let slices = db.inner.slices_of(rows.0, &all(), options);
            db.inner.merge_in_slices(&slices, &slice).unwrap_or_else(|error| panic!("{what}: {error}"));
            steps += 1;
            same(&db, rows, &model, &format!("{what}, step {steps}"));
            assert!(steps < 1000, "{what}");
        }
        assert!(if ends_early { steps > 8 } else { steps == 1 }, "{what}: {steps} steps");
        assert_eq!(all()[0].id, output, "{what}: nothing is left over, to be merged once more");
    }
}

/// What is cut shares its zones with the piece that is cut, as long as a part of that is left.
#[test]
fn a_cut_that_ended_early_goes_on_without_copying() {
    let db = open_with_long_pieces(memory());
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    write_run(&db, rows, 1, 1900);
    let model: Model = (0..KEYS).map(|number| (key(number), vec![1; 1900])).collect();
    let all = || db.inner.view().version.runs(rows.0).to_vec();
    assert!(all().len() == 1 && all()[0].pieces.len() == 1, "one long piece");
    let _taken = leave(&db, 6);
    let go_on = |piece_bytes, ends_early| {
        let options = MergeOptions { stitch_bytes_min: u64::MAX, piece_bytes, ..db.inner.options.merge };
        db.inner.stopping.store(ends_early, Ordering::Release);
        let slices = db.inner.slices_of(rows.0, &all(), options);
        let terms = db.inner.terms_of_slices(&slices, Lane::FIRST, Budget::Reserve, None);
        let is_done = db.inner.merge_in_slices(&slices, &terms).expect("fits what is free");
        assert_eq!(is_done, !ends_early);
    };
    let (bytes, copied) = (bytes(&db, rows), bytes_copied(&db));
    assert!(bytes > 10 * u64::from(ZONE_BYTES), "more than there is space for: {bytes} bytes");
    // Each time with shorter pieces, so what was cut before would be cut again.
    for piece_bytes in [256 << 10, 128 << 10, 64 << 10, 32 << 10] {
        (0..3).for_each(|_| go_on(piece_bytes, true));
    }
    same(&db, rows, &model, "half-way");
    assert!(unfinished(&all()).expect("is begun").is_cut);
    db.inner.stopping.store(false, Ordering::Release);
    merge_tightly(&db, rows).expect("fits what is free");
    assert!(runs(&db, rows) == 1 && unfinished(&all()).is_none());
    let copied = bytes_copied(&db) - copied;
    assert!(copied < bytes / 8, "{copied} bytes were copied of {bytes}");
    same(&db, rows, &model, "in the end");
}

#[test]
fn a_merge_of_one_run_that_ended_early_is_no_cut() {
    let db = open_with_long_pieces(memory());
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    write_run(&db, rows, 1, 1900);
    let model: Model = (0..KEYS).map(|number| (key(number), vec![1; 1900])).collect();
    let all = || db.inner.view().version.runs(rows.0).to_vec();
    let options = MergeOptions { stitch_bytes_min: u64::MAX, piece_bytes: 256 << 10, ..options().merge };
    let slice = Terms { is_sliced: true, options, ..terms(Free) };
    let merge = db.inner.merge_of(rows.0, &all(), &[]);
    assert!(!db.inner.run_merge(&merge, slice).expect("merges"), "one piece");
    drop(merge);
    assert!(
        !unfinished(&all()).expect("is begun").is_cut,
        "what it has dropped so far is not to be dropped again"
    );
    merge_tightly(&db, rows).expect("fits");
    assert_eq!(runs(&db, rows), 1);
    same(&db, rows, &model, "in the end");
}

/// As long as no two runs of one age have versions of the same key, it matters not which of them comes first: what is cut
/// comes before all of them.
#[test]
fn what_is_cut_does_not_come_before_newer_versions() {
    for (seed, deletes_range) in [(1, false), (2, false), (3, true), (4, true)] {
        let db = open_with_long_pieces(memory());
        let (rows, mut model) = four_runs(&db, seed);
        if deletes_range {
            // Cut anywhere, a tombstone ends there and goes on.
            let mut batch = Batch::new();
            batch.delete_range(rows, key(5), key(KEYS - 5));
            model.retain(|at, _| *at < key(5) || *at >= key(KEYS - 5));
            for number in (0..KEYS).step_by(2) {
                batch.put(rows, key(number), vec![number as u8; 900]);
                model.insert(key(number), vec![number as u8; 900]);
            }
            db.apply(batch, Durability::Synced).expect("applies");
            db.inner.seal_if(|active| active.bytes() > 0);
            db.inner.flush_all().expect("flushes");
        }
        let all = || db.inner.view().version.runs(rows.0).to_vec();
        let with = |piece_bytes| {
            let options = MergeOptions { piece_bytes, ..db.inner.options.merge };
            (options, Terms { is_sliced: true, options, ..terms(Free) })
        };
        let go_on = |ends_early, what: &str| {
            db.inner.stopping.store(ends_early, Ordering::Release);
            let (options, terms) = with(32 << 10);
            let slices = db.inner.slices_of(rows.0, &all(), options);
            let ended = db.inner.merge_in_slices(&slices, &terms);
            ended.unwrap_or_else(|error| panic!("seed {seed}, {what}: {error}"));
            same(&db, rows, &model, &format!("seed {seed}, {what}"));
        };
        // A long piece of output; a part of the newest rest is cut; and all that is known to be left is merged.
        let merge = db.inner.merge_of(rows.0, &all(), &[]);
        assert!(!db.inner.run_merge(&merge, with(256 << 10).1).expect("merges"), "seed {seed}: one piece");
        drop(merge);
        go_on(true, "cut in part");
        go_on(false, "gone on");
        for step in 0..200 {
            go_on(true, &format!("step {step}"));
        }
        go_on(false, "in the end");
        assert_eq!(runs(&db, rows), 1, "seed {seed}");
    }
}

#[test]
fn deletions_may_go_further_than_a_pass_for_writers_that_found_too_little_space() {
    let db = open_with_long_pieces(memory());
    let (rows, model) = four_runs(&db, 1);
    let taken = leave(&db, 5);
    let ended = db.inner.reclaim(Budget::Ordinary);
    assert!(matches!(ended, Err(StoreError::Full)), "{ended:?}");
    assert!(!db.inner.reclaim_wanted(Budget::Ordinary), "writers would find as little again");
    assert!(db.inner.reclaim_wanted(Budget::Deleting));
    same(&db, rows, &model, "as before");
    for extent in taken {
        db.inner.ctx.zones.release(extent);
    }
    db.inner.reclaim(Budget::Deleting).expect("merges");
    assert!(!db.inner.reclaim_wanted(Budget::Deleting) && runs(&db, rows) == 1);
    same(&db, rows, &model, "in the end");
}

#[test]
fn a_merge_of_many_runs_leaves_space_for_one_of_two() {
    let free = |db: &Db| db.inner.ctx.zones.free_bytes(Budget::Reserve) / u64::from(ZONE_BYTES);
    for seed in 1..4 {
        let db = open_with_long_pieces(memory());
        let (rows, mut model) = four_runs(&db, seed);
        let mut rng = Rng::new(seed + 100);
        (0..4).for_each(|_| change_and_flush(&db, rows, &mut model, &mut rng));
        let _taken = leave(&db, 11);
        let options = MergeOptions { piece_bytes: ZONE_BYTES.into(), ..db.inner.options.merge };
        // More of them than there is space for.
        let slices = db.inner.slices_of(rows.0, db.inner.view().version.runs(rows.0), options);
        let terms = Terms { is_sliced: true, leaves_space: true, options, pace: None, ..terms(Free) };
        let terms = Terms { budget: Budget::Reserve, ..terms };
        let ended = db.inner.merge_in_slices(&slices, &terms);
        assert!(matches!(ended, Err(StoreError::Full)), "seed {seed}: {ended:?}");
        assert!(free(&db) >= 4, "seed {seed}: {} zones are left", free(&db));
        same(&db, rows, &model, &format!("seed {seed}, half-way"));
        merge_tightly(&db, rows).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(runs(&db, rows), 1, "seed {seed}");
        same(&db, rows, &model, &format!("seed {seed}, in the end"));
    }
}
