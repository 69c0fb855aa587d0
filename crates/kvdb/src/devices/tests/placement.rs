//! Where blocks come to lie that wish to lie somewhere, and those that a policy places.

use kvfs_device::WatchedDevice;
use kvfs_store::{Place, TierBytes, Transactions, TxnOptions};

use super::*;
use crate::{MergeOptions, MigrationPlan, Placement};

/// All wishes are in one keyspace of tuples.
pub(super) fn wishes(db: &Db) -> Keyspace {
    let keyspace = db.open_keyspace("wishes", KeyspaceKind::Tuple, None).expect("opens");
    db.place_by(files(db), keyspace).expect("is heeded");
    keyspace
}

pub(super) fn wish(db: &Db, file: u64, tier: Option<Tier>) -> Batch {
    let (mut batch, keyspace) = (Batch::new(), wishes(db));
    let key = file.to_be_bytes().to_vec();
    match tier {
        Some(tier) => batch.put(keyspace, key, vec![tier.code()]),
        None => batch.delete(keyspace, key),
    }
    batch
}

fn set(db: &Db, file: u64, tier: Option<Tier>) {
    db.apply(wish(db, file, tier), Durability::Buffered).expect("is noted");
}

/// A store with a slow device, of which every merge copies.
fn store(mut options: Options) -> (Arc<Db>, Arc<dyn Device>, Arc<dyn Device>) {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    options.merge.stitch_bytes_min = u64::MAX;
    let db = open(&first, &[], options).expect("opens");
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    (db, first, slow)
}

/// A store with a slow device, which goes by `clock`.
fn timed(clock: &Arc<ManualClock>) -> Arc<Db> {
    timed_over(&first(), clock)
}

fn timed_over(first: &Arc<dyn Device>, clock: &Arc<ManualClock>) -> Arc<Db> {
    create(first);
    let db = Db::open_joined(Arc::clone(first), &[], options(), Arc::clone(clock) as _).expect("opens");
    db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    db
}

fn placement(name: &str) -> Placement {
    name.parse().expect("is a placement")
}

/// Blocks on the slow device.
fn on_slow(db: &Db) -> u64 {
    live(db, 1) / BLOCK_BYTES as u64
}

const FILES_BLOCKS: u64 = FILES * BLOCKS;

#[test]
fn new_blocks_go_to_the_tier_that_their_file_wishes_for() {
    // By way of the memtable, and bound in the same batch as the wish.
    for bind_bytes_min in [usize::MAX, 1 << 16] {
        let (db, ..) = store(Options { bind_bytes_min, ..options() });
        for file in 0..FILES {
            let mut batch = wish(&db, file, [None, Some(Tier::Fast), Some(Tier::Slow)][file as usize % 3]);
            batch.put_blocks(files(&db), file.to_be_bytes().to_vec(), 0, content(file, 1));
            db.apply(batch, Durability::Buffered).expect("writes");
        }
        (0..FILES).for_each(|file| {
            let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
            let mut batch = Batch::new();
            batch.put(rows, file.to_be_bytes().to_vec(), 1_u64.to_be_bytes().to_vec());
            db.apply(batch, Durability::Buffered).expect("writes");
        });
        db.flush().expect("flushes");
        let slow = FILES_BLOCKS / 3 * 2;
        assert!((slow..slow / 16 * 17).contains(&on_slow(&db)), "{} of {slow} blocks", on_slow(&db));
        check(&db, 1);
    }
}

