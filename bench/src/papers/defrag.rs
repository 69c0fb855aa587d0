//! Table 4.4 of the KVFS thesis: a store whose zones are partly used is defragmented.
//!
//! As there, sequences of 4 KiB to the stitching threshold are inserted, each into another file. The thesis's
//! engine then had 43 % of its zones' space in use; here sequences are written anew at random places until it
//! is as much.
//!
//! Thread safety: belongs to one thread.

use crate::files::Files;
use crate::rig::{Merging, Rig, RigOptions};
use crate::zones::ZoneUse;
use crate::{Findings, PartInfo, PartName, Setup, row};
use anyhow::Result;
use kvfs_bench::summary::Summary;
use kvfs_bench::units::Unit::{Bytes, BytesPerSecond, Count, Seconds, Share};
use kvfs_bench::{host, interrupt};
use kvfs_device::Rng;
use kvfs_kvdb::{DefragLimit, DefragPolicy};
use kvfs_store::BLOCK_BYTES;
use std::time::Instant;

/// The thesis's zones: in use, needed for what was inserted, and given back.
const THESIS_ZONES: (f64, f64, f64) = (11_264.0, 4_864.0, 6_270.0);
/// Its range query before and after, and the defragmentation (seconds).
const THESIS_SECONDS: (f64, f64, f64) = (377.71, 274.82, 284.14);
/// Its range query before (bytes each second).
const THESIS_SCAN: f64 = 103e6;
/// What it moved of what it held (bytes).
const THESIS_MOVED: (f64, f64) = (15e9, 38e9);

pub(crate) const PART: PartInfo = PartInfo {
    name: PartName::Defrag,
    key: "defrag",
    title: |setup| format!("defragmentation of {}", Bytes.text(Sizes::of(setup).data_bytes as f64)),
    source: "KVFS thesis (2012), section 4.5, table 4.4: 38 GB of blocks in sequences of 4 to 64 KB, threshold 64 KB, SSD of \
             2009, 4 GB of memory. Its share of zones is of all that are used; its machine and sizes differ, so ratios \
             are what to compare. At a use of 50 % no defragmentation could give back more than half of the zones, so the \
             store is aged to the thesis's own use, or has less as it was inserted. Before, all runs are merged into one, \
             which the thesis did not do: what the scan saves is not the merge's.",
    needs_mount: false,
    rows: &[
        row("defrag.overwritten", "overwritten, to age it", Bytes, None),
        row("defrag.zones-used", "zones in use before", Count, Some(THESIS_ZONES.0)),
        row("defrag.zones-needed", "zones that the data needs", Count, Some(THESIS_ZONES.1)),
        row("defrag.use", "use of these zones", Share, Some(THESIS_ZONES.1 / THESIS_ZONES.0)),
        row("defrag.zones-partly", "zones less than 75 % used", Count, None),
        row("defrag.use-of-partly", "use of these", Share, None),
        row("defrag.zones-used-after", "zones in use after", Count, Some(THESIS_ZONES.0 - THESIS_ZONES.2)),
        row("defrag.zones-back", "zones that came back, of those partly used", Share, None),
        row(
            "defrag.zones-back-of-used",
            "zones that came back, of all used",
            Share,
            Some(THESIS_ZONES.2 / THESIS_ZONES.0),
        ),
        row(
            "defrag.back-of-possible",
            "of what could come back",
            Share,
            Some(THESIS_ZONES.2 / (THESIS_ZONES.0 - THESIS_ZONES.1)),
        ),
        row("defrag.scan-inserted", "scan of everything as inserted, cold", Seconds, None),
        row("defrag.scan-before", "scan of everything before, cold", Seconds, Some(THESIS_SECONDS.0)),
        row("defrag.scan-after", "scan of everything after, cold", Seconds, Some(THESIS_SECONDS.1)),
        row("defrag.scan-rate-before", "scan before", BytesPerSecond, Some(THESIS_SCAN)),
        row(
            "defrag.scan-rate-after",
            "scan after",
            BytesPerSecond,
            Some(THESIS_SCAN * THESIS_SECONDS.0 / THESIS_SECONDS.1),
        ),
        row("defrag.scan-faster", "time that the scan saves", Share, Some(SCAN_SAVED)),
        row("defrag.scan-faster-inserted", "time saved against the scan as inserted", Share, None),
        row("defrag.moved", "written by the defragmentation", Bytes, Some(THESIS_MOVED.0)),
        row("defrag.moved-of-data", "written, of the data", Share, Some(THESIS_MOVED.0 / THESIS_MOVED.1)),
        row("defrag.seconds", "defragmentation", Seconds, Some(THESIS_SECONDS.2)),
        row("defrag.rate", "written each second", BytesPerSecond, Some(THESIS_MOVED.0 / THESIS_SECONDS.2)),
    ],
    measure,
};

