//! Patches of blocks on their way to runs: what a flush makes of them, damage and failures below them, the
//! mark in the superblocks, space.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_device::{Call, Device, FaultDevice, FaultError, FaultRule, MemoryDevice, Rng};
use kvfs_kvdb::format::Superblock;
use kvfs_kvdb::{Background, Db, repair};
use kvfs_store::{
    BLOCK_BYTES, Batch, Compression, Durability, Keyspace, KeyspaceKind, Op, Read, Store, StoreError,
};

use super::basics::{create, data, make, open, stat};

const ZONE_BYTES: u64 = 256 << 10;

/// A block that no other one equals.
fn block(number: u64) -> Vec<u8> {
    (0..BLOCK_BYTES / 8).flat_map(|at| (number * 1000 + at as u64).to_le_bytes()).collect()
}

fn key(number: u64) -> Vec<u8> {
    [b"f", &number.to_be_bytes()[..]].concat()
}

fn fill(db: &Db, data: Keyspace, count: u64) {
    for first in (0..count).step_by(64) {
        let blocks: Vec<u8> = (first..count.min(first + 64)).flat_map(block).collect();
        let mut batch = Batch::new();
        batch.put_blocks(data, "f", first, blocks);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
}

fn patch(db: &Db, data: Keyspace, number: u64, offset: u16, bytes: &[u8]) {
    let mut batch = Batch::new();
    batch.patch_block(data, "f", number, offset, bytes.to_vec());
    db.apply(batch, Durability::Buffered).expect("applies");
}

fn read(db: &dyn Read, data: Keyspace, number: u64) -> Result<Vec<u8>, StoreError> {
    Ok(db.get(data, &key(number))?.map(|value| value.to_vec()).unwrap_or_default())
}

fn version(device: &Arc<dyn Device>) -> u32 {
    Superblock::read_newest(device.as_ref()).expect("reads").format_version
}

#[test]
fn a_flush_makes_whole_blocks_of_patches_with_many_reads_at_once() {
    let seed = 0x9a7c4;
    let mut rng = Rng::new(seed);
    let device = make(400);
    let db = open(&device, |options| {
        options.background = Background::Threads;
        options.memtable_bytes = 16 << 20;
    });
    let data = data(&db);
    let count = 3000;
    fill(&db, data, count);
    db.flush().expect("flushes");
    let mut expected: BTreeMap<u64, Vec<u8>> = (0..count).map(|number| (number, block(number))).collect();
    let mut middle = None;
    for step in 0..6000 {
        // A stretch of neighbours, many single ones, and some that were not written before.
        let number = match rng.below(3) {
            0 => 1000 + rng.below(300),
            _ => rng.below(count + 200),
        };
        let (offset, byte) = (rng.below(4000) as u16, step as u8);
        patch(&db, data, number, offset, &[byte; 7]);
        let whole = expected.entry(number).or_insert_with(|| vec![0; BLOCK_BYTES]);
        whole[usize::from(offset)..][..7].fill(byte);
        if step == 3000 {
            middle = Some((db.snapshot().expect("pins"), expected.clone()));
        }
    }
    let check = |db: &Db| {
        for (&number, whole) in &expected {
            assert!(read(db, data, number).expect("reads") == *whole, "seed {seed:#x}, block {number}");
        }
    };
    check(&db);
    db.flush().expect("flushes");
    assert_eq!(stat(&db, "memtable.bytes"), 0);
    check(&db);
    let (snapshot, then) = middle.expect("was taken");
    for (&number, whole) in &then {
        assert!(read(&*snapshot, data, number).expect("reads") == *whole, "seed {seed:#x}, block {number}");
    }
    db.compact().expect("merges");
    check(&db);
    drop(snapshot);
    db.close().expect("closes");
    drop(db);
    check(&open(&device, |_| {}));
}

#[test]
fn patches_in_the_journal_are_there_after_a_crash() {
    let device = make(200);
    let db = open(&device, |_| {});
    let data = data(&db);
    fill(&db, data, 20);
    db.flush().expect("flushes");
    patch(&db, data, 3, 10, b"one");
    patch(&db, data, 3, 11, b"two");
    patch(&db, data, 30, 0, b"new");
    db.sync(db.position()).expect("syncs");
    drop(db);
    let mut three = block(3);
    three[10..14].copy_from_slice(b"otwo");
    for is_flushed in [false, true, true] {
        let db = open(&device, |options| options.read_only = !is_flushed);
        assert_eq!(read(&*db, data, 3).expect("reads"), three);
        assert_eq!(read(&*db, data, 30).expect("reads")[..4], *b"new\0");
        if is_flushed {
            db.close().expect("closes");
        }
    }
}

/// A store of blocks in runs, some of which are damaged on the medium.
fn damaged(count: u64, damaged: &[u64]) -> Arc<MemoryDevice> {
    let medium = Arc::new(MemoryDevice::growable(0, 200 * ZONE_BYTES));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, 200);
    let db = open(&device, |_| {});
    let data = data(&db);
    fill(&db, data, count);
    db.close().expect("closes");
    let image = medium.snapshot();
    for &number in damaged {
        let is_it = |sector: &&[u8]| **sector == block(number)[..];
        for (at, sector) in image.chunks(BLOCK_BYTES).enumerate().filter(|(_, sector)| is_it(sector)) {
            let mut spoilt = sector.to_vec();
            spoilt[77] ^= 1;
            medium.write_at(&spoilt, (at * BLOCK_BYTES) as u64).expect("writes");
        }
    }
    medium
}

