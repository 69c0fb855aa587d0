//! Many small files in one directory.

use super::{Job, Scenario, ScenarioName, Start, Workload, nothing, number, sample};
use anyhow::{Context, Result, ensure};
use kvfs_bench::interrupt;
use kvfs_bench::results::Class;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::path::PathBuf;

const FILE_BYTES: usize = 512;

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Small,
    workloads: &[
        Workload {
            key: "small-create",
            title: |sizes| format!("create {} x {FILE_BYTES} B", number(sizes.small)),
            class: Class::NoSync,
            start: Start::Settled,
            prepare: |job| Ok(fs::create_dir(dir(job))?),
            run: create,
        },
        Workload {
            key: "small-read-cold",
            title: |sizes| format!("read {} of them", number(sizes.small_reads)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| read(job, 0..job.sizes.small_reads),
        },
        Workload {
            key: "small-read-random-cold",
            title: |sizes| format!("read {} of them at random", number(sizes.small_reads)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| read(job, sample(job.sizes.small, job.sizes.small_reads, 3).into_iter()),
        },
    ],
};

fn dir(job: &Job) -> PathBuf {
    job.dir.join("small")
}

/// Each differs.
fn content(number: u32) -> [u8; FILE_BYTES] {
    let mut content = [0x3c; FILE_BYTES];
    content[..4].copy_from_slice(&number.to_le_bytes());
    content
}

fn create(job: &Job) -> Result<()> {
    let dir_file = File::open(dir(job))?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    for number in 0..job.sizes.small {
        if number % 1024 == 0 {
            interrupt::check()?;
        }
        let name = format!("small-{number:07}");
        let file = rustix::fs::openat(&dir_file, &name, flags, Mode::from_raw_mode(0o644))
            .with_context(|| format!("cannot create {name}"))?;
        let written = rustix::io::write(&file, &content(number))?;
        ensure!(written == FILE_BYTES, "only {written} bytes of {name} are written");
    }
    Ok(())
}

fn read(job: &Job, numbers: impl Iterator<Item = u32>) -> Result<()> {
    let dir_file = File::open(dir(job))?;
    let mut buf = [0; FILE_BYTES * 2];
    for number in numbers {
        let name = format!("small-{number:07}");
        let file = rustix::fs::openat(&dir_file, &name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("cannot open {name}"))?;
        let len = rustix::io::read(&file, &mut buf)?;
        ensure!(buf[..len] == content(number), "{name} holds other things");
    }
    Ok(())
}
