//! Passes that empty zones.

use std::sync::Arc;

use kvfs_device::{CrashMode, Device, FaultDevice, MemoryDevice, Rng};
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, Read, Store, StoreError, Transactions, TxnOptions,
};

use crate::compaction::Victims;
use crate::format::ZoneId;
use crate::merge::reclaim::ReclaimReason;
use crate::merge::step::Progress;
use crate::merge::tests::steps::leave;
use crate::merge::tests::{
    CAPACITY, KEYS, Model, ZONE_BYTES, compare, crash_device, create, key, open_on, open_with, options,
};
use crate::merge::{Merge, StepConfig};
use crate::space::{Budget, Lane, Stream};
use crate::table::Piece;
use crate::{Db, Options};

const FILES: u32 = 12;
pub(super) const BLOCKS: u64 = 64;

/// By file and block: what it was filled with.
pub(super) type Fills = Vec<Vec<u8>>;

pub(super) fn write(db: &Db, data: Keyspace, file: u32, first: u64, fills: &[u8]) {
    let mut batch = Batch::new();
    let blocks: Vec<u8> = fills.iter().flat_map(|&fill| [fill; BLOCK_BYTES]).collect();
    batch.put_blocks(data, file.to_be_bytes().to_vec(), first, blocks);
    db.apply(batch, Durability::Synced).expect("applies");
}

pub(super) fn flush(db: &Db) {
    db.parts.sequencer.seal_if(|active| active.bytes() > 0);
    db.parts.flusher.flush_all().expect("flushes");
}

/// Files of a zone each, of which two fifths were overwritten since: two runs.
fn half_dead_zones(db: &Db, seed: u64) -> (Keyspace, Fills) {
    let mut rng = Rng::new(seed);
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    let mut fills = vec![vec![1; BLOCKS as usize]; FILES as usize];
    for (file, fills) in (0..).zip(&fills) {
        write(db, data, file, 0, fills);
    }
    flush(db);
    for (file, fills) in (0..).zip(&mut fills) {
        for first in (0..BLOCKS).step_by(8) {
            if rng.below(5) < 3 {
                continue;
            }
            let piece = &mut fills[first as usize..][..8];
            piece.fill(rng.range(2, 256) as u8);
            write(db, data, file, first, piece);
        }
    }
    flush(db);
    (data, fills)
}

/// As [`half_dead_zones`], of which merges know, and one block that was overwritten since and is not flushed.
fn known_half_dead_zones(db: &Db, seed: u64) -> (Keyspace, Fills) {
    let (data, mut fills) = half_dead_zones(db, seed);
    db.parts.merger.reclaim(Budget::Ordinary).expect("merges");
    db.parts.runtime.ctx.zones.close_stream(Stream::MergeBlock(Lane::FIRST));
    write(db, data, 0, 0, &[9]);
    fills[0][0] = 9;
    (data, fills)
}

/// Of all runs of `data`.
fn merge_of_all(db: &Db, data: Keyspace) -> Merge {
    let view = db.parts.live.view();
    db.parts.merger.stepper.merge_of(data.0, view.version.runs(data.0))
}

pub(super) fn same(db: &Db, data: Keyspace, fills: &Fills, what: &str) {
    let mut found = vec![0; BLOCKS as usize * BLOCK_BYTES];
    for (file, fills) in (0_u32..).zip(fills) {
        db.read_blocks(data, &file.to_be_bytes(), 0, &mut found).expect("reads");
        for (block, found) in found.chunks_exact(BLOCK_BYTES).enumerate() {
            assert!(found.iter().all(|byte| *byte == fills[block]), "{what}: block {block} of file {file}");
        }
    }
    let findings = db.check().expect("checks").findings;
    assert!(findings.is_empty(), "{what}: {findings:?}");
}