#[test]
fn a_damaged_block_below_a_patch_is_lost_alone_and_told() {
    for background in [Background::Manual, Background::Threads] {
        let medium = damaged(100, &[40, 41, 70]);
        let device = Arc::clone(&medium) as Arc<dyn Device>;
        let db = open(&device, |options| options.background = background);
        let data = data(&db);
        for number in 30..75 {
            patch(&db, data, number, 5, b"part");
        }
        let pinned = db.snapshot().expect("pins");
        patch(&db, data, 41, 9, b"more");
        assert!(matches!(read(&*db, data, 40), Err(StoreError::Corrupt { .. })));
        db.flush().expect("one broken block is no failure of the store");
        assert_eq!(stat(&db, "flush.blocks_lost"), 3);
        drop(pinned);
        for number in 30..75 {
            let found = read(&*db, data, number);
            if [40, 41, 70].contains(&number) {
                assert!(matches!(found, Err(StoreError::Corrupt { .. })), "as unreadable as before");
            } else {
                assert_eq!(
                    found.expect("reads")[..12],
                    [&block(number)[..5], b"part", &block(number)[9..12]].concat()
                );
            }
        }
        // Whole blocks heal it.
        let mut batch = Batch::new();
        batch.put_blocks(data, "f", 40, block(7));
        db.apply(batch, Durability::Synced).expect("applies");
        assert_eq!(read(&*db, data, 40).expect("reads"), block(7));
        db.close().expect("closes");
        drop(db);
        let repaired = repair(&device, &[("data", KeyspaceKind::Block)]).expect("ends");
        let db = open(&device, |_| {});
        let lost = repaired.lost.iter().flat_map(|lost| db.lost_keys(lost).expect("reads").blocks);
        let lost: Vec<_> = lost.map(|(_, first, count)| (first, count)).collect();
        assert_eq!(lost, [(41, 1), (70, 1)]);
    }
}

#[test]
fn a_patch_over_a_whole_block_stays_though_an_older_one_is_lost() {
    let medium = damaged(60, &[40]);
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    let db = open(&device, |_| {});
    let data = data(&db);
    patch(&db, data, 40, 5, b"part");
    let one = db.snapshot().expect("pins");
    let mut batch = Batch::new();
    batch.put_blocks(data, "f", 40, block(7));
    db.apply(batch, Durability::Buffered).expect("applies");
    let _two = db.snapshot().expect("pins");
    patch(&db, data, 40, 100, b"acknowledged");
    let before = read(&*db, data, 40).expect("reads");
    assert_eq!(before[100..112], *b"acknowledged");
    db.flush().expect("flushes");
    assert!(read(&*db, data, 40).expect("reads") == before, "the newer patch lies on what is whole");
    assert!(matches!(read(&*one, data, 40), Err(StoreError::Corrupt { .. })));
    assert_eq!(stat(&db, "flush.blocks_lost"), 1);
}

/// A device one sector of which can't be read.
struct BadSector {
    inner: Arc<MemoryDevice>,
    bad: u64,
}

