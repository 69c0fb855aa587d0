//! What the engine keeps of committed transactions: through flushes, merges, reopening and crashes, and the
//! space of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_device::{CrashDevice, CrashMode, Device};
use kvfs_kvdb::{Background, Db, Options};
use kvfs_store::clock::ManualClock;
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, KeyRange, Read, Store, StoreError, TrackChanges, Transactions, TxnId,
    TxnOptions, UndoHistory,
};

use crate::basics::{Append, create, data, get, make, open, put, rows, stat};

const ZONE_BYTES: u64 = 256 << 10;

fn keeping(count: usize) -> impl Fn(&mut Options) {
    move |options| options.undo_count = count
}

fn commit(db: &Db, durability: Durability, fill: impl FnOnce(&mut Batch)) -> TxnId {
    let txn = db.begin(TxnOptions::default()).expect("begins");
    txn.describe(Bytes::from(format!("note {}", txn.id())));
    let mut batch = Batch::new();
    fill(&mut batch);
    txn.apply(batch).expect("applies");
    txn.commit(durability).expect("commits");
    txn.id()
}

fn set(db: &Db, value: &str) -> TxnId {
    let rows = rows(db);
    commit(db, Durability::Synced, |batch| batch.put(rows, "key", value.to_owned()))
}

fn kept(db: &Db) -> Vec<u64> {
    db.undo_points().iter().map(|point| point.txn.0).collect()
}

/// The values of "key" before and after a transaction.
fn sides(db: &Db, id: TxnId) -> [Option<String>; 2] {
    let views = db.open_undo(id).expect("is kept");
    [views.before, views.after].map(|view| {
        let value = view.get(rows(db), b"key").expect("reads");
        value.map(|value| String::from_utf8_lossy(&value).into_owned())
    })
}

/// Everything to runs, and these through every merge there is.
fn settle(db: &Db) {
    db.flush().expect("flushes");
    db.compact().expect("merges");
    db.reclaim().expect("reclaims");
}

