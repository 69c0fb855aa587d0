//! A store full of files of 1,000 bytes, all of which are deleted in random order.
//!
//! Thread safety: belongs to one thread.

use crate::{Findings, PartInfo, PartName, Setup, row};
use anyhow::{Context, Result, ensure};
use kvfs_bench::interrupt;
use kvfs_bench::latencies::Latencies;
use kvfs_bench::mount::{MountOptions, Mounted};
use kvfs_bench::units::Unit::{Bytes, Count, Seconds, Share};
use kvfs_device::Rng;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const PART: PartInfo = PartInfo {
    name: PartName::Full,
    key: "full",
    title: |setup| {
        format!("{} full of files of 1,000 bytes, all deleted", Bytes.text(size_bytes(setup) as f64))
    },
    source: "Free space is what df calls available. It is asked for right behind the last unlink, as much is written a second \
             later, and it is asked for again when that was removed and nothing changes any more.",
    needs_mount: true,
    rows: &[
        row("full.files", "files until it is full", Count, None),
        row("full.create-max", "longest create + write", Seconds, None),
        row("full.unlink-max", "longest unlink", Seconds, None),
        row("full.unlink-999", "99.9 % of unlinks stay below", Seconds, None),
        row("full.unlink-seconds", "all unlinks", Seconds, None),
        row("full.free-empty", "free when it is new", Bytes, None),
        row("full.free-full", "free when it is full", Bytes, None),
        row("full.free-at-once", "free right behind the last unlink", Bytes, None),
        row("full.free-second", "free a second later", Bytes, None),
        row("full.free-settled", "free when it has settled", Bytes, None),
        row("full.df-at-once", "free at once, of what it settles to", Share, None),
        row("full.df-kept", "of what df called free could be written", Share, None),
    ],
    measure,
};

const FILE_BYTES: usize = 1000;
const FILES_PER_DIR: u64 = 1000;
const STEP_BYTES: usize = 1 << 20;
/// Nothing changes any more when `df` says the same for so long.
const QUIET: Duration = Duration::from_secs(3);
const QUIET_LIMIT: Duration = Duration::from_mins(1);

fn size_bytes(setup: &Setup) -> u64 {
    // A smaller one than this may refuse deletions when it is full.
    if setup.is_quick { 256 << 20 } else { 512 << 20 }
}

fn measure(setup: &Setup, findings: &mut Findings) -> Result<()> {
    let options = MountOptions { size_bytes: Some(size_bytes(setup)), ..MountOptions::default() };
    let mounted = Mounted::new(setup.program()?, setup.work, &options)?;
    let mut rng = Rng::new(setup.seed);
    let free = || Ok::<f64, anyhow::Error>(mounted.space()?.1 as f64);
    findings.add("full.free-empty", free()?);
    let mut creates = Latencies::default();
    let files = fill(mounted.dir(), &mut creates, &mut rng)?;
    mounted.sync()?;
    findings.add("full.files", files as f64);
    findings.add("full.create-max", creates.max());
    findings.add("full.free-full", free()?);

    let mut unlinks = Latencies::default();
    let start = Instant::now();
    delete(mounted.dir(), files, &mut unlinks, &mut rng)?;
    findings.add("full.unlink-seconds", start.elapsed().as_secs_f64());
    let at_once = free()?;
    findings.add("full.unlink-max", unlinks.max());
    findings.add("full.unlink-999", unlinks.below(999));
    findings
        .note(format!("{} unlinks took more than 0.1 s", unlinks.longer_than(Duration::from_millis(100))));
    findings.add("full.free-at-once", at_once);
    std::thread::sleep(Duration::from_secs(1));
    findings.add("full.free-second", free()?);

    let written = write(&mounted.dir().join("probe"), at_once as u64, &mut rng)?;
    findings.add("full.df-kept", written as f64 / at_once);
    fs::remove_file(mounted.dir().join("probe"))?;
    mounted.sync()?;
    let settled = settled(&mounted)?;
    findings.add("full.free-settled", settled);
    findings.add("full.df-at-once", at_once / settled);
    mounted.remove()
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{:04}", number / FILES_PER_DIR)).join(format!("{number:08}"))
}

/// Creates files until there is no space; how many there are.
fn fill(dir: &Path, latencies: &mut Latencies, rng: &mut Rng) -> Result<u64> {
    let mut content = [0; FILE_BYTES];
    let mut number = 0;
    loop {
        if number % FILES_PER_DIR == 0 {
            interrupt::check()?;
            match fs::create_dir(dir.join(format!("{:04}", number / FILES_PER_DIR))) {
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                made => made?,
            }
        }
        rng.fill(&mut content);
        let path = path(dir, number);
        let mut is_made = false;
        let created = latencies.time(|| {
            let mut file = File::create_new(&path)?;
            is_made = true;
            file.write_all(&content)
        });
        // One that found no space for its content is there, too.
        number += u64::from(is_made);
        match created {
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            created => created.with_context(|| format!("cannot make {}", path.display()))?,
        }
    }
    ensure!(number > FILES_PER_DIR, "the store was full after {number} files");
    Ok(number)
}

fn delete(dir: &Path, files: u64, latencies: &mut Latencies, rng: &mut Rng) -> Result<()> {
    let mut numbers: Vec<u64> = (0..files).collect();
    rng.shuffle(&mut numbers);
    for (count, number) in numbers.into_iter().enumerate() {
        if count % 1024 == 0 {
            interrupt::check()?;
        }
        let path = path(dir, number);
        latencies
            .time(|| fs::remove_file(&path))
            .with_context(|| format!("cannot remove {}, after {count} of {files}", path.display()))?;
    }
    Ok(())
}

/// Writes so much into a new file, or as much as there is space for; how much that is.
fn write(path: &Path, bytes: u64, rng: &mut Rng) -> Result<u64> {
    let mut file = File::create_new(path)?;
    let mut step = vec![0; STEP_BYTES];
    let mut written = 0;
    while written < bytes {
        interrupt::check()?;
        rng.fill(&mut step);
        let len = (bytes - written).min(STEP_BYTES as u64) as usize;
        match file.write(&step[..len]) {
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            taken => written += taken? as u64,
        }
    }
    file.sync_all()?;
    Ok(written)
}

/// What is free when that changes no more (bytes).
fn settled(mounted: &Mounted) -> Result<f64> {
    let start = Instant::now();
    let (mut free, mut since) = (mounted.space()?.1, Instant::now());
    while since.elapsed() < QUIET && start.elapsed() < QUIET_LIMIT {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(100));
        let now = mounted.space()?.1;
        if now != free {
            (free, since) = (now, Instant::now());
        }
    }
    Ok(free as f64)
}
