//! A journal whose medium has no space for more of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{
    Call, CrashDevice, CrashMode, Device, FaultDevice, FaultError, FaultRule, FileDevice, MemoryDevice, Rng,
};
use kvfs_store::clock::ManualClock;
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Read, Store, StoreError};

use crate::runtime::stalls::StallTimer;
use crate::{Background, CreateOptions, Db, Options};

const ZONE_BYTES: u32 = 256 << 10;
const CAPACITY: u64 = 200 * ZONE_BYTES as u64;
const PART_BYTES: u64 = 128 << 10;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn create(device: &Arc<dyn Device>) {
    let create = CreateOptions {
        zone_bytes: ZONE_BYTES,
        journal_bytes: Some(4 << 20),
        ..CreateOptions::new(CAPACITY, [9; 16])
    };
    Db::create(Arc::clone(device), &create).expect("creates");
}

fn open(device: Arc<dyn Device>) -> Arc<Db> {
    let mut options = Options::with_memory(64 << 20);
    options.background = Background::Manual;
    options.journal_part_bytes = PART_BYTES;
    Db::open(device, options, Arc::new(ManualClock::at(Duration::from_secs(1)))).expect("opens")
}

fn rows(db: &Db) -> Keyspace {
    db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens")
}

/// One synced batch, which the model gets, too.
fn write(db: &Db, rows: Keyspace, model: &mut Model, rng: &mut Rng) {
    let key = (rng.below(500) as u32).to_be_bytes().to_vec();
    let value = vec![rng.below(256) as u8; rng.range(100, 6000) as usize];
    let mut batch = Batch::new();
    batch.put(rows, key.clone(), value.clone());
    db.apply(batch, Durability::Synced).expect("there is space for it");
    model.insert(key, value);
}

fn same(db: &Db, model: &Model, what: &str) {
    let rows = rows(db);
    for (key, value) in model {
        let found = db.get(rows, key).expect("reads");
        assert_eq!(found.as_deref(), Some(value.as_slice()), "{what}");
    }
}

/// Bytes of the area that were ever written to.
fn reach(db: &Db) -> u64 {
    let journal = db.parts.log.journal().expect("is writable");
    journal.head().0 % journal.area_bytes()
}

#[test]
fn journal_without_space_for_more_begins_anew_and_fails_nothing() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, CAPACITY)));
    create(&(Arc::clone(&device) as Arc<dyn Device>));
    let db = open(Arc::clone(&device) as _);
    device.add(FaultRule::from(Call::Allocate, 0, FaultError::ENOSPC));
    let (rows, mut model, mut rng) = (rows(&db), Model::new(), Rng::new(5));
    let mut laps = 0;
    for _ in 0..1000 {
        let before = reach(&db);
        write(&db, rows, &mut model, &mut rng);
        assert!(reach(&db) <= PART_BYTES, "nothing was allocated behind the first part");
        laps += usize::from(reach(&db) < before);
    }
    assert!(laps > 10, "{laps} laps");
    same(&db, &model, "before the close");
    let mut large = Batch::new();
    large.put(rows, b"large".to_vec(), vec![1; PART_BYTES as usize + 50_000]);
    let refused = db.apply(large.clone(), Durability::Synced);
    assert!(matches!(refused, Err(StoreError::Full)), "{refused:?}");
    write(&db, rows, &mut model, &mut rng);
    // Space that has come is taken.
    device.clear();
    db.apply(large, Durability::Synced).expect("there is space again");
    db.close().expect("closes");
    drop(db);
    let db = open(device);
    same(&db, &model, "after the next opening");
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn second_writer_that_a_full_log_has_refused_takes_the_room_that_the_first_has_made() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, CAPACITY)));
    create(&(Arc::clone(&device) as Arc<dyn Device>));
    let db = open(Arc::clone(&device) as _);
    device.add(FaultRule::from(Call::Allocate, 0, FaultError::ENOSPC));
    let (rows, mut model, mut rng) = (rows(&db), Model::new(), Rng::new(5));
    let journal = db.parts.log.journal().expect("is writable");
    while journal.used_bytes() < PART_BYTES / 2 {
        write(&db, rows, &mut model, &mut rng);
    }
    db.parts.log.sync(db.parts.history.position()).expect("writes the open group");
    let found = journal.room();
    let mut held = StallTimer::default();
    while !journal.room().is_whole(journal.area_bytes()) {
        db.parts.writer.make_journal_space(journal.room(), &mut held).expect("the first makes room");
    }
    db.parts.writer.make_journal_space(found, &mut held).expect("the second tries again");
    let whole = db.parts.writer.make_journal_space(journal.room(), &mut held);
    assert!(matches!(whole, Err(StoreError::Full)), "there is no more: {whole:?}");
}

#[test]
fn writers_at_once_on_a_full_medium_are_all_served() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, CAPACITY)));
    create(&(Arc::clone(&device) as Arc<dyn Device>));
    let db = open(Arc::clone(&device) as _);
    device.add(FaultRule::from(Call::Allocate, 0, FaultError::ENOSPC));
    let rows = rows(&db);
    std::thread::scope(|scope| {
        for thread in 0..6_u8 {
            let db = &db;
            scope.spawn(move || {
                for number in 0..200_u32 {
                    let mut batch = Batch::new();
                    let key = [&[thread], &(number % 20).to_be_bytes()[..]].concat();
                    batch.put(rows, key, vec![thread; 30_000]);
                    db.apply(batch, Durability::Buffered).expect("it fits an empty log");
                }
            });
        }
    });
}