#[test]
fn bytes_of_a_file_are_told_by_the_tier_on_which_they_lie() {
    let (db, ..) = store(options());
    let [fast, slow] = [(0, Tier::Fast), (1, Tier::Slow)].map(|(file, tier)| {
        let mut batch = wish(&db, file, Some(tier));
        batch.put_blocks(files(&db), file.to_be_bytes().to_vec(), 0, content(file, 1));
        db.apply(batch, Durability::Buffered).expect("writes");
        file.to_be_bytes()
    });
    let told = |prefix: &[u8], blocks| db.bytes_by_tier(files(&db), prefix, blocks).expect("tells");
    assert_eq!(told(&fast, 0..BLOCKS), TierBytes::default(), "it is in memory");
    db.flush().expect("flushes");
    let all = BLOCKS * BLOCK_BYTES as u64;
    assert_eq!(told(&fast, 0..u64::MAX), TierBytes { fast: all, slow: 0 });
    assert_eq!(told(&slow, 0..u64::MAX), TierBytes { fast: 0, slow: all });
    assert_eq!(told(&slow, 1..3), TierBytes { fast: 0, slow: 2 * BLOCK_BYTES as u64 });
    assert_eq!(told(&slow, BLOCKS..u64::MAX), TierBytes::default());
}

#[test]
fn spilled_blocks_of_a_transaction_go_to_the_tier_that_it_wishes_for() {
    let (db, ..) = store(Options { private_bytes: 64 << 10, batch_commit_bytes_max: 64 << 10, ..options() });
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for file in 0..FILES {
        let mut batch = wish(&db, file, Some(Tier::Fast));
        batch.put_blocks(files(&db), file.to_be_bytes().to_vec(), 0, content(file, 1));
        txn.apply(batch).expect("writes");
    }
    txn.commit(Durability::Synced).expect("commits");
    db.flush().expect("flushes");
    assert!(on_slow(&db) < FILES_BLOCKS / 8, "{} blocks", on_slow(&db));
}

#[test]
fn blocks_go_to_the_tier_of_a_changed_wish_when_a_merge_copies_them() {
    let (db, first, slow) = store(options());
    let write_all = |db: &Db, version: u64| {
        for file in 0..FILES {
            write(db, file, version).expect("writes");
            // So that there is a run for each.
            db.flush().expect("flushes");
        }
    };
    write_all(&db, 1);
    assert!(on_slow(&db) >= FILES_BLOCKS);
    (0..FILES).for_each(|file| set(&db, file, Some(Tier::Fast)));
    db.reclaim().expect("reclaims");
    db.compact().expect("merges");
    let before = on_slow(&db);
    db.close().expect("closes");
    drop(db);

    // The store is told of the wishes anew.
    let merge = MergeOptions { stitch_bytes_min: u64::MAX, ..MergeOptions::default() };
    let db = open(&first, &[slow], Options { merge, ..options() }).expect("opens");
    wishes(&db);
    assert!(before < FILES_BLOCKS / 8, "{before} blocks");
    check(&db, 1);
    (0..FILES).for_each(|file| set(&db, file, None));
    write_all(&db, 2);
    assert!(on_slow(&db) >= FILES_BLOCKS, "without a wish new blocks are slow again");
    check(&db, 2);
}

#[test]
fn a_full_tier_is_no_reason_to_refuse_blocks_that_wish_for_it() {
    let (db, ..) = store(options());
    let fill = |from: u64, tier| {
        (from..1000)
            .take_while(|&file| {
                let mut batch = wish(&db, file, Some(tier));
                batch.put_blocks(files(&db), file.to_be_bytes().to_vec(), 0, content(file, 1));
                db.apply(batch, Durability::Buffered).is_ok()
            })
            .count() as u64
    };
    let fitted = fill(0, Tier::Fast);
    // Both devices together, but for the reserve.
    assert!(fitted > 160, "{fitted} files of one zone each");
    assert!(on_slow(&db) > 100 * BLOCKS, "{} blocks", on_slow(&db));
    let mut batch = Batch::new();
    batch.delete_range(files(&db), vec![0; 8], vec![0xff; 8]);
    db.apply(batch, Durability::Synced).expect("deletes");
    db.flush().expect("flushes");
    db.reclaim().expect("reclaims");
    assert!(fill(2000, Tier::Slow) == 0 && fill(0, Tier::Slow) > 160);
}

