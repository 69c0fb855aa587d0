//! Transactions larger than memory: what goes to the device, what a crash leaves at each step, what others
//! see.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvfs_device::{CountingDevice, CrashDevice, CrashMode, Device, MemoryDevice};
use kvfs_kvdb::Db;
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, Isolation, KeyRange, Keyspace, Position, Read, Records, Store,
    StoreError, Transactions, Txn, TxnOptions, TxnOutcome,
};

use crate::basics::{data, get, open, put, rows, stat};

const ZONE_BYTES: u64 = 256 << 10;

fn begin(db: &Db, isolation: Isolation) -> Arc<dyn Txn> {
    db.begin(TxnOptions { isolation }).expect("begins")
}

fn apply(txn: &dyn Txn, fill: impl FnOnce(&mut Batch)) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    fill(&mut batch);
    txn.apply(batch)
}

/// A store in which every batch of a transaction but the last one is spilled.
fn spilling(device: &Arc<dyn Device>) -> Arc<Db> {
    open(device, |options| options.private_bytes = 1)
}

fn on_crash_device() -> (Arc<CrashDevice>, Arc<Db>) {
    let crash = Arc::new(CrashDevice::in_memory(0, 200 * ZONE_BYTES));
    let device = Arc::clone(&crash) as Arc<dyn Device>;
    crate::basics::create(&device, 200);
    (crash, spilling(&device))
}

/// The store as a power cut leaves it now that keeps nothing of what was not flushed.
fn after_crash(crash: &CrashDevice) -> (Arc<dyn Device>, Arc<Db>) {
    let image: Arc<dyn Device> = Arc::new(crash.crash_image(1, CrashMode::DropAll).expect("an image"));
    let db = spilling(&image);
    (image, db)
}

fn listing(read: &dyn Read, keyspace: Keyspace, backward: bool) -> Vec<(String, String)> {
    let mut cursor = read.cursor(keyspace, KeyRange::all()).expect("opens");
    let mut entries = Vec::new();
    loop {
        if backward { cursor.prev() } else { cursor.next() }.expect("moves");
        let Some((key, value)) = cursor.entry() else { break };
        entries.push((String::from_utf8_lossy(key).into(), String::from_utf8_lossy(value).into()));
    }
    if backward {
        entries.reverse();
    }
    entries
}

/// Writes keys and blocks in three batches, of which two are spilled.
fn write_some(db: &Db, txn: &dyn Txn, mark: &str) {
    let (rows, data) = (rows(db), data(db));
    apply(txn, |batch| {
        batch.put(rows, format!("{mark}-a"), "1");
        batch.put(rows, format!("{mark}-b"), "1");
        batch.put_blocks(data, mark.to_owned(), 0, vec![1; 4 * BLOCK_BYTES]);
    })
    .expect("applies");
    apply(txn, |batch| {
        batch.put(rows, format!("{mark}-a"), "2");
        batch.delete(rows, format!("{mark}-b"));
        batch.put_blocks(data, mark.to_owned(), 1, vec![2; BLOCK_BYTES]);
    })
    .expect("applies");
    apply(txn, |batch| batch.put(rows, format!("{mark}-c"), "3")).expect("applies");
}

/// Whether what [`write_some`] wrote is there: wholly or not at all.
fn has_some(read: &dyn Read, (rows, data): (Keyspace, Keyspace), mark: &str) -> bool {
    let values = ["a", "b", "c"].map(|key| {
        let value = read.get(rows, format!("{mark}-{key}").as_bytes()).expect("reads");
        value.map(|value| String::from_utf8_lossy(&value).into_owned())
    });
    let mut blocks = vec![9; 5 * BLOCK_BYTES];
    read.read_blocks(data, mark.as_bytes(), 0, &mut blocks).expect("reads");
    let fills: Vec<u8> = blocks.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
    match (&values, &fills[..]) {
        ([None, None, None], [0, 0, 0, 0, 0]) => false,
        ([Some(a), None, Some(c)], [1, 2, 1, 1, 0]) if a == "2" && c == "3" => true,
        other => panic!("{mark} is there in parts: {other:?}"),
    }
}

