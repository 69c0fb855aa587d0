//! Drains that find less room than they need.

use super::*;

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
