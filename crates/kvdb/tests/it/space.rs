//! What a full store still does, whatever it is full of.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvfs_device::{Device, MemoryDevice, Rng};
use kvfs_kvdb::{Background, Db, Options};
use kvfs_store::{Batch, Durability, KeyRange, Keyspace, Read, Store, StoreError, Transactions, TxnOptions};

use super::basics::{create_zoned, make, open, put, rows};

/// Lengths of a key and a value.
type Lens = fn(&mut Rng) -> (usize, usize);

/// From values that fit their sectors badly, alone and together, to long keys, of which the index has two of
/// each block.
const KINDS: [(&str, Lens); 7] = [
    ("alone in a block, with a sector almost empty", |rng| (20, rng.range(16_500, 17_000) as usize)),
    ("from 16 to 20 KiB", |rng| (20, rng.range(16 << 10, 20 << 10) as usize)),
    ("two or three to a block", |_| (20, 8_250)),
    ("six to a block", |_| (20, 4_080)),
    ("of any length", |rng| (20, rng.below(40_000) as usize)),
    ("short and long by turns", |rng| (20, [700, 15_900][rng.below(2) as usize])),
    ("little but keys", |rng| (rng.range(1000, 4000) as usize, 10)),
];

fn key(number: u32, len: usize) -> Vec<u8> {
    // Not in order, and with nothing in common.
    let mut key = number.reverse_bits().to_be_bytes().to_vec();
    key.resize(len, number as u8);
    key
}

#[test]
fn what_was_taken_in_can_be_flushed_and_deleted_on_a_full_store_whatever_its_lengths() {
    for (seed, (what, lens)) in KINDS.into_iter().enumerate() {
        let mut rng = Rng::new(seed as u64);
        let device = make(96);
        let db = open(&device, |options| options.memtable_bytes = 3 << 20);
        let rows = rows(&db);
        let mut keys = Vec::new();
        let mut bytes = 0;
        loop {
            let (key_len, value_len) = lens(&mut rng);
            let key = key(keys.len() as u32, key_len);
            let mut batch = Batch::new();
            batch.put(rows, key.clone(), vec![keys.len() as u8; value_len]);
            match db.apply(batch, Durability::Buffered) {
                Ok(_) => keys.push(key),
                Err(StoreError::Full) => break,
                Err(error) => panic!("{what}, seed {seed}: {error}"),
            }
            bytes += key_len + value_len;
        }
        assert!(bytes > 8 << 20, "{what}: only {bytes} bytes fitted");
        db.flush().unwrap_or_else(|error| panic!("{what}, seed {seed}, after {bytes} bytes: {error}"));
        // Some one by one, and the rest at once.
        let delete = |change: &dyn Fn(&mut Batch)| {
            let mut batch = Batch::new();
            change(&mut batch);
            let deleted = db.apply(batch, Durability::Buffered);
            deleted.unwrap_or_else(|error| panic!("{what}, seed {seed}, deleting: {error}"));
        };
        for key in &keys[..100] {
            delete(&|batch| batch.delete(rows, key.clone()));
        }
        delete(&|batch| batch.delete_range(rows, vec![], vec![0xff; 9]));
        db.reclaim().unwrap_or_else(|error| panic!("{what}, seed {seed}, reclaiming: {error}"));
        assert!(db.get(rows, &keys[0]).expect("reads").is_none());
        assert!(db.check().expect("checks").findings.is_empty(), "{what}");
    }
}

/// Puts rows of about 1 KiB until the store is full; returns their keys.
pub(crate) fn fill_with_small_rows(db: &Db, rows: Keyspace, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    loop {
        let key = rng.next_u64().to_be_bytes().to_vec();
        let mut batch = Batch::new();
        batch.put(rows, key.clone(), vec![keys.len() as u8; rng.range(900, 1100) as usize]);
        match db.apply(batch, Durability::Buffered) {
            Ok(_) => keys.push(key),
            Err(StoreError::Full) => return keys,
            Err(error) => panic!("filling: {error}"),
        }
    }
}

fn left(db: &Db, rows: Keyspace) -> BTreeSet<Vec<u8>> {
    let mut cursor = db.cursor(rows, KeyRange::all()).expect("opens");
    let mut keys = BTreeSet::new();
    loop {
        cursor.next().expect("moves");
        let Some((key, _)) = cursor.entry() else { return keys };
        keys.insert(key.to_vec());
    }
}

