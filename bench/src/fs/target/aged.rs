//! A file system that was written over and over before it is measured.
//!
//! Files of [`FILE_BYTES`] fill it to half of [`FULL`]; a snapshot holds them where there is such a thing;
//! all are written anew, so that together they take [`FULL`] of the space, and where they do not, files are
//! added until it is taken. Then pieces of files, whole files and deleted and new ones take turns until ten
//! times the capacity was written.

use super::Target;
use crate::workload::ScenarioName;
use anyhow::{Context, Result, ensure};
use kvfs_bench::counters::Probe;
use kvfs_bench::interrupt;
use kvfs_bench::memory::MemoryPeak;
use kvfs_device::Rng;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const FILE_BYTES: u64 = 1 << 20;
const STEP_BYTES: usize = 64 << 10;
/// How much of the space is taken in the end.
const FULL: f64 = 0.85;
const CAPACITIES_WRITTEN: u64 = 10;
/// After so much, everything is written out: what is deleted has to become free in time.
const SYNC_EVERY_BYTES: u64 = 256 << 20;

/// Another target, aged once; its scenarios work in directories beside the old files.
pub(crate) struct Aged {
    inner: Box<dyn Target>,
    name: &'static str,
    capacities_written: u64,
    is_ready: bool,
    has_snapshot: bool,
    written_bytes: u64,
}

impl Aged {
    /// `capacities_written` is ten but for trials.
    pub(crate) fn new(inner: Box<dyn Target>, name: &'static str, capacities_written: Option<u64>) -> Self {
        let capacities_written = capacities_written.unwrap_or(CAPACITIES_WRITTEN);
        Self { inner, name, capacities_written, is_ready: false, has_snapshot: false, written_bytes: 0 }
    }

    fn age(&mut self) -> Result<()> {
        let old = self.inner.dir().join("old");
        fs::create_dir(&old)?;
        let capacity_bytes = space(self.inner.dir())?.0;
        let goal_bytes = capacity_bytes * self.capacities_written;
        eprintln!("{}: ageing, {} GiB are to be written", self.name, goal_bytes >> 30);
        let mut rng = Rng::new(1);
        let mut files = 0;
        while used(self.inner.dir())? < FULL / 2.0 {
            self.write_file(&old, files)?;
            files += 1;
        }
        ensure!(files > 8, "the file system is too small to be aged");
        self.inner.sync()?;
        self.has_snapshot = self.inner.hold_snapshot()?;
        for number in 0..files {
            self.write_file(&old, number)?;
        }
        self.inner.sync()?;
        while used(self.inner.dir())? < FULL {
            self.write_file(&old, files)?;
            files += 1;
        }
        while self.written_bytes < goal_bytes {
            let number = rng.below(files);
            match rng.below(3) {
                0 => self.write_file(&old, number)?,
                1 => {
                    fs::remove_file(path(&old, number))?;
                    self.write_file(&old, number)?;
                }
                _ => self.write_pieces(&old, number, &mut rng)?,
            }
        }
        self.inner.sync()
    }

    fn write_file(&mut self, old: &Path, number: u64) -> Result<()> {
        let file = open(old, number)?;
        for place in (0..FILE_BYTES).step_by(STEP_BYTES) {
            file.write_all_at(&self.step(STEP_BYTES), place)?;
            self.count(STEP_BYTES)?;
        }
        Ok(())
    }

    /// 16 pieces of 4 KiB.
    fn write_pieces(&mut self, old: &Path, number: u64, rng: &mut Rng) -> Result<()> {
        let file = open(old, number)?;
        for _ in 0..16 {
            file.write_all_at(&self.step(4096), rng.below(FILE_BYTES / 4096) * 4096)?;
            self.count(4096)?;
        }
        Ok(())
    }

    /// Nothing twice, and nothing that compresses well.
    fn step(&self, len: usize) -> Vec<u8> {
        let mut step = vec![0; len];
        Rng::new(self.written_bytes).fill(&mut step);
        step
    }

    fn count(&mut self, bytes: usize) -> Result<()> {
        let before = self.written_bytes;
        self.written_bytes += bytes as u64;
        if before / SYNC_EVERY_BYTES != self.written_bytes / SYNC_EVERY_BYTES {
            interrupt::check()?;
            self.inner.sync()?;
            if before >> 33 != self.written_bytes >> 33 {
                eprintln!("{}: {} GiB written", self.name, self.written_bytes >> 30);
            }
        }
        Ok(())
    }
}

fn path(old: &Path, number: u64) -> PathBuf {
    old.join(format!("{:03}", number % 100)).join(format!("{number:07}"))
}

fn open(old: &Path, number: u64) -> Result<File> {
    let path = path(old, number);
    let open = || OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    open()
        .or_else(|_| {
            fs::create_dir_all(path.parent().unwrap_or(old))?;
            open()
        })
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Capacity and what is free of it (bytes).
fn space(dir: &Path) -> Result<(u64, u64)> {
    let found =
        rustix::fs::statvfs(dir).with_context(|| format!("cannot ask {} for its space", dir.display()))?;
    Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
}

/// The part of the space that is taken.
fn used(dir: &Path) -> Result<f64> {
    let (capacity_bytes, free_bytes) = space(dir)?;
    Ok(1.0 - free_bytes as f64 / capacity_bytes as f64)
}

impl Target for Aged {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> String {
        let snapshot = if self.has_snapshot { "a snapshot held" } else { "no snapshot" };
        format!(
            "{}; aged: {} GiB written over it, {:.0} % full, {snapshot}",
            self.inner.about(),
            self.written_bytes >> 30,
            FULL * 100.0
        )
    }

    /// Ages it the first time.
    fn mount_fresh(&mut self) -> Result<()> {
        if self.is_ready {
            return self.inner.make_cold();
        }
        self.inner.mount_fresh()?;
        self.age()?;
        self.is_ready = true;
        Ok(())
    }

    fn dir(&self) -> &Path {
        self.inner.dir()
    }

    fn mount(&mut self) -> Result<()> {
        self.inner.mount()
    }

    fn make_cold(&mut self) -> Result<()> {
        self.inner.make_cold()
    }

    fn unmount(&mut self) -> Result<()> {
        self.inner.unmount()
    }

    fn probe(&self) -> Result<Probe> {
        self.inner.probe()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn memory_peak(&self) -> Option<MemoryPeak> {
        self.inner.memory_peak()
    }

    fn memory_limit_bytes(&self) -> Option<u64> {
        self.inner.memory_limit_bytes()
    }

    fn set_memory(&mut self, memory_bytes: Option<u64>) {
        self.inner.set_memory(memory_bytes);
    }

    fn unfit_for(&self, scenario: ScenarioName) -> Option<&'static str> {
        self.inner.unfit_for(scenario)
    }
}