fn is_there(db: &Db, mark: &str) -> bool {
    has_some(db, (rows(db), data(db)), mark)
}

fn assert_clean(db: &Db) {
    let checked = db.check().expect("checks");
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}

/// Ten times the memory ceiling of blocks and rows; which writer wrote what.
fn write_much(db: &Db, txn: &dyn Txn, bytes: u64) {
    let (rows, data) = (rows(db), data(db));
    let mut written = 0;
    let mut at = 0_u64;
    while written < bytes {
        let mut batch = Batch::new();
        let fill = (at % 251) as u8 + 1;
        batch.put_blocks(data, "file", at * 16, vec![fill; 16 * BLOCK_BYTES]);
        for key in 0..4 {
            batch.put(rows, format!("{:03}-{at:06}-{key}", at % 7), [fill; 4000].to_vec());
        }
        written += batch.payload_bytes() as u64;
        at += 1;
        txn.apply(batch).expect("applies");
    }
    assert_eq!(txn.stats().bytes_written, written);
}

fn check_much(db: &Db, bytes: u64) {
    let (rows, data) = (rows(db), data(db));
    let per_batch = (16 * BLOCK_BYTES) as u64 + 4 * 4012 + 4;
    for at in 0..bytes / per_batch {
        let fill = (at % 251) as u8 + 1;
        let mut found = vec![0; 16 * BLOCK_BYTES];
        db.read_blocks(data, b"file", at * 16, &mut found).expect("reads");
        assert!(found.iter().all(|&byte| byte == fill), "blocks of batch {at}");
        let key = format!("{:03}-{at:06}-{}", at % 7, at % 4);
        let value = db.get(rows, key.as_bytes()).expect("reads").expect("is there");
        assert!(value.len() == 4000 && value.iter().all(|&byte| byte == fill), "{key}");
    }
}

#[test]
fn a_transaction_of_ten_times_the_memory_is_written_once() {
    const MEMORY_BYTES: u64 = 4 << 20;
    const TXN_BYTES: u64 = 10 * MEMORY_BYTES;
    for commits in [true, false] {
        let counting = Arc::new(CountingDevice::new(MemoryDevice::growable(0, 800 * ZONE_BYTES)));
        let device = Arc::clone(&counting) as Arc<dyn Device>;
        crate::basics::create(&device, 800);
        let db = open(&device, |options| {
            options.memory_bytes = MEMORY_BYTES;
            options.private_bytes = MEMORY_BYTES / 4;
            options.memtable_bytes = MEMORY_BYTES / 16;
        });
        let _ = (rows(&db), data(&db));
        let (space, before) = (db.space(), counting.counts());
        let txn = begin(&db, Isolation::Snapshot);
        write_much(&db, &*txn, TXN_BYTES);
        let stats = txn.stats();
        assert!(stats.bytes_memory <= MEMORY_BYTES / 4, "{stats:?}");
        assert!(stats.bytes_spilled >= TXN_BYTES - MEMORY_BYTES / 4, "{stats:?}");
        if commits {
            txn.commit(Durability::Synced).expect("commits");
        } else {
            txn.abort();
            assert_eq!(db.space(), space, "all space is free at once");
        }
        db.flush().expect("flushes");
        let written = (counting.counts() - before).bytes_written;
        assert!(written <= TXN_BYTES * 11 / 10, "{written} bytes for {TXN_BYTES}");
        let (peak, limit) = (stat(&db, "memory.peak_bytes"), MEMORY_BYTES + (1 << 20));
        assert!(peak <= limit, "{peak} bytes of memory");
        assert_clean(&db);
        if !commits {
            assert!(listing(&*db, rows(&db), false).is_empty());
            continue;
        }
        check_much(&db, TXN_BYTES);
        db.compact().expect("merges");
        check_much(&db, TXN_BYTES);
        assert_clean(&db);
        drop((txn, db));
        let db = open(&device, |_| {});
        check_much(&db, TXN_BYTES);
        assert_clean(&db);
    }
}

