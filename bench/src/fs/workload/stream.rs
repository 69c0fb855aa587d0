//! One large file.

use super::{Job, Scenario, ScenarioName, Sizes, Start, Workload, nothing, number, sample};
use anyhow::{Context, Result, anyhow, ensure};
use kvfs_bench::interrupt;
use kvfs_bench::results::Class;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;

/// Length of one sequential read or write.
const STEP_BYTES: usize = 1 << 20;
/// Length of a random one.
const PAGE_BYTES: usize = 4 << 10;
const READERS: usize = 16;
/// tar(1) writes so much at a time: two blocks and a half.
const TAR_BYTES: usize = 10 << 10;

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Stream,
    workloads: &[
        Workload {
            key: "stream-write",
            title: |sizes| format!("write {} + fsync", size(sizes)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: nothing,
            run: write,
        },
        Workload {
            key: "stream-read-cold",
            title: |sizes| format!("read {}", size(sizes)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: read,
        },
        Workload {
            key: "stream-read-warm",
            title: |sizes| format!("read {}", size(sizes)),
            class: Class::Warm,
            start: Start::Warm,
            prepare: nothing,
            run: read,
        },
        Workload {
            key: "random-read-qd1",
            title: |sizes| format!("{} x random read 4 KiB, 1 thread", number(sizes.random_reads)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| read_random(job, 1),
        },
        Workload {
            key: "random-read-qd16",
            title: |sizes| format!("{} x random read 4 KiB, {READERS} threads", number(sizes.random_reads)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| read_random(job, READERS),
        },
        Workload {
            key: "overwrite-4k",
            title: |sizes| format!("{} x overwrite of 4 KiB, fsync", number(sizes.overwrites)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: nothing,
            run: overwrite_pages,
        },
        Workload {
            key: "overwrite-4b",
            title: |sizes| format!("{} x overwrite of 4 B, fsync", number(sizes.tiny_overwrites)),
            class: Class::SyncAtEnd,
            start: Start::Cold,
            prepare: nothing,
            run: overwrite_words,
        },
        Workload {
            key: "unlink",
            title: |sizes| format!("unlink {}", size(sizes)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| Ok(fs::remove_file(path(job))?),
        },
        Workload {
            key: "stream-write-10k",
            title: |sizes| format!("write {}, 10 KiB at a time, + fsync", size(sizes)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: nothing,
            run: |job| write_small(job, TAR_BYTES),
        },
    ],
};

fn path(job: &Job) -> PathBuf {
    job.dir.join("stream")
}

fn size(sizes: &Sizes) -> String {
    match sizes.stream_bytes {
        bytes if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
        bytes => format!("{} MiB", bytes >> 20),
    }
}

/// Each page tells its place, so that nothing gains by deduplication and wrong data is seen.
fn stamp(pages: &mut [u8], first: u64) {
    for (page, number) in pages.chunks_mut(PAGE_BYTES).zip(first..) {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
}

fn check(pages: &[u8], first: u64) -> Result<()> {
    for (page, number) in pages.chunks(PAGE_BYTES).zip(first..) {
        ensure!(page[..8] == number.to_le_bytes(), "wrong data in page {number}");
    }
    Ok(())
}

fn steps(job: &Job) -> impl Iterator<Item = u64> {
    (0..job.sizes.stream_bytes / STEP_BYTES as u64).map(|step| step * (STEP_BYTES / PAGE_BYTES) as u64)
}

fn write(job: &Job) -> Result<()> {
    let mut file = File::create_new(path(job))?;
    let mut step = vec![0xc3; STEP_BYTES];
    for first in steps(job) {
        interrupt::check()?;
        stamp(&mut step, first);
        file.write_all(&step)?;
    }
    Ok(file.sync_all()?)
}

fn write_small(job: &Job, bytes: usize) -> Result<()> {
    let mut file = File::create_new(path(job))?;
    let mut piece = vec![0x5a; bytes];
    for number in 0..job.sizes.stream_bytes / bytes as u64 {
        if number % 1024 == 0 {
            interrupt::check()?;
        }
        piece[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&piece)?;
    }
    Ok(file.sync_all()?)
}

fn read(job: &Job) -> Result<()> {
    let mut file = File::open(path(job))?;
    let mut step = vec![0; STEP_BYTES];
    for first in steps(job) {
        interrupt::check()?;
        file.read_exact(&mut step)?;
        check(&step, first)?;
    }
    Ok(())
}

fn pages(job: &Job, count: u32, seed: u64) -> Vec<u32> {
    sample((job.sizes.stream_bytes / PAGE_BYTES as u64) as u32, count, seed)
}

fn read_random(job: &Job, threads: usize) -> Result<()> {
    let pages = pages(job, job.sizes.random_reads, 4 + threads as u64);
    let path = path(job);
    let read = |pages: &[u32]| -> Result<()> {
        let file = File::open(&path)?;
        let mut page = [0; PAGE_BYTES];
        for &number in pages {
            file.read_exact_at(&mut page, u64::from(number) * PAGE_BYTES as u64)
                .with_context(|| format!("cannot read page {number}"))?;
            check(&page, u64::from(number))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let read = &read;
        let parts = pages.chunks(pages.len().div_ceil(threads));
        let readers: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
        readers
            .into_iter()
            .try_for_each(|reader| reader.join().unwrap_or_else(|_| Err(anyhow!("a reader panicked"))))
    })
}

fn overwrite_pages(job: &Job) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path(job))?;
    let mut page = [0x96; PAGE_BYTES];
    for (count, number) in pages(job, job.sizes.overwrites, 30).into_iter().enumerate() {
        if count % 1024 == 0 {
            interrupt::check()?;
        }
        stamp(&mut page, u64::from(number));
        file.write_all_at(&page, u64::from(number) * PAGE_BYTES as u64)?;
    }
    Ok(file.sync_all()?)
}

/// Behind the stamps.
fn overwrite_words(job: &Job) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path(job))?;
    for number in pages(job, job.sizes.tiny_overwrites, 40) {
        file.write_all_at(&number.to_le_bytes(), u64::from(number) * PAGE_BYTES as u64 + 100)?;
    }
    Ok(file.sync_all()?)
}
