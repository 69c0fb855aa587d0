//! Merges of more runs than may be merged at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_device::{Device, MemoryDevice, Rng};
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, Read, Store, Transactions, TxnOptions,
};

use crate::merge::step::Progress;
use crate::merge::tests::{CAPACITY, KEYS, create, key, open_with, options, write_run};
use crate::space::{Budget, Lane};
use crate::{Db, Options};

/// Runs of each keyspace.
const RUNS: usize = 150;
/// Blocks, and rows, in each.
const PARTS: u64 = 64;
const MEMORY_BYTES: u64 = 1 << 20;

fn stat(db: &Db, name: &str) -> u64 {
    let stats = db.stats();
    stats.iter().find(|(known, _)| known == name).map(|(_, value)| *value).expect("is counted")
}

struct Many {
    db: Arc<Db>,
    rows: Keyspace,
    data: Keyspace,
    /// First bytes of each block, and the row of the same number.
    written: BTreeMap<u64, u64>,
}

/// A transaction that was larger than memory has committed; its blocks and rows lie all over the keys.
fn many_runs() -> Many {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
    create(&device);
    let mut options =
        Options { memory_bytes: MEMORY_BYTES, memtable_bytes: 256 << 10, private_bytes: 1, ..options() };
    (options.merge.class_runs, options.merge.piece_bytes) = (4, 1 << 20);
    let db = open_with(device, options);
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    let (mut rng, mut written) = (Rng::new(7), BTreeMap::new());
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for _ in 0..=RUNS {
        let mut batch = Batch::new();
        for _ in 0..PARTS {
            let (number, mark) = (rng.below(20_000), rng.next_u64());
            let mut block = vec![0; BLOCK_BYTES];
            block[..8].copy_from_slice(&mark.to_be_bytes());
            batch.put_blocks(data, b"file".to_vec(), number, block);
            batch.put(rows, key(number as u32), mark.to_be_bytes().repeat(64));
            written.insert(number, mark);
        }
        txn.apply(batch).expect("applies");
    }
    txn.commit(Durability::Synced).expect("commits");
    db.flush().expect("adopts its runs");
    let many = Many { db, rows, data, written };
    assert!(many.runs().iter().all(|&runs| runs >= RUNS), "{:?}", many.runs());
    many
}

impl Many {
    fn runs(&self) -> [usize; 2] {
        let view = self.db.parts.live.view();
        [self.rows, self.data].map(|keyspace| view.version.runs(keyspace.0).len())
    }

    fn holds(&self) {
        for (&number, mark) in &self.written {
            let mut block = vec![0; BLOCK_BYTES];
            self.db.read_blocks(self.data, b"file", number, &mut block).expect("reads");
            assert_eq!(block[..8], mark.to_be_bytes(), "block {number}");
            let row = self.db.get(self.rows, &key(number as u32)).expect("reads").expect("is there");
            assert_eq!(row, mark.to_be_bytes().repeat(64), "row {number}");
        }
        assert!(self.db.check().expect("checks").findings.is_empty());
    }
}

#[test]
fn merges_of_many_runs_keep_indexes_below_their_share_and_copy_little_twice() {
    type Act = fn(&Db);
    let acts: [(&str, Act); 2] = [
        ("merges", |db| db.compact().expect("merges")),
        ("a pass", |db| db.parts.merger.reclaim(Budget::Deleting).expect("merges")),
    ];
    for (what, act) in acts {
        let many = many_runs();
        let bytes = stat(&many.db, "keyspace.rows.bytes") + stat(&many.db, "keyspace.data.bytes");
        let before = stat(&many.db, "merge.bytes_written");
        act(&many.db);
        assert!(many.runs().iter().all(|&runs| runs < 8), "{what}: {:?}", many.runs());
        let (peak, share) = (stat(&many.db, "memory.index_peak_bytes"), MEMORY_BYTES / 2);
        // One is there before another one makes room for it.
        assert!(peak <= share + share / 8, "{what}: {peak} bytes of a share of {share}");
        let copied = stat(&many.db, "merge.bytes_written") - before;
        assert!(copied < 4 * bytes, "{what}: {copied} bytes copied of {bytes}");
        many.holds();
    }
}

#[test]
fn merge_resumed_with_more_inputs_than_may_be_merged_at_once_is_narrowed() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
    create(&device);
    let db = open_with(Arc::clone(&device), options());
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    for value in 0..10 {
        write_run(&db, rows, value, 100);
    }
    let view = db.parts.live.view();
    let mut merge = db.parts.merger.stepper.merge_of(rows.0, view.version.runs(rows.0));
    drop(view);
    let config = db.parts.merger.stepper.step_config(Lane::FIRST, Budget::Ordinary, None);
    assert_eq!(db.parts.merger.stepper.step(&mut merge, &config).expect("begins"), Progress::More);
    db.close().expect("closes");
    drop(db);

    let mut options = options();
    options.merge.inputs_max = 3;
    let db = open_with(device, options);
    let recorded = || {
        let view = db.parts.live.view();
        view.version.merges(rows.0).iter().map(|merge| merge.inputs.len()).max()
    };
    assert_eq!(recorded(), Some(10));
    assert!(db.parts.merger.merge_once().expect("goes on"));
    assert_eq!(recorded(), Some(3));
    db.compact().expect("merges");
    for number in 0..KEYS {
        let row = db.get(rows, &key(number)).expect("reads").expect("is there");
        assert_eq!(row, vec![9; 100], "row {number}");
    }
    assert!(db.check().expect("checks").findings.is_empty());
}