#[test]
fn power_cut_at_any_step_of_a_journal_that_begins_anew_loses_nothing() {
    let crash = Arc::new(CrashDevice::in_memory(0, CAPACITY).with_log().expect("is new"));
    let device = Arc::new(FaultDevice::new(Arc::clone(&crash)));
    create(&(Arc::clone(&device) as Arc<dyn Device>));
    let db = open(Arc::clone(&device) as _);
    device.add(FaultRule::from(Call::Allocate, 0, FaultError::ENOSPC));
    let (keyspace, mut model, mut rng) = (rows(&db), Model::new(), Rng::new(11));
    let mut steps: Vec<(usize, Model)> = Vec::new();
    for _ in 0..120 {
        write(&db, keyspace, &mut model, &mut rng);
        steps.push((crash.events_len(), model.clone()));
    }
    let start = steps[0].0;
    let mut restarted = 0;
    for event in start..crash.events_len() {
        let what = format!("event {event}");
        let mode = [CrashMode::KeepSubset, CrashMode::Tear, CrashMode::KeepAll][event % 3];
        let image = Arc::new(crash.image_at(event, 3, mode).expect("is in the log"));
        let opened = open(image);
        let journal = opened.parts.log.journal().expect("is writable");
        restarted += usize::from(journal.tail().0 >= journal.area_bytes());
        // At least what was acknowledged, at most what was begun then.
        let acknowledged = steps.partition_point(|&(events, _)| events <= event);
        let candidates = &steps[acknowledged.saturating_sub(1)..(acknowledged + 1).min(steps.len())];
        let keyspace = rows(&opened);
        let holds = |model: &Model| {
            model.iter().all(|(key, value)| {
                opened.get(keyspace, key).expect("reads").as_deref() == Some(value.as_slice())
            })
        };
        assert!(candidates.iter().any(|(_, model)| holds(model)), "{what}");
    }
    assert!(restarted > 20, "{restarted} images after a restart");
}

#[test]
fn journal_of_a_closed_store_begins_where_it_has_space() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
    create(&device);
    let (mut model, mut rng) = (Model::new(), Rng::new(7));
    for _ in 0..4 {
        let db = open(Arc::clone(&device));
        let rows = rows(&db);
        assert!(reach(&db) <= PART_BYTES);
        while reach(&db) < 3 * PART_BYTES {
            write(&db, rows, &mut model, &mut rng);
        }
        db.close().expect("closes");
    }
    same(&open(device), &model, "after four openings");
}

#[test]
fn repair_after_the_journal_began_anew_keeps_what_follows() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, CAPACITY)));
    create(&(Arc::clone(&device) as Arc<dyn Device>));
    let db = open(Arc::clone(&device) as _);
    device.add(FaultRule::from(Call::Allocate, 0, FaultError::ENOSPC));
    let (rows, mut model, mut rng) = (rows(&db), Model::new(), Rng::new(5));
    while db.parts.log.journal().expect("is writable").tail().0 < 4 << 20 {
        write(&db, rows, &mut model, &mut rng);
    }
    for _ in 0..4 {
        write(&db, rows, &mut model, &mut rng);
    }
    let manifest = db.parts.live.superblock().manifest_zones;
    drop(db);
    let image = Arc::new(device.inner().fork());
    let zeros = kvfs_device::AlignedBuf::zeroed(ZONE_BYTES as usize);
    for zone in manifest {
        let addr = u64::from(zone.0) * u64::from(ZONE_BYTES);
        image.write_at(zeros.as_ref(), addr).expect("writes");
    }
    let repaired = crate::repair(&(Arc::clone(&image) as _), &[("rows", KeyspaceKind::Tuple)]);
    repaired.expect("repairs what a lost manifest leaves");
    same(&open(image), &model, "after the repair");
}

/// Bytes that the file takes on its file system.
fn allocated(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).expect("is there").blocks() * 512
}

#[test]
fn empty_store_takes_little_and_its_journal_grows_with_use() {
    let path = std::env::temp_dir().join(format!("kvfs-journal-space-{}", std::process::id()));
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(&path, 0).expect("creates"));
    Db::create(Arc::clone(&device), &CreateOptions::new(64 << 30, [3; 16])).expect("creates");
    let options = Options { background: Background::Manual, ..Options::with_memory(64 << 20) };
    let db = Db::open(device, options, Arc::new(ManualClock::default())).expect("opens");
    let rows = rows(&db);
    let empty = allocated(&path);
    assert!(empty <= 48 << 20, "an empty store takes {empty} bytes");
    let mut written = 0_u64;
    while written < 24 << 20 {
        let mut batch = Batch::new();
        batch.put(rows, written.to_be_bytes().to_vec(), vec![5; 100_000]);
        written += 100_000;
        db.apply(batch, Durability::Buffered).expect("there is space");
    }
    let grown = allocated(&path);
    let _ = std::fs::remove_file(&path);
    assert!((empty + (16 << 20)..empty + (256 << 20)).contains(&grown), "from {empty} to {grown} bytes");
}
