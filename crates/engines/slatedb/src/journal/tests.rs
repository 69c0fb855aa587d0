use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kvfs_store::KeyRange;
use tempfile::TempDir;

use super::files::Set;
use super::*;

fn record(sequence: u64, len: usize) -> Record {
    let value = Bytes::from(vec![sequence as u8; len]);
    Record {
        sequence,
        previous: sequence - 1,
        values: vec![(1, Bytes::from_static(b"key"), Some(value))],
        deleted: vec![(1, KeyRange::all())],
    }
}

fn journal(dir: &TempDir, queue_bytes_max: u64) -> Journal {
    Journal::new(dir.path(), Writer::create(dir.path(), [1; 16], 3).unwrap(), 0, queue_bytes_max)
}

fn written(dir: &TempDir) -> Vec<u64> {
    let mut sequences = Vec::new();
    for set in Set::find(dir.path()).unwrap() {
        set.read([1; 16], 0, &mut |record| {
            sequences.push(record.sequence);
            Ok(())
        })
        .unwrap();
    }
    sequences
}

#[test]
fn syncs_share_writes_and_each_finds_its_record_on_the_disk() {
    const THREADS: u64 = 8;
    const EACH: u64 = 50;
    let dir = TempDir::new().unwrap();
    let journal = journal(&dir, u64::MAX);
    let order = Order::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let sequence = order.append(&journal);
                    assert!(journal.sync(sequence));
                }
            });
        }
    });
    assert_eq!(written(&dir), (1..=THREADS * EACH).collect::<Vec<_>>());
    assert!((1..=THREADS * EACH).contains(&journal.figures().1));
    // Nothing is left to be written.
    let syncs = journal.figures().1;
    assert!(journal.sync(u64::MAX));
    assert_eq!(journal.figures().1, syncs);
}

/// Batches take their turn.
#[derive(Default)]
struct Order(std::sync::Mutex<()>, AtomicU64);

impl Order {
    fn append(&self, journal: &Journal) -> u64 {
        let _turn = self.0.lock().unwrap();
        let sequence = self.1.fetch_add(1, Ordering::Relaxed) + 1;
        journal.append(record(sequence, 100));
        sequence
    }
}

#[test]
fn what_object_storage_has_is_not_written_and_its_files_go() {
    let dir = TempDir::new().unwrap();
    let journal = journal(&dir, 20 << 20);
    (1..=3).for_each(|sequence| journal.append(record(sequence, 10)));
    journal.stored(2);
    assert!(journal.sync(2));
    assert_eq!((written(&dir), journal.figures().1), (vec![], 0));
    assert!(journal.sync(3));
    assert_eq!((written(&dir), journal.figures().1), (vec![3], 1));
    // More than is to be in memory is written, and not synced.
    for sequence in 4..=12 {
        journal.append(record(sequence, 5 << 20));
        journal.make_room();
    }
    assert_eq!((written(&dir), journal.figures().1), ((3..=11).collect::<Vec<_>>(), 1));
    assert!(journal.sync(12));
    assert_eq!(written(&dir).last(), Some(&12));
    let bytes = journal.figures().0;
    journal.stored(11);
    assert!(journal.figures().0 < bytes);
    let left = written(&dir);
    assert!(left.len() < 10 && left.last() == Some(&12), "{left:?}");
}

#[test]
fn journal_that_has_failed_promises_nothing_more_than_object_storage_has() {
    let dir = TempDir::new().unwrap();
    let journal = journal(&dir, u64::MAX);
    journal.append(record(1, 9 << 20));
    assert!(journal.sync(1));
    std::fs::remove_dir_all(dir.path()).unwrap();
    // The next file can't be begun.
    journal.append(record(2, 10));
    assert!(!journal.sync(2));
    journal.append(record(3, 10));
    assert!(journal.sync(1) && !journal.sync(2) && !journal.sync(3));
    journal.stored(2);
    assert!(journal.sync(2) && !journal.sync(3));
}