#[test]
fn a_policy_tells_long_stretches_from_short_ones() {
    let (db, ..) = store(Options { placement: Some(placement("sequential-to-slow")), ..options() });
    assert_eq!(db.placement(), placement("sequential-to-slow"));
    let rows = |file: u64, first: u64, blocks: u64| {
        let mut batch = Batch::new();
        let data: Vec<u8> = vec![file as u8; (blocks * BLOCK_BYTES as u64) as usize];
        batch.put_blocks(files(&db), file.to_be_bytes().to_vec(), first, data);
        db.apply(batch, Durability::Buffered).expect("writes");
    };
    // 2 MiB in a row, in pieces; then single blocks here and there.
    (0..32).for_each(|at| rows(1, at * 16, 16));
    db.flush().expect("flushes");
    let long = on_slow(&db);
    assert!((512..512 / 16 * 17).contains(&long), "{long} blocks");
    (0..512).for_each(|at| rows(2, at * 3, 1));
    db.flush().expect("flushes");
    assert_eq!(on_slow(&db), long);
    db.set_placement(Placement::default());
    (0..64).for_each(|at| rows(3, at * 3, 1));
    db.flush().expect("flushes");
    assert!(on_slow(&db) >= long + 64, "the change is heeded at once");
}

#[test]
fn a_kept_placement_is_used_by_every_opening_that_says_nothing_else() {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let refused = db.keep_placement(placement("hot-cold")).expect_err("there is no choice");
    assert!(refused.to_string().contains("add a slow one first"), "{refused}");
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    let reopened = |db: Arc<Db>, options: Options| {
        db.close().expect("closes");
        drop(db);
        open(&first, &[Arc::clone(&slow)], options).expect("opens")
    };
    let db = reopened(db, options());
    assert_eq!(db.placement(), Placement::default());
    db.keep_placement(placement("hot-cold+endurance:20G")).expect("keeps");
    db.set_placement(placement("static"));
    let db = reopened(db, options());
    assert_eq!(db.placement(), placement("hot-cold+endurance:20G"));
    let said = Some(placement("sequential-to-slow"));
    let db = reopened(db, Options { placement: said, ..options() });
    assert_eq!((db.placement(), db.endurance()), (placement("sequential-to-slow"), None));
    let db = reopened(db, options());
    assert_eq!(db.placement(), placement("hot-cold+endurance:20G"));
    assert_eq!(db.endurance().map(|budget| budget.bytes_per_day), Some(20 << 30));
}

#[test]
fn fast_devices_are_written_to_within_5_percent_of_the_budget_of_any_day() {
    const BUDGET: u64 = 64 << 20;
    const STEPS_PER_DAY: usize = 96;
    let clock = Arc::new(ManualClock::at(Duration::from_hours(9)));
    let (first, slow) = (Arc::new(WatchedDevice::over(first())), memory(SLOW_BYTES));
    create(&(Arc::clone(&first) as _));
    let policy = placement(&format!("sequential-to-slow+endurance:{BUDGET}"));
    let opened = |others: &[Arc<dyn Device>]| {
        Db::open_joined(Arc::clone(&first) as _, others, options(), Arc::clone(&clock) as _).expect("opens")
    };
    let mut db = opened(&[]);
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    db.keep_placement(policy).expect("keeps");
    let written = || first.traffic().writes.bytes;
    let mut samples = vec![written()];
    for step in 0..STEPS_PER_DAY * 3 {
        // Twice as much as the budget; rows and journal come on top.
        let version = step as u64 + 1;
        (0..6).for_each(|file| write(&db, (step as u64 * 6 + file) % FILES, version).expect("writes"));
        db.flush().expect("flushes");
        if step % 8 == 0 {
            db.reclaim().expect("reclaims");
        }
        clock.advance(Duration::from_mins(15));
        samples.push(written());
        if step == STEPS_PER_DAY * 3 / 2 {
            db.close().expect("closes");
            drop(db);
            db = opened(&[Arc::clone(&slow)]);
        }
    }
    let days = samples.windows(STEPS_PER_DAY + 1).map(|day| day[STEPS_PER_DAY] - day[0]);
    let (least, most) = (days.clone().min().expect("some"), days.max().expect("some"));
    assert!(most <= BUDGET / 100 * 105, "{most} of {BUDGET} bytes in one day");
    assert!(least >= BUDGET / 100 * 90, "{least} of {BUDGET} bytes in one day");
    let told = db.endurance().expect("has a budget").bytes_last_day;
    assert!((BUDGET / 100 * 90..BUDGET / 100 * 105).contains(&told), "{told} bytes are told of");
    check(&db, 1);
}

