use std::time::Duration;

use kvfs_device::{Device, MemoryDevice};
use kvfs_store::clock::ManualClock;
use kvfs_store::{BLOCK_BYTES, Batch, Durability, KeyspaceKind, Read, Store};

use super::*;
use crate::memtable::block_key;
use crate::{Background, CreateOptions, Db, Options};

const BLOCKS: u64 = 2000;
/// No two of the blocks are in one window.
const STRIDE: u64 = EXTENT_WINDOW_BLOCKS;

#[test]
fn search_for_data_takes_no_step_for_each_block_that_a_newer_layer_has_deleted() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let create = CreateOptions { zone_bytes: 256 << 10, ..CreateOptions::new(64 << 20, [3; 16]) };
    Db::create(Arc::clone(&device), &create).expect("creates");
    let options = Options { background: Background::Manual, ..Options::with_memory(64 << 20) };
    let db = Db::open(device, options, Arc::new(ManualClock::at(Duration::from_secs(1)))).expect("opens");
    let files = db.open_keyspace("files", KeyspaceKind::Block, None).expect("opens");
    let apply = |batch| db.apply(batch, Durability::Buffered).expect("writes");
    let mut batch = Batch::new();
    (0..BLOCKS).for_each(|at| batch.put_blocks(files, "f", at * STRIDE, vec![1; BLOCK_BYTES]));
    apply(batch);
    db.flush().expect("flushes");
    let next = |blocks| db.parts.history.newest_layers().next_block(files.0, b"f", blocks).expect("searches");
    assert_eq!([next(0..1), next(1..u64::MAX)], [Some(0), Some(STRIDE)]);
    assert_eq!(next(1..STRIDE), None);

    let mut batch = Batch::new();
    let end = (BLOCKS - 1) * STRIDE;
    batch.delete_range(files, block_key(b"f", 0), block_key(b"f", end));
    apply(batch);
    for place in ["in memory", "in a run above"] {
        assert_eq!([next(0..u64::MAX), next(STRIDE..u64::MAX)], [Some(end); 2], "{place}");
        assert_eq!([next(0..end), next(end + 1..u64::MAX)], [None; 2], "{place}");
        let data = db.next_extent(files, b"f", 0..u64::MAX, ExtentKind::Data).expect("searches");
        assert_eq!(data, Some(Extent { first: end, count: 1 }), "{place}");
        let hole = db.next_extent(files, b"f", 7..u64::MAX, ExtentKind::Hole).expect("searches");
        assert_eq!(hole, Some(Extent { first: 7, count: end - 7 }), "{place}");
        db.flush().expect("flushes");
    }
}