#[test]
fn a_large_commit_is_written_once_although_it_would_fit_the_journal() {
    const BATCH_BYTES: u64 = 80 << 10;
    for (bytes, is_large) in [(2 * BATCH_BYTES, false), (16 * BATCH_BYTES, true)] {
        let counting = Arc::new(CountingDevice::new(MemoryDevice::growable(0, 400 * ZONE_BYTES)));
        let device = Arc::clone(&counting) as Arc<dyn Device>;
        crate::basics::create(&device, 400);
        let db = open(&device, |options| {
            options.memory_bytes = 256 << 20;
            options.private_bytes = 64 << 20;
            options.batch_commit_bytes_max = 8 * BATCH_BYTES;
            // What the journal has of a small one stays there.
            options.bind_bytes_min = usize::MAX;
        });
        let _ = (rows(&db), data(&db));
        let before = counting.counts();
        let txn = begin(&db, Isolation::Snapshot);
        write_much(&db, &*txn, bytes);
        assert_eq!(stat(&db, "txn.spills"), 0, "before the commit all of it is in memory");
        txn.commit(Durability::Synced).expect("commits");
        db.flush().expect("flushes");
        let written = (counting.counts() - before).bytes_written;
        assert_eq!(stat(&db, "txn.spills"), u64::from(is_large));
        assert_eq!(written > 2 * bytes, !is_large, "{written} bytes for {bytes}");
        check_much(&db, bytes);
        assert_clean(&db);
    }
}

#[test]
fn a_large_file_is_one_run_however_often_it_spills() {
    let device = crate::basics::make(400);
    let db = open(&device, |options| options.private_bytes = 1 << 20);
    let (data, txn) = (data(&db), begin(&db, Isolation::Snapshot));
    for at in 0..200 {
        apply(&*txn, |batch| batch.put_blocks(data, "file", at * 16, vec![1; 16 * BLOCK_BYTES]))
            .expect("applies");
    }
    txn.commit(Durability::Synced).expect("commits");
    db.flush().expect("flushes");
    assert!(stat(&db, "txn.spills") > 10);
    assert_eq!(stat(&db, "keyspace.data.runs"), 1);
}

#[test]
fn a_prepared_transaction_without_a_record_never_happened() {
    let (crash, db) = on_crash_device();
    put(&db, rows(&db), "before", "1");
    db.flush().expect("flushes");
    let space = db.space();
    let txn = begin(&db, Isolation::Snapshot);
    write_some(&db, &*txn, "txn");
    txn.prepare().expect("prepares");
    let (image, after) = after_crash(&crash);
    assert!(!is_there(&after, "txn"));
    assert_eq!(get(&after, rows(&after), "before").as_deref(), Some("1"));
    assert_eq!(after.txn_outcome(txn.id()), TxnOutcome::Unknown);
    assert!(after.space().used_bytes <= space.used_bytes, "its space is free");
    // What takes its place is not hurt by a second opening, which no longer knows it.
    for key in 0..40 {
        put(&after, rows(&after), &format!("k{key}"), &"x".repeat(100_000));
        after.flush().expect("flushes");
    }
    assert_clean(&after);
    drop(after);
    let again = spilling(&image);
    assert_eq!(get(&again, rows(&again), "k39").map(|value| value.len()), Some(100_000));
    assert!(!is_there(&again, "txn"));
    assert_clean(&again);
}

