//! Many empty files in one directory.

use super::{Job, Scenario, ScenarioName, Start, Workload, nothing, number, sample};
use anyhow::{Context, Result, ensure};
use kvfs_bench::results::Class;
use kvfs_bench::{host, interrupt};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, Timespec, Timestamps};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Files,
    workloads: &[
        Workload {
            key: "create",
            title: |sizes| format!("create {} empty", number(sizes.files)),
            class: Class::NoSync,
            start: Start::Settled,
            prepare: |job| Ok(fs::create_dir(dir(job))?),
            run: |job| create(&dir(job), job.sizes.files),
        },
        Workload {
            key: "list-cold",
            title: |sizes| format!("list {}", number(sizes.files)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| list(&dir(job), job.sizes.files, false),
        },
        Workload {
            key: "list-stat-cold",
            title: |sizes| format!("list + stat {}", number(sizes.files)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| list(&dir(job), job.sizes.files, true),
        },
        Workload {
            key: "stat-cold",
            title: |sizes| format!("random stat of {}", number(sizes.sampled)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: stat_random,
        },
        Workload {
            key: "stat-warm",
            title: |sizes| format!("random stat of {}", number(sizes.sampled)),
            class: Class::Warm,
            start: Start::Warm,
            prepare: nothing,
            run: stat_random,
        },
        Workload {
            key: "chmod-cold",
            title: |sizes| format!("chmod + utimens of {}", number(sizes.sampled)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| {
                chmod_utimens(&dir(job), sample(job.sizes.files, job.sizes.sampled, 2).into_iter().map(name))
            },
        },
        Workload {
            key: "rm-cold",
            title: |sizes| format!("rm -rf of {}", number(sizes.files)),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| remove(&dir(job)),
        },
        Workload {
            key: "rm-warm",
            title: |sizes| format!("rm -rf of {}, just made", number(sizes.files)),
            class: Class::NoSync,
            start: Start::Warm,
            prepare: |job| {
                fs::create_dir(dir(job))?;
                create(&dir(job), job.sizes.files)
            },
            run: |job| remove(&dir(job)),
        },
    ],
};

fn dir(job: &Job) -> PathBuf {
    job.dir.join("files")
}

fn name(number: u32) -> String {
    format!("file-{number:07}")
}

/// By one thread.
fn create(dir: &Path, files: u32) -> Result<()> {
    create_named(dir, (0..files).map(name))
}

/// Creates files of these names, relative to `dir`.
pub(super) fn create_named(dir: &Path, names: impl Iterator<Item = String>) -> Result<()> {
    let dir_file = File::open(dir)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    for (count, name) in names.enumerate() {
        if count % 1024 == 0 {
            interrupt::check()?;
        }
        rustix::fs::openat(&dir_file, &name, flags, Mode::from_raw_mode(0o644))
            .with_context(|| format!("cannot create {name}"))?;
    }
    Ok(())
}

/// `ls`, or `ls -l`: every name, 32 KiB of them at a time as the C library asks for them, and the attributes
/// of each.
fn list(dir: &Path, files: u32, with_stat: bool) -> Result<()> {
    let dir_file = rustix::fs::openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut buf = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(&dir_file, buf.spare_capacity_mut());
    let mut found = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if with_stat {
            rustix::fs::statat(&dir_file, name, AtFlags::SYMLINK_NOFOLLOW)
                .with_context(|| format!("cannot stat {}", name.to_string_lossy()))?;
        }
        found += 1;
    }
    ensure!(found == files, "{found} files are listed, {files} were created");
    Ok(())
}

fn stat_random(job: &Job) -> Result<()> {
    stat_named(&dir(job), sample(job.sizes.files, job.sizes.sampled, 1).into_iter().map(name))
}

/// The attributes of each.
pub(super) fn stat_named(dir: &Path, names: impl Iterator<Item = String>) -> Result<()> {
    let dir_file = File::open(dir)?;
    for name in names {
        let found = rustix::fs::statat(&dir_file, &name, AtFlags::SYMLINK_NOFOLLOW)
            .with_context(|| format!("cannot stat {name}"))?;
        ensure!(found.st_size == 0, "{name} is {} bytes long", found.st_size);
    }
    Ok(())
}

/// Two changes of each.
pub(super) fn chmod_utimens(dir: &Path, names: impl Iterator<Item = String>) -> Result<()> {
    let dir_file = File::open(dir)?;
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    for name in names {
        rustix::fs::chmodat(&dir_file, &name, Mode::from_raw_mode(0o600), AtFlags::empty())
            .and_then(|()| rustix::fs::utimensat(&dir_file, &name, &times, AtFlags::SYMLINK_NOFOLLOW))
            .with_context(|| format!("cannot change {name}"))?;
    }
    Ok(())
}

/// By the program of this name.
pub(super) fn remove(dir: &Path) -> Result<()> {
    host::run("rm", &["-rf".as_ref(), dir.as_os_str()])?;
    ensure!(!dir.exists(), "{} is still there", dir.display());
    Ok(())
}