#[test]
fn a_power_cut_at_any_step_of_emptying_zones_loses_nothing() {
    // The fewer are left, the further a pass may go.
    for (seed, zones_left, within) in [(1, 24, Budget::Deleting), (2, 14, Budget::Reserve)] {
        let device = crash_device();
        let db = open_on(Arc::clone(&device) as Arc<dyn Device>);
        let (data, fills) = half_dead_zones(&db, seed);
        // What is dead is known.
        db.parts.merger.reclaim(Budget::Ordinary).expect("merges");
        let free_zones = |db: &Db| db.parts.runtime.ctx.zones.space().zones_free;
        db.parts.runtime.ctx.zones.close_stream(Stream::MergeBlock(Lane::FIRST));
        let taken = leave(&db, zones_left);
        let (victims, budget) = db.parts.merger.victims.victims_for_waiting();
        assert!(victims.any() && budget == within, "seed {seed}: {budget:?}");
        let (before, free_before) = (device.events_len(), free_zones(&db));
        db.parts.live.note_garbage();
        db.parts.merger.reclaim(Budget::Ordinary).expect("empties zones");
        let (after, free_after) = (device.events_len(), free_zones(&db));
        assert!(free_after > free_before + 1, "seed {seed}: {free_before} zones were free, {free_after} are");
        same(&db, data, &fills, "without a power cut");
        drop(taken);
        for event in before..=after {
            let what = format!("seed {seed}, event {event} of {before}..{after}");
            let mode = [CrashMode::KeepSubset, CrashMode::Tear][event % 2];
            let image = device.image_at(event, seed, mode).expect("is in the log");
            let opened = open_on(Arc::new(image));
            let data = opened.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
            same(&opened, data, &fills, &what);
            if event % 15 == 0 {
                opened
                    .parts
                    .merger
                    .reclaim(Budget::Ordinary)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                same(&opened, data, &fills, &what);
            }
        }
    }
}

#[test]
fn zone_with_a_reader_is_not_emptied() {
    let db = open_on(crate::merge::tests::memory());
    let (data, fills) = half_dead_zones(&db, 7);
    db.parts.merger.reclaim(Budget::Ordinary).expect("merges");
    let _taken = leave(&db, 24);
    let reader = db.parts.live.view();
    assert!(db.parts.merger.victims.victims_for_waiting().0.any());
    db.parts.live.note_garbage();
    db.parts.merger.reclaim(Budget::Ordinary).expect("empties zones");
    assert!(!db.parts.merger.victims.victims_for_waiting().0.any(), "they would not become free");
    assert!(!db.parts.merger.reclaim_wanted(Budget::Deleting), "no pass would find anything");
    drop(reader);
    assert!(db.parts.merger.reclaim_wanted(Budget::Deleting), "now one may");
    same(&db, data, &fills, "after the reader has gone");
}

#[test]
fn a_run_of_a_transaction_that_can_not_be_read_to_its_end_ends_no_store_and_no_merge_goes_on_with_it() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, CAPACITY)));
    let shared = Arc::clone(&device) as Arc<dyn Device>;
    create(&shared);
    let options = Options { private_bytes: 64 << 10, batch_commit_bytes_max: 64 << 10, ..options() };
    let db = open_with(Arc::clone(&shared), options.clone());
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let model: Model = (0..KEYS).map(|number| (key(number), vec![number as u8; 500])).collect();
    let mut before = Batch::new();
    before.put(rows, key(0), vec![9]);
    db.apply(before, Durability::Buffered).expect("its seqnos are counted from another base");
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for (key, value) in &model {
        let mut batch = Batch::new();
        batch.put(rows, key.clone(), value.clone());
        txn.apply(batch).expect("writes");
    }
    txn.commit(Durability::Synced).expect("commits");
    db.flush().expect("flushes");
    db.close().expect("closes");
    drop(db);

    // No metadata stays in memory.
    let db = open_with(shared, Options { memory_bytes: 1, ..options });
    let is_adopted = |piece: &&Arc<Piece>| piece.seqno_min() != piece.desc().seqno_min;
    let view = db.parts.live.view();
    let run = view.version.runs(rows.0).iter().find(|run| run.pieces.iter().any(|piece| is_adopted(&piece)));
    let pieces: Vec<Arc<Piece>> = run.expect("it has spilled").pieces.clone();
    drop(view);
    let last = pieces.last().expect("has pieces").metadata_places();
    let zones = pieces.iter().flat_map(|piece| &piece.desc().zones).map(|held| held.zone.0).collect();
    let victims = Victims::new(zones, ZONE_BYTES.into());
    for extent in &last {
        device.lose(extent.addr..extent.addr + u64::from(extent.len));
    }
    let config = db.parts.merger.stepper.step_config(Lane::FIRST, Budget::Deleting, None);
    let config = StepConfig { victims, ..config };
    let emptied = db.parts.merger.empty(&config, false, &mut |_, _| true);
    assert!(matches!(emptied, Err(StoreError::Io { .. })), "{emptied:?}");
    let all = pieces.len();
    drop(pieces);
    let view = db.parts.live.view();
    let left: usize =
        view.version.runs(rows.0).iter().map(|run| run.pieces.iter().filter(is_adopted).count()).sum();
    assert!(left < all / 2, "{left} of {all} pieces are left as they were");
    assert!(view.version.merges(rows.0).is_empty());
    drop(view);
    assert_eq!(db.failure(), None);
    device.clear();
    assert!(db.parts.merger.empty(&config, false, &mut |_, _| true).expect("reads it again"));
    compare(&db, rows, &model).expect("the same");
}

