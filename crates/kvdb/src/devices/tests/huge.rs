//! Capacities far beyond what is there.

use super::*;

/// With 32 bytes for each zone of it, they would take 64 GiB of memory.
const CAPACITY: u64 = (1 << 31) * ZONE_BYTES;

fn created() -> Arc<dyn Device> {
    let first: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, FIRST_ZONES * ZONE_BYTES));
    let options = CreateOptions {
        zone_bytes: ZONE_BYTES as u32,
        journal_bytes: Some(4 << 20),
        ..CreateOptions::new(CAPACITY, [5; 16])
    };
    Db::create(Arc::clone(&first), &options).expect("creates");
    first
}

#[test]
fn store_of_huge_capacity_takes_in_a_device_and_opens_with_it() {
    let (first, slow) = (created(), memory(SLOW_BYTES));
    let db = open(&first, &[], options()).expect("opens");
    let id = db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    assert!(live(&db, id) >= FILES * BLOCKS * BLOCK_BYTES as u64);
    db.close().expect("closes");
    drop(db);

    let others = [slow];
    let db = open(&first, &others, options()).expect("opens");
    check(&db, 1);
    let space = db.devices().into_iter().find(|device| device.id == 0).expect("is there");
    assert_eq!(space.bytes_total, CAPACITY);
    assert!(space.bytes_free < CAPACITY && space.bytes_free > CAPACITY - FIRST_ZONES * ZONE_BYTES);
    assert!(db.drain_device(id, &mut |_| true).expect("drains"));
    db.remove_device(id).expect("is empty");
    check(&db, 1);
}

#[test]
fn device_with_too_many_zones_is_refused_and_changes_nothing() {
    let first = created();
    let db = open(&first, &[], options()).expect("opens");
    let huge = Arc::new(MissingDevice::new("a huge device".to_owned(), u64::from(u32::MAX) * ZONE_BYTES));
    let error = db.add_device(huge, Tier::Slow).expect_err("it is refused");
    assert!(error.to_string().contains("too large"), "{error}");
    assert_eq!(db.devices().len(), 1);
    write(&db, 0, 1).expect("writes");
    db.close().expect("closes");
}