#[test]
fn migration_waits_for_the_budget_of_fast_devices_and_new_content_with_a_wish_does_not() {
    let clock = Arc::new(ManualClock::at(Duration::from_hours(9)));
    let db = timed(&clock);
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    // An hour's part is a mebibyte.
    db.set_placement(placement("endurance:24M"));
    (0..8).for_each(|file| {
        set(&db, file, Some(Tier::Fast));
        write(&db, file, 2).expect("writes");
    });
    db.flush().expect("flushes");
    assert!(live(&db, 0) >= 8 * BLOCKS * BLOCK_BYTES as u64, "a wish is followed whatever is spent");
    assert!(db.endurance().is_some_and(|budget| budget.spent_for > Duration::from_mins(30)));
    (8..FILES).for_each(|file| set(&db, file, Some(Tier::Fast)));
    let advance = |time| {
        clock.advance(time);
        db.parts.migrator.advance(&mut |_| true).expect("looks");
    };
    advance(Duration::ZERO);
    advance(Duration::from_mins(1));
    let why = db.migration().trouble;
    assert!(why.as_ref().is_some_and(|why| why.contains("placement allows")), "{why:?}");
    (0..24).for_each(|_| advance(Duration::from_hours(1)));
    assert_eq!((db.migration_plan().expect("plans").bytes(), db.migration().trouble), (0, None));
    check(&db, 1);
}

#[test]
fn migration_moves_what_a_changed_wish_or_a_new_device_asks_for() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    (0..FILES).for_each(|file| set(&db, file, [None, Some(Tier::Slow)][file as usize % 2]));
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    let never = &mut |_| panic!("there is nothing to move");
    assert_eq!(db.migration_plan().expect("plans"), MigrationPlan::default(), "there is no slow device");
    assert!(db.migrate(never).expect("migrates"));

    db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    let half = FILES / 2 * BLOCKS * BLOCK_BYTES as u64;
    let plan = db.migration_plan().expect("plans");
    assert_eq!(plan, MigrationPlan { bytes_to_fast: 0, bytes_to_slow: half, bytes_movable: half });
    assert!(!db.migrate(&mut |left| left == 0).expect("migrates"), "it was told to end");
    let mut told = Vec::new();
    let mut tell = |left| {
        told.push(left);
        true
    };
    assert!(db.migrate(&mut tell).expect("migrates"));
    assert_eq!(told[0], half);
    assert_eq!(db.migration_plan().expect("plans").bytes(), 0);
    // With the copies of indexes, which lie beside the data.
    assert!((FILES_BLOCKS / 2..FILES_BLOCKS / 8 * 5).contains(&on_slow(&db)), "{} blocks", on_slow(&db));
    check(&db, 1);

    // What is not flushed counts, too; what has no wish stays where it is.
    (0..FILES).for_each(|file| set(&db, file, [Some(Tier::Slow), Some(Tier::Fast)][file as usize % 2]));
    (0..FILES / 2).for_each(|file| write(&db, file, 2).expect("writes"));
    assert!(db.migrate(&mut |_| true).expect("migrates"));
    assert_eq!(db.migration_plan().expect("plans").bytes(), 0);
    (0..FILES).for_each(|file| set(&db, file, None));
    assert_eq!(db.migration_plan().expect("plans").bytes(), 0);
    db.compact().expect("merges");
    db.reclaim().expect("reclaims");
    let slow = on_slow(&db);
    assert!((FILES_BLOCKS / 2..FILES_BLOCKS / 8 * 5).contains(&slow), "{slow} of {FILES_BLOCKS} blocks");
    check(&db, 1);
}

