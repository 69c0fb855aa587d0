use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use kvfs_device::MemoryDevice;
use kvfs_store::clock::ManualClock;
use kvfs_store::{Batch, Durability, KeyRange, KeyspaceKind, Read, Store, Transactions, TxnOptions};

use crate::cache::Pool;
use crate::{Background, CreateOptions, Db, Options};

use super::*;

/// A store with runs, a memtable, and blocks in its cache.
fn store(clock: &Arc<ManualClock>) -> Arc<Db> {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    let create = CreateOptions {
        zone_bytes: 256 << 10,
        journal_bytes: Some(4 << 20),
        ..CreateOptions::new(32 << 20, [7; 16])
    };
    Db::create(Arc::clone(&device) as _, &create).expect("creates");
    let options = Options { background: Background::Manual, ..Options::with_memory(64 << 20) };
    let db = Db::open(device, options, Arc::clone(clock) as _).expect("opens");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    for round in 0..2u8 {
        let mut batch = Batch::new();
        (0..200u8).for_each(|key| batch.put(rows, vec![round, key], vec![key; 100]));
        db.apply(batch, Durability::Buffered).expect("writes");
        if round == 0 {
            db.flush().expect("flushes");
        }
        assert!(db.get(rows, &[0, 1]).expect("reads").is_some());
    }
    db
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_secs(100)))
}

#[test]
fn store_that_is_closed_has_nothing_charged() {
    let db = store(&clock());
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let (snapshot, txn) = (db.snapshot().expect("pins"), db.begin(TxnOptions::default()).expect("begins"));
    let mut cursor = db.cursor(rows, KeyRange::all()).expect("opens");
    cursor.next().expect("moves");
    let mut batch = Batch::new();
    batch.put(rows, "mine", "1");
    txn.apply(batch).expect("writes");
    let charged = db.charged_memory();
    let pools: Vec<_> = charged.ownerless.iter().map(|pool| (pool.pool, pool.bytes)).collect();
    assert_eq!(pools, [("block_cache", 0)], "whose memtables there are is not known beside a transaction");
    for file in ["order/mod.rs", "commit/private.rs", "table/", "journal/group.rs"] {
        let is_there = |live: &LiveCharges| live.at.is_some_and(|at| at.file().contains(file));
        assert!(charged.live.iter().any(is_there), "{file} in {charged:?}");
    }
    drop((snapshot, txn, cursor));
    let charged = db.charged_memory();
    assert!(
        charged.ownerless.len() == 2 && charged.ownerless.iter().all(|pool| pool.bytes == 0),
        "{charged:?}"
    );
    let charges = Arc::clone(db.parts.runtime.ctx.accountant.charges());
    db.close().expect("closes");
    drop(db);
    assert_eq!((charges.live(), charges.used_total()), (Vec::new(), 0));
}

#[test]
fn leak_is_named_with_its_place_on_demand_and_at_the_end_of_the_store() {
    let clock = clock();
    let db = store(&clock);
    let (leaked, line) = (db.parts.runtime.ctx.accountant.charge(Pool::Memtable, 4096), line!());
    std::mem::forget(leaked);
    clock.advance(Duration::from_mins(1));
    let charged = db.charged_memory();
    let found = charged.live.iter().find(|live| live.at.is_some_and(|at| at.file() == file!()));
    let found = found.expect("is found");
    assert_eq!((found.pool, found.bytes, found.count, found.age_max.as_secs()), ("memtable", 4096, 1, 60));
    let memtables = charged.ownerless.iter().find(|pool| pool.pool == "memtable").expect("is compared");
    assert_eq!(memtables.bytes, 4096);
    let message = catch_unwind(AssertUnwindSafe(|| drop(db))).expect_err("panics in debug builds");
    let message = message.downcast_ref::<String>().expect("is a message");
    assert!(
        message.contains(&format!("4096 bytes of memtable in 1, the oldest for 60s, at {}:{line}", file!()))
    );
}
