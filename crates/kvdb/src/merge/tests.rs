//! Merges that end early, run side by side, or are in each other's way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use kvfs_device::{
    Call, CountingDevice, CrashDevice, CrashMode, Device, FaultDevice, FaultError, FaultRule, MemoryDevice,
    Rng,
};
use kvfs_store::clock::{ManualClock, SystemClock};
use kvfs_store::{BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, Read, Store, StoreError};
use parking_lot::{Condvar, Mutex};

use crate::compaction::Pace;
use crate::format::{Extent, ZoneId};
use crate::merge::reclaim::ReclaimReason;
use crate::merge::rounds::Rounds;
use crate::merge::step::Progress;
use crate::merge::{Claim, Merge, StepConfig};
use crate::space::{Budget, Lane, Stream};
use crate::version::Run;
use crate::{Background, CreateOptions, Db, Options};

mod defrag;
mod emptying;
mod many_runs;
mod steps;
mod tombstones;
mod unreadable;

const ZONE_BYTES: u32 = 256 << 10;
const CAPACITY: u64 = 400 * ZONE_BYTES as u64;
const KEYS: u32 = 2000;

fn create(device: &Arc<dyn Device>) {
    let create = CreateOptions {
        zone_bytes: ZONE_BYTES,
        journal_bytes: Some(4 << 20),
        ..CreateOptions::new(CAPACITY, [7; 16])
    };
    Db::create(Arc::clone(device), &create).expect("creates");
}

fn options() -> Options {
    let mut options = Options::with_memory(64 << 20);
    options.background = Background::Manual;
    options.merge.class_runs = 2;
    options.merge.piece_bytes = 64 << 10;
    options
}

fn open_with(device: Arc<dyn Device>, options: Options) -> Arc<Db> {
    Db::open(device, options, Arc::new(ManualClock::at(Duration::from_secs(1)))).expect("opens")
}

fn open_on(device: Arc<dyn Device>) -> Arc<Db> {
    open_with(device, options())
}

fn memory() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
    create(&device);
    device
}

/// With a store on it; keeps what happens to it.
fn crash_device() -> Arc<CrashDevice> {
    let device = Arc::new(CrashDevice::in_memory(0, CAPACITY).with_log().expect("is new"));
    create(&(Arc::clone(&device) as Arc<dyn Device>));
    device
}

fn open() -> Arc<Db> {
    open_on(memory())
}

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// One run with every key.
fn write_run(db: &Db, rows: Keyspace, value: u8, len: usize) {
    let mut batch = Batch::new();
    (0..KEYS).for_each(|number| batch.put(rows, key(number), vec![value; len]));
    db.apply(batch, Durability::Buffered).expect("applies");
    db.parts.sequencer.seal_if(|active| active.bytes() > 0);
    db.parts.flusher.flush_all().expect("flushes");
}

#[test]
fn a_merge_goes_on_where_one_that_ended_early_has_trimmed_its_inputs() {
    let db = open();
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    write_run(&db, rows, 1, 100);
    write_run(&db, rows, 2, 100);
    assert!(db.parts.merger.merge_once().expect("merges"));
    let trimmed = |db: &Db| {
        let view = db.parts.live.view();
        view.version.runs(rows.0).iter().filter(|run| !run.lower_bound.is_empty()).count()
    };
    assert_eq!(trimmed(&db), 2, "a piece came in, and the inputs begin behind it");

    // The next merge has longer values for every key, so it cuts its first piece before those bounds.
    write_run(&db, rows, 3, 500);
    write_run(&db, rows, 4, 500);
    db.parts.merger.reclaim(Budget::Deleting).expect("merges");
    assert_eq!(trimmed(&db), 0);
    for number in 0..KEYS {
        assert_eq!(db.get(rows, &key(number)).expect("reads").expect("is there"), vec![4; 500]);
    }
    assert!(db.check().expect("checks").findings.is_empty());
}

