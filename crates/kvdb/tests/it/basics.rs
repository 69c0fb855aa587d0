//! Writing, reading, reopening and merging in small configurations.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvfs_device::{CrashDevice, CrashMode, Device, MemoryDevice};
use kvfs_kvdb::{Background, CreateOptions, Db, Options};
use kvfs_store::clock::{Clock, ManualClock, SystemClock};
use kvfs_store::progress::{self, Step};
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceKind, MergeFunction,
    Read, Result, Store, StoreError,
};

const ZONE_BYTES: u32 = 256 << 10;

pub(crate) fn make(zones: u64) -> Arc<dyn Device> {
    let capacity = zones * u64::from(ZONE_BYTES);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, capacity));
    create(&device, zones);
    device
}

pub(crate) fn create(device: &Arc<dyn Device>, zones: u64) {
    create_zoned(device, ZONE_BYTES, zones);
}

pub(crate) fn create_zoned(device: &Arc<dyn Device>, zone_bytes: u32, zones: u64) {
    let options = CreateOptions {
        zone_bytes,
        journal_bytes: Some(4 << 20),
        ..CreateOptions::new(zones * u64::from(zone_bytes), [7; 16])
    };
    Db::create(Arc::clone(device), &options).expect("creates");
}

pub(crate) fn open(device: &Arc<dyn Device>, change: impl FnOnce(&mut Options)) -> Arc<Db> {
    let mut options = Options::with_memory(64 << 20);
    options.background = Background::Manual;
    options.memtable_bytes = 1 << 20;
    change(&mut options);
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Duration::from_secs(1)));
    Db::open(Arc::clone(device), options, clock).expect("opens")
}

pub(crate) fn put(db: &Db, keyspace: Keyspace, key: &str, value: &str) {
    let mut batch = Batch::new();
    batch.put(keyspace, key.as_bytes().to_vec(), value.as_bytes().to_vec());
    db.apply(batch, Durability::Buffered).expect("applies");
}

pub(crate) fn get(db: &Db, keyspace: Keyspace, key: &str) -> Option<String> {
    let value = db.get(keyspace, key.as_bytes()).expect("reads");
    value.map(|value| String::from_utf8_lossy(&value).into_owned())
}

pub(crate) fn rows(db: &Db) -> Keyspace {
    db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens")
}

pub(crate) fn data(db: &Db) -> Keyspace {
    db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens")
}

pub(crate) fn stat(db: &Db, name: &str) -> u64 {
    db.stats().into_iter().find(|(n, _)| n == name).map(|(_, value)| value).expect("is there")
}

/// Appends, unless it is to refuse.
#[derive(Default)]
pub(crate) struct Append {
    pub(crate) refuses: AtomicBool,
}

impl Append {
    pub(crate) fn refusing() -> Arc<Self> {
        Arc::new(Self { refuses: true.into() })
    }

    /// The rows, with this as their merge function.
    pub(crate) fn rows(self: &Arc<Self>, db: &Db) -> Keyspace {
        let merge = Arc::clone(self) as Arc<dyn MergeFunction>;
        db.open_keyspace("rows", KeyspaceKind::Tuple, Some(merge)).expect("opens")
    }
}

impl MergeFunction for Append {
    fn resolve(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(StoreError::corrupt("an operand", "refused"));
        }
        Ok(Some([base.unwrap_or_default(), &operands.concat()].concat().into()))
    }

    fn fold(&self, _: &[u8], _: &[u8], _: &[u8]) -> Option<Bytes> {
        None
    }
}

fn scan(db: &Db, keyspace: Keyspace) -> Vec<String> {
    let mut cursor = db.cursor(keyspace, KeyRange::all()).expect("opens");
    let mut keys = Vec::new();
    loop {
        cursor.next().expect("moves");
        let Some((key, _)) = cursor.entry() else { return keys };
        keys.push(String::from_utf8_lossy(key).into_owned());
    }
}

fn block(fill: u8) -> Vec<u8> {
    vec![fill; BLOCK_BYTES]
}