#[test]
fn migration_moves_the_rest_beside_an_index_that_can_not_be_read() {
    let faulty = |inner: MemoryDevice| Arc::new(FaultDevice::new(inner));
    let first_device = faulty(MemoryDevice::growable(0, FIRST_ZONES * ZONE_BYTES));
    let slow = faulty(MemoryDevice::new(SLOW_BYTES));
    let shared = Arc::clone(&first_device) as Arc<dyn Device>;
    let others = [Arc::clone(&slow) as Arc<dyn Device>];
    create(&shared);
    let db = open(&shared, &[], options()).expect("opens");
    db.add_device(Arc::clone(&others[0]), Tier::Slow).expect("adds");
    for file in 0..FILES {
        write(&db, file, 1).expect("writes");
        db.flush().expect("flushes");
    }
    (0..FILES).for_each(|file| set(&db, file, Some(Tier::Fast)));
    db.close().expect("closes");
    drop(db);

    // No metadata stays in memory.
    let db = open(&shared, &others, Options { memory_bytes: 1, ..options() }).expect("opens");
    wishes(&db);
    let view = db.parts.live.view();
    let pieces: Vec<_> = view.version.runs(files(&db).0).iter().flat_map(|run| &run.pieces).collect();
    assert!(pieces.len() > 2, "{} pieces", pieces.len());
    lose(&db, &first_device, &slow, &pieces[1].metadata_places());
    let blocks = pieces[1].desc().data_bytes / BLOCK_BYTES as u64;
    drop(view);
    let before = on_slow(&db);
    assert!(db.migration_plan().expect("plans the rest").bytes() > 0);
    db.heat_map(64, &mut || true).expect("shows the rest");
    let migrated = db.migrate(&mut |_| true);
    assert!(matches!(migrated, Err(StoreError::Io { .. })), "{migrated:?}");
    assert!(on_slow(&db) <= before / 8 + 2 * blocks, "{} of {before} blocks are left", on_slow(&db));
    assert_eq!(db.failure(), None);
    first_device.clear();
    slow.clear();
    assert!(db.migrate(&mut |_| true).expect("reads it again"));
    check(&db, 1);
}

#[test]
fn migration_ends_where_the_tier_is_full_and_goes_on_where_it_has_room() {
    let (db, ..) = store(options());
    // More than the first device holds.
    let files = 110;
    (0..files).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    (0..files).for_each(|file| set(&db, file, Some(Tier::Fast)));
    let begin = db.migration_plan().expect("plans");
    assert!(begin.bytes_movable < begin.bytes() / 10 * 9, "{begin:?}");
    assert!(!db.migrate(&mut |_| true).expect("migrates"));
    db.parts.migrator.advance(&mut |_| true).expect("waits");
    assert_eq!(db.migration().trouble, None, "the background has not tried yet");
    let left = db.migration_plan().expect("plans");
    assert!(left.bytes() < begin.bytes() && left.bytes() > 0, "{begin:?}, {left:?}");
    let kept = db.devices()[0].bytes_free / ZONE_BYTES;
    assert!(kept >= 6, "{kept} zones are left to rows and the manifest");
    // A quarter of them fits.
    (0..files / 4 * 3).for_each(|file| set(&db, file, Some(Tier::Slow)));
    assert!(db.migrate(&mut |_| true).expect("migrates"));
    assert_eq!(db.migration_plan().expect("plans").bytes(), 0);
    check(&db, 1);
}

#[test]
fn migration_moves_a_part_of_a_piece_where_there_is_no_room_for_all_of_it() {
    let (db, ..) = store(options());
    // More than the first device has room for, in one piece.
    let files = 75;
    (0..files).for_each(|file| write(&db, file, 1).expect("writes"));
    db.compact().expect("merges");
    (0..files).for_each(|file| set(&db, file, Some(Tier::Fast)));
    let begin = db.migration_plan().expect("plans");
    assert!(!db.migrate(&mut |_| true).expect("migrates"));
    let left = db.migration_plan().expect("plans");
    let moved = begin.bytes() - left.bytes();
    assert!(moved > 4 * ZONE_BYTES && left.bytes() > 0, "{begin:?}, {left:?}");
    assert!(db.migration().bytes_moved.abs_diff(moved) < ZONE_BYTES, "{:?}", db.migration());
    check(&db, 1);
}

