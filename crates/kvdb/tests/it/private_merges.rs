//! Merges of the runs of checkpointed transactions: how many are left, what they hold, what a crash leaves of
//! them, and what forks are compared by.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_device::{CrashDevice, CrashMode, Device, Rng};
use kvfs_kvdb::{Background, Db, Options};
use kvfs_store::{
    Batch, Change, Checkpoints, Durability, Keyspace, Records, Store, Touch, Transactions, Txn, TxnId,
    TxnOptions,
};

use crate::basics::{create, data, make, open, rows, stat};
use crate::checkpoints::{Content, change, content};
use crate::clones::assert_clean;

const ZONES: u64 = 300;

fn keyspaces(db: &Db) -> (Keyspace, Keyspace) {
    (rows(db), data(db))
}

/// Runs of the checkpoints, where nothing else is in runs.
fn runs(db: &Db) -> u64 {
    let checked = db.check().expect("checks");
    checked.counts.iter().find(|(name, _)| name == "runs").map(|(_, count)| *count).expect("is counted")
}

/// So many checkpoints, each with a change; what the transaction holds then.
fn change_often(db: &Db, txn: &dyn Txn, rng: &mut Rng, times: u64, now: &mut Content) {
    for _ in 0..times {
        txn.apply(change(rng, keyspaces(db), now)).expect("applies");
        txn.checkpoint(b"me").expect("is checkpointed");
    }
}

fn forked(db: &Db, id: TxnId) -> TxnId {
    db.fork(id, &|_| "me".into()).expect("forks")
}

#[test]
fn a_transaction_of_many_checkpoints_has_few_runs_and_all_its_content() {
    for is_open in [true, false] {
        let device = make(ZONES);
        let mut db = open(&device, |_| {});
        let spaces = keyspaces(&db);
        let (mut rng, mut now) = (Rng::new(is_open.into()), Content::default());
        let txn = db.begin(TxnOptions::default()).expect("begins");
        let id = txn.id();
        change_often(&db, &*txn, &mut rng, 300, &mut now);
        assert!(runs(&db) > 200, "{} runs", runs(&db));
        let txn = is_open.then_some(txn);
        db.compact().expect("merges");
        // Fewer than four of a class in each of two keyspaces.
        assert!(runs(&db) <= 6, "{} runs", runs(&db));
        assert_clean(&db, "merged");
        let mut txn = txn.unwrap_or_else(|| db.resume(id).expect("resumes"));
        for round in 0..20 {
            assert_eq!(content(&*txn, spaces), now, "round {round}");
            change_often(&db, &*txn, &mut rng, 10, &mut now);
            db.compact().expect("merges");
            assert!(runs(&db) <= 12, "round {round}: {} runs", runs(&db));
            if round % 5 == 0 {
                drop(txn);
                db.close().expect("closes");
                db = open(&device, |_| {});
                assert_clean(&db, "opened again");
                txn = db.resume(id).expect("resumes");
            }
        }
        txn.commit(Durability::Synced).expect("commits");
        db.flush().expect("adopts");
        db.compact().expect("merges");
        assert_eq!(content(&*db, spaces), now);
        assert_clean(&db, "committed");
    }
}

/// What was not checkpointed yet, in memory or in runs, is none of a merge's, and is given up without one.
#[test]
fn a_merge_leaves_what_came_after_the_checkpoint() {
    let device = make(ZONES);
    let spilling = |options: &mut Options| {
        options.private_bytes = 1;
        options.memtable_bytes = 64 << 10;
    };
    let db = open(&device, spilling);
    let spaces = keyspaces(&db);
    let (mut rng, mut now) = (Rng::new(3), Content::default());
    let txn = db.begin(TxnOptions::default()).expect("begins");
    let id = txn.id();
    change_often(&db, &*txn, &mut rng, 30, &mut now);
    let saved = now.clone();
    for _ in 0..10 {
        txn.apply(change(&mut rng, spaces, &mut now)).expect("applies");
        db.compact().expect("merges");
        assert_eq!(content(&*txn, spaces), now);
    }
    assert!(runs(&db) <= 6, "{} runs of the checkpoint", runs(&db));
    drop(txn);
    let txn = db.resume(id).expect("resumes");
    assert_eq!(content(&*txn, spaces), saved);
    txn.abort();
    assert_clean(&db, "aborted");
    let figures: BTreeMap<_, _> = db.zone_map().figures().into_iter().collect();
    assert_eq!(figures["data.live_bytes"], 0, "all space is free again");
}

/// A power cut at each event of merges of an open transaction, of one that is not, and of a fork.
#[test]
fn a_crash_in_a_merge_leaves_each_checkpoint_as_it_was() {
    let crash = CrashDevice::in_memory(0, ZONES * (256 << 10)).with_log().expect("logs");
    let crash = Arc::new(crash);
    let device = Arc::clone(&crash) as Arc<dyn Device>;
    create(&device, ZONES);
    let db = open(&device, |_| {});
    let spaces = keyspaces(&db);
    let mut rng = Rng::new(7);
    let mut held = BTreeMap::new();
    let mut txns = Vec::new();
    for at in 0..2 {
        let (txn, mut now) = (db.begin(TxnOptions::default()).expect("begins"), Content::default());
        change_often(&db, &*txn, &mut rng, 9, &mut now);
        if at == 0 {
            let (fork, mut of_fork) = (forked(&db, txn.id()), now.clone());
            let fork = db.resume(fork).expect("resumes");
            change_often(&db, &*fork, &mut rng, 6, &mut of_fork);
            held.insert(fork.id(), of_fork);
            change_often(&db, &*txn, &mut rng, 6, &mut now);
            txns.push(Arc::clone(&txn));
        }
        held.insert(txn.id(), now);
    }
    let (began, before) = (crash.events_len(), runs(&db));
    db.compact().expect("merges");
    assert!(runs(&db) + 8 <= before, "{} of {before} runs", runs(&db));
    for event in began..=crash.events_len() {
        for mode in [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Any] {
            let place = format!("event {event}, {mode:?}");
            let image: Arc<dyn Device> =
                Arc::new(crash.image_at(event, event as u64, mode).expect("an image"));
            let db = open(&image, |_| {});
            assert_clean(&db, &place);
            for (id, expected) in &held {
                let txn = db.resume(*id).expect("resumes");
                assert_eq!(content(&*txn, spaces), *expected, "{place}");
                txn.abort();
            }
            assert_clean(&db, &place);
            let figures: BTreeMap<_, _> = db.zone_map().figures().into_iter().collect();
            assert_eq!(figures["data.live_bytes"], 0, "{place}: all space is free again");
        }
    }
}

