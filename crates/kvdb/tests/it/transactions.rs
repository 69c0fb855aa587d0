//! Transactions of the engine beyond what the seam promises: what is remembered, how much fits, many threads.

use std::sync::Arc;

use kvfs_device::{CrashDevice, CrashMode, Device, Rng};
use kvfs_kvdb::{Db, Options};
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, Isolation, KeyRange, Keyspace, Position, Read, Records, Store,
    StoreError, Transactions, Txn, TxnId, TxnOptions, TxnOutcome,
};

use crate::basics::{data, get, make, open, put, rows};
use crate::space::fill_with_small_rows;

fn begin(db: &Db) -> Arc<dyn Txn> {
    db.begin(TxnOptions::default()).expect("begins")
}

fn write(txn: &dyn Txn, keyspace: Keyspace, key: &str, value: &str) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    batch.put(keyspace, key.as_bytes().to_vec(), value.as_bytes().to_vec());
    txn.apply(batch)
}

fn commit_one(db: &Db, keyspace: Keyspace, key: &str) -> (TxnId, Position) {
    let txn = begin(db);
    write(&*txn, keyspace, key, "1").expect("applies");
    (txn.id(), txn.commit(Durability::Synced).expect("commits"))
}

#[test]
fn outcomes_are_known_after_reopening_from_the_journal_and_from_the_manifest() {
    let device = make(200);
    let db = open(&device, |_| {});
    let keyspace = rows(&db);
    let flushed = commit_one(&db, keyspace, "a");
    db.flush().expect("flushes");
    let in_journal = commit_one(&db, keyspace, "b");
    let aborted = begin(&db);
    write(&*aborted, keyspace, "c", "1").expect("applies");
    aborted.abort();
    let left_open = begin(&db);
    write(&*left_open, keyspace, "d", "1").expect("applies");
    let (aborted, open_id) = (aborted.id(), left_open.id());
    drop((left_open, db));
    for round in 0..3 {
        let db = open(&device, |_| {});
        for (id, position) in [flushed, in_journal] {
            assert_eq!(db.txn_outcome(id), TxnOutcome::Committed(position), "opening {round}");
        }
        for id in [aborted, open_id] {
            assert_eq!(db.txn_outcome(id), TxnOutcome::Unknown, "opening {round}");
        }
        assert!(begin(&db).id() > open_id, "ids are never given again");
        db.close().expect("closes");
    }
}

#[test]
fn ids_stay_small_over_clean_closes_and_new_over_crashes() {
    let device = make(64);
    let mut last = TxnId(0);
    for _ in 0..5 {
        let db = open(&device, |_| {});
        let id = begin(&db).id();
        assert_eq!(id.0, last.0 + 1);
        last = id;
        db.close().expect("closes");
        let after = db.begin(TxnOptions::default()).map(|txn| txn.id());
        assert!(matches!(after, Err(StoreError::Failed { .. })), "{after:?}");
    }
    for _ in 0..3 {
        let id = begin(&open(&device, |_| {})).id();
        assert!(id > last);
        last = id;
    }
}

#[test]
fn a_commit_is_durable_or_not_as_was_asked() {
    let crash = Arc::new(CrashDevice::in_memory(0, 64 << 20));
    let device = Arc::clone(&crash) as Arc<dyn Device>;
    crate::basics::create(&device, 64);
    let db = open(&device, |_| {});
    let keyspace = rows(&db);
    let (synced, position) = commit_one(&db, keyspace, "synced");
    let buffered = begin(&db);
    write(&*buffered, keyspace, "buffered", "1").expect("applies");
    buffered.commit(Durability::Buffered).expect("commits");
    let image: Arc<dyn Device> = Arc::new(crash.crash_image(1, CrashMode::DropAll).expect("an image"));
    let after = open(&image, |_| {});
    let keyspace = rows(&after);
    assert_eq!(get(&after, keyspace, "synced").as_deref(), Some("1"));
    assert_eq!(get(&after, keyspace, "buffered"), None);
    assert_eq!(after.txn_outcome(synced), TxnOutcome::Committed(position));
    assert_eq!(after.txn_outcome(buffered.id()), TxnOutcome::Unknown);
}

#[test]
fn private_writes_are_counted_and_keep_their_space() {
    let device = make(200);
    let db = open(&device, |_| {});
    let keyspace = rows(&db);
    let stat = |name: &str| db.stats().into_iter().find(|(n, _)| n == name).map(|(_, value)| value);
    let (available, used) = (db.space().available_bytes, stat("memory.used_bytes").expect("is there"));
    let txn = begin(&db);
    write(&*txn, keyspace, "k", &"x".repeat(1 << 20)).expect("applies");
    assert!(stat("memory.used_bytes").expect("is there") >= used + (1 << 20));
    let private = stat("txn.private_bytes").expect("is there");
    assert!(
        ((1 << 20) + 1..(1 << 20) + 8192).contains(&private),
        "it, and what fills up its last sector: {private}"
    );
    assert_eq!(stat("txn.open"), Some(1));
    assert!(db.space().available_bytes <= available - (1 << 20));
    txn.abort();
    assert_eq!(stat("txn.private_bytes"), Some(0));
    assert_eq!(stat("txn.open"), Some(0));
    assert_eq!(stat("memory.used_bytes"), Some(used));
    assert_eq!(db.space().available_bytes, available);
}

