//! Figures 4.9 and 4.10 of the KVFS thesis: how many zones are under-utilized, by stitching threshold.
//!
//! As there, each cycle appends to a random file and writes at a random place of a large one that was written
//! before.
//!
//! Thread safety: belongs to one thread.

use crate::files::Files;
use crate::rig::{Rig, RigOptions};
use crate::zones::ZoneUse;
use crate::{Findings, PartInfo, PartName, Setup, row};
use anyhow::Result;
use kvfs_bench::units::Unit::{Bytes, Share};
use kvfs_device::Rng;
use kvfs_store::BLOCK_BYTES;

pub(crate) const PART: PartInfo = PartInfo {
    name: PartName::Thresholds,
    key: "thresholds",
    title: |setup| {
        format!("stitching thresholds, {} each", Bytes.text(Sizes::of(setup).written_bytes as f64))
    },
    source: "KVFS thesis (2012), section 4.5, figures 4.9 and 4.10: appends of 16 KB in the mean to 10,000 files, a write into \
             a file of 10 GB for each, 34 GB in all. What the bars are is only in its drawing; its text says that they become \
             fewer as the threshold grows, that the zones gather around 40 or 70 % for small ones, and at both ends for 256 \
             and 512 KB. Here everything is 64 times smaller, zones are 2 MiB, and the writes have the length of the appends.",
    needs_mount: false,
    rows: &[
        row("thresholds.partly-32", "zones less than 75 % used at 32 KiB", Share, None),
        row("thresholds.partly-64", "at 64 KiB", Share, None),
        row("thresholds.partly-128", "at 128 KiB", Share, None),
        row("thresholds.partly-256", "at 256 KiB", Share, None),
        row("thresholds.partly-512", "at 512 KiB", Share, None),
    ],
    measure,
};

const THRESHOLDS_KIB: [u64; 5] = [32, 64, 128, 256, 512];
/// Of an append: one block to so many, 16 KiB in the mean.
const BLOCKS_MAX: u64 = 7;
/// Written at a time into the large file.
const STEP_BLOCKS: u64 = 256;

struct Sizes {
    written_bytes: u64,
    large_bytes: u64,
    files: usize,
    memory_bytes: u64,
}

impl Sizes {
    fn of(setup: &Setup) -> Self {
        if setup.is_quick {
            Self { written_bytes: 48 << 20, large_bytes: 14 << 20, files: 16, memory_bytes: 16 << 20 }
        } else {
            Self { written_bytes: 544 << 20, large_bytes: 160 << 20, files: 156, memory_bytes: 32 << 20 }
        }
    }
}

fn measure(setup: &Setup, findings: &mut Findings) -> Result<()> {
    for threshold in THRESHOLDS_KIB {
        let zones = fragmented(setup, threshold << 10)?;
        findings.note(format!("{threshold} KiB: {}", zones.distribution()));
        findings.add(&format!("thresholds.partly-{threshold}"), zones.share_partly());
    }
    Ok(())
}

/// The zones of a store in which the cycles were run.
fn fragmented(setup: &Setup, stitch_bytes_min: u64) -> Result<ZoneUse> {
    let sizes = Sizes::of(setup);
    let rig = Rig::new(
        setup.work,
        RigOptions {
            capacity_bytes: 4 * (sizes.written_bytes + sizes.large_bytes),
            memory_bytes: sizes.memory_bytes,
            zone_bytes: Some(2 << 20),
            stitch_bytes_min,
        },
    )?;
    let (db, keyspace) = rig.open()?;
    let store = (&**db as &dyn kvfs_store::Store, *keyspace);
    let mut rng = Rng::new(setup.seed);
    // The large one is file 0.
    let mut files = Files::new(1 + sizes.files);
    let blocks = sizes.large_bytes / BLOCK_BYTES as u64;
    for first in (0..blocks).step_by(STEP_BLOCKS as usize) {
        files.write(store, 0, first, STEP_BLOCKS.min(blocks - first))?;
    }
    let mut written = 0;
    while written < sizes.written_bytes {
        let (append, write) = (rng.range(1, BLOCKS_MAX + 1), rng.range(1, BLOCKS_MAX + 1));
        let file = rng.range(1, files.count());
        files.write(store, file, files.blocks(file), append)?;
        files.write(store, 0, rng.below(blocks - write + 1), write)?;
        written += (append + write) * BLOCK_BYTES as u64;
    }
    db.flush()?;
    db.compact()?;
    Ok(ZoneUse::of(&db.zone_map()))
}
