//! What a store tells of its space on a medium that is smaller than it may become.

use std::sync::Arc;
use std::time::Duration;

use kvfs_device::Device;
use kvfs_store::clock::ManualClock;
use kvfs_store::{BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, Result, Store, StoreError};

use crate::space::small_medium::SmallMedium;
use crate::{Background, CreateOptions, Db, Options};

const ZONE_BYTES: u32 = 256 << 10;
const CAPACITY: u64 = 240 * ZONE_BYTES as u64;
const JOURNAL_BYTES: u64 = 4 << 20;
const WRITE_BLOCKS: u64 = 16;
const WRITE_BYTES: u64 = WRITE_BLOCKS * BLOCK_BYTES as u64;

/// A store on a medium of `bytes` that it may not fill: it is made on a larger one.
fn open_on(bytes: u64) -> (Arc<SmallMedium>, Arc<Db>, Keyspace) {
    let device = Arc::new(SmallMedium::new(CAPACITY, bytes));
    let create = CreateOptions {
        zone_bytes: ZONE_BYTES,
        journal_bytes: Some(JOURNAL_BYTES),
        ..CreateOptions::new(CAPACITY, [7; 16])
    };
    Db::create(Arc::clone(&device) as Arc<dyn Device>, &create).expect("creates");
    let mut options = Options::with_memory(64 << 20);
    (options.background, options.memtable_bytes) = (Background::Manual, 1 << 20);
    options.journal_part_bytes = 256 << 10;
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    let db = Db::open(Arc::clone(&device) as _, options, clock).expect("opens");
    let blocks = db.open_keyspace("blocks", KeyspaceKind::Block, None).expect("opens");
    (device, db, blocks)
}

fn write(db: &Db, blocks: Keyspace, number: u64, durability: Durability) -> Result<()> {
    let mut batch = Batch::new();
    batch.put_blocks(blocks, number.to_be_bytes().to_vec(), 0, vec![number as u8; WRITE_BYTES as usize]);
    db.apply(batch, durability).map(drop)
}

#[test]
fn space_told_on_a_small_medium_can_be_written() {
    for medium in [12 << 20, 16 << 20, 24 << 20, 33 << 20, 47 << 20, 64 << 20] {
        for durability in [Durability::Buffered, Durability::Synced] {
            let (_, db, blocks) = open_on(medium);
            let promised = db.space().available_bytes;
            let mut written = 0;
            // Indexes take the rest.
            while written + WRITE_BYTES <= promised / 20 * 19 {
                write(&db, blocks, written, durability).unwrap_or_else(|error| {
                    panic!("{error} after {written} of {promised} bytes on a medium of {medium}")
                });
                written += WRITE_BYTES;
            }
            // At any later moment, too, but for the zones that flushes open, and not much less than there is.
            loop {
                let told = (db.space().available_bytes / 20 * 19).saturating_sub(3 * u64::from(ZONE_BYTES));
                let more = told / WRITE_BYTES;
                if more == 0 {
                    break;
                }
                for _ in 0..more.div_ceil(3) {
                    write(&db, blocks, written, durability).expect("it was told to be there");
                    written += WRITE_BYTES;
                }
            }
            let at_first = written;
            let refused = loop {
                match write(&db, blocks, written, durability) {
                    Ok(()) => written += WRITE_BYTES,
                    Err(error) => break error,
                }
            };
            assert!(matches!(refused, StoreError::Full), "{refused}");
            eprintln!("medium {medium}: {promised} promised, {at_first} then, {written} written");
            assert!(
                written - at_first <= JOURNAL_BYTES + 16 * u64::from(ZONE_BYTES),
                "{at_first}, {written}"
            );
            assert!(db.check().expect("checks").findings.is_empty());
        }
    }
}

/// `df` told a store of 60 MiB that holds 10 MiB as full of data once the host's file system was full.
#[test]
fn medium_without_room_makes_nothing_used() {
    let (device, db, blocks) = open_on(24 << 20);
    let mut written = 0;
    let refused = loop {
        match write(&db, blocks, written, Durability::Synced) {
            Ok(()) => written += WRITE_BYTES,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Full), "{refused}");
    let full = db.space();
    assert!(full.used_bytes <= 24 << 20, "{full:?}, and the medium has 24 MiB in all");
    device.set_bytes(CAPACITY, CAPACITY);
    let space = db.space();
    assert!(space.used_bytes + space.available_bytes <= space.capacity_bytes, "{space:?}");
}