#[test]
fn zones_come_free_before_the_end_of_a_merge_that_empties_them_on_its_way() {
    let db = open_on(crate::merge::tests::memory());
    let (data, fills) = known_half_dead_zones(&db, 3);
    let (merger, zones) = (&db.parts.merger, &db.parts.runtime.ctx.zones);
    flush(&db);
    let _taken = leave(&db, 24);
    let mut merge = merge_of_all(&db, data);
    let mut config = merger.stepper.step_config(Lane::FIRST, Budget::Deleting, None);
    let mut free = vec![zones.space().zones_free];
    loop {
        config.victims = merger.victims.of_steps(&merge, config.budget, &config.victims).0;
        let progress = merger.stepper.step(&mut merge, &config).expect("merges");
        free.push(zones.space().zones_free);
        if progress == Progress::Done {
            break;
        }
    }
    let (first, last) = (free[0], free[free.len() - 1]);
    assert!(last > first + 2, "{free:?}");
    assert!(free.iter().all(|&free| free + 4 > first), "a step takes little: {free:?}");
    assert!(free.iter().position(|&free| free > first) < Some(free.len() / 2), "not in the end: {free:?}");
    same(&db, data, &fills, "after the merge");
}

#[test]
fn a_pass_in_the_background_empties_zones_where_space_is_short_until_none_are_worth_it() {
    let db = open_on(crate::merge::tests::memory());
    let (data, fills) = known_half_dead_zones(&db, 4);
    let (merger, zones) = (&db.parts.merger, &db.parts.runtime.ctx.zones);
    let _taken = leave(&db, 24);
    let before = zones.space().zones_free;
    merger.background_reclaim(ReclaimReason::ShortSpace).expect("empties zones");
    let after = zones.space().zones_free;
    assert!(
        merger.victims.steps_emptying() > 1 && after > before + 2,
        "{before} zones were free, {after} are"
    );
    assert!(!db.parts.pressure.is_emptying_zones(), "writers wait for it no more");
    assert!(!merger.victims.background_victims().any());
    same(&db, data, &fills, "after the pass");
}

#[test]
fn background_pass_that_merges_few_runs_at_once_empties_the_zones_that_they_share() {
    let mut few = options();
    few.merge.inputs_max = 2;
    let db = open_with(crate::merge::tests::memory(), few);
    let (data, mut fills) = known_half_dead_zones(&db, 4);
    flush(&db);
    for run in 0..7_u8 {
        for (file, fills) in (0..).zip(&mut fills) {
            let first = u64::from(run) * 8;
            let piece = &mut fills[first as usize..][..4];
            piece.fill(100 + run);
            write(&db, data, file, first, piece);
        }
        flush(&db);
    }
    let (merger, zones) = (&db.parts.merger, &db.parts.runtime.ctx.zones);
    let _taken = leave(&db, 24);
    let before = zones.space().zones_free;
    merger.background_reclaim(ReclaimReason::ShortSpace).expect("empties zones");
    let after = zones.space().zones_free;
    assert!(after > before + 2, "{before} zones were free, {after} are");
    assert!(!merger.victims.background_victims().any());
    same(&db, data, &fills, "after the pass");
}

#[test]
fn a_pass_in_the_background_ends_where_a_reader_holds_what_it_has_emptied() {
    let db = open_on(crate::merge::tests::memory());
    let (data, fills) = known_half_dead_zones(&db, 5);
    let (merger, zones) = (&db.parts.merger, &db.parts.runtime.ctx.zones);
    flush(&db);
    let _taken = leave(&db, 24);
    let reader = db.parts.live.view();
    let mut merge = merge_of_all(&db, data);
    let mut config = merger.stepper.step_config(Lane::FIRST, Budget::Deleting, None);
    let numbers = |victims: &Victims| -> Vec<ZoneId> {
        zones.rows().iter().map(|row| row.zone).filter(|&zone| victims.have(zone)).collect()
    };
    let (mut begun, mut held_from) = (Vec::new(), None);
    loop {
        let is_held = merger.victims.readers_hold_zones();
        config.victims = merger.victims.of_steps(&merge, config.budget, &config.victims).0;
        let new = numbers(&config.victims).iter().filter(|zone| !begun.contains(*zone)).count();
        assert!(!is_held || new == 0, "{new} more are begun that would not become free");
        held_from = held_from.or(is_held.then_some(begun.len()));
        begun.extend(numbers(&config.victims));
        if merger.stepper.step(&mut merge, &config).expect("merges") == Progress::Done {
            break;
        }
    }
    assert!(held_from > Some(0), "until then it empties some");
    drop(reader);
    assert!(!merger.victims.readers_hold_zones());
    same(&db, data, &fills, "after the merge");
}