#[test]
fn the_last_transactions_keep_both_states_whatever_is_merged() {
    let some = |value: &str| Some(value.to_owned());
    let device = make(200);
    let db = open(&device, keeping(2));
    let rows = rows(&db);
    put(&db, rows, "key", "0");
    let ids = ["1", "2", "3"].map(|value| {
        put(&db, rows, "other", value);
        let id = set(&db, value);
        put(&db, rows, "key", &format!("{value} and later"));
        settle(&db);
        id
    });
    assert_eq!(kept(&db), [ids[1].0, ids[2].0]);
    assert!(matches!(db.open_undo(ids[0]).map(drop), Err(StoreError::NotKept(id)) if id == ids[0]));
    assert_eq!(sides(&db, ids[1]), [some("1 and later"), some("2")]);
    assert_eq!(sides(&db, ids[2]), [some("2 and later"), some("3")]);
    let point = &db.undo_points()[0];
    assert_eq!(point.note, format!("note {}", ids[1]));
    assert_eq!(point.after.0 - point.before.0, 1);
    let views = db.open_undo(ids[1]).expect("is kept");
    let mut ranges =
        db.changed_ranges(rows, KeyRange::all(), point.before.0, point.after.0).expect("compares");
    assert_eq!(ranges.next().expect("goes on"), Some(KeyRange::new("key", "key\0")));
    assert_eq!(ranges.next().expect("goes on"), None, "nothing but the transaction lies between");
    // A caller that has them open keeps them.
    set(&db, "4");
    set(&db, "5");
    settle(&db);
    assert!(db.open_undo(ids[1]).is_err());
    assert_eq!(views.before.get(rows, b"key").expect("reads").as_deref(), Some(&b"1 and later"[..]));
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn nothing_is_kept_of_what_wrote_nothing_was_aborted_or_where_it_is_off() {
    let device = make(200);
    let db = open(&device, keeping(4));
    let txn = db.begin(TxnOptions::default()).expect("begins");
    txn.commit(Durability::Synced).expect("commits");
    let aborted = db.begin(TxnOptions::default()).expect("begins");
    let mut batch = Batch::new();
    batch.put(rows(&db), "key", "1");
    aborted.apply(batch).expect("applies");
    aborted.abort();
    assert_eq!(kept(&db), [0_u64; 0]);
    let id = set(&db, "1");
    assert_eq!(kept(&db), [id.0]);
    db.close().expect("closes");
    drop(db);
    // Off: what was kept goes, for good.
    let db = open(&device, keeping(0));
    set(&db, "2");
    settle(&db);
    assert_eq!((kept(&db), stat(&db, "undo.transactions")), (vec![], 0));
    drop(db);
    assert_eq!(kept(&open(&device, keeping(4))), [0_u64; 0]);
}

#[test]
fn what_is_kept_survives_closing_and_a_crash_before_and_after_the_flush() {
    let some = |value: &str| Some(value.to_owned());
    for (spills, flushes) in [(false, false), (false, true), (true, false), (true, true)] {
        let crash = Arc::new(CrashDevice::in_memory(0, 200 * ZONE_BYTES));
        let device = Arc::clone(&crash) as Arc<dyn Device>;
        create(&device, 200);
        let options = |options: &mut Options| {
            options.undo_count = 3;
            if spills {
                options.private_bytes = 1;
            }
        };
        let db = open(&device, options);
        let rows = rows(&db);
        put(&db, rows, "key", "0");
        let first = set(&db, "1");
        put(&db, rows, "key", "1 and later");
        settle(&db);
        let second = set(&db, "2");
        put(&db, rows, "key", "2 and later");
        if flushes {
            db.flush().expect("flushes");
        }
        let points = db.undo_points();
        let image: Arc<dyn Device> = Arc::new(crash.crash_image(1, CrashMode::DropAll).expect("an image"));
        for round in 0..3 {
            let db = open(&image, options);
            assert_eq!(db.undo_points(), points, "spills {spills}, flushes {flushes}, round {round}");
            for _ in 0..2 {
                assert_eq!(sides(&db, first), [some("0"), some("1")]);
                assert_eq!(sides(&db, second), [some("1 and later"), some("2")]);
                put(&db, rows, "key", "much later");
                settle(&db);
            }
            if round == 1 {
                db.close().expect("closes");
            }
        }
    }
}

/// Every image that a power cut can leave while transactions come, are pushed out, flushed and merged, has of
/// what it names both states.
#[test]
fn every_crash_leaves_both_states_of_what_is_named() {
    let rounds = std::env::var("KVFS_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_u64);
    for seed in 0..rounds {
        let crash = Arc::new(CrashDevice::in_memory(seed, 200 * ZONE_BYTES));
        let device = Arc::clone(&crash) as Arc<dyn Device>;
        create(&device, 200);
        let db = open(&device, keeping(2));
        for step in 0..24_u64 {
            let id = set(&db, &format!("t{step}"));
            put(&db, rows(&db), "key", &format!("after {id}"));
            match (step + seed) % 4 {
                1 => db.flush().expect("flushes"),
                3 => settle(&db),
                _ => {}
            }
            for mode in [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::KeepSubset] {
                let image: Arc<dyn Device> =
                    Arc::new(crash.crash_image(seed << 8 | step, mode).expect("an image"));
                let db = open(&image, keeping(2));
                let points = db.undo_points();
                assert!(points.iter().any(|point| point.txn == id), "seed {seed}, step {step}, {mode:?}");
                settle(&db);
                for point in points {
                    let [before, after] = sides(&db, point.txn);
                    let previous = (point.txn.0 > 1).then(|| format!("after {}", point.txn.0 - 1));
                    assert_eq!(before, previous, "seed {seed}, step {step}, {mode:?}, {}", point.txn);
                    assert!(after.is_some_and(|after| after.starts_with('t')), "seed {seed}, step {step}");
                }
            }
        }
    }
}

#[test]
fn the_space_comes_back_when_a_transaction_is_pushed_out_and_when_it_is_too_old() {
    for by_age in [false, true] {
        let device = make(400);
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
        let mut options = Options::with_memory(8 << 20);
        options.background = Background::Manual;
        (options.undo_count, options.undo_age) = (1, Duration::from_hours(1));
        let db = Db::open(Arc::clone(&device), options, Arc::clone(&clock) as _).expect("opens");
        let (rows, data) = (rows(&db), data(&db));
        for file in 0..40_u64 {
            let mut batch = Batch::new();
            batch.put_blocks(data, file.to_be_bytes().to_vec(), 0, vec![1; 64 * BLOCK_BYTES]);
            db.apply(batch, Durability::Buffered).expect("applies");
        }
        settle(&db);
        let live_once = stat(&db, "zones.live_bytes");
        let id = commit(&db, Durability::Buffered, |batch| {
            batch.put(rows, "key", "removed");
            let end = 40_u64.to_be_bytes().to_vec();
            batch.delete_range(data, 0_u64.to_be_bytes().to_vec(), end);
        });
        settle(&db);
        let live = stat(&db, "zones.live_bytes");
        assert!(live > live_once * 9 / 10, "{live} of {live_once} bytes are kept");
        let bytes = db.undo_bytes(id).expect("is kept");
        assert_eq!(bytes, 40 * 64 * BLOCK_BYTES as u64);
        assert_eq!(stat(&db, "undo.bytes_known"), bytes);
        let mut buf = vec![0; 64 * BLOCK_BYTES];
        let views = db.open_undo(id).expect("is kept");
        views.before.read_blocks(data, &39_u64.to_be_bytes(), 0, &mut buf).expect("reads");
        assert!(buf.iter().all(|&byte| byte == 1));
        drop(views);
        if by_age {
            clock.advance(Duration::from_secs(3601));
            assert!(matches!(db.open_undo(id).map(drop), Err(StoreError::NotKept(_))));
        } else {
            set(&db, "next");
        }
        db.reclaim().expect("reclaims");
        db.reclaim().expect("reclaims");
        let live = stat(&db, "zones.live_bytes");
        assert!(live < live_once / 4, "{live} of {live_once} bytes, by age: {by_age}");
        assert_eq!(kept(&db).len(), usize::from(!by_age));
        assert!(db.check().expect("checks").findings.is_empty());
    }
}

/// A full store gives up what it keeps for undoing, rather than refuse a write.
#[test]
fn a_full_store_gives_up_what_it_keeps() {
    let device = make(60);
    let db = open(&device, keeping(8));
    let data = data(&db);
    let write = |fill: u8| {
        commit(&db, Durability::Buffered, |batch| {
            batch.put_blocks(data, b"file".to_vec(), 0, vec![fill; 512 * BLOCK_BYTES]);
        })
    };
    for fill in 0..12 {
        write(fill);
        db.flush().expect("flushes");
    }
    assert!(kept(&db).len() < 8, "2 MiB each, in 15");
    let last = write(99);
    assert!(kept(&db).contains(&last.0));
    assert_eq!(get(&db, rows(&db), "key"), None);
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn what_cannot_be_measured_when_it_is_too_old_goes_all_the_same_with_its_name() {
    let device = make(200);
    let at = |seconds: u64, age: u64| {
        let mut options = Options::with_memory(64 << 20);
        options.background = Background::Manual;
        (options.undo_count, options.undo_age) = (8, Duration::from_secs(age));
        let clock = Arc::new(ManualClock::at(Duration::from_secs(seconds)));
        Db::open(Arc::clone(&device), options, clock).expect("opens")
    };
    let append = Arc::new(Append::default());
    let db = at(1, 3600);
    let rows = append.rows(&db);
    put(&db, rows, "key", "base");
    db.flush().expect("flushes");
    let mut batch = Batch::new();
    batch.merge(rows, "key", "+1");
    db.apply(batch, Durability::Synced).expect("applies");
    db.flush().expect("flushes");
    let id = commit(&db, Durability::Synced, |batch| batch.put(rows, "key", "set"));
    db.close().expect("closes");
    // It is not known yet how operands are resolved: so the pre-image can't be read.
    let db = at(10_000, 3600);
    db.reclaim().expect("is not held up by it");
    db.close().expect("closes");
    // Had the manifest kept the name, a longer age would bring it back, after merges that knew nothing of it.
    let db = at(10_001, 1_000_000);
    let rows = append.rows(&db);
    assert!(db.undo_points().is_empty());
    assert!(matches!(db.open_undo(id).map(drop), Err(StoreError::NotKept(_))));
    assert_eq!(db.get(rows, b"key").expect("reads").as_deref(), Some(&b"set"[..]));
}