impl Device for BadSector {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        if (offset..offset + buf.len() as u64).contains(&self.bad) {
            return Err(std::io::ErrorKind::Other.into());
        }
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.inner.write_at(buf, offset)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.inner.flush()
    }

    fn grow(&self, len: u64) -> std::io::Result<()> {
        self.inner.grow(len)
    }
}

#[test]
fn a_sector_that_can_not_be_read_costs_its_own_block_and_no_other() {
    for (background, others) in
        [(Background::Manual, 0..0), (Background::Manual, 38..43), (Background::Threads, 0..60)]
    {
        let medium = damaged(60, &[]);
        let image = medium.snapshot();
        let sector = image.chunks(BLOCK_BYTES).position(|sector| *sector == block(40)[..]).expect("is there");
        let bad = (sector * BLOCK_BYTES) as u64;
        let device: Arc<dyn Device> = Arc::new(BadSector { inner: Arc::clone(&medium), bad });
        let db = open(&device, |options| options.background = background);
        let data = data(&db);
        assert!(matches!(read(&*db, data, 40), Err(StoreError::Io { .. })));
        for number in others.clone().chain([40]) {
            patch(&db, data, number, 5, b"part");
        }
        db.flush().expect("one broken sector is no failure of the store");
        assert_eq!(stat(&db, "flush.blocks_lost"), 1);
        assert!(matches!(read(&*db, data, 40), Err(StoreError::Io { .. })), "as unreadable as before");
        for number in others.filter(|&number| number != 40) {
            assert_eq!(read(&*db, data, number).expect("reads")[5..9], *b"part");
        }
        patch(&db, data, 3, 5, b"other");
        db.close().expect("closes");
        drop(db);
        let db = open(&device, |_| {});
        assert_eq!(read(&*db, data, 3).expect("reads")[5..10], *b"other");
        patch(&db, data, 1, 1, b"x");
        db.close().expect("closes");
    }
}

#[test]
fn a_repair_lists_a_lost_block_though_the_journal_patches_it() {
    let medium = damaged(60, &[40, 50]);
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    let db = open(&device, |_| {});
    let data = data(&db);
    for number in 38..43 {
        patch(&db, data, number, 0, b"part");
    }
    let mut batch = Batch::new();
    batch.put_blocks(data, "f", 50, block(7));
    db.apply(batch, Durability::Buffered).expect("applies");
    patch(&db, data, 50, 0, b"part");
    db.sync(db.position()).expect("syncs");
    drop(db);
    let repaired = repair(&device, &[("data", KeyspaceKind::Block)]).expect("ends");
    assert_eq!(repaired.dropped_count, 0, "the journal is sound");
    for _ in 0..2 {
        let db = open(&device, |_| {});
        let lost: Vec<_> =
            repaired.lost.iter().flat_map(|lost| db.lost_keys(lost).expect("reads").blocks).collect();
        assert_eq!(lost, [("f".into(), 40, 1)]);
        assert_eq!(read(&*db, data, 40).expect("reads"), b"", "a hole, and no part of it looks like data");
        assert_eq!(read(&*db, data, 39).expect("reads")[..6], [b"part", &block(39)[4..6]].concat());
        assert_eq!(read(&*db, data, 50).expect("reads")[..6], [b"part", &block(7)[4..6]].concat());
        patch(&db, data, 39, 9, b"later");
        db.close().expect("closes");
    }
    let again = repair(&device, &[("data", KeyspaceKind::Block)]).expect("ends");
    assert!(again.findings.is_empty(), "{:?}", again.findings);
}

