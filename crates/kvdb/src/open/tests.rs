//! Journals that no store has written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_device::{Device, MemoryDevice};
use kvfs_store::clock::ManualClock;
use kvfs_store::{
    Batch, Compression, KEY_LEN_MAX, Keyspace, KeyspaceKind, Op, Read, Store, StoreError, VALUE_LEN_MAX,
};

use crate::format::Superblock;
use crate::journal::{Journal, JournalArea, Record};
use crate::space::Bindings;
use crate::version::manifest;
use crate::{Background, CreateOptions, Db, Options};

const CAPACITY: u64 = 100 * (256 << 10);

fn open(device: Arc<dyn Device>) -> Result<Arc<Db>, StoreError> {
    let options = Options { background: Background::Manual, ..Options::with_memory(64 << 20) };
    Db::open(device, options, Arc::new(ManualClock::at(Duration::from_secs(1))))
}

/// Appends `op`, as it is, to the journal of an opening that has written nothing yet.
fn append(device: Arc<dyn Device>, op: Op) {
    let superblock = Superblock::read_newest(device.as_ref()).expect("reads");
    let state = manifest::read_state(device.as_ref(), &superblock, |_| {}).expect("reads");
    let (from, clock) = ((state.journal_tail, state.flushed_seqno), Arc::new(ManualClock::default()));
    let mut last = state.flushed_seqno;
    let mut take = |replayed: crate::journal::Replayed| {
        last = last.max(replayed.base + replayed.batch.len() as u64 - 1);
        Ok(())
    };
    let area = JournalArea::of(&superblock);
    let journal = Journal::open(device, area, superblock.epoch, from, clock, &mut take).expect("opens");
    let mut batch = Batch::new();
    batch.push(op);
    let record = Record { batch: &batch, bindings: &Bindings::default(), mark: None, holder: None };
    journal.append(last + 1, record).expect("fits");
    journal.write_out().expect("writes");
}

#[test]
fn operation_in_the_journal_that_no_write_can_be_is_corrupt() {
    let device = Arc::new(MemoryDevice::growable(0, CAPACITY));
    let create = CreateOptions {
        zone_bytes: 256 << 10,
        journal_bytes: Some(8 << 20),
        ..CreateOptions::new(CAPACITY, [7; 16])
    };
    Db::create(device.clone(), &create).expect("creates");
    let db = open(device.clone()).expect("opens");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    db.flush().expect("flushes");
    drop(db);
    let opened = open(device.clone()).expect("opens");
    let (compression, prefix) = (Compression::None, Bytes::from_static(b"f"));
    let key = |len: usize| Bytes::from(vec![7; len]);
    let blocks = |keyspace: Keyspace, first, len: usize| Op::PutBlocks {
        keyspace,
        prefix: prefix.clone(),
        first,
        data: vec![0; len].into(),
        compression,
    };
    let hostile = [
        ("a value as a block", Op::Put { keyspace: data, key: key(16), value: key(10) }),
        ("a merge of a block", Op::Merge { keyspace: data, key: key(16), operand: key(10) }),
        ("half a block", blocks(data, 0, 100)),
        ("blocks behind the last one", blocks(data, u64::MAX, 4096)),
        ("blocks as tuples", blocks(rows, 0, 4096)),
        ("a deletion of no block", Op::Delete { keyspace: data, key: key(7) }),
        ("too long a key", Op::Put { keyspace: rows, key: key(KEY_LEN_MAX + 1), value: key(1) }),
        ("too long a value", Op::Put { keyspace: rows, key: key(1), value: key(4 * VALUE_LEN_MAX + 1) }),
        (
            "too long an end",
            Op::DeleteRange { keyspace: data, start: key(KEY_LEN_MAX), end: key(KEY_LEN_MAX + 2) },
        ),
        ("no key", Op::Delete { keyspace: rows, key: key(0) }),
        ("no keyspace", Op::Delete { keyspace: Keyspace(77), key: key(1) }),
    ];
    for (what, op) in hostile {
        let image = Arc::new(device.fork());
        append(image.clone(), op);
        match open(image).map(drop) {
            Err(StoreError::Corrupt { place, .. }) => {
                assert!(place.starts_with("the journal group at position"), "{what}: {place}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    let image = Arc::new(device.fork());
    // A commit may have folded merges into it.
    let long = key(2 * VALUE_LEN_MAX);
    append(image.clone(), Op::Put { keyspace: rows, key: key(KEY_LEN_MAX), value: long.clone() });
    let db = open(image).expect("opens");
    let found = db.get(rows, &key(KEY_LEN_MAX)).expect("reads");
    assert!(found == Some(long));
    let image = Arc::new(device.fork());
    // Or have deleted a block with the longest key.
    let (start, end) = (key(KEY_LEN_MAX), key(KEY_LEN_MAX + 1));
    append(image.clone(), Op::DeleteRange { keyspace: data, start, end });
    open(image).expect("opens");
    drop(opened);
}

#[test]
fn device_with_holes_for_more_zones_than_any_store_has_is_corrupt() {
    const CAPACITY: u64 = (64 << 20) * ZONE_BYTES;
    const ZONE_BYTES: u64 = 64 << 10;
    let device = Arc::new(MemoryDevice::growable(0, CAPACITY));
    let create = CreateOptions {
        zone_bytes: ZONE_BYTES as u32,
        journal_bytes: Some(1 << 20),
        ..CreateOptions::new(CAPACITY, [7; 16])
    };
    Db::create(device.clone(), &create).expect("creates");
    drop(open(device.clone()).expect("opens: little of it is there"));
    device.grow(CAPACITY).expect("is a hole");
    match open(device.clone()).map(drop) {
        Err(StoreError::Corrupt { place, .. }) => assert_eq!(place, "the superblock"),
        other => panic!("{other:?}"),
    }
    let repaired = crate::repair::repair_joined(&(device.clone() as Arc<dyn Device>), &[], &[]);
    assert!(matches!(repaired.map(drop), Err(StoreError::Corrupt { .. })));
    Db::create(device, &create).expect_err("it could not be opened");
}
