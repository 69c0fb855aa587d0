//! Large writes that go to their final place at once: written once, there after a crash, found damaged, given
//! back.

use std::sync::Arc;

use kvfs_device::{CountingDevice, Device, MemoryDevice, Rng};
use kvfs_kvdb::format::Superblock;
use kvfs_kvdb::{Background, Db, Options, repair};
use kvfs_store::{
    BLOCK_BYTES, Batch, Compress, Compression, Durability, Keyspace, KeyspaceKind, Read, Result, Store,
    StoreError,
};

use super::basics::{create, create_zoned, data, make, open, put, rows, stat};

const ZONE_BYTES: u64 = 256 << 10;
/// Blocks of one operation.
const BLOCKS: u64 = 64;

/// Blocks of this many bytes on are bound.
fn binding(options: &mut Options) {
    options.bind_bytes_min = 64 << 10;
    options.memtable_bytes = 4 << 20;
}

/// A block that no other one equals.
fn block(number: u64, version: u64) -> Vec<u8> {
    (0..BLOCK_BYTES as u64 / 8).flat_map(|at| (number << 32 | version << 16 | at).to_le_bytes()).collect()
}

fn apply(db: &Db, data: Keyspace, first: u64, count: u64, version: u64) -> Result<()> {
    let blocks: Vec<u8> = (first..first + count).flat_map(|number| block(number, version)).collect();
    let mut batch = Batch::new();
    batch.put_blocks(data, "f", first, blocks);
    db.apply(batch, Durability::Buffered).map(drop)
}

fn write(db: &Db, data: Keyspace, first: u64, count: u64, version: u64) {
    apply(db, data, first, count, version).expect("applies");
}

/// Whether these blocks are of this version.
fn are(db: &Db, data: Keyspace, numbers: std::ops::Range<u64>, version: u64) -> bool {
    let key = |number: u64| [b"f", &number.to_be_bytes()[..]].concat();
    numbers.into_iter().all(|number| {
        db.get(data, &key(number)).expect("reads").is_some_and(|found| found == block(number, version))
    })
}

fn version(device: &Arc<dyn Device>) -> u32 {
    Superblock::read_newest(device.as_ref()).expect("reads").format_version
}

fn medium(zones: u64) -> (Arc<MemoryDevice>, Arc<dyn Device>) {
    let medium = Arc::new(MemoryDevice::growable(0, zones * ZONE_BYTES));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, zones);
    (medium, device)
}

/// Changes one byte wherever `number` lies in this version; says how often that is.
fn spoil(medium: &MemoryDevice, number: u64, version: u64) -> usize {
    let image = medium.snapshot();
    let wanted = block(number, version);
    let places: Vec<usize> = (0..image.len() / BLOCK_BYTES)
        .filter(|at| image[at * BLOCK_BYTES..][..BLOCK_BYTES] == wanted[..])
        .collect();
    for at in &places {
        let mut spoilt = wanted.clone();
        spoilt[77] ^= 1;
        medium.write_at(&spoilt, (at * BLOCK_BYTES) as u64).expect("writes");
    }
    places.len()
}

#[test]
fn large_writes_reach_the_device_once() {
    for background in [Background::Manual, Background::Threads] {
        let device = Arc::new(CountingDevice::new(make(400)));
        let db = open(&(Arc::clone(&device) as Arc<dyn Device>), |options| {
            binding(options);
            options.background = background;
        });
        let data = data(&db);
        let before = device.counts().bytes_written;
        let ops = 200;
        for op in 0..ops {
            write(&db, data, op * BLOCKS, BLOCKS, 1);
        }
        db.sync(db.position()).expect("syncs");
        db.close().expect("closes");
        let payload = ops * BLOCKS * BLOCK_BYTES as u64;
        let written = device.counts().bytes_written - before;
        // How often threads merge, and how little at a time, depends on what else runs; each merge writes its
        // metadata, twice, and copies no blocks.
        let merged = stat(&db, "merge.bytes_written");
        assert!(merged <= stat(&db, "merge.bytes_stitched") / 4, "{merged} bytes of metadata");
        assert!(
            written - 2 * merged < payload * 11 / 10,
            "{written} bytes for {payload}, {merged} in merges"
        );
        assert!(written < payload * 5 / 4, "{written} bytes for {payload}");
        assert_eq!(stat(&db, "journal.bytes_bound"), payload);
        assert!(stat(&db, "amplification.write_percent") < 125);
        assert!(are(&db, data, 0..ops * BLOCKS, 1));
        assert!(db.check().expect("checks").findings.is_empty());
    }
}

