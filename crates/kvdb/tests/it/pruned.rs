//! Merges of what range tombstones hide.

use std::sync::Arc;

use kvfs_device::{CountingDevice, Device, MemoryDevice};
use kvfs_store::{Batch, Durability, Read, Store};

use super::basics::{create, open, rows};

const ROWS: u64 = 8000;
const VALUE_BYTES: usize = 500;

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

#[test]
fn rows_of_a_deleted_range_are_dropped_without_being_read() {
    for (stitch_bytes_min, has_snapshot) in [(0, false), (u64::MAX, false), (64 << 10, true)] {
        let zones = 200;
        let counting = Arc::new(CountingDevice::new(MemoryDevice::growable(0, zones * (256 << 10))));
        let device: Arc<dyn Device> = Arc::clone(&counting) as Arc<dyn Device>;
        create(&device, zones);
        let db = open(&device, |options| {
            options.memtable_bytes = 16 << 20;
            options.merge.stitch_bytes_min = stitch_bytes_min;
        });
        let rows = rows(&db);
        for numbers in (0..ROWS).collect::<Vec<_>>().chunks(100) {
            let mut batch = Batch::new();
            for &number in numbers {
                batch.put(rows, key(number), vec![number as u8; VALUE_BYTES]);
            }
            db.apply(batch, Durability::Buffered).expect("applies");
        }
        db.flush().expect("flushes");
        let snapshot = has_snapshot.then(|| db.snapshot().expect("pins"));
        let mut batch = Batch::new();
        batch.delete_range(rows, key(1), key(ROWS - 1));
        batch.put(rows, key(ROWS / 2), "new");
        db.apply(batch, Durability::Buffered).expect("applies");
        db.flush().expect("flushes");
        let before = counting.counts().bytes_read;
        db.compact().expect("merges");
        let bytes_read = counting.counts().bytes_read - before;
        let bytes = ROWS * VALUE_BYTES as u64;
        if !has_snapshot {
            assert!(bytes_read < bytes / 10, "{bytes_read} bytes were read of {bytes}");
        }
        for number in 0..ROWS {
            let found = db.get(rows, &key(number)).expect("reads");
            let old = vec![number as u8; VALUE_BYTES];
            let expected = match number {
                0 => Some(&old[..]),
                _ if number == ROWS / 2 => Some(&b"new"[..]),
                _ if number == ROWS - 1 => Some(&old[..]),
                _ => None,
            };
            assert_eq!(found.as_deref(), expected, "row {number}");
            if let Some(snapshot) = &snapshot {
                assert_eq!(snapshot.get(rows, &key(number)).expect("reads").as_deref(), Some(&old[..]));
            }
        }
        assert!(db.check().expect("checks").findings.is_empty());
    }
}