#[test]
fn a_failed_read_ends_the_flush_and_loses_nothing() {
    let medium = Arc::new(MemoryDevice::growable(0, 200 * ZONE_BYTES));
    create(&(Arc::clone(&medium) as Arc<dyn Device>), 200);
    for background in [Background::Manual, Background::Threads] {
        let faulty = Arc::new(FaultDevice::new(Arc::clone(&medium) as Arc<dyn Device>));
        let device = Arc::clone(&faulty) as Arc<dyn Device>;
        let db = open(&device, |_| {});
        let data = data(&db);
        fill(&db, data, 200);
        db.close().expect("closes");
        drop(db);
        let db = open(&device, |options| options.background = background);
        for number in 0..200 {
            patch(&db, data, number, 1, b"part");
        }
        db.sync(db.position()).expect("syncs");
        faulty.add(FaultRule::from(Call::Read, 0, FaultError::EIO));
        assert!(db.flush().is_err());
        let mut batch = Batch::new();
        batch.patch_block(data, "f", 1, 1, "x");
        assert!(matches!(db.apply(batch, Durability::Buffered), Err(StoreError::Failed { .. })));
        drop(db);
        faulty.clear();
        let db = open(&device, |_| {});
        for number in 0..200 {
            let expected = [&block(number)[..1], b"part", &block(number)[5..]].concat();
            assert_eq!(read(&*db, data, number).expect("reads"), expected);
        }
        db.close().expect("closes");
    }
}

#[test]
fn a_hole_beside_a_block_is_no_proof_that_the_device_reads() {
    let medium = Arc::new(MemoryDevice::growable(0, 200 * ZONE_BYTES));
    let faulty = Arc::new(FaultDevice::new(medium));
    let device = Arc::clone(&faulty) as Arc<dyn Device>;
    create(&device, 200);
    let db = open(&device, |_| {});
    fill(&db, data(&db), 200);
    db.close().expect("closes");
    drop(db);
    let db = open(&device, |options| options.background = Background::Manual);
    let data = data(&db);
    for number in 199..202 {
        patch(&db, data, number, 1, b"part");
    }
    faulty.add(FaultRule::from(Call::Read, 0, FaultError::EIO));
    assert!(db.flush().is_err());
    faulty.clear();
    assert_eq!(stat(&db, "flush.blocks_lost"), 0);
    let expected = [&block(199)[..1], b"part", &block(199)[5..]].concat();
    assert_eq!(read(&*db, data, 199).expect("reads"), expected);
}

#[test]
fn the_superblocks_say_so_while_the_journal_may_hold_patches() {
    let device = make(200);
    let db = open(&device, |_| {});
    let data = data(&db);
    fill(&db, data, 10);
    assert_eq!(version(&device), 1);
    patch(&db, data, 1, 0, b"x");
    assert_eq!(version(&device), 3);
    db.close().expect("closes");
    assert_eq!(version(&device), 1, "the journal is empty: any program may open it");
    drop(db);

    let db = open(&device, |_| {});
    patch(&db, data, 1, 0, b"y");
    db.sync(db.position()).expect("syncs");
    drop(db);
    assert_eq!(version(&device), 3, "what a crash leaves is refused by older programs");
    open(&device, |_| {}).close().expect("closes");
    // Whether anything is packed is not known any more.
    assert_eq!(version(&device), 2);
}

#[test]
fn a_patch_finds_no_room_before_its_flush_would() {
    let device = make(60);
    let db = open(&device, |options| options.memtable_bytes = 64 << 20);
    let data = data(&db);
    let count = 1600;
    fill(&db, data, count);
    db.flush().expect("flushes");
    let _pinned = db.snapshot().expect("pins");
    let mut patched = 0;
    let refused = (0..count).rev().find_map(|number| {
        let mut batch = Batch::new();
        batch.patch_block(data, "f", number, 0, "abcd");
        patched += 1;
        db.apply(batch, Durability::Buffered).err()
    });
    assert!(matches!(refused, Some(StoreError::Full)), "{refused:?} after {patched} patches");
    db.flush().expect("there is room for what came in");
    assert_eq!(read(&*db, data, count - 1).expect("reads")[..4], *b"abcd");
}

#[test]
fn the_wish_of_a_patch_reaches_the_flushed_block() {
    let device = make(200);
    let db = open(&device, |_| {});
    let data = data(&db);
    let mut batch = Batch::new();
    for block in 0..64 {
        let (prefix, data_of) = ("f".into(), "little".into());
        let compression = Compression::Lz4;
        batch.push(Op::PatchBlock { keyspace: data, prefix, block, offset: 9, data: data_of, compression });
    }
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    assert!(stat(&db, "flush.bytes") < 64 * BLOCK_BYTES as u64 / 4, "{} bytes", stat(&db, "flush.bytes"));
    assert_eq!(read(&*db, data, 63).expect("reads")[8..16], *b"\0little\0");
}