/// Fills a store with small rows at random, and deletes them one by one in another order.
fn delete_one_by_one(seed: u64, zones: u64, change: impl FnOnce(&mut Options)) {
    const ZONE_BYTES: u32 = 256 << 10;
    let mut rng = Rng::new(seed);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, zones * u64::from(ZONE_BYTES)));
    create_zoned(&device, ZONE_BYTES, zones);
    let db = open(&device, change);
    let rows = rows(&db);
    let mut keys = fill_with_small_rows(&db, rows, &mut rng);
    let filled = keys.len();
    assert!(filled as u64 * 1000 > zones * u64::from(ZONE_BYTES) / 2, "only {filled} rows fitted");
    rng.shuffle(&mut keys);
    let kept: BTreeSet<Vec<u8>> = keys.split_off(keys.len() / 10 * 9).into_iter().collect();
    for (number, key) in keys.iter().enumerate() {
        let mut batch = Batch::new();
        batch.delete(rows, key.clone());
        if let Err(error) = db.apply(batch, Durability::Buffered) {
            panic!("seed {seed}: delete {number} of {filled}: {error}");
        }
    }
    assert!(left(&db, rows) == kept, "seed {seed}: other rows are there than those that were not deleted");
    let again = fill_with_small_rows(&db, rows, &mut rng).len();
    assert!(
        again > filled / 2,
        "seed {seed}: {filled} rows fitted, and after nine tenths were deleted {again}"
    );
    assert!(db.check().expect("checks").findings.is_empty(), "seed {seed}");
}

#[test]
fn rows_of_a_full_store_can_be_deleted_one_by_one_in_any_order() {
    delete_one_by_one(0, 400, |options| options.memtable_bytes = 2 << 20);
    // Tables, and so pieces, of many zones.
    delete_one_by_one(1, 400, |options| options.memtable_bytes = 8 << 20);
}

#[test]
fn rows_of_a_full_store_can_be_deleted_one_by_one_where_few_runs_are_merged_at_once() {
    for (seed, inputs_max) in [(0, 2), (1, 3), (2, 3), (4, 2)] {
        delete_one_by_one(seed, 400, |options| {
            options.memtable_bytes = 2 << 20;
            options.merge.inputs_max = inputs_max;
        });
    }
    delete_one_by_one(3, 400, |options| {
        options.memtable_bytes = 2 << 20;
        options.merge.inputs_max = 2;
        options.background = Background::Threads;
    });
}

/// Where it ends, deletions have taken the reserve down to what merges of two runs need, or nearly so.
#[test]
fn what_was_deleted_can_be_written_though_less_is_left_of_the_reserve_than_merges_need() {
    for (seed, memtable_bytes) in [(2, 2 << 20), (4, 2 << 20), (2, 4 << 20)] {
        delete_one_by_one(seed, 400, |options| options.memtable_bytes = memtable_bytes);
    }
}

#[test]
fn writer_refused_because_of_a_reader_succeeds_when_that_has_gone() {
    for (seed, part) in [(0, 10), (1, 10), (0, 5), (1, 5)] {
        let mut rng = Rng::new(seed);
        let device = make(400);
        let db = open(&device, |options| options.memtable_bytes = 2 << 20);
        let rows = rows(&db);
        let mut keys = fill_with_small_rows(&db, rows, &mut rng);
        let reader = db.cursor(rows, KeyRange::all()).expect("opens");
        rng.shuffle(&mut keys);
        let delete = |key: &Vec<u8>| {
            let mut batch = Batch::new();
            batch.delete(rows, key.clone());
            db.apply(batch, Durability::Buffered).is_ok()
        };
        // What the reader holds has nowhere to go.
        let deleted = keys.iter().take(keys.len() / part).filter(|key| delete(key)).count();
        assert!(deleted > 5000, "seed {seed}: {deleted} of {}", keys.len());
        let beside = fill_with_small_rows(&db, rows, &mut rng).len();
        drop(reader);
        let again = fill_with_small_rows(&db, rows, &mut rng).len();
        assert!(
            beside + again > deleted / 2,
            "seed {seed}: {beside} and {again} for {deleted} that were deleted"
        );
        assert!(db.check().expect("checks").findings.is_empty(), "seed {seed}");
    }
}