#[test]
fn a_committed_transaction_is_there_before_and_after_its_runs_are_adopted() {
    let (crash, db) = on_crash_device();
    put(&db, rows(&db), "txn-a", "older, in memory");
    let txn = begin(&db, Isolation::Serializable);
    write_some(&db, &*txn, "txn");
    let position = txn.commit(Durability::Synced).expect("commits");
    put(&db, rows(&db), "newer", "1");
    db.sync(db.position()).expect("syncs");
    let check = |db: &Db, when: &str| {
        assert!(is_there(db, "txn"), "{when}");
        assert_eq!(get(db, rows(db), "newer").as_deref(), Some("1"), "{when}");
        assert_eq!(db.txn_outcome(txn.id()), TxnOutcome::Committed(position), "{when}");
        assert_clean(db);
    };
    check(&db, "at once");
    // The record is in the journal, the runs wait.
    let (image, after) = after_crash(&crash);
    check(&after, "after a crash");
    drop(after);
    check(&open(&image, |options| options.read_only = true), "read-only");
    let after = spilling(&image);
    check(&after, "after another one");
    after.flush().expect("flushes");
    check(&after, "adopted by the second opening");
    drop(after);
    check(&spilling(&image), "and opened again");
    // The same without a crash.
    db.flush().expect("flushes");
    check(&db, "adopted");
    let (image, after) = after_crash(&crash);
    check(&after, "after a crash when adopted");
    after.reclaim().expect("merges");
    check(&after, "merged");
    after.close().expect("closes");
    drop(after);
    check(&spilling(&image), "after a clean close");
}

#[test]
fn a_buffered_commit_may_be_lost_as_a_whole() {
    let (crash, db) = on_crash_device();
    let _ = (rows(&db), data(&db));
    let txn = begin(&db, Isolation::Snapshot);
    write_some(&db, &*txn, "txn");
    txn.commit(Durability::Buffered).expect("commits");
    assert!(is_there(&db, "txn"));
    let (_, after) = after_crash(&crash);
    assert!(!is_there(&after, "txn"));
    assert_eq!(after.txn_outcome(txn.id()), TxnOutcome::Unknown);
    assert_clean(&after);
    db.sync(db.position()).expect("syncs");
    let (_, after) = after_crash(&crash);
    assert!(is_there(&after, "txn"));
}

#[test]
fn an_abort_after_prepare_leaves_nothing_to_recover() {
    let (crash, db) = on_crash_device();
    let _ = (rows(&db), data(&db));
    put(&db, rows(&db), "before", "1");
    db.flush().expect("flushes");
    let space = db.space();
    for drops in [false, true] {
        let txn = begin(&db, Isolation::Snapshot);
        write_some(&db, &*txn, "txn");
        txn.prepare().expect("prepares");
        apply(&*txn, |batch| batch.put(rows(&db), "later", "1")).expect("writes may follow");
        if drops {
            drop(txn);
        } else {
            txn.abort();
        }
        assert_eq!(db.space(), space);
        let (_, after) = after_crash(&crash);
        assert!(!is_there(&after, "txn"));
        assert_clean(&after);
    }
}

#[test]
fn spilled_transactions_commit_in_either_order_among_other_writes() {
    for first in [0, 1] {
        let (crash, db) = on_crash_device();
        let keyspaces = (rows(&db), data(&db));
        let txns = [0, 1].map(|at| {
            let txn = begin(&db, Isolation::Snapshot);
            write_some(&db, &*txn, &format!("t{at}"));
            txn
        });
        put(&db, keyspaces.0, "t0-z", "between");
        let before = db.snapshot().expect("a snapshot");
        txns[first].commit(Durability::Buffered).expect("commits");
        let between = db.snapshot().expect("a snapshot");
        put(&db, keyspaces.0, "t1-z", "between");
        txns[1 - first].commit(Durability::Synced).expect("commits");
        for step in ["in memory", "flushed", "merged"] {
            match step {
                "flushed" => db.flush().expect("flushes"),
                "merged" => db.reclaim().expect("merges"),
                _ => {}
            }
            for at in [0, 1] {
                let mark = format!("t{at}");
                assert!(!has_some(&*before, keyspaces, &mark), "{step}: {mark} before both");
                assert_eq!(has_some(&*between, keyspaces, &mark), at == first, "{step}: {mark} between");
                assert!(is_there(&db, &mark), "{step}: {mark} after both");
            }
            let (_, after) = after_crash(&crash);
            assert!(is_there(&after, "t0") && is_there(&after, "t1"), "{step}: after a crash");
        }
    }
}