const SCAN_SAVED: f64 = 1.0 - THESIS_SECONDS.1 / THESIS_SECONDS.0;
const STITCH_BYTES_MIN: u64 = 64 << 10;
/// Between two looks at the zones this part of the data is overwritten.
const ROUND_PART: u64 = 32;
/// It is not aged any more when the data was overwritten so often.
const OVERWRITTEN_MAX: u64 = 4;
const SCANS: usize = 3;

struct Sizes {
    data_bytes: u64,
    files: usize,
    rig: RigOptions,
}

impl Sizes {
    fn of(setup: &Setup) -> Self {
        let (data_bytes, memory_bytes): (u64, u64) =
            if setup.is_quick { (64 << 20, 16 << 20) } else { (2 << 30, 64 << 20) };
        // So much that no zone is emptied for want of space.
        let capacity_bytes = 4 * data_bytes + (256 << 20);
        let rig =
            RigOptions { capacity_bytes, memory_bytes, zone_bytes: None, stitch_bytes_min: STITCH_BYTES_MIN };
        Self { data_bytes, files: (data_bytes >> 21) as usize, rig }
    }
}

fn measure(setup: &Setup, findings: &mut Findings) -> Result<()> {
    let sizes = Sizes::of(setup);
    let mut rig = Rig::new(setup.work, sizes.rig)?;
    let mut files = Files::new(sizes.files);
    let mut rng = Rng::new(setup.seed);
    insert(&rig, &mut files, sizes.data_bytes, &mut rng)?;
    rig.db()?.flush()?;
    rig.db()?.compact()?;
    let inserted = ZoneUse::of(&rig.db()?.zone_map());
    let use_text = Share.text(inserted.share_needed(files.bytes()));
    let runs = rig.stat("keyspace.blocks.runs")?;
    findings.note(format!("inserted, runs: {runs}: {use_text} used; {}", inserted.distribution()));
    let scan_inserted = scan(&mut rig, &files)?;
    let before = age(&mut rig, &mut files, &mut rng, findings)?;
    findings.note(format!("merged into one run and aged: {}", before.distribution()));
    findings.add("defrag.zones-used", before.used as f64);
    findings.add("defrag.zones-needed", before.needed(files.bytes()) as f64);
    findings.add("defrag.use", before.share_needed(files.bytes()));
    findings.add("defrag.zones-partly", before.partly as f64);
    findings.add("defrag.use-of-partly", before.live_of_partly());
    let scan_before = scan(&mut rig, &files)?;

    defragment(&rig, &files, findings)?;
    let after = ZoneUse::of(&rig.db()?.zone_map());
    findings.note(format!("defragmented: {}", after.distribution()));
    let zones_back = before.used as f64 - after.used as f64;
    findings.add("defrag.zones-used-after", after.used as f64);
    findings.add("defrag.zones-back", zones_back / before.partly as f64);
    findings.add("defrag.zones-back-of-used", zones_back / before.used as f64);
    let possible = before.used as f64 - before.needed(files.bytes()) as f64;
    findings.add("defrag.back-of-possible", zones_back / possible);

    let scan_after = scan(&mut rig, &files)?;
    findings.add("defrag.scan-inserted", scan_inserted);
    findings.add("defrag.scan-before", scan_before);
    findings.add("defrag.scan-after", scan_after);
    findings.add("defrag.scan-rate-before", files.bytes() as f64 / scan_before);
    findings.add("defrag.scan-rate-after", files.bytes() as f64 / scan_after);
    findings.add("defrag.scan-faster", 1.0 - scan_after / scan_before);
    findings.add("defrag.scan-faster-inserted", 1.0 - scan_after / scan_inserted);
    Ok(())
}

