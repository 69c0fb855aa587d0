//! The engine, to be judged: as it comes, with memtables so small that most of what a test writes lies in
//! runs, and with so little memory for transactions that these spill with every batch.

use std::sync::Arc;

use kvfs_device::{Device, MemoryDevice};
use kvfs_kvdb::{Background, CreateOptions, Db, Options};
use kvfs_store::Store;
use kvfs_store::clock::ManualClock;

use crate::Engine;

const CAPACITY_BYTES: u64 = 256 << 20;

pub(crate) struct Kvdb;

impl Engine for Kvdb {
    fn keeping(undo_count: usize) -> Arc<dyn Store> {
        make(undo_count, 64 << 20, 8 << 20)
    }
}

pub(crate) struct KvdbInRuns;

impl Engine for KvdbInRuns {
    fn keeping(undo_count: usize) -> Arc<dyn Store> {
        make(undo_count, 1, 8 << 20)
    }
}

pub(crate) struct KvdbSpilling;

impl Engine for KvdbSpilling {
    fn keeping(undo_count: usize) -> Arc<dyn Store> {
        make(undo_count, 64 << 20, 1)
    }
}

pub(crate) struct KvdbSpillingInRuns;

impl Engine for KvdbSpillingInRuns {
    fn keeping(undo_count: usize) -> Arc<dyn Store> {
        make(undo_count, 1, 1)
    }
}

fn make(undo_count: usize, memtable_bytes: u64, private_bytes: u64) -> Arc<dyn Store> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY_BYTES));
    let create = CreateOptions { zone_bytes: 256 << 10, ..CreateOptions::new(CAPACITY_BYTES, [7; 16]) };
    Db::create(Arc::clone(&device), &create).unwrap();
    let options = Options {
        background: Background::Manual,
        memtable_bytes,
        private_bytes,
        undo_count,
        ..Options::with_memory(64 << 20)
    };
    Db::open(device, options, Arc::new(ManualClock::default())).unwrap()
}