/// Puts `bytes` beside `deletions` of the same key as often as it is let, on the main line or each time in a
/// transaction of its own; returns how much came in.
fn grow_beside_deletions(db: &Db, rows: Keyspace, deletions: usize, bytes: usize, in_txn: bool) -> usize {
    let mut rng = Rng::new(9);
    let mut grown = 0;
    loop {
        let mut batch = Batch::new();
        (0..deletions).for_each(|_| batch.delete(rows, b"small".to_vec()));
        batch.put(rows, rng.next_u64().to_be_bytes().to_vec(), vec![3; bytes]);
        let applied = if in_txn {
            let txn = db.begin(TxnOptions::default()).expect("begins");
            txn.apply(batch).and_then(|()| txn.commit(Durability::Buffered)).map(drop)
        } else {
            db.apply(batch, Durability::Buffered).map(drop)
        };
        match applied {
            Ok(()) => grown += bytes,
            Err(StoreError::Full) => return grown,
            Err(error) => panic!("growing: {error}"),
        }
        assert!(grown < 4 << 20, "{deletions} deletions, {bytes} bytes: fills the reserve");
    }
}

#[test]
fn batches_that_bring_more_than_they_delete_leave_a_full_store_its_reserve() {
    for (deletions, bytes, in_txn) in
        [(1, 32 << 10, false), (1, 500, false), (2000, 32 << 10, false), (1, 32 << 10, true)]
    {
        let mut rng = Rng::new(5);
        let device = make(400);
        let db = open(&device, |options| options.memtable_bytes = 2 << 20);
        let rows = rows(&db);
        put(&db, rows, "small", &"s".repeat(60));
        let mut keys = fill_with_small_rows(&db, rows, &mut rng);
        grow_beside_deletions(&db, rows, deletions, bytes, in_txn);
        rng.shuffle(&mut keys);
        for (number, key) in keys.iter().enumerate() {
            let mut batch = Batch::new();
            batch.delete(rows, key.clone());
            if number % 3 == 0 && number < 3000 {
                // Under another name, as a rename does.
                let value = db.get(rows, key).expect("reads").expect("is there");
                batch.put(rows, rng.next_u64().to_be_bytes().to_vec(), value);
            }
            db.apply(batch, Durability::Buffered).unwrap_or_else(|error| {
                panic!("{deletions} deletions, {bytes} bytes: delete {number}: {error}")
            });
        }
        assert!(db.check().expect("checks").findings.is_empty());
    }
}

#[test]
fn rows_of_a_full_store_can_be_deleted_while_threads_merge() {
    delete_one_by_one(2, 400, |options| options.background = Background::Threads);
}

#[test]
fn what_was_promised_is_there_though_the_device_can_not_grow() {
    use kvfs_device::{Call, FaultDevice, FaultError, FaultRule};

    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, 400 << 18)));
    create_zoned(&(Arc::clone(&device) as Arc<dyn Device>), 256 << 10, 400);
    let db = open(&(Arc::clone(&device) as Arc<dyn Device>), |options| options.memtable_bytes = 16 << 20);
    let rows = rows(&db);
    let put = |number: u32| {
        let mut batch = Batch::new();
        batch.put(rows, key(number, 20), vec![number as u8; 5000]);
        db.apply(batch, Durability::Buffered)
    };
    let (mut taken_in, mut refused) = (0, false);
    while !refused {
        if taken_in == 1500 {
            // From now on there is no space for more of the device.
            device.add(FaultRule::from(Call::Grow, 0, FaultError::ENOSPC));
        }
        match put(taken_in) {
            Ok(_) => taken_in += 1,
            Err(StoreError::Full) => refused = true,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(taken_in >= 1500, "{taken_in} rows");
    db.flush().expect("what was taken in has its space");
    for number in 0..taken_in {
        let mut batch = Batch::new();
        batch.delete(rows, key(number, 20));
        db.apply(batch, Durability::Buffered)
            .unwrap_or_else(|error| panic!("deleting row {number}: {error}"));
    }
    for number in 0..taken_in / 2 {
        put(number).expect("there is space again");
    }
    assert!(db.check().expect("checks").findings.is_empty());
}