#[test]
fn a_spilled_commit_lies_between_what_was_written_before_and_after_it() {
    let device = crate::basics::make(200);
    let db = spilling(&device);
    let rows = rows(&db);
    put(&db, rows, "flushed", "old");
    db.flush().expect("flushes");
    put(&db, rows, "before", "old");
    put(&db, rows, "after", "old");
    let txn = begin(&db, Isolation::Serializable);
    for key in ["flushed", "before", "after"] {
        apply(&*txn, |batch| batch.put(rows, key, "txn")).expect("applies");
    }
    put(&db, rows, "before", "older than the commit");
    txn.commit(Durability::Buffered).expect("commits");
    put(&db, rows, "after", "newer than the commit");
    let expected = [("after", "newer than the commit"), ("before", "txn"), ("flushed", "txn")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    for step in ["in memory", "flushed", "merged"] {
        match step {
            "flushed" => db.flush().expect("flushes"),
            "merged" => db.reclaim().expect("merges"),
            _ => {}
        }
        assert_eq!(listing(&*db, rows, false), expected, "{step}");
        assert_eq!(listing(&*db, rows, true), expected, "{step}, backward");
        for (key, value) in &expected {
            assert_eq!(get(&db, rows, key).as_ref(), Some(value), "{step}");
        }
    }
}

#[test]
fn a_spilled_transaction_stays_what_it_is_while_the_main_line_flushes_and_merges() {
    let device = crate::basics::make(400);
    let db = open(&device, |options| {
        options.private_bytes = 64 << 10;
        options.memtable_bytes = 64 << 10;
        options.merge.class_runs = 2;
    });
    let rows = rows(&db);
    for key in 0..100 {
        put(&db, rows, &format!("k{key:03}"), &format!("old{}", "x".repeat(500)));
    }
    let txn = begin(&db, Isolation::Snapshot);
    let mut expected: BTreeMap<String, String> = listing(&*txn, rows, false).into_iter().collect();
    for round in 0..60 {
        let key = format!("k{:03}", round * 7 % 100);
        let value = format!("txn{round}-{}", "y".repeat(3000));
        apply(&*txn, |batch| batch.put(rows, key.clone(), value.clone())).expect("applies");
        expected.insert(key, value);
        if round % 10 == 3 {
            apply(&*txn, |batch| batch.delete_range(rows, "k05", "k055")).expect("applies");
            expected.retain(|key, _| !("k05".."k055").contains(&&key[..]));
        }
        for other in 0..20 {
            put(&db, rows, &format!("main{other}"), &format!("{round}{}", "z".repeat(2000)));
        }
        if round % 15 == 14 {
            db.flush().expect("flushes");
            db.compact().expect("merges");
            let all: Vec<_> = expected.clone().into_iter().collect();
            assert_eq!(listing(&*txn, rows, false), all, "round {round}");
            assert_eq!(listing(&*txn, rows, true), all, "round {round}, backward");
        }
    }
    assert!(txn.stats().bytes_spilled > 100_000);
    txn.commit(Durability::Synced).expect("commits");
    let found = listing(&*db, rows, false);
    assert_eq!(found.len(), expected.len() + 20);
    assert!(expected.iter().all(|(key, value)| found.contains(&(key.clone(), value.clone()))));
    db.flush().expect("flushes");
    db.compact().expect("merges");
    assert_eq!(listing(&*db, rows, false), found);
    assert_clean(&db);
}

#[test]
fn conflicts_with_a_spilled_commit_are_found_wherever_it_lies() {
    let device = crate::basics::make(200);
    let db = spilling(&device);
    let keyspaces = (rows(&db), data(&db));
    put(&db, keyspaces.0, "before", "1");
    let other = begin(&db, Isolation::Snapshot);
    let txn = begin(&db, Isolation::Snapshot);
    write_some(&db, &*txn, "txn");
    let position = txn.commit(Durability::Buffered).expect("commits");
    let later = begin(&db, Isolation::Snapshot);
    for step in ["in memory", "flushed", "merged"] {
        match step {
            "flushed" => db.flush().expect("flushes"),
            "merged" => db.reclaim().expect("merges"),
            _ => {}
        }
        let blocks = Records::Blocks { prefix: "txn".into(), first: 3, count: 1 };
        let range = Records::Range(KeyRange::new("txn-b", "txn-bb"));
        for (keyspace, records) in [(keyspaces.0, range), (keyspaces.1, blocks)] {
            let find = |txn: &dyn Txn| {
                txn.changed_since_snapshot(keyspace, std::slice::from_ref(&records)).expect("searches")
            };
            let changed = find(&*other).expect("a conflict");
            assert!(changed.seqno > other.snapshot_seqno() && changed.seqno <= position.0, "{step}");
            assert_eq!(find(&*later), None, "{step}");
        }
    }
}

#[test]
fn a_spill_without_space_fails_the_batch_alone() {
    let device = crate::basics::make(64);
    let db = open(&device, |options| options.private_bytes = 512 << 10);
    let rows = rows(&db);
    put(&db, rows, "before", "1");
    db.flush().expect("flushes");
    let available = db.space().available_bytes;
    let txn = begin(&db, Isolation::Snapshot);
    let mut count = 0;
    let full = loop {
        let value = vec![(count % 200) as u8; 100 << 10];
        match apply(&*txn, |batch| batch.put(rows, format!("k{count:04}"), value)) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 1000, "the store never fills up");
    };
    assert!(matches!(full, StoreError::Full), "{full}");
    assert!(txn.get(rows, format!("k{count:04}").as_bytes()).expect("reads").is_none(), "no trace");
    for at in 0..count {
        let value = txn.get(rows, format!("k{at:04}").as_bytes()).expect("reads").expect("is there");
        assert!(value.iter().all(|&byte| byte == (at % 200) as u8), "k{at:04}");
    }
    txn.abort();
    assert_eq!(db.space().available_bytes, available);
    put(&db, rows, "after", "1");
    db.flush().expect("flushes");
    assert_clean(&db);
}

