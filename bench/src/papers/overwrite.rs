//! A store at 85 %, a snapshot held, that is overwritten at random places until ten times its capacity was
//! written.
//!
//! Files of 1 MiB fill it to the half of that; the snapshot holds them; all are written anew, and more until
//! it is as full as it is to be. Only what follows is measured.
//!
//! Thread safety: belongs to one thread.

use crate::{Findings, PartInfo, PartName, Setup, row};
use anyhow::{Context, Result, ensure};
use kvfs_bench::counters::{Meter, Probe, device_stat_under};
use kvfs_bench::interrupt;
use kvfs_bench::latencies::Latencies;
use kvfs_bench::mount::{MountOptions, Mounted};
use kvfs_bench::units::Unit::{Bytes, BytesPerSecond, Seconds, Times};
use kvfs_device::Rng;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const PART: PartInfo = PartInfo {
    name: PartName::Overwrite,
    key: "overwrite",
    title: |setup| {
        let Sizes { store_bytes, times } = Sizes::of(setup);
        format!("{} at 85 %, a snapshot held, overwritten {times} times", Bytes.text(store_bytes as f64))
    },
    source: "Overwrites of 4 to 64 KiB at random places of files of 1 MiB; an fsync of the file after each 8 MiB, which is timed \
             apart. Write amplification by the engine's counters: journal, flushes, merges and manifest to what was written \
             to it; at the disk to what the program wrote, with all else that uses the disk.",
    needs_mount: true,
    rows: &[
        row("overwrite.written", "overwritten", Bytes, None),
        row("overwrite.throughput", "overwritten each second", BytesPerSecond, None),
        row("overwrite.amplification", "write amplification", Times, None),
        row("overwrite.amplification-disk", "write amplification at the disk", Times, None),
        row("overwrite.write-max", "longest write", Seconds, None),
        row("overwrite.write-999", "99.9 % of writes stay below", Seconds, None),
        row("overwrite.fsync-max", "longest fsync", Seconds, None),
        row("overwrite.fsync-999", "99.9 % of fsyncs stay below", Seconds, None),
    ],
    measure,
};

const FILE_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4 << 10;
/// Of a write: one page to so many.
const PAGES_MAX: u64 = 16;
const SYNC_EVERY_BYTES: u64 = 8 << 20;
const FILL_SYNC_EVERY: u64 = 64;
/// The part of the space that is taken.
const FULL: f64 = 0.85;
/// What the engine has written to its device.
const DEVICE_COUNTERS: [&str; 5] = [
    "journal.bytes_written",
    "journal.bytes_bound",
    "manifest.bytes_written",
    "flush.bytes",
    "merge.bytes_written",
];

struct Sizes {
    store_bytes: u64,
    /// How often the capacity is written.
    times: u64,
}

impl Sizes {
    fn of(setup: &Setup) -> Self {
        if setup.is_quick {
            Self { store_bytes: 128 << 20, times: 2 }
        } else {
            Self { store_bytes: 1 << 30, times: 10 }
        }
    }
}