#[test]
fn power_cut_at_any_step_of_a_migration_loses_nothing() {
    let (whole, parts) = cut_together();
    let shared = Arc::clone(&whole) as Arc<dyn Device>;
    let (first, slow) = parts(&shared);
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    db.add_device(slow, Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    (0..FILES).for_each(|file| {
        db.apply(wish(&db, file, Some(Tier::Fast)), Durability::Synced).map(drop).expect("is noted");
    });
    let begin = whole.events_len();
    assert!(db.migrate(&mut |_| true).expect("migrates"));
    let end = whole.events_len();
    for event in (begin..=end).step_by(((end - begin) / 40).max(1)) {
        let image: Arc<dyn Device> =
            Arc::new(whole.image_at(event, 7, CrashMode::KeepSubset).expect("is in the log"));
        let (first, slow) = parts(&image);
        let db = open(&first, &[slow], options()).unwrap_or_else(|error| panic!("event {event}: {error}"));
        wishes(&db);
        check(&db, 1);
        assert!(db.migrate(&mut |_| true).expect("migrates"), "event {event}");
        assert!(on_slow(&db) == 0, "event {event}");
        check(&db, 1);
    }
}

#[test]
fn background_migrates_after_a_change_and_rests_in_between() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    let db = timed(&clock);
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    wishes(&db);
    let stat = |name: &str| {
        db.stats().into_iter().find(|(known, _)| known == name).map(|(_, value)| value).expect("is told")
    };
    let advance = |seconds| {
        clock.advance(Duration::from_secs(seconds));
        db.parts.migrator.advance(&mut |_| true).expect("migrates");
        stat("migration.bytes_moved") / BLOCK_BYTES as u64
    };
    assert_eq!(db.migration().looked_ago, None, "the background has not looked yet");
    assert_eq!([advance(0), advance(31)], [0, 0]);
    clock.advance(Duration::from_secs(12));
    assert_eq!(db.migration().looked_ago, Some(Duration::from_secs(12)));
    (0..FILES / 2).for_each(|file| set(&db, file, Some(Tier::Fast)));
    assert_eq!([advance(1), advance(18), advance(60)], [0, FILES_BLOCKS / 2, FILES_BLOCKS / 2]);
    assert_eq!(stat("migration.bytes_left"), 0);
    assert_eq!(db.migration().trouble, None);
    (0..FILES / 2).for_each(|file| set(&db, file, None));
    (FILES / 2..FILES).for_each(|file| set(&db, file, Some(Tier::Fast)));
    assert_eq!(advance(60), FILES_BLOCKS);
    check(&db, 1);
    // What can't be moved is told of, and tried again.
    (0..FILES).for_each(|file| set(&db, file, Some(Tier::Slow)));
    clock.advance(Duration::from_mins(1));
    db.parts.migrator.advance(&mut |_| false).expect("is told to end");
    let info = db.migration();
    assert!(info.bytes_left == FILES_BLOCKS * BLOCK_BYTES as u64 && info.trouble.is_some(), "{info:?}");
    assert_eq!([advance(60), advance(600)], [FILES_BLOCKS, FILES_BLOCKS * 2]);
    assert_eq!((db.migration().bytes_left, db.migration().trouble), (0, None));
}