#[test]
fn what_many_transactions_hold_together_stays_below_their_share() {
    const SHARE: u64 = 1 << 20;
    let device = crate::basics::make(800);
    let db = open(&device, |options| options.private_bytes = SHARE);
    let rows = rows(&db);
    let txns: Vec<_> = (0..20).map(|_| begin(&db, Isolation::Snapshot)).collect();
    for round in 0..40 {
        for (at, txn) in txns.iter().enumerate() {
            apply(&**txn, |batch| batch.put(rows, format!("{at}-{round}"), vec![1; 10_000]))
                .expect("applies");
            let held: u64 = txns.iter().map(|txn| txn.stats().bytes_memory).sum();
            assert!(held <= SHARE + 20_000, "{held} bytes");
        }
    }
    assert!(stat(&db, "txn.spills") < 200, "the largest ones spill, not each at every batch");
    for txn in &txns {
        txn.commit(Durability::Buffered).expect("commits");
    }
    assert_eq!(listing(&*db, rows, false).len(), 800);
    assert_eq!(stat(&db, "txn.private_bytes"), 0);
}

#[test]
fn many_threads_write_in_one_transaction_that_spills() {
    let device = crate::basics::make(800);
    let db = open(&device, |options| options.private_bytes = 64 << 10);
    let rows = rows(&db);
    let txn = begin(&db, Isolation::Snapshot);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let txn = &txn;
            scope.spawn(move || {
                for i in 0..100 {
                    let pair = [format!("{thread}-{i}-a"), format!("{thread}-{i}-b")];
                    apply(&**txn, |batch| {
                        for key in &pair {
                            batch.put(rows, key.clone(), "x".repeat(2000));
                        }
                    })
                    .expect("applies");
                    let seen = listing(&**txn, rows, i % 2 == 0).len();
                    assert!(seen.is_multiple_of(2) && seen > 2 * i, "{seen}");
                }
            });
        }
    });
    assert!(txn.stats().bytes_spilled > 1 << 20);
    txn.commit(Durability::Synced).expect("commits");
    assert_eq!(listing(&*db, rows, false).len(), 800);
}

