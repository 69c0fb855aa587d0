//! Scenarios in which transactions that spill meet failures, the end of the store, shortage, and each other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_device::{Device, MemoryDevice, Rng};
use kvfs_kvdb::Db;
use kvfs_store::{
    Batch, Checkpoints, Durability, Isolation, KeyRange, Keyspace, Read, Result, Store, StoreError,
    Transactions, Txn, TxnOptions, TxnOutcome,
};
use parking_lot::{Condvar, Mutex};

use crate::basics::{Append, create, make, open, put, rows};

/// Stops chosen calls until told to go on; a write may be done and yet fail.
#[derive(Default)]
struct Gate {
    /// Threads with this name stop at their writes / flushes.
    closed: Mutex<Option<(&'static str, bool)>>,
    waiting: AtomicU64,
    moved: Condvar,
    /// So many writes are still answered truthfully, then one is done and said to have failed; 0: none is.
    lies_in: AtomicU64,
}

struct GateDevice {
    inner: MemoryDevice,
    gate: Arc<Gate>,
}

impl Gate {
    fn close(&self, thread: &'static str, at_flush: bool) {
        *self.closed.lock() = Some((thread, at_flush));
    }

    fn pass(&self, is_flush: bool) {
        let mut closed = self.closed.lock();
        let name = std::thread::current().name().unwrap_or("").to_owned();
        let mut counted = false;
        while closed.is_some_and(|(thread, at_flush)| thread == name && at_flush == is_flush) {
            if !counted {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                counted = true;
            }
            self.moved.wait(&mut closed);
        }
    }

    fn wait_for(&self, count: u64) {
        while self.waiting.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    }

