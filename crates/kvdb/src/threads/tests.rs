//! Threads that end before they are told to.

use std::io;
use std::sync::Arc;

use kvfs_device::{Device, MemoryDevice};
use kvfs_store::clock::SystemClock;
use kvfs_store::{Batch, Durability, KeyspaceKind, Store, StoreError};

use crate::{Background, CreateOptions, Db, Options};

const CAPACITY: u64 = 256 << 20;

/// Its writes by the flush thread panic.
struct PanickingDevice(MemoryDevice);

impl Device for PanickingDevice {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        assert!(std::thread::current().name() != Some("kvfs-flush"), "the flush thread panics");
        self.0.write_at(buf, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.0.grow(len)
    }
}

#[test]
fn panic_of_the_flush_thread_fails_the_store_and_holds_no_writer() {
    let device: Arc<dyn Device> = Arc::new(PanickingDevice(MemoryDevice::growable(0, CAPACITY)));
    let create = CreateOptions {
        zone_bytes: 256 << 10,
        journal_bytes: Some(32 << 20),
        ..CreateOptions::new(CAPACITY, [7; 16])
    };
    Db::create(Arc::clone(&device), &create).expect("creates");
    let options = Options {
        background: Background::Threads,
        memtable_bytes: 1 << 20,
        ..Options::with_memory(64 << 20)
    };
    let db = Db::open(device, options, Arc::new(SystemClock::new())).expect("opens");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    // More than memory takes without a flush: a writer waits for one, if the store does not fail before.
    let failed = (0..1000_u32).find_map(|key| {
        let mut batch = Batch::new();
        batch.put(rows, key.to_be_bytes().to_vec(), vec![7; 100 << 10]);
        db.apply(batch, Durability::Buffered).err()
    });
    let Some(StoreError::Failed { reason }) = failed else { panic!("not {failed:?}") };
    assert!(reason.contains("kvfs-flush"), "{reason}");
}
