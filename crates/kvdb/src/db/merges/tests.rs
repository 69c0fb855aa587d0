//! A merge that ends early, and the merges after it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvfs_device::MemoryDevice;
use kvfs_store::clock::ManualClock;
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Read, Store};

use crate::{Background, CreateOptions, Db, Options};

const ZONE_BYTES: u32 = 256 << 10;
const KEYS: u32 = 2000;

fn open() -> Arc<Db> {
    let capacity = 400 * u64::from(ZONE_BYTES);
    let device = Arc::new(MemoryDevice::growable(0, capacity));
    let create = CreateOptions {
        zone_bytes: ZONE_BYTES,
        journal_bytes: Some(4 << 20),
        ..CreateOptions::new(capacity, [7; 16])
    };
    Db::create(Arc::clone(&device) as _, &create).expect("creates");
    let mut options = Options::with_memory(64 << 20);
    options.background = Background::Manual;
    options.merge.class_runs = 2;
    options.merge.piece_bytes = 64 << 10;
    Db::open(device, options, Arc::new(ManualClock::at(Duration::from_secs(1)))).expect("opens")
}

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// One run with every key.
fn write_run(db: &Db, rows: Keyspace, value: u8, len: usize) {
    let mut batch = Batch::new();
    (0..KEYS).for_each(|number| batch.put(rows, key(number), vec![value; len]));
    db.apply(batch, Durability::Buffered).expect("applies");
    db.inner.seal_if(|active| active.bytes() > 0);
    db.inner.flush_all().expect("flushes");
}

#[test]
fn a_merge_goes_on_where_one_that_ended_early_has_trimmed_its_inputs() {
    let db = open();
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    write_run(&db, rows, 1, 100);
    write_run(&db, rows, 2, 100);
    db.inner.stopping.store(true, Ordering::Release);
    assert!(!db.inner.merge_once().expect("ends early"));
    db.inner.stopping.store(false, Ordering::Release);
    let trimmed = |db: &Db| {
        let view = db.inner.view();
        view.version.runs(rows.0).iter().filter(|run| !run.lower_bound.is_empty()).count()
    };
    assert_eq!(trimmed(&db), 2, "a piece came in, and the inputs begin behind it");

    // The next merge has longer values for every key, so it cuts its first piece before those bounds.
    write_run(&db, rows, 3, 500);
    write_run(&db, rows, 4, 500);
    db.inner.reclaim().expect("merges");
    assert_eq!(trimmed(&db), 0);
    for number in 0..KEYS {
        assert_eq!(db.get(rows, &key(number)).expect("reads").expect("is there"), vec![4; 500]);
    }
    assert!(db.check().expect("checks").findings.is_empty());
}