#[test]
fn a_full_store_refuses_private_writes_and_lets_a_transaction_delete() {
    let device = make(64);
    let db = open(&device, |options| options.memtable_bytes = 256 << 10);
    let keyspace = rows(&db);
    let mut count = 0;
    let mut transactions = Vec::new();
    let full = 'full: loop {
        let txn = begin(&db);
        for _ in 0..4 {
            if let Err(error) = write(&*txn, keyspace, &format!("k{count:05}"), &"x".repeat(250 << 10)) {
                break 'full error;
            }
            count += 1;
        }
        match txn.commit(Durability::Buffered) {
            Ok(_) => transactions.push(txn),
            Err(error) => break error,
        }
        assert!(count < 1000, "the store never fills up");
    };
    assert!(matches!(full, StoreError::Full), "{full}");
    let txn = begin(&db);
    let mut batch = Batch::new();
    batch.delete_range(keyspace, "k", "l");
    txn.apply(batch).expect("deletes on a full store");
    txn.commit(Durability::Synced).expect("commits on a full store");
    write(&*begin(&db), keyspace, "again", &"x".repeat(250 << 10)).expect("there is space again");
}

#[test]
fn transaction_on_a_full_store_commits_as_many_deletions_as_it_took() {
    let device = make(400);
    let db = open(&device, |options| options.memtable_bytes = 2 << 20);
    let keyspace = rows(&db);
    let keys: Vec<String> = (0..5000).map(|number| format!("{number:040}")).collect();
    for key in &keys {
        put(&db, keyspace, key, &"x".repeat(900));
    }
    fill_with_small_rows(&db, keyspace, &mut Rng::new(1));
    let txn = begin(&db);
    for key in &keys {
        let mut batch = Batch::new();
        batch.delete(keyspace, key.clone());
        txn.apply(batch).expect("deletes on a full store");
    }
    txn.commit(Durability::Buffered).expect("commits on a full store");
    assert!(keys.iter().all(|key| get(&db, keyspace, key).is_none()));
    write(&*begin(&db), keyspace, "again", "x").expect("there is space again");
    db.flush().expect("flushes");
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn transaction_that_took_its_writes_commits_when_deletions_of_others_have_used_the_reserve() {
    let device = make(400);
    let db = open(&device, |options| options.memtable_bytes = 2 << 20);
    let keyspace = rows(&db);
    let txn = begin(&db);
    for number in 0..200 {
        write(&*txn, keyspace, &format!("own{number}"), &"x".repeat(10_000)).expect("there is space");
    }
    let keys = fill_with_small_rows(&db, keyspace, &mut Rng::new(2));
    // Holds all that is deleted.
    let snapshot = db.snapshot().expect("pins");
    for keys in keys.chunks(200) {
        let mut batch = Batch::new();
        for key in keys {
            batch.delete(keyspace, key.clone());
        }
        db.apply(batch, Durability::Buffered).expect("deletes on a full store");
    }
    assert!(matches!(write(&*begin(&db), keyspace, "other", "x"), Err(StoreError::Full)));
    txn.commit(Durability::Buffered).expect("its space was kept for it");
    assert_eq!(get(&db, keyspace, "own199"), Some("x".repeat(10_000)));
    db.flush().expect("flushes");
    drop(snapshot);
    write(&*begin(&db), keyspace, "other", "x").expect("there is space again");
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn conflicts_are_found_in_runs_however_they_were_merged() {
    let device = make(200);
    let db = open(&device, |options| options.merge.stitch_bytes_min = 0);
    let keyspace = rows(&db);
    let data = data(&db);
    for key in 0..2000 {
        put(&db, keyspace, &format!("k{key:05}"), &"old".repeat(20));
    }
    let mut batch = Batch::new();
    batch.put_blocks(data, b"f".to_vec(), 0, vec![1; 100 * BLOCK_BYTES]);
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    let txn = begin(&db);
    put(&db, keyspace, "k01000", "new");
    let mut batch = Batch::new();
    batch.delete_range(keyspace, "k01500", "k01600");
    batch.delete(keyspace, "k00500");
    batch.put(keyspace, "fresh", "1");
    batch.put_blocks(data, b"f".to_vec(), 50, vec![2; BLOCK_BYTES]);
    db.apply(batch, Durability::Buffered).expect("applies");
    let mut batch = Batch::new();
    batch.delete(keyspace, "fresh");
    db.apply(batch, Durability::Buffered).expect("applies");
    for step in ["in memory", "flushed", "merged"] {
        match step {
            "flushed" => db.flush().expect("flushes"),
            "merged" => db.reclaim().expect("merges"),
            _ => {}
        }
        let changed = |keyspace, records| {
            txn.changed_since_snapshot(keyspace, &[records]).expect("searches").map(|changed| changed.key)
        };
        let range = |start: &'static str, end: &'static str| Records::Range(KeyRange::new(start, end));
        let key = |key: &'static str| Records::Key { key: key.into(), touch: kvfs_store::Touch::ALL };
        assert_eq!(changed(keyspace, range("k00501", "k01000")), None, "{step}");
        assert_eq!(changed(keyspace, range("k00501", "k01001")).as_deref(), Some(&b"k01000"[..]), "{step}");
        assert_eq!(changed(keyspace, range("k01001", "k01500")), None, "{step}");
        assert!(changed(keyspace, range("k01599", "z")).is_some(), "{step}");
        assert_eq!(changed(keyspace, range("k01600", "z")), None, "{step}");
        assert!(changed(keyspace, key("k01550")).is_some() && changed(keyspace, key("k00500")).is_some());
        assert!(changed(keyspace, key("fresh")).is_some(), "{step}: it came and went");
        assert_eq!(changed(keyspace, key("k00499")), None, "{step}");
        let blocks = |first, count| Records::Blocks { prefix: "f".into(), first, count };
        assert_eq!(changed(data, blocks(0, 50)), None, "{step}");
        assert_eq!(changed(data, blocks(51, u64::MAX)), None, "{step}");
        assert!(changed(data, blocks(10, 41)).is_some(), "{step}");
        assert_eq!(changed(data, Records::Blocks { prefix: "g".into(), first: 0, count: 99 }), None);
    }
}

#[test]
fn increments_of_many_threads_lose_nothing() {
    let device = make(400);
    let db = open(&device, |options| options.background = kvfs_kvdb::Background::Threads);
    let keyspace = rows(&db);
    put(&db, keyspace, "sum", "0");
    let lock = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (db, lock) = (&db, &lock);
            scope.spawn(move || {
                let mut done = 0;
                while done < 50 {
                    let txn = begin(db);
                    let sum = txn.get(keyspace, b"sum").expect("reads").expect("is there");
                    let sum: u64 = String::from_utf8_lossy(&sum).parse().expect("a number");
                    write(&*txn, keyspace, &format!("{thread}-{done}"), "1")
                        .expect("no other transaction writes it");
                    // From the check to the commit no other transaction may change what was checked.
                    let _locked = lock.lock().expect("no thread panicked");
                    match write(&*txn, keyspace, "sum", &(sum + 1).to_string()) {
                        Ok(()) => {
                            txn.commit(Durability::Buffered).expect("commits");
                            done += 1;
                        }
                        Err(StoreError::Conflict { .. }) => txn.abort(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(get(&db, keyspace, "sum").as_deref(), Some("200"));
    let mut cursor = db.cursor(keyspace, KeyRange::all()).expect("opens");
    let mut count = 0;
    cursor.next().expect("moves");
    while cursor.entry().is_some() {
        count += 1;
        cursor.next().expect("moves");
    }
    assert_eq!(count, 201);
}

#[test]
fn many_threads_write_in_one_transaction() {
    let device = make(400);
    let db = open(&device, |options: &mut Options| options.memtable_bytes = 64 << 20);
    let keyspace = rows(&db);
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let txn = db.begin(TxnOptions { isolation }).expect("begins");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let txn = &txn;
                scope.spawn(move || {
                    for i in 0..200 {
                        let pair = [format!("{thread}-{i}-a"), format!("{thread}-{i}-b")];
                        let mut batch = Batch::new();
                        for key in &pair {
                            batch.put(keyspace, key.clone(), format!("{isolation:?}"));
                        }
                        txn.apply(batch).expect("applies");
                        // Batches of the others are seen wholly or not at all.
                        let mut cursor = txn.cursor(keyspace, KeyRange::all()).expect("opens");
                        let mut seen = 0;
                        cursor.next().expect("moves");
                        while cursor.entry().is_some() {
                            seen += 1;
                            cursor.next().expect("moves");
                        }
                        assert!(seen % 2 == 0 && seen > 2 * i, "{seen}");
                    }
                });
            }
        });
        txn.commit(Durability::Synced).expect("commits");
        assert_eq!(get(&db, keyspace, "3-199-b"), Some(format!("{isolation:?}")));
    }
}

#[test]
fn a_store_that_is_open_for_reading_begins_no_transaction() {
    let device = make(64);
    let db = open(&device, |_| {});
    let keyspace = rows(&db);
    let (id, position) = commit_one(&db, keyspace, "a");
    drop(db);
    let db = open(&device, |options| options.read_only = true);
    let refused = db.begin(TxnOptions::default()).map(|txn| txn.id());
    assert!(matches!(refused, Err(StoreError::ReadOnly)), "{refused:?}");
    assert_eq!(db.txn_outcome(id), TxnOutcome::Committed(position));
}
