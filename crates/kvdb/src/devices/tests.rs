use std::thread;
use std::time::Duration;

use bytes::Bytes;
use kvfs_device::{
    AlignedBuf, Call, CrashDevice, CrashMode, FaultDevice, FaultError, FaultRule, MemoryDevice, Rng,
};
use kvfs_store::clock::ManualClock;
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, KeyRange, Keyspace, KeyspaceKind, Read, Store, Transactions, TxnOptions,
};

use super::*;
use crate::format::Extent;
use crate::memtable::block_key;
use crate::{Background, CreateOptions, Db, Options};

mod clone_histories;
mod clones;
mod drains;
mod heat;
mod huge;
mod large_runs;
mod outages;
mod placement;
mod repair;

const ZONE_BYTES: u64 = 256 << 10;
const FIRST_ZONES: u64 = 100;
const SLOW_BYTES: u64 = MEMBER_DATA_FROM + 160 * ZONE_BYTES;
const FILES: u64 = 24;
const BLOCKS: u64 = 64;

fn options() -> Options {
    Options { background: Background::Manual, ..Options::with_memory(64 << 20) }
}

fn create(device: &Arc<dyn Device>) {
    let options = CreateOptions {
        zone_bytes: ZONE_BYTES as u32,
        journal_bytes: Some(4 << 20),
        ..CreateOptions::new(FIRST_ZONES * ZONE_BYTES, [5; 16])
    };
    Db::create(Arc::clone(device), &options).expect("creates");
}

fn open(first: &Arc<dyn Device>, others: &[Arc<dyn Device>], options: Options) -> Result<Arc<Db>> {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    Db::open_joined(Arc::clone(first), others, options, clock)
}

fn memory(bytes: u64) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(bytes))
}

/// One that grows.
fn first() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::growable(0, FIRST_ZONES * ZONE_BYTES))
}

fn files(db: &Db) -> Keyspace {
    db.open_keyspace("files", KeyspaceKind::Block, None).expect("opens")
}

fn content(file: u64, version: u64) -> Bytes {
    let mut bytes = vec![0; BLOCKS as usize * BLOCK_BYTES];
    let mut rng = Rng::new(file * 1000 + version);
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
    bytes.into()
}

fn write(db: &Db, file: u64, version: u64) -> Result<()> {
    let keyspace = files(db);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None)?;
    let mut batch = Batch::new();
    batch.put(rows, file.to_be_bytes().to_vec(), version.to_be_bytes().to_vec());
    batch.put_blocks(keyspace, file.to_be_bytes().to_vec(), 0, content(file, version));
    db.apply(batch, Durability::Synced).map(drop)
}

/// Every file has the content of the version that its row tells, at least `version`.
fn check(db: &Db, version: u64) {
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    for file in 0..FILES {
        let row = db.get(rows, &file.to_be_bytes()).expect("reads").expect("is there");
        let found = u64::from_be_bytes(row[..].try_into().expect("8 bytes"));
        assert!(found >= version, "file {file}: {found}");
        let mut blocks = AlignedBuf::zeroed(BLOCKS as usize * BLOCK_BYTES);
        db.read_blocks(files(db), &file.to_be_bytes(), 0, blocks.as_mut()).expect("reads");
        assert!(blocks.as_ref() == &content(file, found)[..], "file {file}");
    }
    let checked = db.check().expect("checks");
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}

fn live(db: &Db, id: u32) -> u64 {
    db.devices().into_iter().find(|device| device.id == id).expect("is there").bytes_live
}

