//! Drains that find less room than they need.

use kvfs_device::CountingDevice;

use super::*;
use crate::space::Budget;

/// As `kvfs rm` of a file.
fn remove(db: &Db, file: u64) -> Result<()> {
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None)?;
    let mut batch = Batch::new();
    batch.delete(rows, file.to_be_bytes().to_vec());
    batch.delete_range(files(db), file.to_be_bytes().to_vec(), (file + 1).to_be_bytes().to_vec());
    db.apply(batch, Durability::Synced).map(drop)
}

fn trouble(db: &Db, id: u32) -> String {
    let info = db.devices().into_iter().find(|device| device.id == id).expect("is there");
    info.drain.and_then(|drain| drain.trouble).unwrap_or_default()
}

#[test]
fn drain_without_room_leaves_deletions_their_reserve() {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let id = db.add_device(slow, Tier::Slow).expect("adds");
    let mut last = 139;
    (0..=last).for_each(|file| write(&db, file, 1).expect("writes"));
    for removed in 0..4 {
        assert!(!db.drain_device(id, &mut |_| true).expect("drains"), "the first device is too small");
        assert!(trouble(&db, id).contains("no room"), "{}", trouble(&db, id));
        remove(&db, removed).unwrap_or_else(|error| panic!("round {removed}: {error}"));
        db.flush().unwrap_or_else(|error| panic!("round {removed}: {error}"));
        assert!(!db.drain_device(id, &mut |_| true).expect("drains"), "the first device is too small");
        db.refill_device(id).expect("fills");
        for file in last + 1..last + 4 {
            // What has no room on the slow device goes to the first one, as long as that has some.
            match write(&db, file, 1) {
                Ok(()) => last = file,
                Err(error) => assert!(matches!(error, StoreError::Full), "{error}"),
            }
        }
    }
    assert!(!db.drain_device(id, &mut |_| true).expect("drains"), "the first device is too small");
    for file in 4..=last {
        remove(&db, file).unwrap_or_else(|error| panic!("file {file}: {error}"));
    }
    db.reclaim().expect("reclaims");
    assert!(db.drain_device(id, &mut |_| true).expect("drains"), "what is left has room");
    assert!(db.check().expect("checks").findings.is_empty());
}

/// What ordinary writes may still take, in zones.
fn zones_left(db: &Db) -> u64 {
    db.parts.runtime.ctx.zones.free_bytes(Budget::Ordinary) / ZONE_BYTES
}

#[test]
fn drain_without_room_moves_what_fits_and_writes_nothing_more() {
    let first = Arc::new(CountingDevice::new(MemoryDevice::growable(0, FIRST_ZONES * ZONE_BYTES)));
    let shared = Arc::clone(&first) as Arc<dyn Device>;
    create(&shared);
    let db = open(&shared, &[], options()).expect("opens");
    let id = db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    (0..140).for_each(|file| write(&db, file, 1).expect("writes"));
    db.compact().expect("merges");
    assert!(!db.drain_device(id, &mut |_| false).expect("begins"), "it was told to end");
    let (before, free) = (live(&db, id), zones_left(&db));
    assert!(before / ZONE_BYTES > free && free > 20, "{before} bytes, {free} zones");
    let mut told = Vec::new();
    let mut watch = |left| {
        told.push(left);
        true
    };
    assert!(!db.drain_device(id, &mut watch).expect("drains"), "the first device is too small");
    assert!(trouble(&db, id).contains("no room"), "{}", trouble(&db, id));
    let moved = before - live(&db, id);
    assert!(
        moved / ZONE_BYTES > free - 8 && zones_left(&db) < 5,
        "{moved} of {before}, {free} and {} zones, {told:?}",
        zones_left(&db)
    );
    let info = db.devices().into_iter().find(|device| device.id == id).and_then(|device| device.drain);
    assert_eq!(info.map(|drain| drain.bytes_moved), Some(moved));
    check(&db, 1);

    let written = first.counts().bytes_written;
    for _ in 0..3 {
        assert!(!db.drain_device(id, &mut |_| true).expect("drains"), "the first device is too small");
    }
    assert_eq!(first.counts().bytes_written, written, "what has no room is not copied");
    assert_eq!(before - live(&db, id), moved);
    (20..60).for_each(|file| remove(&db, file).expect("deletes"));
    db.reclaim().expect("reclaims");
    db.drain_device(id, &mut |_| true).expect("drains");
    assert!(before - live(&db, id) > moved + 20 * ZONE_BYTES, "it goes on where there is room again");
}