/// What a keyspace holds.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Changes many keys at random, and makes one run of it.
fn change_and_flush(db: &Db, rows: Keyspace, model: &mut Model, rng: &mut Rng) {
    let mut batch = Batch::new();
    for number in 0..KEYS {
        if rng.below(4) == 0 {
            batch.delete(rows, key(number));
            model.remove(&key(number));
        } else if rng.below(4) > 0 {
            let mut value = vec![0; 600 + rng.index(600)];
            rng.fill(&mut value);
            batch.put(rows, key(number), value.clone());
            model.insert(key(number), value);
        }
    }
    for _ in 0..3 {
        let start = rng.below(u64::from(KEYS)) as u32;
        let range = key(start)..key(start + 50);
        batch.delete_range(rows, range.start.clone(), range.end.clone());
        model.retain(|key, _| !range.contains(key));
    }
    db.apply(batch, Durability::Synced).expect("applies");
    db.parts.sequencer.seal_if(|active| active.bytes() > 0);
    db.parts.flusher.flush_all().expect("flushes");
}

/// `Err` with what differs.
fn compare(db: &Db, rows: Keyspace, model: &Model) -> Result<(), String> {
    for number in 0..KEYS + 50 {
        let found = db.get(rows, &key(number)).map_err(|error| error.to_string())?;
        let found = found.map(|value| value.to_vec());
        if found.as_ref() != model.get(&key(number)) {
            return Err(format!("key {number} has {:?} bytes", found.map(|value| value.len())));
        }
    }
    let findings = db.check().map_err(|error| error.to_string())?.findings;
    if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
}

/// Claims the runs of `rows` with these numbers, newest first.
fn claim(merger: &crate::merge::Merger, rows: Keyspace, range: std::ops::Range<usize>) -> (Merge, Claim<'_>) {
    let claimed = merger.merging.claim(|busy| {
        let view = merger.live.view();
        let all: &[Arc<Run>] = view.version.runs(rows.0);
        let merge = merger.stepper.merge_of(rows.0, &all[range.clone()]);
        assert!(!merge.inputs.iter().any(|&run| busy.contains(run)));
        Ok(Some((merge.runs(), merge)))
    });
    claimed.expect("looks").expect("all runs are not claimed")
}

fn config(db: &Db, pace: impl Pace + 'static) -> StepConfig {
    let pace = Some(Arc::new(pace) as Arc<dyn Pace>);
    db.parts.merger.stepper.step_config(Lane::FIRST, Budget::Ordinary, pace)
}