#[test]
fn files_go_to_the_slow_device_and_rows_stay_on_the_fast_one() {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let capacity = db.space().capacity_bytes;
    assert!(db.add_device(Arc::clone(&first), Tier::Slow).is_err(), "it would overwrite its superblocks");
    assert_eq!(db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds"), 1);
    assert!(db.add_device(Arc::clone(&slow), Tier::Slow).is_err(), "it is there already");
    assert_eq!(db.space().capacity_bytes, capacity + 160 * ZONE_BYTES);
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    let files_bytes = FILES * BLOCKS * BLOCK_BYTES as u64;
    // With the copies of indexes, which lie beside the data.
    assert!((files_bytes..files_bytes / 16 * 17).contains(&live(&db, 1)), "{}", live(&db, 1));
    assert!(live(&db, 0) < files_bytes / 8, "{}", live(&db, 0));
    check(&db, 1);
    db.close().expect("closes");
    drop(db);

    // A device of another store is none of this one's.
    let others = [memory(SLOW_BYTES), Arc::clone(&slow)];
    let db = open(&first, &others, options()).expect("opens");
    check(&db, 1);
    (0..FILES).for_each(|file| write(&db, file, 2).expect("writes"));
    db.compact().expect("merges");
    check(&db, 2);
    assert!(db.grow(1 << 40).is_err(), "others lie behind the first device");
}

/// A device whose first flush does something before.
struct ActsAtFlush {
    device: Arc<dyn Device>,
    act: parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for ActsAtFlush {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.device.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.device.write_at(buf, offset)
    }

    fn flush(&self) -> io::Result<()> {
        let act = self.act.lock().take();
        if let Some(act) = act {
            act();
        }
        self.device.flush()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.device.grow(len)
    }
}

#[test]
fn a_store_does_not_grow_into_the_zones_of_a_device_that_is_being_added() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let grown = Arc::new(parking_lot::Mutex::new(None));
    let (growing, told) = (Arc::clone(&db), Arc::clone(&grown));
    let grow_beside = move || {
        let grows = thread::spawn(move || growing.grow(4 * FIRST_ZONES * ZONE_BYTES).map(drop));
        // It waits until the device is there; if it does not, it has time to do harm.
        for _ in 0..10_000 {
            if grows.is_finished() {
                break;
            }
            thread::yield_now();
        }
        *told.lock() = Some(grows);
    };
    let slow: Arc<dyn Device> = Arc::new(ActsAtFlush {
        device: memory(SLOW_BYTES),
        act: parking_lot::Mutex::new(Some(Box::new(grow_beside))),
    });
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    let grows = grown.lock().take().expect("it was flushed");
    grows.join().expect("ends").expect_err("others lie behind the first device");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.close().expect("closes");
    drop(db);
    check(&open(&first, &[slow], options()).expect("no zone is on two devices"), 1);
}

#[test]
fn a_store_whose_slow_device_is_missing_is_read_as_far_as_the_fast_one_goes() {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    db.add_device(slow, Tier::Slow).expect("adds");
    write(&db, 0, 1).expect("writes");
    db.close().expect("closes");
    drop(db);

    let error = open(&first, &[], options()).map(drop).expect_err("a device is missing");
    assert!(error.to_string().contains("the slow device 1"), "{error}");
    let db = open(&first, &[], Options { read_only: true, ..options() }).expect("opens");
    assert!(db.devices()[1].is_missing && !db.devices()[0].is_missing);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    assert!(db.get(rows, &0_u64.to_be_bytes()).expect("reads").is_some());
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    let error = db.read_blocks(files(&db), &0_u64.to_be_bytes(), 0, block.as_mut()).expect_err("is missing");
    assert!(error.to_string().contains("slow device 1 is missing"), "{error}");
}

#[test]
fn store_opens_without_the_device_that_has_its_tombstones_and_shows_nothing_that_they_hide() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let id = db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    (0..8).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    let before = live(&db, id);
    // Rows and metadata go to the slow device once the fast one has no room.
    let filler = db.open_keyspace("filler", KeyspaceKind::Tuple, None).expect("opens");
    for key in 0..10_000_u32 {
        let mut batch = Batch::new();
        batch.put(filler, key.to_be_bytes().to_vec(), vec![key as u8; 64 << 10]);
        db.apply(batch, Durability::Buffered).expect("writes");
        if live(&db, id) > before + 4 * ZONE_BYTES {
            break;
        }
    }
    db.flush().expect("flushes");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let key = |file: u64| Bytes::copy_from_slice(&file.to_be_bytes());
    let mut batch = Batch::new();
    batch.delete_range(rows, key(2), key(4));
    // More than what is left of a zone of metadata.
    for number in 0..20_000_u32 {
        let ahead = |end: u32| [&key(2)[..], &(2 * number + end).to_be_bytes()].concat();
        batch.delete_range(rows, ahead(0), ahead(1));
    }
    db.apply(batch, Durability::Synced).expect("deletes");
    db.close().expect("closes");
    drop(db);

    let db = open(&first, &[], Options { read_only: true, ..options() }).expect("opens");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    for file in [0, 1, 5, 7] {
        assert!(db.get(rows, &key(file)).expect("reads").is_some(), "file {file}");
    }
    for file in [2, 3] {
        let error = db.get(rows, &key(file)).expect_err("it may be deleted").to_string();
        assert!(error.contains("slow device 1 is missing"), "{error}");
    }
    let mut cursor = db.cursor(rows, KeyRange::all()).expect("begins");
    assert!(
        cursor.first().is_err() || (0..8).any(|_| cursor.next().is_err()),
        "it passes what may be deleted"
    );
    assert!(
        cursor.last().is_err() || (0..8).any(|_| cursor.prev().is_err()),
        "it passes what may be deleted"
    );
    cursor.seek(&key(5)).expect("nothing behind that is deleted");
}

