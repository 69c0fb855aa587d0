//! What the library is for: the same calls by function calls and by system calls. Changes are synced before a
//! timing ends.

use super::{Job, Scenario, ScenarioName, Start, Workload, nothing, number, sample};
use anyhow::{Result, ensure};
use kvfs_bench::calls::Calls;
use kvfs_bench::interrupt;
use kvfs_bench::results::Class;

const FILE_BYTES: usize = 512;

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Library,
    workloads: &[
        Workload {
            key: "lib-create",
            title: |sizes| format!("create {} empty", number(sizes.files)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: |job| job.calls.mkdir("files"),
            run: |job| create(job.calls, "files", job.sizes.files, b"").and_then(|()| job.calls.sync()),
        },
        Workload {
            key: "lib-list-stat-cold",
            title: |sizes| format!("list + stat {}", number(sizes.files)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| {
                let found = job.calls.list("files", true)?.len();
                ensure!(found == job.sizes.files as usize, "{found} files are listed");
                Ok(())
            },
        },
        Workload {
            key: "lib-stat-warm",
            title: |sizes| format!("random stat of {}", number(sizes.sampled)),
            class: Class::Warm,
            start: Start::Warm,
            prepare: stat,
            run: stat,
        },
        Workload {
            key: "lib-chmod-cold",
            title: |sizes| format!("chmod + utimens of {}, cold", number(sizes.sampled)),
            class: Class::SyncAtEnd,
            start: Start::Cold,
            prepare: nothing,
            run: |job| {
                for number in sample(job.sizes.files, job.sizes.sampled, 2) {
                    let path = path("files", number);
                    job.calls.chmod(&path, 0o600)?;
                    job.calls.utimens(&path)?;
                }
                job.calls.sync()
            },
        },
        Workload {
            key: "lib-rm-cold",
            title: |sizes| format!("remove {}, cold", number(sizes.files)),
            class: Class::SyncAtEnd,
            start: Start::Cold,
            prepare: nothing,
            run: |job| remove(job.calls, "files").and_then(|()| job.calls.sync()),
        },
        Workload {
            key: "lib-rm-warm",
            title: |sizes| format!("remove {}, just made", number(sizes.files)),
            class: Class::SyncAtEnd,
            start: Start::Warm,
            prepare: |job| {
                job.calls.mkdir("files")?;
                create(job.calls, "files", job.sizes.files, b"")
            },
            run: |job| remove(job.calls, "files").and_then(|()| job.calls.sync()),
        },
        Workload {
            key: "lib-small-create",
            title: |sizes| format!("create {} x {FILE_BYTES} B", number(sizes.small)),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: |job| job.calls.mkdir("small"),
            run: |job| {
                create(job.calls, "small", job.sizes.small, &[0x3c; FILE_BYTES])?;
                job.calls.sync()
            },
        },
        Workload {
            key: "lib-small-read-cold",
            title: |sizes| format!("read {} of them", number(sizes.small_reads)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| {
                let mut buffer = [0; FILE_BYTES * 2];
                for number in 0..job.sizes.small_reads {
                    let len = job.calls.read(&path("small", number), &mut buffer)?;
                    ensure!(len == FILE_BYTES, "file {number} has {len} bytes");
                }
                Ok(())
            },
        },
    ],
};

/// Of the file with this number.
pub(super) fn path(directory: &str, number: u32) -> String {
    format!("{directory}/file-{number:08}")
}

/// So many files with this content.
pub(super) fn create(calls: &dyn Calls, directory: &str, files: u32, content: &[u8]) -> Result<()> {
    create_some(calls, directory, 0..files, content)
}

/// Files of these numbers.
pub(super) fn create_some(
    calls: &dyn Calls,
    directory: &str,
    numbers: std::ops::Range<u32>,
    content: &[u8],
) -> Result<()> {
    for number in numbers {
        if number % 1024 == 0 {
            interrupt::check()?;
        }
        calls.create(&path(directory, number), content)?;
    }
    Ok(())
}

/// A directory and the files in it.
pub(super) fn remove(calls: &dyn Calls, directory: &str) -> Result<()> {
    for name in calls.list(directory, false)? {
        calls.unlink(&format!("{directory}/{name}"))?;
    }
    calls.rmdir(directory)
}

fn stat(job: &Job) -> Result<()> {
    for number in sample(job.sizes.files, job.sizes.sampled, 1) {
        let size = job.calls.stat(&path("files", number))?;
        ensure!(size == 0, "file {number} is {size} bytes long");
    }
    Ok(())
}