#[test]
fn bound_blocks_are_there_after_a_crash_and_are_still_written_once() {
    let counting = Arc::new(CountingDevice::new(make(400)));
    let device = Arc::clone(&counting) as Arc<dyn Device>;
    let db = open(&device, binding);
    let (data, rows) = (data(&db), rows(&db));
    write(&db, data, 0, BLOCKS, 1);
    put(&db, rows, "a", "between");
    write(&db, data, 30, BLOCKS, 2);
    write(&db, data, 200, 4, 1);
    db.sync(db.position()).expect("syncs");
    drop(db);
    for is_closed in [false, false, true, true] {
        let before = counting.counts().bytes_written;
        let db = open(&device, |options| {
            binding(options);
            options.read_only = !is_closed;
        });
        assert!(are(&db, data, 0..30, 1) && are(&db, data, 30..94, 2) && are(&db, data, 200..204, 1));
        if is_closed {
            db.close().expect("closes");
            assert!(db.check().expect("checks").findings.is_empty());
            let written = counting.counts().bytes_written - before;
            assert!(written < BLOCKS * BLOCK_BYTES as u64 / 2, "{written} bytes");
        }
    }
}

#[test]
fn what_came_after_an_opening_does_not_lie_on_bound_blocks() {
    let device = make(400);
    let db = open(&device, binding);
    let data = data(&db);
    write(&db, data, 0, BLOCKS, 1);
    db.sync(db.position()).expect("syncs");
    drop(db);
    let db = open(&device, binding);
    for op in 1..100 {
        write(&db, data, op * BLOCKS, BLOCKS, 1);
    }
    db.sync(db.position()).expect("syncs");
    drop(db);
    let db = open(&device, binding);
    assert!(are(&db, data, 0..100 * BLOCKS, 1));
    db.close().expect("closes");
    assert!(are(&db, data, 0..100 * BLOCKS, 1));
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn the_space_of_overwritten_bound_blocks_comes_back() {
    let device = make(120);
    let db = open(&device, binding);
    let data = data(&db);
    // Far more than the store holds.
    for round in 1..200 {
        write(&db, data, 0, BLOCKS, round);
        write(&db, data, BLOCKS, BLOCKS, round);
    }
    db.flush().expect("flushes");
    db.compact().expect("merges");
    assert!(are(&db, data, 0..2 * BLOCKS, 199));
    let live = stat(&db, "zones.live_bytes");
    assert!(live < 3 * BLOCKS * BLOCK_BYTES as u64, "{live} bytes for {BLOCKS} blocks, twice");
}

#[test]
fn little_that_is_left_of_a_bound_write_is_copied() {
    let device = make(400);
    let db = open(&device, binding);
    let data = data(&db);
    for op in 0..8 {
        write(&db, data, op * 100, BLOCKS, 1);
        write(&db, data, op * 100, BLOCKS - 2, 2);
    }
    db.flush().expect("flushes");
    for op in 0..8 {
        let end = op * 100 + BLOCKS;
        assert!(are(&db, data, op * 100..end - 2, 2) && are(&db, data, end - 2..end, 1));
    }
    // At the end of a zone a few more may be left alone.
    let blocks = stat(&db, "flush.bytes") / BLOCK_BYTES as u64;
    assert!((8 * 2..8 * 2 + 32).contains(&blocks), "{blocks}");
}

#[test]
fn on_a_store_that_fills_up_nothing_is_lost_and_deletions_make_room() {
    let device = make(60);
    let db = open(&device, binding);
    let data = data(&db);
    for round in 0..3 {
        let mut written = 0;
        let refused = loop {
            match apply(&db, data, written * BLOCKS, BLOCKS, round) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, StoreError::Full), "{refused}");
        assert!(written > 20, "round {round}: {written}");
        db.flush().expect("flushes");
        assert!(are(&db, data, 0..written * BLOCKS, round), "round {round}");
        let mut batch = Batch::new();
        batch.delete_range(data, "f", "g");
        db.apply(batch, Durability::Synced).expect("a full store takes deletions");
        db.flush().expect("flushes");
        db.compact().expect("merges");
    }
}

/// Fills a store of zones of `zone_bytes` with writes of `blocks`, each of which is then overwritten in every
/// `every`th block; then everything that is left to do must still go.
fn fill_in_parts(zone_bytes: u32, zones: u64, blocks: u64, every: Option<u64>, is_packed_later: bool) {
    let capacity = zones * u64::from(zone_bytes);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, capacity));
    create_zoned(&device, zone_bytes, zones);
    let change = |options: &mut Options| {
        binding(options);
        options.memtable_bytes = 8 << 20;
    };
    let what = format!("zones of {zone_bytes}, writes of {blocks}, every {every:?}");
    let db = open(&device, change);
    let data = data(&db);
    let mut first = 0;
    let refused = 'fill: loop {
        if let Err(error) = apply(&db, data, first, blocks, 1) {
            break error;
        }
        let ours = first..first + blocks;
        first += blocks;
        for number in ours.step_by(every.unwrap_or(blocks + 1) as usize).skip(1) {
            if let Err(error) = apply(&db, data, number, 1, 2) {
                break 'fill error;
            }
        }
    };
    assert!(matches!(refused, StoreError::Full), "{what}: {refused}");
    if is_packed_later {
        db.set_compression(data, Compression::Lz4).expect("sets");
    }
    db.flush().unwrap_or_else(|error| panic!("{what}: flushing: {error}"));
    assert!(are(&db, data, 0..1, 1));
    let mut batch = Batch::new();
    batch.delete_range(data, "f", "g");
    db.apply(batch, Durability::Synced).unwrap_or_else(|error| panic!("{what}: deleting: {error}"));
    db.close().unwrap_or_else(|error| panic!("{what}: closing: {error}"));
    drop(db);
    let db = open(&device, change);
    db.compact().expect("merges");
    write(&db, data, 0, blocks, 3);
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn a_full_store_flushes_and_deletes_whatever_is_left_of_bound_writes() {
    for every in [Some(8), Some(7), Some(16), None] {
        fill_in_parts(256 << 10, 100, 64, every, false);
    }
    // At the ends of zones short extents are left.
    fill_in_parts(64 << 10, 300, 34, None, false);
    fill_in_parts(64 << 10, 300, 31, None, false);
    fill_in_parts(256 << 10, 100, 64, None, true);
}

