//! A store that is nearly full takes whatever replaces other data, for as long as writers go on.

use std::sync::Arc;

use kvfs_device::{Device, Rng};
use kvfs_kvdb::{Background, Db, Options};
use kvfs_store::{BLOCK_BYTES, Batch, Durability, Keyspace, Read, Store};

use super::basics::{data, make, open, rows};

const ZONES: u64 = 240;
const ZONE_BYTES: u64 = 256 << 10;
/// Blocks of a file.
const BLOCKS: u64 = 64;

/// Files of blocks and a row each, written over and over; knows what they hold.
struct Files {
    db: Arc<Db>,
    rng: Rng,
    seed: u64,
    data: Keyspace,
    rows: Keyspace,
    /// By file, then by block, then the row at last: what it was filled with.
    fills: Vec<Vec<u32>>,
    bytes_written: u64,
}

/// What is overwritten.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Anything,
    Pieces,
}

fn bytes_of(fill: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(fill.into()).fill(&mut bytes);
    bytes
}

impl Files {
    fn open(device: &Arc<dyn Device>, seed: u64, change: impl FnOnce(&mut Options)) -> Self {
        let db = open(device, change);
        let (data, rows) = (data(&db), rows(&db));
        Self { db, rng: Rng::new(seed), seed, data, rows, fills: Vec::new(), bytes_written: 0 }
    }

    /// The part of the space that is taken.
    fn used(&self) -> f64 {
        let space = self.db.space();
        1.0 - space.available_bytes as f64 / space.capacity_bytes as f64
    }

    fn apply(&mut self, batch: Batch, bytes: u64) {
        let applied = self.db.apply(batch, Durability::Buffered);
        let (seed, written) = (self.seed, self.bytes_written);
        if let Err(error) = applied {
            panic!("seed {seed}: {error} after {written} bytes, used {}", self.used());
        }
        self.bytes_written += bytes;
    }

    /// The blocks of a file from `first` on, `count` of them.
    fn put_blocks(&mut self, batch: &mut Batch, file: usize, first: u64, count: u64) {
        let mut written = Vec::new();
        for block in first..first + count {
            let fill = self.rng.next_u64() as u32;
            self.fills[file][block as usize] = fill;
            written.extend(bytes_of(fill, BLOCK_BYTES));
        }
        batch.put_blocks(self.data, (file as u32).to_be_bytes().to_vec(), first, written);
    }

    fn put_row(&mut self, batch: &mut Batch, file: usize) {
        let fill = self.rng.next_u64() as u32;
        self.fills[file][BLOCKS as usize] = fill;
        batch.put(self.rows, (file as u32).to_be_bytes().to_vec(), bytes_of(fill, 1000));
    }

    fn write(&mut self, file: usize) {
        self.fills.resize_with(self.fills.len().max(file + 1), || vec![0; BLOCKS as usize + 1]);
        for first in (0..BLOCKS).step_by(16) {
            let mut batch = Batch::new();
            self.put_blocks(&mut batch, file, first, 16);
            self.put_row(&mut batch, file);
            self.apply(batch, 16 * BLOCK_BYTES as u64);
        }
    }

    fn delete(&mut self, file: usize) {
        let prefix = (file as u32).to_be_bytes();
        let mut batch = Batch::new();
        batch.delete(self.rows, prefix.to_vec());
        batch.delete_range(self.data, prefix.to_vec(), (file as u32 + 1).to_be_bytes().to_vec());
        self.apply(batch, 0);
    }

    fn write_pieces(&mut self, file: usize) {
        for _ in 0..8 {
            let mut batch = Batch::new();
            let block = self.rng.below(BLOCKS);
            self.put_blocks(&mut batch, file, block, 1);
            self.put_row(&mut batch, file);
            self.apply(batch, BLOCK_BYTES as u64);
        }
    }

    /// Writes files until `part` of the space is taken.
    fn fill_to(&mut self, part: f64) {
        while self.used() < part {
            self.write(self.fills.len());
        }
    }

    /// Whole files, new ones for deleted ones, and pieces, or these alone, at random, until so much was
    /// written.
    fn overwrite(&mut self, bytes: u64, by: By) {
        let end = self.bytes_written + bytes;
        while self.bytes_written < end {
            let file = self.rng.below(self.fills.len() as u64) as usize;
            match if by == By::Pieces { 2 } else { self.rng.below(3) } {
                0 => self.write(file),
                1 => {
                    self.delete(file);
                    self.write(file);
                }
                _ => self.write_pieces(file),
            }
        }
    }

    fn verify(&self) {
        for (file, fills) in self.fills.iter().enumerate() {
            let prefix = (file as u32).to_be_bytes();
            let mut found = vec![0; BLOCKS as usize * BLOCK_BYTES];
            self.db.read_blocks(self.data, &prefix, 0, &mut found).expect("reads");
            for (block, found) in found.chunks_exact(BLOCK_BYTES).enumerate() {
                let what = format!("seed {}: block {block} of file {file}", self.seed);
                assert!(found == bytes_of(fills[block], BLOCK_BYTES), "{what}");
            }
            let row = self.db.get(self.rows, &prefix).expect("reads");
            assert!(row.is_some_and(|row| row[..] == bytes_of(fills[BLOCKS as usize], 1000)));
        }
        let report = self.db.check().expect("checks");
        assert!(report.findings.is_empty(), "seed {}: {:?}", self.seed, report.findings);
    }
}

fn device_bytes() -> u64 {
    ZONES * ZONE_BYTES
}

#[test]
fn a_store_that_is_85_percent_full_can_be_overwritten_ten_times() {
    for (seed, by) in [(0, By::Anything), (1, By::Pieces)] {
        let device = make(ZONES);
        let mut files = Files::open(&device, seed, |_| {});
        files.fill_to(0.85);
        files.overwrite(10 * device_bytes(), by);
        assert!(files.used() < 0.95, "seed {seed}: what is garbage does not count as taken");
        files.verify();
        let Files { db, fills, .. } = files;
        db.close().expect("closes");
        drop(db);
        let mut files = Files::open(&device, seed, |_| {});
        files.fills = fills;
        files.verify();
    }
}

#[test]
fn a_store_with_a_snapshot_and_threads_can_be_overwritten_ten_times_at_85_percent() {
    let device = make(ZONES);
    let mut files = Files::open(&device, 7, |options| options.background = Background::Threads);
    files.fill_to(0.42);
    let snapshot = files.db.snapshot().expect("is taken");
    let before = files.fills.clone();
    for file in 0..before.len() {
        files.write(file);
    }
    files.fill_to(0.85);
    files.overwrite(10 * device_bytes(), By::Anything);
    files.verify();
    for (file, fills) in before.iter().enumerate() {
        let row = snapshot.get(files.rows, &(file as u32).to_be_bytes()).expect("reads");
        assert!(row.is_some_and(|row| row[..] == bytes_of(fills[BLOCKS as usize], 1000)), "file {file}");
    }
}
