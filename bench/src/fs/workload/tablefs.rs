//! The experiments of `TableFS` (2013), section 4, with fewer files and as much memory as there is; what
//! reached the disk is in the details of the report. Changes are synced before a timing ends.
//!
//! Postmark is Katcher's, as the paper has it: a pool of files of 512 B to 4 KiB, transactions of two halves
//! each, one of which creates or deletes, one reads or appends, and in the end all files are deleted.

use super::library::{create, create_some, path};
use super::{Job, Scenario, ScenarioName, Start, Workload, nothing, number};
use anyhow::{Result, ensure};
use kvfs_bench::calls::Calls;
use kvfs_bench::interrupt;
use kvfs_bench::results::Class;
use kvfs_device::Rng;

const FILE_BYTES: usize = 512;
const FILES_PER_DIRECTORY: u32 = 11;
/// Of all directories one in so many is listed.
const LISTED_OF: u32 = 5;
/// Sizes of Postmark's files, and at most of what it appends (bytes).
const POSTMARK_BYTES: (usize, usize) = (512, 4096);

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Tablefs,
    workloads: &[
        Workload {
            key: "tablefs-create",
            title: |sizes| format!("4.4: create {} empty", number(sizes.tablefs)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: |job| job.calls.mkdir("empty"),
            run: |job| create(job.calls, "empty", job.sizes.tablefs, b"").and_then(|()| job.calls.sync()),
        },
        Workload {
            key: "tablefs-query",
            title: |sizes| format!("4.4: {} stat or chmod, utime, cold", number(sizes.tablefs / 2)),
            class: Class::SyncAtEnd,
            start: Start::Cold,
            prepare: nothing,
            run: query,
        },
        Workload {
            key: "tablefs-small-create",
            title: |sizes| format!("4.6: create {} x {FILE_BYTES} B", number(sizes.tablefs / 2)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: |job| job.calls.mkdir("small"),
            run: |job| {
                create(job.calls, "small", job.sizes.tablefs / 2, &[0x3c; FILE_BYTES])?;
                job.calls.sync()
            },
        },
        Workload {
            key: "tablefs-small-query",
            title: |sizes| format!("4.6: {} reads or overwrites, cold", number(sizes.tablefs / 4)),
            class: Class::SyncAtEnd,
            start: Start::Cold,
            prepare: nothing,
            run: small_query,
        },
        Workload {
            key: "tablefs-readdir-cold",
            title: |sizes| {
                format!("4.7: readdir of {} directories", number(directories(sizes.tablefs) / LISTED_OF))
            },
            class: Class::Cold,
            start: Start::Cold,
            prepare: make_tree,
            run: |job| list(job, false),
        },
        Workload {
            key: "tablefs-readdir-stat-cold",
            title: |sizes| {
                format!(
                    "4.7: readdir + stat of {} directories",
                    number(directories(sizes.tablefs) / LISTED_OF)
                )
            },
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| list(job, true),
        },
        Workload {
            key: "tablefs-postmark",
            title: |sizes| {
                let files = sizes.tablefs / 5;
                format!("4.8: Postmark, {} files, {}", number(files), number(2 * files))
            },
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: |job| job.calls.mkdir("postmark"),
            run: postmark,
        },
    ],
};

/// A directory that grows.
pub(super) const LARGE: Scenario = Scenario {
    name: ScenarioName::Large,
    workloads: &[
        Workload {
            key: "large-create-first",
            title: |sizes| {
                format!("create the first {} of {}", number(sizes.large / 10), number(sizes.large))
            },
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: |job| job.calls.mkdir("large"),
            run: |job| large(job, 0..1),
        },
        Workload {
            key: "large-create-middle",
            title: |sizes| format!("create {} more", number(sizes.large / 10 * 8)),
            class: Class::SyncAtEnd,
            start: Start::Warm,
            prepare: nothing,
            run: |job| large(job, 1..9),
        },
        Workload {
            key: "large-create-last",
            title: |sizes| format!("create the last {}", number(sizes.large / 10)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: nothing,
            run: |job| large(job, 9..10),
        },
    ],
};

/// Files of these tenths.
fn large(job: &Job, tenths: std::ops::Range<u32>) -> Result<()> {
    let tenth = job.sizes.large / 10;
    create_some(job.calls, "large", tenths.start * tenth..tenths.end * tenth, b"")?;
    job.calls.sync()
}

/// Half of them read, half change mode or times.
fn query(job: &Job) -> Result<()> {
    let mut rng = Rng::new(11);
    for count in 0..job.sizes.tablefs / 2 {
        if count % 1024 == 0 {
            interrupt::check()?;
        }
        let path = path("empty", rng.below(job.sizes.tablefs.into()) as u32);
        match rng.below(4) {
            0 | 1 => drop(job.calls.stat(&path)?),
            2 => job.calls.chmod(&path, 0o600)?,
            _ => job.calls.utimens(&path)?,
        }
    }
    job.calls.sync()
}

fn small_query(job: &Job) -> Result<()> {
    let mut rng = Rng::new(12);
    let mut buffer = [0; FILE_BYTES * 2];
    for count in 0..job.sizes.tablefs / 4 {
        if count % 1024 == 0 {
            interrupt::check()?;
        }
        let path = path("small", rng.below((job.sizes.tablefs / 2).into()) as u32);
        if rng.below(2) == 0 {
            let len = job.calls.read(&path, &mut buffer)?;
            ensure!(len == FILE_BYTES, "{path} has {len} bytes");
        } else {
            job.calls.overwrite(&path, &[0x5a; FILE_BYTES])?;
        }
    }
    job.calls.sync()
}

/// Directories of the tree.
fn directories(files: u32) -> u32 {
    files / 5 / FILES_PER_DIRECTORY
}

/// Each directory lies in that whose number is its own divided by three.
fn directory(number: u32) -> String {
    if number == 0 { "tree".to_owned() } else { format!("{}/{number}", directory(number / 3)) }
}

fn make_tree(job: &Job) -> Result<()> {
    for number in 0..directories(job.sizes.tablefs) {
        interrupt::check()?;
        let directory = directory(number);
        job.calls.mkdir(&directory)?;
        create(job.calls, &directory, FILES_PER_DIRECTORY, &[0x3c; FILE_BYTES])?;
    }
    Ok(())
}

fn list(job: &Job, with_stat: bool) -> Result<()> {
    let (mut rng, count) = (Rng::new(13), directories(job.sizes.tablefs));
    for _ in 0..count / LISTED_OF {
        let directory = directory(rng.below(count.into()) as u32);
        let found = job.calls.list(&directory, with_stat)?.len();
        ensure!(found >= FILES_PER_DIRECTORY as usize, "{directory} has {found} entries");
    }
    Ok(())
}

fn postmark(job: &Job) -> Result<()> {
    let files = job.sizes.tablefs / 5;
    let mut pool = Pool::new(job.calls);
    for _ in 0..files {
        pool.create()?;
    }
    for count in 0..2 * files {
        if count % 1024 == 0 {
            interrupt::check()?;
        }
        pool.transact()?;
    }
    while !pool.files.is_empty() {
        pool.delete()?;
    }
    job.calls.sync()
}

/// The files of Postmark.
struct Pool<'c> {
    calls: &'c dyn Calls,
    rng: Rng,
    files: Vec<u32>,
    next: u32,
    content: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'c> Pool<'c> {
    fn new(calls: &'c dyn Calls) -> Self {
        let content = vec![0x6d; POSTMARK_BYTES.1];
        Self { calls, rng: Rng::new(14), files: Vec::new(), next: 0, content, buffer: vec![0; 1 << 20] }
    }

    fn create(&mut self) -> Result<()> {
        let len = self.rng.range(POSTMARK_BYTES.0 as u64, POSTMARK_BYTES.1 as u64 + 1) as usize;
        self.calls.create(&path("postmark", self.next), &self.content[..len])?;
        self.files.push(self.next);
        self.next += 1;
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let index = self.rng.below(self.files.len() as u64) as usize;
        self.calls.unlink(&path("postmark", self.files.swap_remove(index)))
    }

    fn transact(&mut self) -> Result<()> {
        if self.rng.below(2) == 0 || self.files.len() < 2 {
            self.create()?;
        } else {
            self.delete()?;
        }
        let index = self.rng.below(self.files.len() as u64) as usize;
        let path = path("postmark", self.files[index]);
        if self.rng.below(2) == 0 {
            let len = self.calls.read(&path, &mut self.buffer)?;
            ensure!(len >= POSTMARK_BYTES.0, "{path} has {len} bytes");
            return Ok(());
        }
        let len = self.rng.range(1, POSTMARK_BYTES.1 as u64 + 1) as usize;
        self.calls.append(&path, &self.content[..len])
    }
}