#[test]
fn damage_of_bound_blocks_is_noticed_and_can_be_repaired() {
    let (medium, device) = medium(200);
    let db = open(&device, binding);
    let data = data(&db);
    write(&db, data, 0, BLOCKS, 1);
    db.sync(db.position()).expect("syncs");
    write(&db, data, 100, BLOCKS, 1);
    db.sync(db.position()).expect("syncs");
    write(&db, data, 200, BLOCKS, 1);
    db.sync(db.position()).expect("syncs");
    drop(db);
    assert_eq!(spoil(&medium, 110, 1), 1, "it lies there once");
    let clock = Arc::new(kvfs_store::clock::ManualClock::default());
    let opened = Db::open(Arc::clone(&device), Options::with_memory(64 << 20), clock);
    assert!(
        matches!(opened, Err(StoreError::Corrupt { .. })),
        "a later group knows that it had been flushed"
    );
    let repaired = repair(&device, &[("data", KeyspaceKind::Block)]).expect("ends");
    assert_eq!(repaired.dropped_count, 2, "{:?}", repaired.findings);
    let db = open(&device, binding);
    assert!(are(&db, data, 0..BLOCKS, 1));
    db.close().expect("closes");
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn a_repair_leaves_bound_blocks_of_a_sound_journal_where_they_are() {
    let (medium, device) = medium(200);
    let db = open(&device, binding);
    let data = data(&db);
    for op in 0..20 {
        write(&db, data, 1000 + op * BLOCKS, BLOCKS, 1);
    }
    db.close().expect("closes");
    drop(db);
    let db = open(&device, binding);
    for op in 0..20 {
        write(&db, data, op * BLOCKS, BLOCKS, 2);
    }
    db.sync(db.position()).expect("syncs");
    drop(db);
    spoil(&medium, 1005, 1);
    let repaired = repair(&device, &[("data", KeyspaceKind::Block)]).expect("ends");
    assert!(!repaired.lost.is_empty(), "a block is gone");
    let db = open(&device, binding);
    assert!(are(&db, data, 0..20 * BLOCKS, 2));
    db.close().expect("closes");
    drop(db);
    let db = open(&device, binding);
    assert!(are(&db, data, 0..20 * BLOCKS, 2));
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn the_superblocks_say_so_while_the_journal_may_refer_to_blocks() {
    let device = make(200);
    let db = open(&device, binding);
    let data = data(&db);
    write(&db, data, 0, 4, 1);
    assert_eq!(version(&device), 1, "a small write goes through the journal");
    write(&db, data, 0, BLOCKS, 1);
    assert_eq!(version(&device), 4);
    db.close().expect("closes");
    assert_eq!(version(&device), 1, "the journal is empty: any program may open it");
}

#[test]
fn threads_that_write_much_at_once_find_everything_again() {
    let seed = 0xb1d;
    let device = make(1600);
    let change = |options: &mut Options| {
        binding(options);
        options.background = Background::Threads;
    };
    let db = open(&device, change);
    let data = data(&db);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let db = &db;
            scope.spawn(move || {
                let mut rng = Rng::new(seed + thread);
                for op in 0..60 {
                    // Some are bound, some are not.
                    let count = rng.range(1, BLOCKS);
                    let first = (thread * 60 + op) * BLOCKS;
                    write(db, data, first, count, 1);
                    if rng.chance(1, 8) {
                        db.sync(db.position()).expect("syncs");
                    }
                    assert!(are(db, data, first..first + count, 1), "seed {seed:#x}");
                }
            });
        }
    });
    db.sync(db.position()).expect("syncs");
    drop(db);
    let db = open(&device, change);
    for thread in 0..4 {
        let mut rng = Rng::new(seed + thread);
        for op in 0..60 {
            let count = rng.range(1, BLOCKS);
            let first = (thread * 60 + op) * BLOCKS;
            rng.chance(1, 8);
            assert!(are(&db, data, first..first + count, 1), "seed {seed:#x}");
        }
    }
    db.close().expect("closes");
    assert!(db.check().expect("checks").findings.is_empty());
}