#[test]
fn without_its_slow_device_a_store_that_was_not_closed_shows_no_older_blocks() {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    (0..4).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    // These are in the journal alone, which tells where their blocks lie on the slow device.
    (0..3).for_each(|file| write(&db, file, 2).expect("writes"));
    let key = |file: u64| Bytes::copy_from_slice(&file.to_be_bytes());
    let mut batch = Batch::new();
    (0..40).for_each(|at| batch.patch_block(files(&db), key(0), 0, at, vec![1]));
    batch.delete_range(files(&db), key(2), key(3));
    batch.patch_block(files(&db), key(2), 0, 0, vec![7]);
    batch.put_blocks(files(&db), key(0), 1, vec![9; BLOCK_BYTES]);
    db.apply(batch, Durability::Synced).expect("applies");
    let len = first.len_bytes();
    let cut_off = MemoryDevice::copy_of(first.as_ref(), len, len).expect("reads");
    let cut_off: Arc<dyn Device> = Arc::new(cut_off);

    let db = open(&cut_off, &[], Options { read_only: true, ..options() }).expect("opens");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let version = |file: u64| db.get(rows, &file.to_be_bytes()).expect("reads").expect("is there");
    assert_eq!([0, 1, 2, 3].map(|file| version(file)[7]), [2, 2, 2, 1]);
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    for (file, at) in [(0, 0), (0, 0), (0, 63), (1, 5), (3, 0)] {
        let read = db.read_blocks(files(&db), &key(file), at, block.as_mut());
        let error = read.expect_err("is missing").to_string();
        assert!(error.contains("missing"), "{file} {at}: {error}");
    }
    for (at, byte) in [(0, 7), (1, 0)] {
        db.read_blocks(files(&db), &key(2), at, block.as_mut()).expect("was deleted, and written anew");
        assert!(block.as_ref()[0] == byte && block.as_ref()[1..].iter().all(|byte| *byte == 0), "{at}");
    }
    let mut cursor = db.cursor(files(&db), KeyRange::all()).expect("begins");
    for (file, at) in [(0, 0), (0, 2), (0, 63), (1, 5), (3, 0)] {
        let at = block_key(&key(file), at);
        for error in [cursor.seek(&at), cursor.seek_back(&at)].map(|moved| moved.expect_err("is missing")) {
            assert!(error.to_string().contains("missing"), "{file}: {error}");
        }
    }
    for (file, at, byte) in [(0, 1, 9), (2, 0, 7)] {
        let at = block_key(&key(file), at);
        for is_back in [false, true] {
            if is_back { cursor.seek_back(&at) } else { cursor.seek(&at) }.expect("was written anew");
            let (found, block) = cursor.entry().expect("is there");
            assert_eq!((found, block.len(), block[0]), (&at[..], BLOCK_BYTES, byte));
            if is_back { cursor.prev() } else { cursor.next() }.expect_err("its neighbours are missing");
        }
    }
    drop((cursor, db));

    let whole = open(&cut_off, &[slow], options()).expect("opens");
    let mut blocks = AlignedBuf::zeroed(BLOCKS as usize * BLOCK_BYTES);
    whole.read_blocks(files(&whole), &key(1), 0, blocks.as_mut()).expect("reads");
    assert!(blocks.as_ref() == &content(1, 2)[..]);
}