/// Where a transaction was forked both sides tell what they have changed since, whatever was merged.
#[test]
fn forks_are_compared_by_what_came_after_them_whatever_is_merged() {
    let device = make(ZONES);
    let db = open(&device, |_| {});
    let spaces = keyspaces(&db);
    let (mut rng, mut now) = (Rng::new(11), Content::default());
    let parent = db.begin(TxnOptions::default()).expect("begins");
    change_often(&db, &*parent, &mut rng, 10, &mut now);
    let mut forks = Vec::new();
    for _ in 0..5 {
        let (id, at) = (forked(&db, parent.id()), parent.stats().operations);
        forks.push((db.resume(id).expect("resumes"), at, now.clone()));
        change_often(&db, &*parent, &mut rng, 7, &mut now);
        db.compact().expect("merges");
        for (child, at, begun) in &forks {
            let mut of_child = content(&**child, spaces);
            change_often(&db, &**child, &mut rng, 5, &mut of_child);
            db.compact().expect("merges");
            for side in [&parent, child] {
                assert_eq!(content(&*side.as_of(*at).expect("looks"), spaces), *begun);
            }
            assert_eq!((content(&**child, spaces), content(&*parent, spaces)), (of_child, now.clone()));
        }
        assert_clean(&db, "with forks");
    }
    for (child, at, begun) in &forks {
        let key = |key: &str| Records::Key { key: key.to_owned().into(), touch: Touch::ALL };
        let mut batch = Batch::new();
        batch.put(spaces.0, "of the child", "1");
        child.apply(batch).expect("applies");
        let mut changes = child.changes_after(*at, spaces.0).expect("walks");
        let mut changed = Vec::new();
        while let Some(change) = changes.next().expect("walks") {
            let (Change::Put { key, .. } | Change::Delete { key }) = change else { panic!("{change:?}") };
            changed.push(String::from_utf8_lossy(&key).into_owned());
        }
        let of_child = content(&**child, spaces).0;
        for name in of_child.keys().chain(begun.0.keys()) {
            let differs = of_child.get(name) != begun.0.get(name);
            assert!(!differs || changed.contains(name), "{name} has changed unnoticed");
        }
        assert!(changed.contains(&"of the child".to_owned()));
        let of_parent = parent.changed_after(*at, spaces.0, &[key("of the child")]).expect("looks");
        assert!(of_parent.is_none());
    }
    // With the last fork goes what keeps the runs apart.
    let before = runs(&db);
    for (child, ..) in forks {
        child.abort();
    }
    db.compact().expect("merges");
    assert!(runs(&db) <= 6, "{} runs of {before}", runs(&db));
    assert_eq!(content(&*parent, spaces), now);
    assert_clean(&db, "without forks");
}

/// Merges by the threads of the store, of the main line, too, forks, and what the transaction writes, all at
/// once.
#[test]
fn a_transaction_goes_on_beside_merges_and_forks() {
    let device = make(ZONES);
    let db = open(&device, |options| options.background = Background::Threads);
    let spaces = keyspaces(&db);
    let (mut rng, mut now) = (Rng::new(13), Content::default());
    let txn = db.begin(TxnOptions::default()).expect("begins");
    txn.checkpoint(b"me").expect("is checkpointed");
    let id = txn.id();
    std::thread::scope(|scope| {
        let (ended, is_over) = std::sync::mpsc::channel::<()>();
        let db = &db;
        let other = scope.spawn(move || {
            while is_over.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let child = db.resume(forked(db, id)).expect("resumes");
                let (begun, at) = (content(&*child, spaces), child.stats().operations);
                let mut seen = begun.clone();
                change_often(db, &*child, &mut Rng::new(at), 8, &mut seen);
                db.compact().expect("merges");
                assert_eq!(content(&*child.as_of(at).expect("looks"), spaces), begun);
                assert_eq!(content(&*child, spaces), seen);
                child.abort();
            }
        });
        for round in 0..30 {
            change_often(db, &*txn, &mut rng, 8, &mut now);
            assert_eq!(content(&*txn, spaces), now);
            let mut batch = Batch::new();
            batch.put(spaces.0, format!("main {round}"), vec![7; 5000]);
            db.apply(batch, Durability::Buffered).expect("applies");
            db.flush().expect("flushes");
        }
        drop(ended);
        other.join().expect("forks");
    });
    db.compact().expect("merges");
    assert_eq!(content(&*txn, spaces), now);
    // A merge thread may have the last handle.
    txn.suspend();
    let txn = db.resume(id).expect("resumes");
    assert_eq!(content(&*txn, spaces), now);
    // Those of the main line are among them.
    assert!(runs(&db) <= 12, "{} runs", runs(&db));
    assert_clean(&db, "in the end");
    assert_eq!(stat(&db, "txn.checkpointed"), 1);
}