/// A sequence's length (blocks).
fn length(rng: &mut Rng) -> u64 {
    rng.range(1, STITCH_BYTES_MIN / BLOCK_BYTES as u64 + 1)
}

/// Sequences at the ends of files, until there is so much.
fn insert(rig: &Rig, files: &mut Files, bytes: u64, rng: &mut Rng) -> Result<()> {
    let (db, keyspace) = rig.open()?;
    let (mut inserted, mut file) = (0, 0);
    while inserted < bytes {
        // Another one than before.
        file = (file + rng.range(1, files.count())) % files.count();
        let count = length(rng);
        files.write((&**db, *keyspace), file, files.blocks(file), count)?;
        inserted += count * BLOCK_BYTES as u64;
    }
    Ok(())
}

/// Overwrites sequences at random places, until the zones are used as little as the thesis's.
fn age(rig: &mut Rig, files: &mut Files, rng: &mut Rng, findings: &mut Findings) -> Result<ZoneUse> {
    let round_bytes = files.bytes() / ROUND_PART;
    let mut overwritten = 0;
    loop {
        let zones = settled(rig)?;
        let is_aged = zones.share_needed(files.bytes()) <= THESIS_ZONES.1 / THESIS_ZONES.0;
        if is_aged || overwritten >= OVERWRITTEN_MAX * files.bytes() {
            findings.add("defrag.overwritten", overwritten as f64);
            return Ok(zones);
        }
        rig.reopen(Merging::Due)?;
        let (db, keyspace) = rig.open()?;
        let mut round = 0;
        while round < round_bytes {
            let file = rng.below(files.count());
            let blocks = files.blocks(file);
            let count = length(rng).min(blocks);
            if count > 0 {
                files.write((&**db, *keyspace), file, rng.below(blocks - count + 1), count)?;
                round += count * BLOCK_BYTES as u64;
            }
        }
        overwritten += round;
    }
}

/// The zones when everything was merged: before, what is overwritten is not known to be dead.
fn settled(rig: &mut Rig) -> Result<ZoneUse> {
    rig.reopen(Merging::All)?;
    let db = rig.db()?;
    db.compact()?;
    Ok(ZoneUse::of(&db.zone_map()))
}

/// Seconds of a scan of a store that was just opened, median.
fn scan(rig: &mut Rig, files: &Files) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..SCANS {
        rig.reopen(Merging::Due)?;
        host::drop_caches()?;
        let (db, keyspace) = rig.open()?;
        let start = Instant::now();
        files.scan(&**db, *keyspace)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(Summary::of(times).map_or(0.0, |summary| summary.median))
}

fn defragment(rig: &Rig, files: &Files, findings: &mut Findings) -> Result<()> {
    let written = |rig: &Rig| rig.stat("merge.bytes_written");
    let written_before = written(rig)?;
    let start = Instant::now();
    let mut goes_on = |_| !interrupt::is_interrupted();
    let done = rig.db()?.defragment(DefragPolicy::Sparse, &DefragLimit::default(), &mut goes_on)?;
    let seconds = start.elapsed().as_secs_f64();
    interrupt::check()?;
    // All that was written, also for what was merged before.
    let moved = (written(rig)? - written_before) as f64;
    let whole = if done.is_complete { "all of it was done" } else { "it ended EARLY" };
    findings.note(format!(
        "by its own count {} were moved, mean stretch {} before and {} after; {whole}",
        Bytes.text(done.bytes_moved as f64),
        Bytes.text(done.before.stretch_bytes_mean() as f64),
        Bytes.text(done.after.stretch_bytes_mean() as f64)
    ));
    findings.add("defrag.moved", moved);
    findings.add("defrag.moved-of-data", moved / files.bytes() as f64);
    findings.add("defrag.seconds", seconds);
    findings.add("defrag.rate", moved / seconds);
    Ok(())
}