#[test]
fn a_missing_fast_device_keeps_the_store_from_being_read() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    db.add_device(memory(SLOW_BYTES), Tier::Fast).expect("adds");
    db.close().expect("closes");
    drop(db);
    let error = open(&first, &[], Options { read_only: true, ..options() }).map(drop);
    assert!(error.expect_err("is missing").to_string().contains("the fast device 1"));
}

#[test]
fn a_store_is_full_only_when_both_tiers_are() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let fill = |from: u64| (from..1000).take_while(|&file| write(&db, file, 1).is_ok()).count() as u64;
    let on_first = fill(0);
    db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    let on_slow = fill(on_first);
    assert!(on_slow >= 100, "{on_slow} files of one zone each fit 160 zones");
    assert!(live(&db, 1) >= on_slow * ZONE_BYTES / 2);
}

#[test]
fn rows_of_a_full_store_leave_the_manifest_its_room_on_the_first_device() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let put = |key: u32| {
        let mut batch = Batch::new();
        batch.put(rows, key.to_be_bytes().to_vec(), vec![key as u8; 64 << 10]);
        db.apply(batch, Durability::Buffered)
    };
    let fitted = (0..10_000).take_while(|&key| put(key).is_ok()).count() as u32;
    let on_slow = live(&db, 1) / ZONE_BYTES;
    assert!(on_slow > 80, "{fitted} rows, {on_slow} zones on the slow device");
    let kept = db.devices()[0].bytes_free / ZONE_BYTES;
    assert!(kept >= 4, "{kept} zones are left for the manifest");
    assert!(matches!(put(fitted), Err(StoreError::Full)));
    let mut batch = Batch::new();
    (0..fitted).for_each(|key| batch.delete(rows, key.to_be_bytes().to_vec()));
    db.apply(batch, Durability::Synced).expect("deletes on a full store");
    db.reclaim().expect("reclaims");
    put(fitted).expect("has room again");
}

#[test]
fn a_drained_device_leaves_the_store_and_can_come_back() {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    assert!(db.remove_device(1).is_err() && db.remove_device(0).is_err() && db.remove_device(2).is_err());
    assert!(!db.drain_device(1, &mut |_| false).expect("drains"), "it was told to end");
    db.refill_device(1).expect("is filled again");
    assert_eq!(db.devices()[1].drain, None);
    assert!(!db.drain_device(1, &mut |_| false).expect("drains"), "it was told to end");
    db.close().expect("closes");
    drop(db);

    let db = open(&first, &[Arc::clone(&slow)], options()).expect("opens");
    assert!(db.devices()[1].drain.is_some(), "what was begun is remembered");
    assert!(db.drain_device(1, &mut |_| true).expect("drains"));
    assert_eq!(live(&db, 1), 0);
    check(&db, 1);
    db.remove_device(1).expect("removes");
    let capacity = db.space().capacity_bytes;
    db.close().expect("closes");
    drop(db);

    let db = open(&first, &[Arc::clone(&slow)], options()).expect("opens");
    assert_eq!((db.devices().len(), db.space().capacity_bytes), (1, capacity));
    check(&db, 1);
    db.add_device(slow, Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 2).expect("writes"));
    db.flush().expect("flushes");
    assert!(live(&db, 1) > 0);
    check(&db, 2);
}

#[test]
fn a_drain_goes_on_after_a_restart_by_itself() {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    assert!(!db.drain_device(1, &mut |_| false).expect("drains"), "it was told to end");
    assert!(live(&db, 1) > 0);
    db.close().expect("closes");
    drop(db);

    let db = open(&first, &[Arc::clone(&slow)], Options { background: Background::Threads, ..options() });
    let db = db.expect("opens");
    let mut told = Vec::new();
    let mut watch = |left| {
        told.push(left);
        true
    };
    assert!(db.drain_device(1, &mut watch).expect("drains"), "{:?}", db.devices());
    assert!(db.devices()[1].is_empty());
    check(&db, 1);
    db.remove_device(1).expect("removes");
    assert_eq!(db.device_id(&slow), None);
    db.close().expect("closes");
}

