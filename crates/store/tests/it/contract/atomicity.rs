//! Batches over several keyspaces under concurrent readers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvfs_store::{BLOCK_BYTES, KeyRange};

use super::Fixture;

const ROUNDS: u64 = 2000;

/// Each batch sets the same number everywhere, so every snapshot must see one number.
fn write_rounds(f: &Fixture) {
    for round in 1..=ROUNDS {
        let number = round.to_be_bytes().to_vec();
        f.apply(|b| {
            b.put(f.plain, "number", number.clone());
            b.put(f.merging, "number", number.clone());
            b.put_blocks(f.blocks, "f", 0, number.repeat(2 * BLOCK_BYTES / 8));
        });
    }
}

fn check_snapshot(f: &Fixture) {
    let snapshot = f.store.snapshot().unwrap();
    let number = snapshot.get(f.plain, b"number").unwrap();
    assert_eq!(snapshot.get(f.merging, b"number").unwrap(), number);
    let mut cursor = snapshot.cursor(f.merging, KeyRange::all()).unwrap();
    cursor.last().unwrap();
    assert_eq!(cursor.entry().map(|(_, value)| value.clone()), number);
    let mut buf = vec![0; 2 * BLOCK_BYTES];
    snapshot.read_blocks(f.blocks, b"f", 0, &mut buf).unwrap();
    let number = number.map_or(vec![0; 8], |number| number.to_vec());
    assert!(buf.chunks(8).all(|chunk| chunk == number), "blocks differ from {number:?}");
    assert_eq!(snapshot.seqno(), u64::from_be_bytes(number.try_into().unwrap()) * 3);
}

/// Reads on the store are each at a fresh position: a later one never sees less.
fn check_reads_advance(f: &Fixture) {
    let first = f.store.get(f.plain, b"number").unwrap();
    let second = f.store.get(f.merging, b"number").unwrap();
    assert!(first <= second, "{first:?} then {second:?}");
}

/// Tells the readers to end, also when the writer panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn batches_are_visible_at_once() {
    let f = Fixture::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    check_snapshot(&f);
                    check_reads_advance(&f);
                }
            });
        }
        let _done = Done(&done);
        write_rounds(&f);
    });
    check_snapshot(&f);
    assert_eq!(f.store.position().0, 3 * ROUNDS);
}