/// Steps until the merge is through, or others wait for its end: false then.
fn finish(db: &Db, mut merge: Merge, config: &StepConfig) -> kvfs_store::Result<bool> {
    while db.parts.merger.stepper.step(&mut merge, config)? == Progress::More {
        if db.parts.merger.merging.is_wanted() || db.parts.runtime.is_stopping() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Two threads of which one runs at a time: at each step a die says which one goes on. So a seed replays
/// exactly.
struct Turns {
    state: Mutex<TurnState>,
    moved: Condvar,
}

struct TurnState {
    rng: Rng,
    turn: usize,
    has_ended: [bool; 2],
    changes: u32,
}

impl Turns {
    fn new(seed: u64) -> Arc<Self> {
        let state = TurnState { rng: Rng::new(seed), turn: 0, has_ended: [false; 2], changes: 0 };
        Arc::new(Self { state: Mutex::new(state), moved: Condvar::new() })
    }

    fn wait_for_turn(&self, who: usize) {
        let mut state = self.state.lock();
        while state.turn != who {
            self.moved.wait(&mut state);
        }
    }

    fn throw(&self, who: usize) {
        let mut state = self.state.lock();
        let next = state.rng.index(2);
        if next != who && !state.has_ended[next] {
            state.turn = next;
            state.changes += 1;
            self.moved.notify_all();
        }
        drop(state);
        self.wait_for_turn(who);
    }

    fn end(&self, who: usize) {
        let mut state = self.state.lock();
        state.has_ended[who] = true;
        state.turn = 1 - who;
        self.moved.notify_all();
    }
}

/// Gives the turn away at each step.
struct Turn(Arc<Turns>, usize);

impl Pace for Turn {
    fn spend(&self, _bytes: u64) {
        self.0.throw(self.1);
    }
}

/// The two newest and the two oldest of four runs become one each, step by step side by side. Returns the
/// outcomes, and how often the turn changed.
fn merge_side_by_side(db: &Db, rows: Keyspace, seed: u64) -> ([kvfs_store::Result<bool>; 2], u32) {
    let turns = Turns::new(seed);
    let claims = [claim(&db.parts.merger, rows, 0..2), claim(&db.parts.merger, rows, 2..4)];
    let outcomes = std::thread::scope(|scope| {
        let workers = [0, 1].map(|who| {
            let turns = Arc::clone(&turns);
            let (merge, lane) = (claims[who].0.clone(), claims[who].1.lane());
            scope.spawn(move || {
                turns.wait_for_turn(who);
                let config = StepConfig { lane, ..config(db, Turn(Arc::clone(&turns), who)) };
                let outcome = finish(db, merge, &config);
                turns.end(who);
                outcome
            })
        });
        workers.map(|worker| worker.join().expect("ends"))
    });
    let changes = turns.state.lock().changes;
    (outcomes, changes)
}

fn four_runs(db: &Db, seed: u64) -> (Keyspace, Model) {
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let (mut model, mut rng) = (Model::new(), Rng::new(seed));
    (0..4).for_each(|_| change_and_flush(db, rows, &mut model, &mut rng));
    assert_eq!(db.parts.live.view().version.runs(rows.0).len(), 4);
    (rows, model)
}

#[test]
fn two_merges_of_one_keyspace_run_side_by_side() {
    for seed in 1..4 {
        let db = open();
        let (rows, model) = four_runs(&db, seed);
        let (outcomes, changes) = merge_side_by_side(&db, rows, seed);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(true))), "seed {seed}: {outcomes:?}");
        assert!(changes > 4, "seed {seed}: {changes} changes of turn");
        let view = db.parts.live.view();
        let ages: Vec<u64> = view.version.runs(rows.0).iter().map(|run| run.age).collect();
        assert!(ages.len() == 2 && ages[0] > ages[1], "seed {seed}: {ages:?}");
        let zones_of = |run: &Arc<Run>| -> BTreeSet<ZoneId> {
            run.pieces.iter().flat_map(|piece| &piece.desc().zones).map(|zone_use| zone_use.zone).collect()
        };
        let zones: Vec<BTreeSet<ZoneId>> = view.version.runs(rows.0).iter().map(zones_of).collect();
        let shared = zones[0].intersection(&zones[1]).count();
        // Those of metadata, and of what was flushed one behind the other and is stitched.
        assert!(shared <= 2 && zones[0].len() > 5, "seed {seed}: {shared} zones of {}", zones[0].len());
        compare(&db, rows, &model).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        db.parts.merger.reclaim(Budget::Deleting).expect("merges the rest");
        compare(&db, rows, &model).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn a_power_cut_at_any_step_of_two_merges_loses_nothing() {
    for seed in 1..3 {
        let device = crash_device();
        let db = open_on(Arc::clone(&device) as _);
        let (rows, model) = four_runs(&db, seed);
        let before = device.events_len();
        let (outcomes, _) = merge_side_by_side(&db, rows, seed);
        assert!(outcomes.iter().all(Result::is_ok), "seed {seed}: {outcomes:?}");
        let after = device.events_len();
        let mut half_way = 0;
        for event in (before..=after).step_by(2) {
            let mode = [CrashMode::KeepSubset, CrashMode::Tear][event / 2 % 2];
            let image = device.image_at(event, seed, mode).expect("is in the log");
            let opened = open_on(Arc::new(image));
            let rows = opened.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
            let count = opened.parts.live.view().version.runs(rows.0).len();
            half_way += usize::from(count > 4);
            let same = compare(&opened, rows, &model);
            same.unwrap_or_else(|error| panic!("seed {seed}, event {event} of {before}..{after}: {error}"));
        }
        assert!(half_way > 5, "seed {seed}: only {half_way} images have a merge under way");
    }
}

#[test]
fn a_failure_in_one_of_two_merges_stops_the_store_and_loses_nothing() {
    for (seed, nth) in [(1, 3), (2, 9), (3, 20), (4, 33)] {
        let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, CAPACITY)));
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        create(&shared);
        let db = open_on(Arc::clone(&shared));
        let (rows, model) = four_runs(&db, seed);
        let error = FaultError::Kind(std::io::ErrorKind::Other);
        device.add(FaultRule::once(Call::Write, nth, error));
        let (outcomes, _) = merge_side_by_side(&db, rows, seed);
        assert!(outcomes.iter().any(Result::is_err), "seed {seed}: {outcomes:?}");
        assert_eq!(db.parts.merger.merging.claims(), 0, "seed {seed}: the runs are given back");
        drop(db);
        device.clear();
        let db = open_on(shared);
        let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
        compare(&db, rows, &model).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        db.parts.merger.reclaim(Budget::Deleting).expect("merges what is there");
        compare(&db, rows, &model).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn what_is_flushed_during_a_large_merge_is_merged_beside_it() {
    let db = open();
    let (rows, mut model) = four_runs(&db, 5);
    let mut rng = Rng::new(6);
    let (large, held) = claim(&db.parts.merger, rows, 0..4);
    assert!(!db.parts.merger.merge_once().expect("looks"), "nothing is free");
    for _ in 0..2 {
        change_and_flush(&db, rows, &mut model, &mut rng);
    }
    while db.parts.merger.merge_once().expect("merges the new ones") {}
    assert_eq!(db.parts.live.view().version.runs(rows.0).len(), 5);
    assert!(finish(&db, large, &config(&db, Free)).expect("merges"));
    drop(held);
    assert_eq!(db.parts.live.view().version.runs(rows.0).len(), 2);
    compare(&db, rows, &model).expect("the same");
    while db.parts.merger.merge_once().expect("merges the two") {}
    compare(&db, rows, &model).expect("the same");
}