#[test]
fn a_device_with_unreadable_places_is_drained_as_far_as_it_reads() {
    let first = first();
    let slow = Arc::new(FaultDevice::new(MemoryDevice::new(SLOW_BYTES)));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let id = db.add_device(Arc::clone(&slow) as _, Tier::Slow).expect("adds");
    for file in 0..FILES {
        write(&db, file, 1).expect("writes");
        db.flush().expect("flushes");
    }
    let before = live(&db, id);
    // Nothing in one of the zones that hold data can be read any more.
    let zone =
        db.parts.runtime.ctx.zones.rows().into_iter().rfind(|row| row.bytes_live > 0).expect("holds data");
    let first_zone = db.parts.runtime.ctx.zones.members()[1].zones.start;
    let at = MEMBER_DATA_FROM + u64::from(zone.zone.0 - first_zone) * ZONE_BYTES;
    slow.lose(at..at + ZONE_BYTES);
    let error = db.drain_device(id, &mut |_| true).expect_err("does not read it");
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    let info = db.devices().swap_remove(1);
    assert!(info.bytes_live > 0 && info.bytes_live < before / 4, "{} of {before} are left", info.bytes_live);
    assert!(info.drain.and_then(|drain| drain.trouble).is_some());
    write(&db, 0, 2).expect("the store goes on");
    slow.clear();
    assert!(db.drain_device(id, &mut |_| true).expect("reads it again"));
    check(&db, 1);
}