#[test]
fn readers_see_spilled_commits_whole_while_everything_else_goes_on() {
    const THREADS: usize = 3;
    const ROUNDS: usize = 25;
    let device = crate::basics::make(1600);
    let db = open(&device, |options| {
        options.private_bytes = 1;
        options.memtable_bytes = 64 << 10;
        options.merge.class_runs = 2;
        options.background = kvfs_kvdb::Background::Threads;
    });
    let keyspaces = (rows(&db), data(&db));
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, done) = (&db, &done);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mark = format!("t{thread}-{round}");
                    let txn = begin(
                        db,
                        if round.is_multiple_of(2) { Isolation::Snapshot } else { Isolation::Serializable },
                    );
                    write_some(db, &*txn, &mark);
                    if round.is_multiple_of(3) {
                        txn.prepare().expect("prepares");
                    }
                    if round % 5 == 4 {
                        txn.abort();
                        assert!(!is_there(db, &mark));
                    } else {
                        let durability =
                            if round.is_multiple_of(2) { Durability::Synced } else { Durability::Buffered };
                        txn.commit(durability).expect("commits");
                        assert!(is_there(db, &mark));
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            let mut at = 0;
            while done.load(Ordering::Relaxed) < THREADS {
                put(&db, keyspaces.0, &format!("main{at:06}"), &"x".repeat(1000));
                let snapshot = db.snapshot().expect("a snapshot");
                for thread in 0..THREADS {
                    let mark = format!("t{thread}-{}", at % ROUNDS);
                    // Panics when it is there in parts.
                    let was_there = has_some(&*snapshot, keyspaces, &mark);
                    assert!(!was_there || is_there(&db, &mark), "{mark} came and went");
                }
                at += 1;
            }
        });
    });
    let expected = |db: &Db, when: &str| {
        for thread in 0..THREADS {
            for round in 0..ROUNDS {
                assert_eq!(
                    is_there(db, &format!("t{thread}-{round}")),
                    round % 5 != 4,
                    "{when}: {thread}, {round}"
                );
            }
        }
        assert_clean(db);
    };
    expected(&db, "at the end");
    db.close().expect("closes");
    drop(db);
    expected(&spilling(&device), "opened again");
}

#[test]
fn a_transaction_that_outlives_its_store_writes_nothing() {
    let device = crate::basics::make(200);
    let db = spilling(&device);
    let txn = begin(&db, Isolation::Snapshot);
    write_some(&db, &*txn, "txn");
    txn.prepare().expect("prepares");
    let id = txn.id();
    drop(db);
    let db = spilling(&device);
    put(&db, rows(&db), "new", "1");
    let commit = txn.commit(Durability::Synced);
    assert!(matches!(commit, Err(StoreError::Failed { .. })), "{commit:?}");
    drop(txn);
    db.close().expect("closes");
    drop(db);
    let db = spilling(&device);
    assert_eq!((is_there(&db, "txn"), db.txn_outcome(id)), (false, TxnOutcome::Unknown));
    assert!(db.position() > Position(0));
    assert_clean(&db);
}