/// Holds no merge up.
struct Free;

impl Pace for Free {
    fn spend(&self, _bytes: u64) {}
}

/// Holds a merge up until it is opened.
#[derive(Clone, Default)]
struct Barrier(Arc<(Mutex<bool>, Condvar, AtomicBool)>);

impl Barrier {
    fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    fn wait_reached(&self) {
        while !self.0.2.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl Pace for Barrier {
    fn spend(&self, _bytes: u64) {
        self.0.2.store(true, Ordering::Release);
        let mut is_open = self.0.0.lock();
        while !*is_open {
            self.0.1.wait(&mut is_open);
        }
    }
}

/// Runs a merge that is under way, and has not come in, until the barrier is opened.
fn hold_up<'s, 'd: 's>(
    scope: &'s Scope<'s, 'd>,
    db: &'d Db,
    (merge, held): (Merge, Claim<'d>),
    barrier: &Barrier,
) -> ScopedJoinHandle<'s, kvfs_store::Result<bool>> {
    let shared = barrier.clone();
    let merging = scope.spawn(move || {
        let outcome = finish(db, merge, &config(db, shared));
        drop(held);
        outcome
    });
    barrier.wait_reached();
    merging
}

#[test]
fn exclusive_claim_waits_for_the_next_piece_of_a_merge_and_not_for_its_end() {
    let db = open();
    let (rows, model) = four_runs(&db, 7);
    let barrier = Barrier::default();
    std::thread::scope(|scope| {
        let merging = hold_up(scope, &db, claim(&db.parts.merger, rows, 0..4), &barrier);
        let reclaiming = scope.spawn(|| db.parts.merger.reclaim(Budget::Deleting));
        while !db.parts.merger.merging.is_wanted() {
            std::thread::yield_now();
        }
        assert!(!db.parts.merger.merge_once().expect("looks"), "nothing begins any more");
        barrier.open();
        assert!(!merging.join().expect("ends").expect("does not fail"), "it ended early");
        reclaiming.join().expect("ends").expect("merges");
    });
    assert_eq!(db.parts.live.view().version.runs(rows.0).len(), 1);
    compare(&db, rows, &model).expect("the same");
}

#[test]
fn compacting_waits_for_merges_of_others_and_goes_over_what_they_leave() {
    let db = open();
    let (rows, mut model) = four_runs(&db, 10);
    let barrier = Barrier::default();
    std::thread::scope(|scope| {
        let merging = hold_up(scope, &db, claim(&db.parts.merger, rows, 0..4), &barrier);
        let mut rng = Rng::new(11);
        (0..2).for_each(|_| change_and_flush(&db, rows, &mut model, &mut rng));
        let compacting = scope.spawn(|| db.compact());
        while db.parts.live.view().version.runs(rows.0).len() > 5 {
            std::thread::yield_now();
        }
        barrier.open();
        assert!(merging.join().expect("ends").expect("merges"));
        compacting.join().expect("ends").expect("merges");
    });
    assert_eq!(db.parts.live.view().version.runs(rows.0).len(), 1);
    compare(&db, rows, &model).expect("the same");
}

#[test]
fn compact_that_waits_when_the_store_is_closed_fails() {
    let db = open();
    let (rows, _) = four_runs(&db, 12);
    let barrier = Barrier::default();
    std::thread::scope(|scope| {
        let merging = hold_up(scope, &db, claim(&db.parts.merger, rows, 0..4), &barrier);
        let compacting = scope.spawn(|| db.compact());
        db.close().expect("closes");
        barrier.open();
        assert!(!merging.join().expect("ends").expect("does not fail"), "it ended early");
        let told = compacting.join().expect("ends");
        assert!(matches!(told, Err(StoreError::Failed { .. })), "{told:?}");
    });
}

/// Takes what space there is for runs.
fn take_all_space(db: &Db) -> Vec<Extent> {
    let zones = &db.parts.runtime.ctx.zones;
    let of =
        |&stream| std::iter::from_fn(move || zones.allocate_up_to(stream, ZONE_BYTES, Budget::Reserve).ok());
    Stream::ALL.iter().flat_map(of).collect()
}

#[test]
fn a_background_reclaim_that_could_not_flush_is_done_again_when_flushes_go_on() {
    let db = open();
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    write_run(&db, rows, 1, 100);
    let mut batch = Batch::new();
    batch.delete_range(rows, key(0), key(KEYS));
    db.apply(batch, Durability::Buffered).expect("applies");
    let taken = take_all_space(&db);
    db.parts.merger.background_reclaim(ReclaimReason::OldGarbage).expect("is no failure");
    assert_eq!(db.parts.live.view().version.runs(rows.0).len(), 1, "the deletion is in memory");
    assert!(
        db.parts.merger.merging.left_pass().is_some() && !db.parts.merger.reclaim_wanted(Budget::Ordinary),
        "nothing has changed so far"
    );

    for extent in taken {
        db.parts.runtime.ctx.zones.release(extent);
    }
    db.parts.flusher.flush_all().expect("flushes");
    assert!(
        db.parts.merger.merging.left_pass().is_some() && db.parts.merger.reclaim_wanted(Budget::Ordinary)
    );
    db.parts.merger.background_reclaim(ReclaimReason::OldGarbage).expect("merges");
    assert!(
        db.parts.merger.merging.left_pass().is_none() && !db.parts.merger.reclaim_wanted(Budget::Ordinary)
    );
    assert!(db.parts.live.view().version.runs(rows.0).is_empty(), "everything is gone");
}

#[test]
fn the_keyspace_that_owes_most_is_merged_first_and_among_equals_the_smallest() {
    let db = open();
    let keyspaces = ["even", "odd", "deep"].map(|name| {
        db.open_keyspace(name, KeyspaceKind::Block, None).expect("opens");
        db.open_keyspace(&format!("{name} rows"), KeyspaceKind::Tuple, None).expect("opens")
    });
    for (rows, runs, len) in [(keyspaces[0], 2, 200), (keyspaces[1], 2, 100), (keyspaces[2], 4, 100)] {
        (0..runs).for_each(|run| write_run(&db, rows, run, len));
    }
    let order: Vec<u32> = std::iter::from_fn(|| {
        let (due, claim) = db.parts.merger.claim_merge().expect("looks")?;
        std::mem::forget(claim);
        Some(due.keyspace)
    })
    .collect();
    assert_eq!(order, [keyspaces[2].0, keyspaces[1].0, keyspaces[0].0]);
}

#[test]
fn threads_merge_flush_reclaim_and_write_together() {
    let device = memory();
    let options = Options {
        background: Background::Threads,
        memtable_bytes: 256 << 10,
        merge_threads: 3,
        merge_bytes_per_second: 200 << 20,
        ..options()
    };
    let db = Db::open(Arc::clone(&device), options, Arc::new(SystemClock::new())).expect("opens");
    let keyspaces =
        [0, 1].map(|n| db.open_keyspace(&format!("k{n}"), KeyspaceKind::Tuple, None).expect("opens"));
    let models = std::thread::scope(|scope| {
        let writers = keyspaces.map(|rows| {
            let db = &db;
            scope.spawn(move || {
                let (mut model, mut rng) = (Model::new(), Rng::new(u64::from(rows.0)));
                for round in 0..60_u32 {
                    let mut batch = Batch::new();
                    for _ in 0..100 {
                        let number = rng.below(u64::from(KEYS)) as u32;
                        if rng.below(5) == 0 {
                            batch.delete(rows, key(number));
                            model.remove(&key(number));
                        } else {
                            let value = vec![round as u8; 100 + rng.index(900)];
                            batch.put(rows, key(number), value.clone());
                            model.insert(key(number), value);
                        }
                    }
                    db.apply(batch, Durability::Buffered).expect("applies");
                }
                model
            })
        });
        let reclaimer = scope.spawn(|| (0..5).try_for_each(|_| db.reclaim()));
        let models = writers.map(|writer| writer.join().expect("ends"));
        reclaimer.join().expect("ends").expect("reclaims");
        models
    });
    let compare_all = |db: &Db| {
        for (rows, model) in keyspaces.iter().zip(&models) {
            compare(db, *rows, model).expect("the same");
        }
    };
    compare_all(&db);
    db.close().expect("closes");
    compare_all(&open_on(device));
}

#[test]
fn clearing_up_at_leisure_leaves_new_runs_to_others() {
    let (db, barrier) = (open(), Barrier::default());
    let (rows, mut model) = four_runs(&db, 8);
    std::thread::scope(|scope| {
        let alone = db.parts.merger.merging.exclusive(|| ());
        let merge = db.parts.merger.stepper.merge_of(rows.0, db.parts.live.view().version.runs(rows.0));
        let held = alone.narrow(merge.runs());
        let clearing = hold_up(scope, &db, (merge, held), &barrier);
        let mut rng = Rng::new(9);
        (0..2).for_each(|_| change_and_flush(&db, rows, &mut model, &mut rng));
        while db.parts.merger.merge_once().expect("merges the new ones") {}
        barrier.open();
        assert!(clearing.join().expect("ends").expect("merges"));
    });
    assert_eq!(db.parts.live.view().version.runs(rows.0).len(), 2);
    db.parts.merger.background_reclaim(ReclaimReason::OldGarbage).expect("merges all");
    assert_eq!(db.parts.live.view().version.runs(rows.0).len(), 1);
    compare(&db, rows, &model).expect("the same");
}

#[test]
fn a_round_beside_a_pass_that_has_all_runs_is_not_in_vain() {
    let db = open();
    let mut rounds = Rounds::of(&db.parts.merger);
    let alone = db.parts.merger.claim_all();
    assert!(rounds.wait_for_others() && !rounds.is_last_in_vain(), "the pass ends by itself");
    drop(alone);
    assert!(rounds.wait_for_others() && rounds.is_last_in_vain(), "nothing is under way");
}

#[test]
fn merges_read_none_of_what_they_only_stitch() {
    let device = Arc::new(CountingDevice::new(memory()));
    let mut options = options();
    options.merge.piece_bytes = 8 << 20;
    let db = open_with(Arc::clone(&device) as _, options);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    for part in 0..4 {
        let mut batch = Batch::new();
        let numbers = part * KEYS..(part + 1) * KEYS;
        numbers.for_each(|number| batch.put(rows, key(number), vec![1; 200]));
        db.apply(batch, Durability::Buffered).expect("applies");
        db.parts.sequencer.seal_if(|active| active.bytes() > 0);
        db.parts.flusher.flush_all().expect("flushes");
    }
    let data_bytes: u64 = db.parts.live.view().version.runs(rows.0).iter().map(|run| run.data_bytes()).sum();
    let before = device.counts().bytes_read;
    while db.parts.merger.merge_once().expect("merges") {}
    let read_bytes = device.counts().bytes_read - before;
    assert!(db.parts.live.view().version.runs(rows.0).len() < 4, "they were merged");
    assert!(read_bytes < data_bytes / 8, "fingerprints alone: {read_bytes} of {data_bytes} bytes");
    for number in 0..4 * KEYS {
        assert_eq!(db.get(rows, &key(number)).expect("reads").expect("is there"), vec![1; 200]);
    }
}

const BLOCKS: u64 = 2048;

/// Writes all blocks of a file, and then all but one in `apart` once more: what is left of the first run lies
/// so far apart.
fn write_apart(db: &Db, data: Keyspace, apart: u64) {
    for (fill, skipped) in [(1, 0), (2, 1)] {
        for first in (0..BLOCKS).step_by(apart as usize) {
            let mut batch = Batch::new();
            let bytes = (apart - skipped) as usize * BLOCK_BYTES;
            batch.put_blocks(data, b"file".as_slice(), first + skipped, vec![fill; bytes]);
            db.apply(batch, Durability::Buffered).expect("applies");
        }
        db.parts.sequencer.seal_if(|active| active.bytes() > 0);
        db.parts.flusher.flush_all().expect("flushes");
    }
}

/// Merges what [`write_apart`] wrote, and reads it back. How much the merge has read (bytes).
fn merge_apart(device: &CountingDevice<Arc<dyn Device>>, db: &Db, data: Keyspace, apart: u64) -> u64 {
    let before = device.counts().bytes_read;
    db.parts.merger.background_reclaim(ReclaimReason::OldGarbage).expect("merges all");
    let read_bytes = device.counts().bytes_read - before;
    assert_eq!(db.parts.live.view().version.runs(data.0).len(), 1);
    for number in 0..BLOCKS {
        let mut found = vec![0; BLOCK_BYTES];
        db.snapshot().expect("a snapshot").read_blocks(data, b"file", number, &mut found).expect("reads");
        assert_eq!(found[0], if number % apart == 0 { 1 } else { 2 }, "block {number}");
    }
    read_bytes
}

#[test]
fn merges_read_little_of_what_lies_between_copies() {
    let device = Arc::new(CountingDevice::new(memory()));
    let db = open_with(Arc::clone(&device) as _, options());
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    write_apart(&db, data, 64);
    let read_bytes = merge_apart(&device, &db, data, 64);
    let copied_bytes = BLOCKS / 64 * BLOCK_BYTES as u64;
    assert!(read_bytes < 8 * copied_bytes, "{read_bytes} bytes were read to copy {copied_bytes}");
}

#[test]
fn merges_copy_whole_sectors_whatever_the_memory() {
    let device = Arc::new(CountingDevice::new(memory()));
    let mut options = Options { memory_bytes: (12 << 20) + 12_345, ..options() };
    options.merge.stitch_bytes_min = u64::MAX;
    let db = open_with(Arc::clone(&device) as _, options);
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    write_apart(&db, data, 4);
    assert!(merge_apart(&device, &db, data, 4) >= BLOCKS * BLOCK_BYTES as u64, "everything was copied");
}