    fn open(&self) {
        *self.closed.lock() = None;
        self.moved.notify_all();
    }
}

impl Device for GateDevice {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.gate.pass(false);
        self.inner.write_at(buf, offset)?;
        let left = self.gate.lies_in.load(Ordering::SeqCst);
        self.gate.lies_in.store(left.saturating_sub(1), Ordering::SeqCst);
        if left == 1 {
            return Err(io::Error::other("written, but reported as failed"));
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        self.gate.pass(true);
        self.inner.flush()
    }
    fn grow(&self, len: u64) -> io::Result<()> {
        self.inner.grow(len)
    }
}

fn gated(zones: u64) -> (Arc<Gate>, Arc<dyn Device>) {
    let gate = Arc::new(Gate::default());
    let inner = MemoryDevice::growable(0, zones * (256 << 10));
    let device: Arc<dyn Device> = Arc::new(GateDevice { inner, gate: Arc::clone(&gate) });
    create(&device, zones);
    (gate, device)
}

fn begin(db: &Db) -> Arc<dyn Txn> {
    db.begin(TxnOptions { isolation: Isolation::Serializable }).expect("open")
}

fn write(txn: &dyn Txn, rows: Keyspace, key: &str, bytes: usize) -> Result<()> {
    let mut batch = Batch::new();
    batch.put(rows, key.to_owned(), noise(key, bytes));
    txn.apply(batch)
}

/// Bytes that belong to a key.
fn noise(key: &str, bytes: usize) -> Vec<u8> {
    let seed = key.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let mut noise = vec![0; bytes];
    Rng::new(seed).fill(&mut noise);
    noise
}

/// The write of the journal that carries the record fails, but reaches the medium. The abort that follows
/// gives the zones of the prepared runs to a merge that is under way. The next opening finds the record.
#[test]
fn runs_of_a_commit_whose_outcome_is_unknown_are_not_given_to_others() {
    let mut seen_committed = false;
    for writes in 1..20 {
        let (gate, device) = gated(400);
        let tune = |options: &mut kvfs_kvdb::Options| {
            options.private_bytes = 1;
            options.memtable_bytes = 64 << 20;
        };
        let db = open(&device, tune);
        let rows = rows(&db);
        for round in 0..3 {
            for key in 0..20 {
                put(&db, rows, &format!("m{key:02}"), &format!("{round}").repeat(60_000));
            }
            db.flush().unwrap();
        }
        gate.close("merge", false);
        let merge = {
            let db = Arc::clone(&db);
            std::thread::Builder::new().name("merge".into()).spawn(move || db.reclaim()).unwrap()
        };
        gate.wait_for(1);
        let txn = begin(&db);
        for key in 0..10 {
            write(&*txn, rows, &format!("t{key}"), 100_000).unwrap();
        }
        txn.prepare().unwrap();
        db.sync(db.position()).unwrap();
        gate.lies_in.store(writes, Ordering::SeqCst);
        let commit = txn.commit(Durability::Synced);
        gate.lies_in.store(0, Ordering::SeqCst);
        let id = txn.id();
        txn.abort();
        drop(txn);
        gate.open();
        merge.join().unwrap().ok();
        drop(db);
        if commit.is_ok() {
            continue;
        }
        let db = open(&device, tune);
        if matches!(db.txn_outcome(id), TxnOutcome::Committed(_)) {
            seen_committed = true;
            for key in 0..10 {
                let key = format!("t{key}");
                let value = db.get(rows, key.as_bytes());
                assert!(
                    matches!(&value, Ok(Some(value)) if value[..] == noise(&key, 100_000)[..]),
                    "writes {writes}: committed, but {key} is {:?}",
                    value.map(|value| value.map(|value| value.len()))
                );
            }
            let findings = db.check().unwrap().findings;
            assert!(findings.is_empty(), "{findings:?}");
        }
    }
    assert!(seen_committed, "the scenario did not come about");
}

/// A spill that finds the store closing must not count as a failure of the store: `close` would not write
/// out.
#[test]
fn a_fork_whose_outcome_is_unknown_is_there_or_not_and_what_it_came_of_is_as_it_was() {
    let mut failed = 0;
    for lies_in in 1..8 {
        let (gate, device) = gated(100);
        let db = open(&device, |options| options.private_bytes = 1);
        let rows_of = rows(&db);
        let txn = begin(&db);
        for key in ["a", "b", "c"] {
            write(&*txn, rows_of, key, 40_000).expect("applies");
        }
        txn.checkpoint(b"").expect("is checkpointed");
        put(&db, rows_of, "beside", "1");
        gate.lies_in.store(lies_in, Ordering::SeqCst);
        let forked = db.fork(txn.id(), &|_| "fork".into());
        failed += u64::from(forked.is_err());
        gate.lies_in.store(0, Ordering::SeqCst);
        // Its space is not given away, whatever ends now.
        txn.abort();
        let id = txn.id();
        drop(txn);
        drop(db);
        let db = open(&device, |_| {});
        let rows = rows(&db);
        let found = db.checkpointed();
        match &forked {
            Ok(fork) => assert!(found.iter().map(|info| info.id).eq([*fork]), "{lies_in}: {found:?}"),
            Err(_) => assert!(found.iter().any(|info| info.id == id), "{lies_in}: {found:?}"),
        }
        for info in &found {
            let txn = db.resume(info.id).expect("resumes");
            for key in ["a", "b", "c"] {
                let value = txn.get(rows, key.as_bytes()).expect("reads");
                assert!(value.as_deref() == Some(&noise(key, 40_000)[..]), "{lies_in}: {key} of {info:?}");
            }
        }
        let checked = db.check().expect("checks");
        assert!(checked.findings.is_empty(), "{lies_in}: {:?}", checked.findings);
    }
    assert!((1..7).contains(&failed), "{failed} have failed");
}

#[test]
fn a_spill_that_meets_a_close_does_not_make_the_close_fail() {
    let (gate, device) = gated(400);
    let db = open(&device, |options| options.private_bytes = 150_000);
    let rows = rows(&db);
    let (a, b, c) = (begin(&db), begin(&db), begin(&db));
    write(&*a, rows, "a", 60_000).unwrap();
    write(&*b, rows, "b", 50_000).unwrap();
    gate.close("applier", false);
    let applier = {
        let c = Arc::clone(&c);
        std::thread::Builder::new()
            .name("applier".into())
            .spawn(move || write(&*c, rows, "c", 200_000))
            .unwrap()
    };
    gate.wait_for(1);
    put(&db, rows, "buffered", "1");
    // The closer stops at the sync's flush, so that the applier meets a store that is being closed.
    *gate.closed.lock() = Some(("closer", true));
    let closer = {
        let db = Arc::clone(&db);
        std::thread::Builder::new().name("closer".into()).spawn(move || db.close()).unwrap()
    };
    gate.wait_for(2);
    gate.moved.notify_all();
    let applied = applier.join().unwrap();
    gate.open();
    let closed = closer.join().unwrap();
    assert!(applied.is_err(), "the store is closed");
    assert!(closed.is_ok(), "{closed:?}");
}

/// Cursors over many private runs, and over the many runs that a commit adopts, stay within the memory.
#[test]
fn a_cursor_over_many_spilled_runs_stays_within_the_memory() {
    const MEMORY_BYTES: u64 = 8 << 20;
    let device = make(1200);
    let db = open(&device, |options| {
        options.memory_bytes = MEMORY_BYTES;
        options.private_bytes = MEMORY_BYTES / 8;
        options.memtable_bytes = MEMORY_BYTES / 16;
    });
    let rows = rows(&db);
    let txn = begin(&db);
    let mut written = 0;
    let mut at = 0_u64;
    while written < 10 * MEMORY_BYTES {
        let mut batch = Batch::new();
        for _ in 0..16 {
            at += 1;
            let scattered = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            batch.put(rows, format!("{scattered:016x}"), vec![at as u8; 4000]);
        }
        written += batch.payload_bytes() as u64;
        txn.apply(batch).unwrap();
    }
    let stat = |name: &str| db.stats().into_iter().find(|(n, _)| n == name).unwrap().1;
    let before = stat("memory.peak_bytes");
    let mut cursor = txn.cursor(rows, KeyRange::all()).unwrap();
    let mut count = 0;
    loop {
        cursor.next().unwrap();
        if cursor.entry().is_none() {
            break;
        }
        count += 1;
    }
    drop(cursor);
    assert_eq!(count, at);
    let after = stat("memory.peak_bytes");
    txn.commit(Durability::Synced).unwrap();
    db.flush().unwrap();
    assert!(after <= MEMORY_BYTES + (1 << 20), "{after} bytes, {before} before the scan");
}

/// What one transaction can't spill is no matter of others.
#[test]
fn an_operand_that_one_transaction_can_not_fold_stops_no_other() {
    let device = make(400);
    let db = open(&device, |options| options.private_bytes = 150_000);
    let rows = Append::refusing().rows(&db);
    let (bad, good) = (begin(&db), begin(&db));
    let mut batch = Batch::new();
    batch.put(rows, "k", vec![1; 60_000]);
    batch.merge(rows, "k", "?");
    bad.apply(batch).unwrap();
    write(&*good, rows, "g1", 70_000).unwrap();
    write(&*good, rows, "g2", 40_000).unwrap();
    for key in 3..9 {
        write(&*good, rows, &format!("g{key}"), 120_000).unwrap();
    }
}

/// A full store: spilling may use the reserve, as the flush of a memtable may.
#[test]
fn a_transaction_may_delete_on_a_full_store_while_another_one_holds_memory() {
    let device = make(64);
    let db = open(&device, |options| options.private_bytes = 400_000);
    let rows = rows(&db);
    let mut n = 0;
    loop {
        let mut batch = Batch::new();
        batch.put(rows, format!("k{n:04}"), noise(&format!("{n}"), 60_000));
        match db.apply(batch, Durability::Buffered) {
            Ok(_) => n += 1,
            Err(StoreError::Full) => break,
            Err(error) => panic!("{error}"),
        }
        db.flush().ok();
    }
    let share_taken = [begin(&db), begin(&db)];
    for idle in &share_taken {
        for round in 0..80 {
            let mut batch = Batch::new();
            for i in 0..10 {
                batch.delete(rows, format!("none-{round}-{i}-{}", "x".repeat(60)));
            }
            idle.apply(batch).unwrap();
        }
    }
    let busy = begin(&db);
    for key in 0..100 {
        let mut batch = Batch::new();
        batch.delete(rows, format!("k{key:04}"));
        batch.delete(rows, format!("no{key:04}-{}", "x".repeat(2000)));
        busy.apply(batch).unwrap();
    }
    let spills = db.stats().into_iter().find(|(name, _)| name == "txn.spills").unwrap().1;
    assert!(spills > 0, "memory was short as well");
    busy.commit(Durability::Synced).unwrap();
}

/// Threads with spilled transactions, plain writes and reads beside the background threads.
#[test]
fn threads_with_spilled_transactions_beside_the_stores_own() {
    use std::sync::atomic::AtomicBool;
    for round in 0..4 {
        let device = make(2000);
        let tune = |options: &mut kvfs_kvdb::Options| {
            options.private_bytes = 64 << 10;
            options.memtable_bytes = 64 << 10;
            options.merge.class_runs = 2;
            options.background = kvfs_kvdb::Background::Threads;
        };
        let db = open(&device, tune);
        let rows = rows(&db);
        let stop = AtomicBool::new(false);
        let committed: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|thread| {
                    let db = &db;
                    scope.spawn(move || {
                        let mut last = 0;
                        for generation in 1..40_u64 {
                            let txn = begin(db);
                            for part in 0..8 {
                                let mut batch = Batch::new();
                                for key in 0..10 {
                                    let mut value = generation.to_be_bytes().to_vec();
                                    value.resize(2000, part);
                                    batch.put(rows, format!("{thread}-{part}-{key}"), value);
                                }
                                batch.put(rows, format!("{thread}-last"), generation.to_be_bytes().to_vec());
                                txn.apply(batch).unwrap();
                            }
                            if generation % 5 == 0 {
                                if generation % 10 == 0 {
                                    txn.prepare().unwrap();
                                }
                                txn.abort();
                            } else {
                                let synced = generation % 3 == 0;
                                txn.commit(if synced { Durability::Synced } else { Durability::Buffered })
                                    .unwrap();
                                last = generation;
                            }
                        }
                        last
                    })
                })
                .collect();
            let (db, stop) = (&db, &stop);
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::SeqCst) {
                    n += 1;
                    put(db, rows, &format!("plain{:03}", n % 300), &"p".repeat(3000));
                }
            });
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let snapshot = db.snapshot().unwrap();
                    check_generations(&*snapshot, rows, None);
                }
            });
            let last: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            stop.store(true, Ordering::SeqCst);
            last
        });
        check_generations(&*db, rows, Some(&committed));
        db.sync(db.position()).unwrap();
        if round % 2 == 0 {
            db.close().unwrap();
        }
        drop(db);
        let db = open(&device, tune);
        check_generations(&*db, rows, Some(&committed));
        db.flush().unwrap();
        db.reclaim().unwrap();
        check_generations(&*db, rows, Some(&committed));
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}

