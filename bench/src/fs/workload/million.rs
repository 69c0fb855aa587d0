//! Many more files than memory holds: client and daemon share a cgroup of [`MEMORY_BYTES`].

use super::{Job, Scenario, ScenarioName, Start, Workload, files, nothing, number, sample};
use anyhow::Result;
use kvfs_bench::host;
use kvfs_bench::results::Class;
use std::fs;

/// Of the cgroup.
pub(crate) const MEMORY_BYTES: u64 = 512 << 20;
/// `--memory` of the kvfs daemon in it: what is left is for the client, the kernel's inodes and its page
/// cache.
pub(crate) const DAEMON_MEMORY_BYTES: u64 = 192 << 20;
const FILES_PER_DIR: u32 = 10_000;
/// After so many files all are synced, and the kernel's caches dropped: ext4 allocates inodes where Linux
/// can't take back those of others (`GFP_NOFS`), so that after 330,000 of them the cgroup is full and the
/// client is killed.
const FILES_PER_SYNC: u32 = 100_000;

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Million,
    workloads: &[
        Workload {
            key: "million-create",
            title: |sizes| format!("512 MiB: create {} empty, syncfs", number(sizes.million)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: make_dirs,
            run: create,
        },
        Workload {
            key: "million-stat-cold",
            title: |sizes| format!("512 MiB: random stat of {}", number(sizes.sampled)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| files::stat_named(job.dir, names(job, 5)),
        },
        Workload {
            key: "million-chmod-cold",
            title: |sizes| format!("512 MiB: chmod + utimens of {}", number(sizes.sampled)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| files::chmod_utimens(job.dir, names(job, 6)),
        },
    ],
};

fn name(number: u32) -> String {
    format!("dir-{:04}/file-{number:07}", number / FILES_PER_DIR)
}

fn names(job: &Job, seed: u64) -> impl Iterator<Item = String> {
    sample(job.sizes.million, job.sizes.sampled, seed).into_iter().map(name)
}

fn create(job: &Job) -> Result<()> {
    for first in (0..job.sizes.million).step_by(FILES_PER_SYNC as usize) {
        let end = job.sizes.million.min(first + FILES_PER_SYNC);
        files::create_named(job.dir, (first..end).map(name))?;
        host::sync_file_system(job.dir)?;
        host::drop_caches()?;
    }
    Ok(())
}

fn make_dirs(job: &Job) -> Result<()> {
    for number in 0..job.sizes.million.div_ceil(FILES_PER_DIR) {
        fs::create_dir(job.dir.join(format!("dir-{number:04}")))?;
    }
    Ok(())
}