#[test]
fn background_migrates_in_rounds_between_which_devices_are_drained() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    let db = timed(&clock);
    (0..FILES).for_each(|file| {
        write(&db, file, 1).expect("writes");
        db.flush().expect("flushes");
    });
    (0..FILES).for_each(|file| set(&db, file, Some(Tier::Fast)));
    let slowly = || {
        let mut pieces = 0;
        db.parts.migrator.advance(&mut |_| {
            pieces += 1;
            clock.advance(Duration::from_secs(10));
            true
        })?;
        Ok::<_, StoreError>(pieces)
    };
    assert_eq!(slowly().expect("waits"), 0);
    clock.advance(Duration::from_mins(1));
    assert!(db.migration_plan().expect("plans").bytes() > 0);
    let mut rounds = 0;
    while db.migration_plan().expect("plans").bytes() > 0 {
        let pieces = slowly().expect("migrates");
        assert!((1..=8).contains(&pieces), "a round of {pieces} pieces takes longer than half a minute");
        assert_eq!(db.parts.migrator.rest(Duration::MAX), Duration::ZERO, "the next one follows at once");
        rounds += 1;
    }
    assert!(rounds > 1, "all was moved in one round");
    assert_eq!(slowly().expect("looks"), 0);
    assert_eq!(db.parts.migrator.rest(Duration::MAX), Duration::MAX, "nothing is left");
    check(&db, 1);
}

/// Of its first region.
pub(super) fn addr_of(db: &Db, file: u64) -> u64 {
    let view = db.parts.live.view();
    for piece in view.version.runs(files(db).0).iter().flat_map(|run| &run.pieces) {
        for layer in piece.index().expect("reads").layers() {
            let mut regions = (0..layer.len()).map(|at| layer.region(at));
            if let Some(region) = regions.find(|region| region.prefix[..] == file.to_be_bytes()) {
                return region.addr;
            }
        }
    }
    panic!("file {file} is nowhere")
}

fn tier_of(db: &Db, file: u64) -> Tier {
    db.parts.runtime.ctx.zones.tier_at(addr_of(db, file))
}

#[test]
fn what_is_often_asked_for_comes_to_the_fast_tier_in_the_place_of_what_is_not() {
    let (db, ..) = store(options());
    let files = 80;
    (0..files).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    // Some more fills the fast tier, and is never asked for.
    db.set_placement(placement("hot-cold"));
    let mut filler = 0;
    while db.devices()[0].bytes_free > 16 * ZONE_BYTES {
        write(&db, files + filler, 1).expect("writes");
        db.flush().expect("flushes");
        filler += 1;
    }
    let ask = |hot: std::ops::Range<u64>| {
        let mut blocks = AlignedBuf::zeroed(4 * BLOCK_BYTES);
        for time in 0..1600 {
            for file in hot.clone() {
                let first = (time * 7 + file) % (BLOCKS - 4);
                db.read_blocks(self::files(&db), &file.to_be_bytes(), first, blocks.as_mut()).expect("reads");
            }
        }
    };
    let places = |of: std::ops::Range<u64>| of.filter(|&file| tier_of(&db, file) == Tier::Fast).count();
    assert_eq!(places(0..files), 0, "all of it is on the slow tier, with {filler} more on the fast one");
    ask(0..5);
    db.migrate(&mut |_| true).expect("migrates");
    assert_eq!(places(0..5), 5);
    assert_eq!(places(5..files), 0, "these were not asked for");
    ask(40..45);
    db.migrate(&mut |_| true).expect("migrates");
    assert_eq!(places(40..45), 5);
    let stayed = places(files..files + filler);
    assert!(stayed < filler as usize, "all {filler} others are on the fast tier still");
    // A change of policy leaves everything where it is.
    db.set_placement(Placement::default());
    assert_eq!(db.migration_plan().expect("plans").bytes(), 0);
    let checked = db.check().expect("checks");
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}

/// A store by the clock of the machine, all of whose files lie on the slow device and wish for the fast one.
fn with_all_to_migrate() -> Arc<Db> {
    let first = first();
    create(&first);
    let db = Db::open_joined(first, &[], options(), Arc::new(kvfs_store::clock::SystemClock::new()))
        .expect("opens");
    db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    wishes(&db);
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    (0..FILES).for_each(|file| set(&db, file, Some(Tier::Fast)));
    db
}