/// All files are in two pieces, of which a block can't be read.
#[test]
fn one_block_that_can_not_be_read_keeps_only_its_neighbours_from_leaving_a_device() {
    for migrates in [false, true] {
        let first = first();
        let slow = Arc::new(FaultDevice::new(MemoryDevice::new(SLOW_BYTES)));
        create(&first);
        let db = open(&first, &[], options()).expect("opens");
        let id = db.add_device(Arc::clone(&slow) as _, Tier::Slow).expect("adds");
        if migrates {
            placement::wishes(&db);
        }
        (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
        db.flush().expect("flushes");
        let view = db.parts.live.view();
        let pieces = view.version.runs(files(&db).0).iter().map(|run| run.pieces.len()).sum::<usize>();
        assert!(pieces <= 2, "{pieces} pieces");
        drop(view);
        let before = live(&db, id);
        let first_zone = u64::from(db.parts.runtime.ctx.zones.members()[1].zones.start);
        let at = placement::addr_of(&db, FILES / 2) - first_zone * ZONE_BYTES + MEMBER_DATA_FROM;
        slow.lose(at..at + BLOCK_BYTES as u64);
        let mut always = |_| true;
        let error = if migrates {
            let all_fast = |file| {
                db.apply(placement::wish(&db, file, Some(Tier::Fast)), Durability::Buffered)
                    .expect("is noted");
            };
            (0..FILES).for_each(all_fast);
            db.migrate(&mut always).expect_err("does not read it")
        } else {
            db.drain_device(id, &mut always).expect_err("does not read it")
        };
        assert!(matches!(error, StoreError::Io { .. }), "{error}");
        let left = live(&db, id);
        assert!(left > 0 && left <= before / FILES, "{left} of {before} are left");
        slow.clear();
        if migrates {
            assert!(db.migrate(&mut always).expect("reads it again"));
        } else {
            assert!(db.drain_device(id, &mut always).expect("reads it again"));
        }
        assert_eq!(live(&db, id), 0);
        check(&db, 1);
    }
}

/// Nothing can be read there any more.
fn lose(db: &Db, first: &FaultDevice<MemoryDevice>, slow: &FaultDevice<MemoryDevice>, extents: &[Extent]) {
    let slow_from = u64::from(db.parts.runtime.ctx.zones.members()[1].zones.start) * ZONE_BYTES;
    for extent in extents {
        let end = |from: u64| from + u64::from(extent.len);
        match extent.addr.checked_sub(slow_from) {
            Some(within) => slow.lose(MEMBER_DATA_FROM + within..end(MEMBER_DATA_FROM + within)),
            None => first.lose(extent.addr..end(extent.addr)),
        }
    }
}

#[test]
fn a_device_is_drained_beside_runs_of_transactions_that_can_not_be_read() {
    let faulty = |inner: MemoryDevice| Arc::new(FaultDevice::new(inner));
    let first = faulty(MemoryDevice::growable(0, FIRST_ZONES * ZONE_BYTES));
    let slow = faulty(MemoryDevice::new(SLOW_BYTES));
    let (shared, others) = (Arc::clone(&first) as Arc<dyn Device>, [Arc::clone(&slow) as Arc<dyn Device>]);
    create(&shared);
    let mut options = Options { private_bytes: 64 << 10, batch_commit_bytes_max: 64 << 10, ..options() };
    options.merge.piece_bytes = 64 << 10;
    let db = open(&shared, &[], options.clone()).expect("opens");
    let id = db.add_device(Arc::clone(&others[0]), Tier::Slow).expect("adds");
    for file in 0..FILES {
        write(&db, file, 1).expect("writes");
    }
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for file in 0..2_u64 {
        let mut batch = Batch::new();
        batch.put_blocks(files(&db), file.to_be_bytes().to_vec(), 0, content(file, 1));
        txn.apply(batch).expect("writes");
    }
    txn.commit(Durability::Synced).expect("commits");
    db.flush().expect("flushes");
    db.close().expect("closes");
    drop(db);

    // No metadata stays in memory.
    let db = open(&shared, &others, Options { memory_bytes: 1, ..options }).expect("opens");
    let keyspace = files(&db).0;
    // Where the metadata of pieces of runs lies that were adopted, each with the run's number.
    let adopted = || -> Vec<(u64, Vec<Extent>)> {
        let view = db.parts.live.view();
        let pieces = view.version.runs(keyspace).iter().flat_map(|run| {
            let adopted = run.pieces.iter().filter(|piece| piece.seqno_min() != piece.desc().seqno_min);
            adopted.map(|piece| (run.id.0, piece.metadata_places()))
        });
        pieces.collect()
    };
    let (run, last) = adopted().pop().expect("the transaction has spilled");
    assert!(adopted().iter().filter(|(other, _)| *other == run).count() > 1, "the run has several pieces");
    lose(&db, &first, &slow, &last);
    let before = live(&db, id);
    let error = db.drain_device(id, &mut |_| true).expect_err("does not read it");
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    assert!(live(&db, id) < before / 4, "{} of {before} are left", live(&db, id));
    assert_eq!(db.failure(), None);
    assert!(db.parts.live.view().version.merges(keyspace).is_empty(), "no merge goes on with it for good");
    write(&db, 5, 2).expect("the store goes on");
    first.clear();
    slow.clear();
    assert!(db.drain_device(id, &mut |_| true).expect("reads it again"));
    check(&db, 1);
}

/// A store whose slow device is to be drained, that device, and the first one, which fails on demand.
fn with_drain_begun() -> (Arc<Db>, u32, Arc<FaultDevice<MemoryDevice>>) {
    let first = Arc::new(FaultDevice::new(MemoryDevice::growable(0, FIRST_ZONES * ZONE_BYTES)));
    let shared = Arc::clone(&first) as Arc<dyn Device>;
    create(&shared);
    let db = open(&shared, &[], options()).expect("opens");
    let id = db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    assert!(!db.drain_device(id, &mut |_| false).expect("begins"), "it was told to end");
    (db, id, first)
}

#[test]
fn a_write_that_fails_on_the_way_of_a_drain_is_sticky() {
    let (db, id, first) = with_drain_begun();
    first.add(FaultRule::from(Call::Write, 0, FaultError::EIO));
    db.drain_device(id, &mut |_| true).expect_err("the first device takes no write");
    first.clear();
    assert!(db.failure().is_some());
    write(&db, 0, 2).expect_err("nothing is accepted any more");
}

#[test]
fn a_flush_that_fails_on_the_way_of_a_drain_is_sticky() {
    for nth in 0.. {
        let (db, id, first) = with_drain_begun();
        write(&db, 0, 2).expect("writes");
        first.add(FaultRule::once(Call::Flush, nth, FaultError::EIO));
        let drained = db.drain_device(id, &mut |_| true);
        first.clear();
        if db.failure().is_none() {
            assert!(drained.expect("no flush has failed"), "all flushes of a drain were tried");
            assert!(nth > 2, "a drain flushes");
            break;
        }
        // The kernel tells the error once: the next flush finds nothing to be written, and says nothing of
        // what is lost.
        write(&db, 0, 3).expect_err("nothing is accepted any more");
    }
}

#[test]
fn power_cut_at_any_step_of_adding_draining_and_removing_loses_nothing() {
    let (whole, parts) = cut_together();
    let shared = Arc::clone(&whole) as Arc<dyn Device>;
    let (first, slow) = parts(&shared);
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    let begin = whole.events_len();
    db.add_device(slow, Tier::Slow).expect("adds");
    let added = whole.events_len();
    (0..FILES).for_each(|file| write(&db, file, 2).expect("writes"));
    let written = whole.events_len();
    assert!(db.drain_device(1, &mut |_| true).expect("drains"));
    db.remove_device(1).expect("removes");
    let end = whole.events_len();
    let step = ((end - begin) / 60).max(1);
    let events = (begin..end).step_by(step).chain(begin..added).chain([written, end]);
    for event in events {
        let image: Arc<dyn Device> =
            Arc::new(whole.image_at(event, 11, CrashMode::KeepSubset).expect("is in the log"));
        let (first, slow) = parts(&image);
        let db = open(&first, &[slow], options()).unwrap_or_else(|error| panic!("event {event}: {error}"));
        check(&db, if event >= written { 2 } else { 1 });
        if db.devices().len() == 2 {
            assert!(db.drain_device(1, &mut |_| true).expect("drains"), "event {event}");
            db.remove_device(1).expect("removes");
            check(&db, if event >= written { 2 } else { 1 });
        }
    }
}

/// They were in the device's cache, and what the next process replays it calls durable.
#[test]
fn what_a_killed_process_wrote_to_another_device_is_durable_once_the_next_one_has_synced() {
    let media = [(0, FIRST_ZONES * ZONE_BYTES), (SLOW_BYTES, SLOW_BYTES)]
        .map(|(len, len_max)| Arc::new(CrashDevice::in_memory(len, len_max)));
    let [first, slow] = [0, 1].map(|at: usize| Arc::clone(&media[at]) as Arc<dyn Device>);
    create(&first);
    let failing = Arc::new(FaultDevice::new(Arc::clone(&first)));
    let db = open(&(Arc::clone(&failing) as Arc<dyn Device>), &[], options()).expect("opens");
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    write(&db, 1, 1).expect("writes");
    // The journal's group and the blocks that it has bound are written, and no flush comes so far.
    failing.add(FaultRule::once(Call::Flush, 0, FaultError::EIO));
    let in_caches = [0, 1].map(|at: usize| media[at].bytes_unflushed());
    write(&db, 0, 1).expect_err("its flush fails");
    assert!([0, 1].iter().all(|&at: &usize| media[at].bytes_unflushed() > in_caches[at]));
    drop(db);

    let db = open(&first, &[slow], options()).expect("opens");
    db.sync(db.position()).expect("syncs");
    let left = media.map(|medium| medium.crash_image(1, CrashMode::DropAll).expect("is there"));
    drop(db);
    let [first, slow] = left.map(|medium| Arc::new(medium) as Arc<dyn Device>);
    let db = open(&first, &[slow], options()).expect("opens");
    let mut blocks = AlignedBuf::zeroed(BLOCKS as usize * BLOCK_BYTES);
    db.read_blocks(files(&db), &0_u64.to_be_bytes(), 0, blocks.as_mut()).expect("reads");
    assert!(blocks.as_ref() == &content(0, 1)[..]);
}

/// The first device and the slow one.
type Both = (Arc<dyn Device>, Arc<dyn Device>);

/// A device that keeps its log, and what makes two devices of it or of its images: so both are cut off at the
/// same moment.
fn cut_together() -> (Arc<CrashDevice>, impl Fn(&Arc<dyn Device>) -> Both) {
    let len = FIRST_ZONES * ZONE_BYTES + SLOW_BYTES;
    let whole = Arc::new(CrashDevice::in_memory(0, len).with_log().expect("is new"));
    whole.grow(len).expect("grows");
    let parts = |device: &Arc<dyn Device>| {
        let part = |offset: u64, len: u64| {
            Arc::new(Part { device: Arc::clone(device), offset, len }) as Arc<dyn Device>
        };
        (part(0, FIRST_ZONES * ZONE_BYTES), part(FIRST_ZONES * ZONE_BYTES, SLOW_BYTES))
    };
    (whole, parts)
}

/// A part of a device.
struct Part {
    device: Arc<dyn Device>,
    offset: u64,
    len: u64,
}

impl Device for Part {
    fn len_bytes(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.device.read_at(buf, self.offset + offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.device.write_at(buf, self.offset + offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        if len <= self.len { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }
}
