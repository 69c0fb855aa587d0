//! Range deletes of the engine: what tombstones cost reads while they are there.
//!
//! Thread safety: belongs to one thread.

use crate::rig::{Rig, RigOptions};
use crate::{Findings, PartInfo, PartName, Setup, row};
use anyhow::{Result, ensure};
use kvfs_bench::interrupt;
use kvfs_bench::units::Unit::{Seconds, Times};
use kvfs_bench::units::grouped;
use kvfs_device::Rng;
use kvfs_kvdb::Db;
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Read, Store};
use std::time::Instant;

pub(crate) const PART: PartInfo = PartInfo {
    name: PartName::Ranges,
    key: "ranges",
    title: |setup| {
        let Sizes { rows, tombstones } = Sizes::of(setup);
        format!("{} range tombstones over {} rows", grouped(tombstones), grouped(rows))
    },
    source: "BetrFS 0.2 (2016), section 5, has no figure for it: range messages are to cost queries little. Rows of 100 bytes \
             in one run; each tombstone hides ten, the reads are of rows that none hides, at random, five times in each state.",
    needs_mount: false,
    rows: &[
        row("ranges.read", "a read without tombstones", Seconds, None),
        row("ranges.read-memtable", "with all of them in the memtable", Times, None),
        row("ranges.read-run", "with all of them in a run", Times, None),
    ],
    measure,
};

/// What a tombstone hides, of so many rows that lie one behind the other.
const HIDDEN: u64 = 10;
const VALUE_BYTES: usize = 100;
const ROWS_PER_BATCH: u64 = 1000;
const TURNS: usize = 5;

struct Sizes {
    rows: u64,
    tombstones: u64,
}

impl Sizes {
    fn of(setup: &Setup) -> Self {
        let (rows, tombstones) = if setup.is_quick { (100_000, 1000) } else { (1_000_000, 10_000) };
        Self { rows, tombstones }
    }

    /// Rows to one tombstone.
    fn stride(&self) -> u64 {
        self.rows / self.tombstones
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn measure(setup: &Setup, findings: &mut Findings) -> Result<()> {
    let sizes = Sizes::of(setup);
    let options = RigOptions {
        capacity_bytes: 4 << 30,
        memory_bytes: 512 << 20,
        zone_bytes: None,
        stitch_bytes_min: 256 << 10,
    };
    let rig = Rig::new(setup.work, options)?;
    let db = rig.db()?;
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None)?;
    let mut rng = Rng::new(setup.seed);
    let mut value = [0; VALUE_BYTES];
    for first in (0..sizes.rows).step_by(ROWS_PER_BATCH as usize) {
        interrupt::check()?;
        let mut batch = Batch::new();
        for number in first..first + ROWS_PER_BATCH {
            rng.fill(&mut value);
            batch.put(rows, key(number).to_vec(), value.to_vec());
        }
        db.apply(batch, Durability::Buffered)?;
    }
    db.flush()?;
    db.compact()?;
    let without = read_seconds(db, rows, &sizes, &mut rng)?;
    findings.add("ranges.read", without);
    for number in 0..sizes.tombstones {
        let first = number * sizes.stride();
        let mut batch = Batch::new();
        batch.delete_range(rows, key(first).to_vec(), key(first + HIDDEN).to_vec());
        db.apply(batch, Durability::Buffered)?;
    }
    findings.add("ranges.read-memtable", read_seconds(db, rows, &sizes, &mut rng)? / without);
    db.flush()?;
    findings.add("ranges.read-run", read_seconds(db, rows, &sizes, &mut rng)? / without);

    Ok(())
}

/// A read of a row that no tombstone hides takes so long, in the median of some turns (seconds).
fn read_seconds(db: &Db, rows: Keyspace, sizes: &Sizes, rng: &mut Rng) -> Result<f64> {
    let reads = sizes.tombstones * 10;
    let mut turns = Vec::with_capacity(TURNS);
    for _ in 0..=TURNS {
        interrupt::check()?;
        let start = Instant::now();
        for _ in 0..reads {
            let tombstone = rng.below(sizes.tombstones);
            let number = tombstone * sizes.stride() + rng.range(HIDDEN, sizes.stride());
            ensure!(db.get(rows, &key(number))?.is_some(), "row {number} is gone");
        }
        turns.push(start.elapsed().as_secs_f64() / reads as f64);
    }
    // The first one fills caches.
    turns.remove(0);
    turns.sort_by(f64::total_cmp);
    Ok(turns[TURNS / 2])
}