#[test]
fn what_was_written_is_there_after_reopen_from_journal_and_from_runs() {
    let device = make(200);
    let db = open(&device, |_| {});
    let rows = rows(&db);
    put(&db, rows, "a", "1");
    put(&db, rows, "b", "2");
    let last = db.position();
    db.sync(last).expect("syncs");
    drop(db);

    let db = open(&device, |_| {});
    let rows = crate::basics::rows(&db);
    assert_eq!(db.position(), last, "replayed");
    assert_eq!(get(&db, rows, "a").as_deref(), Some("1"));
    db.flush().expect("flushes");
    assert_eq!(scan(&db, rows), ["a", "b"]);
    db.close().expect("closes");
    drop(db);

    let db = open(&device, |_| {});
    let rows = crate::basics::rows(&db);
    assert_eq!(db.position(), last);
    assert_eq!(scan(&db, rows), ["a", "b"]);
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn check_that_is_not_wanted_any_more_ends_behind_the_piece() {
    let device = make(200);
    let db = open(&device, |_| {});
    let rows = rows(&db);
    for key in ["a", "b"] {
        put(&db, rows, key, "1");
        db.flush().expect("flushes");
    }
    assert!(db.check().expect("checks").counts.contains(&("pieces".to_owned(), 2)));
    let verified = Rc::new(Cell::new(0));
    let (seen, asked) = (Rc::clone(&verified), Rc::clone(&verified));
    let watcher = move |step: Step| seen.set(seen.get() + u64::from(step.done > 0));
    let checked =
        progress::watched(watcher, || progress::while_wanted(move || asked.get() < 1, || db.check()));
    assert!(matches!(checked, Err(StoreError::GivenUp)), "{checked:?}");
    assert_eq!(verified.get(), 1);
}

#[test]
fn deletes_and_overwrites_survive_merging_at_every_threshold() {
    for stitch_bytes_min in [0, 32 << 10, u64::MAX] {
        let device = make(400);
        let db = open(&device, |options| {
            options.merge.stitch_bytes_min = stitch_bytes_min;
            options.merge.class_runs = 2;
            options.merge.piece_bytes = 64 << 10;
        });
        let rows = rows(&db);
        for round in 0..6 {
            for i in 0..500 {
                put(&db, rows, &format!("key{:05}", i * 7 + round), &format!("value{round}").repeat(20));
            }
            let mut batch = Batch::new();
            batch.delete(rows, format!("key{:05}", 7 * round).into_bytes());
            batch.delete_range(
                rows,
                format!("key{:05}", 100 * round).into_bytes(),
                format!("key{:05}", 100 * round + 10).into_bytes(),
            );
            db.apply(batch, Durability::Buffered).expect("applies");
            db.flush().expect("flushes");
        }
        let before = scan(&db, rows);
        db.compact().expect("merges");
        assert_eq!(scan(&db, rows), before, "threshold {stitch_bytes_min}");
        db.reclaim().expect("reclaims");
        assert_eq!(scan(&db, rows), before, "threshold {stitch_bytes_min}");
        let checked = db.check().expect("checks");
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
    }
}

#[test]
fn blocks_read_back_with_holes_overwrites_and_range_deletes() {
    for stitch_bytes_min in [0, 32 << 10, u64::MAX] {
        let device = make(400);
        let db = open(&device, |options| options.merge.stitch_bytes_min = stitch_bytes_min);
        let data = data(&db);
        let write = |first: u64, fills: &[u8]| {
            let mut batch = Batch::new();
            batch.put_blocks(
                data,
                Bytes::from_static(b"file"),
                first,
                fills.iter().flat_map(|&f| block(f)).collect::<Vec<_>>(),
            );
            db.apply(batch, Durability::Buffered).expect("applies");
        };
        write(10, &[1; 100]);
        db.flush().expect("flushes");
        write(20, &[2; 5]);
        db.flush().expect("flushes");
        let mut batch = Batch::new();
        let key = |block: u64| [&b"file"[..], &block.to_be_bytes()].concat();
        batch.delete_range(data, key(22), key(40));
        db.apply(batch, Durability::Buffered).expect("applies");
        write(30, &[3]);

        let expect = |db: &Db, when: &str| {
            let mut buf = vec![9; 120 * BLOCK_BYTES];
            db.read_blocks(data, b"file", 0, &mut buf).expect("reads");
            for (number, found) in buf.chunks(BLOCK_BYTES).enumerate() {
                let wanted = match number {
                    20..22 => 2,
                    30 => 3,
                    22..40 => 0,
                    10..110 => 1,
                    _ => 0,
                };
                assert!(
                    found.iter().all(|&b| b == wanted),
                    "{when}: block {number} is {} not {wanted}",
                    found[0]
                );
            }
            let next = |from, kind| db.next_extent(data, b"file", from..u64::MAX, kind).expect("seeks");
            assert_eq!(next(0, ExtentKind::Data), Some(Extent { first: 10, count: 12 }), "{when}");
            assert_eq!(next(12, ExtentKind::Hole), Some(Extent { first: 22, count: 8 }), "{when}");
            assert_eq!(next(22, ExtentKind::Data), Some(Extent { first: 30, count: 1 }), "{when}");
            assert_eq!(next(110, ExtentKind::Data), None, "{when}");
        };
        expect(&db, "in memory");
        db.flush().expect("flushes");
        expect(&db, "flushed");
        db.reclaim().expect("merges");
        expect(&db, "merged");
        assert!(db.check().expect("checks").findings.is_empty());
        db.close().expect("closes");
        drop(db);
        let db = open(&device, |_| {});
        assert_eq!(db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens"), data);
        expect(&db, "reopened");
    }
}

#[test]
fn a_snapshot_keeps_its_answers_through_flush_and_merge() {
    let device = make(200);
    let db = open(&device, |_| {});
    let rows = rows(&db);
    put(&db, rows, "k", "old");
    let snapshot = db.snapshot().expect("pins");
    put(&db, rows, "k", "new");
    for _ in 0..2 {
        db.flush().expect("flushes");
        db.reclaim().expect("merges");
        assert_eq!(snapshot.get(rows, b"k").expect("reads").as_deref(), Some(&b"old"[..]));
        assert_eq!(get(&db, rows, "k").as_deref(), Some("new"));
    }
}

#[test]
fn space_comes_back_after_deleting_on_a_full_store() {
    let device = make(80);
    let db = open(&device, |_| {});
    let data = data(&db);
    for round in 0..3 {
        let mut written = 0;
        loop {
            let mut batch = Batch::new();
            batch.put_blocks(data, Bytes::from_static(b"f"), written, vec![round as u8; 16 * BLOCK_BYTES]);
            match db.apply(batch, Durability::Buffered) {
                Ok(_) => written += 16,
                Err(StoreError::Full) => break,
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        assert!(written > 500, "round {round}: only {written} blocks fitted");
        let mut batch = Batch::new();
        batch.delete_range(data, &b"f"[..], &b"g"[..]);
        db.apply(batch, Durability::Synced).expect("deleting works on a full store");
    }
}

#[test]
fn background_threads_keep_up_and_stop() {
    let device = make(2000);
    let db = open(&device, |options| options.background = Background::Threads);
    let rows = rows(&db);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let db = &db;
            scope.spawn(move || {
                for i in 0..5000 {
                    put(db, rows, &format!("{thread}-{i:06}"), &"x".repeat(300));
                }
            });
        }
    });
    assert_eq!(scan(&db, rows).len(), 20_000);
    db.close().expect("closes");
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn a_group_that_is_wholly_in_runs_makes_room_for_the_next_batch() {
    let device = make(200);
    for background in [Background::Manual, Background::Threads] {
        let db = open(&device, |options| options.background = background);
        let rows = rows(&db);
        for round in 0..3_u8 {
            // More than half of the journal's area, flushed while the journal's group is still open.
            let mut batch = Batch::new();
            for key in 0..10_u8 {
                batch.put(rows, vec![key], vec![round; 250 << 10]);
            }
            db.apply(batch, Durability::Buffered).expect("applies");
            db.flush().expect("flushes");
        }
        db.close().expect("closes");
    }
}

/// The clock stands still, so the interval never ends.
#[test]
fn what_is_not_durable_stays_below_its_bound_without_an_interval() {
    const BYTES_MAX: u64 = 1 << 20;
    const BATCH_BYTES: usize = 100_000;
    for background in [Background::Manual, Background::Threads] {
        let crash = Arc::new(CrashDevice::in_memory(0, 2000 * u64::from(ZONE_BYTES)));
        let device = Arc::clone(&crash) as Arc<dyn Device>;
        create(&device, 2000);
        let db = open(&device, |options| {
            (options.background, options.unsynced_bytes_max) = (background, BYTES_MAX);
        });
        let rows = rows(&db);
        let unsynced = || stat(&db, "journal.unsynced_bytes");
        for number in 0..100 {
            put(&db, rows, &format!("{number:03}"), &"x".repeat(BATCH_BYTES));
            assert!(unsynced() <= BYTES_MAX + 2 * BATCH_BYTES as u64, "{background:?}: {}", unsynced());
            if number % 20 == 19 {
                let image: Arc<dyn Device> =
                    Arc::new(crash.crash_image(1, CrashMode::DropAll).expect("an image"));
                let after = open(&image, |_| ());
                let kept = scan(&after, rows).len();
                let lost = number + 1 - kept;
                assert!(
                    lost * BATCH_BYTES <= BYTES_MAX as usize + 2 * BATCH_BYTES,
                    "{background:?}: {lost} are lost"
                );
            }
        }
        if background == Background::Threads {
            // The thread begins at half of it, and waits for nothing.
            let clock = SystemClock::new();
            let deadline = clock.monotonic() + Duration::from_mins(1);
            while unsynced() > BYTES_MAX / 2 {
                assert!(clock.monotonic() < deadline, "the commit thread does not sync");
                std::thread::yield_now();
            }
        }
        db.close().expect("closes");
    }
}

/// After a kill; nothing tells a torn last group from one that was acknowledged and has rotted.
#[test]
fn journal_that_ends_in_a_damaged_group_opens_and_its_check_tells_of_it() {
    const NEEDLE: &[u8] = b"needle";
    let device = Arc::new(MemoryDevice::growable(0, 64 * u64::from(ZONE_BYTES)));
    create(&(Arc::clone(&device) as Arc<dyn Device>), 64);
    let db = open(&(Arc::clone(&device) as Arc<dyn Device>), |_| {});
    let keyspace = rows(&db);
    for (key, value) in [("a", "first"), ("b", "needle")] {
        let mut batch = Batch::new();
        batch.put(keyspace, key, value);
        db.apply(batch, Durability::Synced).expect("applies");
    }
    let (sound, damaged) = (device.fork(), device.fork());
    let mut bytes = vec![0; damaged.len_bytes() as usize];
    damaged.read_at(&mut bytes, 0).expect("reads");
    let at = bytes.windows(NEEDLE.len()).position(|window| window == NEEDLE).expect("is in the journal");
    let sector = at / 4096 * 4096;
    bytes[at] ^= 1;
    damaged.write_at(&bytes[sector..sector + 4096], sector as u64).expect("writes");
    for (image, has_last) in [(sound, true), (damaged, false)] {
        let db = open(&(Arc::new(image) as Arc<dyn Device>), |_| {});
        let keyspace = rows(&db);
        assert_eq!(get(&db, keyspace, "a").as_deref(), Some("first"));
        assert_eq!(get(&db, keyspace, "b").is_some(), has_last);
        let checked = db.check().expect("checks");
        assert!(checked.findings.is_empty());
        let tells = checked.counts.iter().any(|(name, bytes)| name.contains("journal") && *bytes > 0);
        assert_eq!(tells, !has_last);
        assert_eq!(stat(&db, "journal.incomplete_bytes") > 0, !has_last);
    }
}

#[test]
fn a_closed_store_refuses_writes_and_still_reads() {
    let device = make(200);
    let db = open(&device, |options| options.background = Background::Threads);
    let rows = rows(&db);
    put(&db, rows, "k", "v");
    db.close().expect("closes");
    let mut batch = Batch::new();
    batch.put(rows, &b"k"[..], &b"w"[..]);
    assert!(matches!(db.apply(batch, Durability::Buffered), Err(StoreError::Failed { .. })));
    assert_eq!(get(&db, rows, "k").as_deref(), Some("v"));
}

#[test]
fn the_last_block_numbers_survive_flush_and_merge() {
    let device = make(64);
    let db = open(&device, |_| {});
    let data = data(&db);
    for fill in 1..=3 {
        let mut batch = Batch::new();
        batch.put_blocks(data, b"file".to_vec(), u64::MAX - 1, block(fill));
        db.apply(batch, Durability::Buffered).expect("applies");
        db.flush().expect("flushes");
    }
    db.reclaim().expect("merges");
    let mut found = block(0);
    db.read_blocks(data, b"file", u64::MAX - 1, &mut found).expect("reads");
    assert_eq!(found, block(3));
}

#[test]
fn opening_again_and_again_takes_no_new_zones() {
    let device = make(64);
    let free = |db: &Db| db.space().available_bytes;
    let mut available = Vec::new();
    for round in 0..20 {
        let db = open(&device, |_| {});
        let rows = rows(&db);
        put(&db, rows, &format!("key {round}"), "value");
        db.close().expect("closes");
        available.push(free(&db));
    }
    let lost = available[1].saturating_sub(available[19]);
    assert!(lost <= 2 * u64::from(ZONE_BYTES), "{available:?}");
}

#[test]
fn a_full_store_with_threads_refuses_and_takes_deletions_without_hanging() {
    let device = make(48);
    let db = open(&device, |options| options.background = Background::Threads);
    let data = data(&db);
    let mut files = 0_u64;
    let fill = |file: u64| {
        let mut batch = Batch::new();
        batch.put_blocks(data, file.to_be_bytes().to_vec(), 0, vec![7; 16 * BLOCK_BYTES]);
        db.apply(batch, Durability::Buffered)
    };
    while fill(files).is_ok() {
        files += 1;
        assert!(files < 10_000, "the store never fills up");
    }
    assert!(files > 10, "{files} files fill the store");
    for file in 0..files {
        let mut batch = Batch::new();
        let (start, end) = (file.to_be_bytes().to_vec(), (file + 1).to_be_bytes().to_vec());
        batch.delete_range(data, start, end);
        db.apply(batch, Durability::Synced).expect("deletes on a full store");
    }
    fill(0).expect("there is space again");
    db.close().expect("closes");
}