#[test]
fn devices_drained_together_are_not_emptied_into_each_other() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let old = db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    let next = Arc::new(CountingDevice::new(MemoryDevice::new(SLOW_BYTES)));
    let next_id = db.add_device(Arc::clone(&next) as _, Tier::Slow).expect("adds");
    let new = db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    assert!(db.begin_drain(&[old, next_id, 0]).is_err(), "the first device stays");
    let is_drained = |device: DeviceInfo| device.drain.is_some();
    assert!(!db.devices().into_iter().any(is_drained), "all are drained or none");
    db.begin_drain(&[old, next_id]).expect("begins");
    let written = next.counts().bytes_written;
    for id in [old, next_id] {
        assert!(db.drain_device(id, &mut |_| true).expect("drains"), "device {id}: {}", trouble(&db, id));
    }
    assert_eq!(next.counts().bytes_written, written, "it is to leave, too");
    assert!(live(&db, new) >= FILES * BLOCKS * BLOCK_BYTES as u64);
    check(&db, 1);
}

#[test]
fn background_drain_of_what_can_not_be_read_is_tried_ever_more_seldom() {
    let first = first();
    let slow = Arc::new(FaultDevice::new(MemoryDevice::new(SLOW_BYTES)));
    create(&first);
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    let db = Db::open(first, options(), Arc::clone(&clock) as _).expect("opens");
    let id = db.add_device(Arc::clone(&slow) as _, Tier::Slow).expect("adds");
    for file in 0..FILES {
        write(&db, file, 1).expect("writes");
        db.flush().expect("flushes");
    }
    let zone = db.parts.runtime.ctx.zones.rows().into_iter().rfind(|row| row.bytes_live > 0);
    let first_zone = db.parts.runtime.ctx.zones.members()[1].zones.start;
    let at = MEMBER_DATA_FROM + u64::from(zone.expect("holds data").zone.0 - first_zone) * ZONE_BYTES;
    slow.lose(at..at + ZONE_BYTES);
    db.begin_drain(&[id]).expect("begins");
    let is_tried = || {
        let reads = slow.counts().of(Call::Read);
        db.parts.devices.advance_drains();
        slow.counts().of(Call::Read) > reads
    };
    assert!(is_tried());
    assert!(live(&db, id) > 0 && !trouble(&db, id).is_empty(), "{} bytes", live(&db, id));
    let mut tries = 0;
    for _ in 0..720 {
        clock.advance(Duration::from_secs(5));
        tries += u64::from(is_tried());
    }
    assert!((1..16).contains(&tries), "{tries} tries in an hour");
    // A new device, or an order, changes that.
    slow.clear();
    db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    assert!(is_tried());
    assert_eq!(live(&db, id), 0, "{}", trouble(&db, id));
    check(&db, 1);
}

#[test]
fn drain_beside_a_checkpoint_names_what_holds_the_rest() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let id = db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    let txn = db.begin(TxnOptions::default()).expect("begins");
    let mut batch = Batch::new();
    batch.put_blocks(files(&db), 0_u64.to_be_bytes().to_vec(), 0, content(0, 2));
    txn.apply(batch).expect("writes");
    txn.checkpoint(b"").expect("is checkpointed");
    assert!(!db.drain_device(id, &mut |_| true).expect("drains"), "a checkpoint holds some of it");
    assert!(trouble(&db, id).contains("branches"), "{}", trouble(&db, id));
    let left = live(&db, id);
    assert!(left > 0 && left < 2 * ZONE_BYTES, "{left} bytes are left");
    txn.abort();
    assert!(db.drain_device(id, &mut |_| true).expect("drains"), "{}", trouble(&db, id));
    check(&db, 1);
}