fn check_generations(read: &dyn Read, rows: Keyspace, expected: Option<&[u64]>) {
    for thread in 0..3 {
        let of = |key: String| {
            let value = read.get(rows, key.as_bytes()).expect("readable");
            value.map_or(0, |value| u64::from_be_bytes(value[..8].try_into().expect("eight bytes")))
        };
        let last = of(format!("{thread}-last"));
        if let Some(expected) = expected {
            assert_eq!(last, expected[thread], "thread {thread}");
        }
        for part in 0..8 {
            for key in 0..10 {
                assert_eq!(
                    of(format!("{thread}-{part}-{key}")),
                    last,
                    "thread {thread} part {part} key {key}"
                );
            }
        }
    }
}

/// A store opened read-only shows a commit whose runs wait, and nothing of runs without a record.
#[test]
fn a_read_only_opening_sees_what_was_committed_and_nothing_else() {
    use kvfs_device::{CrashDevice, CrashMode};
    let crash = Arc::new(CrashDevice::in_memory(0, 200 * (256 << 10)));
    let device = Arc::clone(&crash) as Arc<dyn Device>;
    create(&device, 200);
    let db = open(&device, |options| options.private_bytes = 1);
    let rows = rows(&db);
    put(&db, rows, "a1", "older");
    let (a, b) = (begin(&db), begin(&db));
    for key in 0..4 {
        write(&*a, rows, &format!("a{key}"), 10_000).unwrap();
        write(&*b, rows, &format!("b{key}"), 10_000).unwrap();
    }
    b.prepare().unwrap();
    a.commit(Durability::Synced).unwrap();
    for step in ["waiting", "adopted"] {
        if step == "adopted" {
            db.flush().unwrap();
        }
        let image: Arc<dyn Device> = Arc::new(crash.crash_image(1, CrashMode::DropAll).unwrap());
        for _ in 0..2 {
            let read = open(&image, |options| options.read_only = true);
            assert_eq!(read.get(rows, b"a1").unwrap().unwrap()[..], noise("a1", 10_000)[..], "{step}");
            assert!(read.get(rows, b"b1").unwrap().is_none(), "{step}");
            assert!(matches!(read.txn_outcome(a.id()), TxnOutcome::Committed(_)), "{step}");
            assert!(read.check().unwrap().findings.is_empty(), "{step}");
        }
        let small = open(&image, |options| {
            options.memory_bytes = 1 << 20;
            options.memtable_bytes = 4096;
        });
        assert_eq!(small.get(rows, b"a1").unwrap().unwrap()[..], noise("a1", 10_000)[..], "{step}");
        assert!(small.get(rows, b"b1").unwrap().is_none(), "{step}");
    }
}
