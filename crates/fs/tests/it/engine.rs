//! The same random operations over the storage engine, with memtables so small that everything goes
//! through runs, and the store itself closed and opened again in between.

use std::sync::Arc;

use kvfs_device::{Device, MemoryDevice};
use kvfs_fs::{COMPRESSION_ATTRIBUTE, MountOptions, NodeId, XattrMode};
use kvfs_kvdb::{Background, CreateOptions, Db, Options};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;

use crate::driver::Driver;
use crate::setup::Setup;
use crate::threads;

pub(crate) const CAPACITY_BYTES: u64 = 64 << 20;

pub(crate) fn open<D: Device + 'static>(
    device: &Arc<D>,
    memtable_bytes: u64,
    background: Background,
) -> Arc<Db> {
    open_keeping(device, memtable_bytes, background, 0)
}

/// As [`open`]; so many transactions can be taken back.
pub(crate) fn open_keeping<D: Device + 'static>(
    device: &Arc<D>,
    memtable_bytes: u64,
    background: Background,
    undo_count: usize,
) -> Arc<Db> {
    let bind_bytes_min = 16 << 10;
    let options =
        Options { memtable_bytes, background, undo_count, bind_bytes_min, ..Options::with_memory(32 << 20) };
    Db::open(Arc::clone(device) as _, options, Arc::new(SystemClock::new())).unwrap()
}

pub(crate) fn create() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::growable(0, CAPACITY_BYTES));
    create_on(&device, [7; 16]);
    device
}

/// Makes a store with that identity.
pub(crate) fn create_on<D: Device + 'static>(device: &Arc<D>, uuid: [u8; 16]) {
    let create = CreateOptions { zone_bytes: 256 << 10, ..CreateOptions::new(CAPACITY_BYTES, uuid) };
    Db::create(Arc::clone(device) as _, &create).unwrap();
}

/// A file system over an engine of its own, which [`Setup::reopen`] opens again, too.
pub(crate) fn setup(uuid: [u8; 16], memtable_bytes: u64, inline_len_max: u32) -> Setup {
    let device = Arc::new(MemoryDevice::growable(0, CAPACITY_BYTES));
    create_on(&device, uuid);
    let mut db = open(&device, memtable_bytes, Background::Manual);
    let mut setup = Setup::with(Arc::clone(&db) as _, inline_len_max, MountOptions::default());
    setup.reopen_store = Some(Box::new(move || {
        db.close().unwrap();
        db = open(&device, memtable_bytes, Background::Manual);
        Arc::clone(&db) as _
    }));
    setup
}

fn run(memtable_bytes: u64, inline_len_max: u32, seeds: std::ops::RangeInclusive<u64>) {
    run_with(memtable_bytes, inline_len_max, seeds, None);
}

/// As [`run`]; `compression` is the setting of the root.
fn run_with(
    memtable_bytes: u64,
    inline_len_max: u32,
    seeds: std::ops::RangeInclusive<u64>,
    compression: Option<&str>,
) {
    for seed in seeds {
        let device = create();
        let mut db = open(&device, memtable_bytes, Background::Manual);
        let store: Arc<dyn Store> = Arc::clone(&db) as _;
        let mut setup = Setup::with(store, inline_len_max, MountOptions::default());
        setup.reopen_store = Some(Box::new(move || {
            db.close().unwrap();
            db = open(&device, memtable_bytes, Background::Manual);
            Arc::clone(&db) as _
        }));
        if let Some(words) = compression {
            let name = COMPRESSION_ATTRIBUTE;
            setup.setxattr(&setup.caller, NodeId::ROOT, name, words.as_bytes(), XattrMode::Set).unwrap();
        }
        Driver::new(setup, seed, 20_000).run(400);
    }
}

#[test]
fn behaves_like_the_reference_over_the_engine() {
    run(1 << 20, 4096, 1..=8);
}

#[test]
fn behaves_like_the_reference_over_the_engine_with_tiny_memtables() {
    run(16 << 10, 100, 1..=8);
}

#[test]
fn behaves_like_the_reference_over_the_engine_when_everything_is_compressed() {
    run_with(64 << 10, 4096, 21..=23, Some("lz4"));
    run_with(16 << 10, 100, 24..=26, Some("zstd:3"));
}

#[test]
fn threads_over_the_engine_leave_a_sound_tree() {
    for work in [threads::work_in_one_directory, threads::move_directories] {
        let db = open(&create(), 64 << 10, Background::Threads);
        let setup = Setup::with(Arc::clone(&db) as _, 4096, MountOptions::default());
        work(&setup);
        db.close().unwrap();
    }
}
