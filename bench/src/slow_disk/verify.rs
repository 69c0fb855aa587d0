//! Whether a slow disk takes as long as it is meant to, measured on the device itself.
//!
//! Thread safety: plain functions.

use super::Mechanics;
use crate::image::Aligned;
use anyhow::{Context, Result, ensure};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;

const STEP_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4 << 10;
const STEPS: u64 = 128;
const PLACES: u64 = 100;
/// So far a figure may be from what the model says: threads wake up late, and a loop device adds to each
/// request.
const TOLERANCE: f64 = 0.1;

/// What a device does.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Of reads in a row (bytes each second).
    pub bytes_per_second: f64,
    /// Reads of 4 KiB at random places, one at a time, each second.
    pub reads_per_second: f64,
    /// Writes likewise.
    pub writes_per_second: f64,
}

impl Rates {
    /// Of a device, whose content is lost.
    pub fn measure(device: &str) -> Result<Self> {
        let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(direct).open(device);
        let file = opened.with_context(|| format!("cannot open {device}"))?;
        let pages = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))? / PAGE_BYTES as u64;
        // Far from one another, none twice, the same each time.
        let place = |number: u64| (number * 2_654_435_761 % pages) * PAGE_BYTES as u64;
        let mut step = Aligned::new(STEP_BYTES);
        let row = seconds(|| {
            (0..STEPS).try_for_each(|at| file.read_exact_at(step.bytes(), at * STEP_BYTES as u64))
        })?;
        let mut page = Aligned::new(PAGE_BYTES);
        let reads = seconds(|| (0..PLACES).try_for_each(|at| file.read_exact_at(page.bytes(), place(at))))?;
        let writes = seconds(|| write_and_sync(&file, page.bytes(), place))?;
        Ok(Self {
            bytes_per_second: (STEPS * STEP_BYTES as u64) as f64 / row,
            reads_per_second: PLACES as f64 / reads,
            writes_per_second: PLACES as f64 / writes,
        })
    }

    /// Refuses a device that is another than it is meant to be.
    pub fn check(&self, mechanics: Mechanics) -> Result<()> {
        let page = mechanics.seek + mechanics.transfer(PAGE_BYTES as u64);
        let pages = 1.0 / page.as_secs_f64();
        let expected = [
            (self.bytes_per_second, mechanics.bytes_per_second as f64),
            (self.reads_per_second, pages),
            (self.writes_per_second, pages),
        ];
        let is_near = |(measured, meant): (f64, f64)| (measured / meant - 1.0).abs() <= TOLERANCE;
        ensure!(
            expected.into_iter().all(is_near),
            "the slow disk is not as slow as it is meant to be: {self:?}"
        );
        Ok(())
    }
}

fn write_and_sync(file: &File, page: &[u8], place: impl Fn(u64) -> u64) -> std::io::Result<()> {
    (0..PLACES).try_for_each(|at| file.write_all_at(page, place(at)))?;
    file.sync_data()
}

fn seconds(work: impl FnOnce() -> std::io::Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}