fn measure(setup: &Setup, findings: &mut Findings) -> Result<()> {
    let Sizes { store_bytes, times } = Sizes::of(setup);
    let options = MountOptions { size_bytes: Some(store_bytes), ..MountOptions::default() };
    let mounted = Mounted::new(setup.program()?, setup.work, &options)?;
    let mut rng = Rng::new(setup.seed);
    let files = fill(&mounted, &mut rng)?;
    let probe = Probe { device_stat: device_stat_under(setup.work)?, daemon: None };
    let stats_before = mounted.stats()?;
    let mut meter = Meter::start(probe)?;

    let (mut writes, mut fsyncs) = (Latencies::default(), Latencies::default());
    let mut written = 0;
    let start = Instant::now();
    let mut synced = 0;
    while written < store_bytes * times {
        let path = path(mounted.dir(), rng.below(files));
        let file = OpenOptions::new().write(true).open(&path)?;
        let mut data = vec![0; (rng.range(1, PAGES_MAX + 1) * PAGE_BYTES) as usize];
        rng.fill(&mut data);
        let place = rng.below((FILE_BYTES - data.len() as u64) / PAGE_BYTES + 1) * PAGE_BYTES;
        writes
            .time(|| file.write_all_at(&data, place))
            .with_context(|| format!("after {} overwritten", Bytes.text(written as f64)))?;
        written += data.len() as u64;
        if written >= synced + SYNC_EVERY_BYTES {
            interrupt::check()?;
            fsyncs.time(|| file.sync_all())?;
            synced = written;
        }
    }
    mounted.sync()?;
    let seconds = start.elapsed().as_secs_f64();
    meter.stop()?;
    let device = meter.finish()?.device;
    let stats = mounted.stats()?;

    findings.add("overwrite.written", written as f64);
    findings.add("overwrite.throughput", written as f64 / seconds);
    findings.add("overwrite.amplification", amplification(&stats_before, &stats)?);
    if let Some(device) = device {
        findings.add("overwrite.amplification-disk", device.write_bytes as f64 / written as f64);
    }
    for (name, latencies) in [("write", &mut writes), ("fsync", &mut fsyncs)] {
        findings.add(&format!("overwrite.{name}-max"), latencies.max());
        findings.add(&format!("overwrite.{name}-999"), latencies.below(999));
        let count = latencies.longer_than(Duration::from_millis(100));
        findings.note(format!("{name}: {count} took more than 0.1 s"));
    }
    mounted.remove()
}

/// What reached the device for each byte that was written to the engine, between two readings.
fn amplification(before: &HashMap<String, u64>, after: &HashMap<String, u64>) -> Result<f64> {
    let count = |name: &str| {
        let both = after.get(name).zip(before.get(name));
        both.map(|(after, before)| after.saturating_sub(*before))
            .with_context(|| format!("no counter {name}"))
    };
    let device = DEVICE_COUNTERS.iter().map(|name| count(name)).sum::<Result<u64>>()?;
    Ok(device as f64 / count("write.payload_bytes")? as f64)
}

/// Fills the store; how many files there are.
fn fill(mounted: &Mounted, rng: &mut Rng) -> Result<u64> {
    let used = || {
        let (capacity, free) = mounted.space()?;
        Ok::<f64, anyhow::Error>(1.0 - free as f64 / capacity as f64)
    };
    let mut write = |number| -> Result<()> {
        if number % FILL_SYNC_EVERY == 0 {
            interrupt::check()?;
            mounted.sync()?;
        }
        let mut data = vec![0; FILE_BYTES as usize];
        rng.fill(&mut data);
        open(mounted.dir(), number)?.write_all_at(&data, 0)?;
        Ok(())
    };
    let mut files = 0;
    while used()? < FULL / 2.0 {
        write(files)?;
        files += 1;
    }
    ensure!(files > 8, "the store is too small: {files} files fill half of it");
    mounted.sync()?;
    mounted.hold_snapshot("held")?;
    (0..files).try_for_each(&mut write)?;
    mounted.sync()?;
    while used()? < FULL {
        write(files)?;
        files += 1;
    }
    mounted.sync()?;
    Ok(files)
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{:02}", number % 32)).join(format!("{number:05}"))
}

fn open(dir: &Path, number: u64) -> Result<File> {
    let path = path(dir, number);
    fs::create_dir_all(path.parent().unwrap_or(dir))?;
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    opened.with_context(|| format!("cannot open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amplification_is_of_what_was_written_between_the_readings() {
        let all = |each: u64, payload| -> HashMap<String, u64> {
            let device = DEVICE_COUNTERS.iter().map(|name| ((*name).to_owned(), each));
            device.chain([("write.payload_bytes".to_owned(), payload)]).collect()
        };
        let found = amplification(&all(100, 1000), &all(160, 1100)).expect("all are counted");
        assert!((found - 3.0).abs() < 1e-9);
        assert!(amplification(&HashMap::new(), &all(1, 1)).is_err());
    }
}