#[test]
fn migration_keeps_its_limit_and_tells_how_fast_it_gets_on() {
    let db = with_all_to_migrate();
    let bytes = FILES_BLOCKS * BLOCK_BYTES as u64;
    db.set_migration_limit(bytes * 5);
    assert!(db.migrate(&mut |_| true).expect("migrates"));
    let info = db.migration();
    assert_eq!((info.bytes_moved, info.limit, info.is_moving), (bytes, bytes * 5, false));
    assert!(info.took >= Duration::from_millis(180), "a fifth of a second: {info:?}");
}

#[test]
fn migration_with_a_limit_ends_soon_where_space_is_wanted() {
    let db = with_all_to_migrate();
    db.set_migration_limit(64 << 10);
    thread::scope(|scope| {
        let migrates = scope.spawn(|| db.migrate(&mut |_| true));
        while db.parts.merger.claims() == 0 {
            thread::yield_now();
        }
        db.parts.merger.end_merges();
        db.set_migration_limit(0);
        assert!(migrates.join().expect("ends").expect("migrates"));
    });
}

/// Four of such files fill a zone.
const LENGTH: usize = BLOCKS as usize / 4 * BLOCK_BYTES;

/// Fills three quarters of the fast device with short files, and deletes three of four: each zone keeps
/// something. How many there were.
fn crowd(db: &Db) -> u64 {
    db.set_placement(placement("sequential-to-slow"));
    let fast = || db.devices()[0].clone();
    let mut files = 0;
    while fast().bytes_free > fast().bytes_total / 4 {
        for file in files..files + 8 {
            let mut batch = Batch::new();
            let blocks = content(file, 1).slice(..LENGTH);
            batch.put_blocks(self::files(db), file.to_be_bytes().to_vec(), 0, blocks);
            db.apply(batch, Durability::Buffered).expect("writes");
        }
        files += 8;
        db.flush().expect("flushes");
    }
    for file in (0..files).filter(|file| file % 4 != 0) {
        let mut batch = Batch::new();
        let (from, to) = (file.to_be_bytes().to_vec(), (file + 1).to_be_bytes().to_vec());
        batch.delete_range(self::files(db), from, to);
        db.apply(batch, Durability::Buffered).expect("deletes");
    }
    db.flush().expect("flushes");
    db.compact().expect("merges");
    files
}

#[test]
fn fast_device_full_of_what_is_dead_is_emptied_while_the_slow_one_has_room() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    let db = timed(&clock);
    let fast = || db.devices()[0].clone();
    let files = crowd(&db);
    let before = fast().bytes_free;
    for _ in 0..8 {
        clock.advance(Duration::from_secs(40));
        db.parts.migrator.advance(&mut |_| true).expect("makes room");
    }
    let after = fast();
    assert!(after.bytes_free > before + after.bytes_total / 8, "{before} bytes were free, now {after:?}");
    let mut blocks = AlignedBuf::zeroed(LENGTH);
    for file in (0..files).step_by(4) {
        db.read_blocks(self::files(&db), &file.to_be_bytes(), 0, blocks.as_mut()).expect("reads");
        assert!(blocks.as_ref() == &content(file, 1)[..LENGTH], "file {file}");
    }
}

#[test]
fn migration_goes_on_where_a_crowded_fast_device_can_not_be_read() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    let first = Arc::new(FaultDevice::new(MemoryDevice::growable(0, FIRST_ZONES * ZONE_BYTES)));
    let db = timed_over(&(Arc::clone(&first) as _), &clock);
    wishes(&db);
    let files = crowd(&db);
    for file in (4..files).step_by(4) {
        let at = addr_of(&db, file);
        first.lose(at..at + BLOCK_BYTES as u64);
    }
    set(&db, 0, Some(Tier::Slow));
    let mut failed = 0;
    for _ in 0..8 {
        clock.advance(Duration::from_secs(40));
        failed += u32::from(db.parts.migrator.advance(&mut |_| true).is_err());
    }
    assert_eq!((tier_of(&db, 0), failed), (Tier::Slow, 1), "what can't be read is not tried again at once");
}
