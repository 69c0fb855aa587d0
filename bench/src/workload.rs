//! The workloads: what is timed, each checked for having done its work.
//!
//! Thread safety: a workload runs on the calling thread.

use crate::{host, interrupt};
use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Length of one appended record (bytes).
const APPEND_BYTES: usize = 512;
/// Length of one sequential read or write (bytes).
const STREAM_STEP_BYTES: usize = 1 << 20;

/// How much each workload does.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sizes {
    pub(crate) files: u32,
    pub(crate) appends: u32,
    pub(crate) stream_bytes: u64,
    pub(crate) tarball: PathBuf,
}

/// When the work of a workload is durable; results of different classes are never compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DurabilityClass {
    /// No sync: the file system decides.
    NoSync,
    /// One fsync at the end.
    SyncAtEnd,
    /// An fsync after each operation.
    SyncEach,
    /// Reads only, after unmounting and dropping caches.
    ColdRead,
}

impl DurabilityClass {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::NoSync => "no sync",
            Self::SyncAtEnd => "fsync at end",
            Self::SyncEach => "fsync each",
            Self::ColdRead => "cold read",
        }
    }
}

/// One timed piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Workload {
    CreateFiles,
    ListStat,
    Untar,
    Grep,
    AppendFsync,
    StreamWrite,
    StreamRead,
}

/// Workloads that share one file system: a cold read follows what made its data.
pub(crate) const SCENARIOS: [&[Workload]; 4] = [
    &[Workload::CreateFiles, Workload::ListStat],
    &[Workload::Untar, Workload::Grep],
    &[Workload::AppendFsync],
    &[Workload::StreamWrite, Workload::StreamRead],
];

/// How fast the first release of kvfs is to be.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// This many times faster than ext4.
    FasterThanExt4(f64),
    /// At most this many times the floor's time, where the floor is slower than ext4.
    NearFloor(f64),
}

impl Workload {
    pub(crate) fn title(self, sizes: &Sizes) -> String {
        let gib = sizes.stream_bytes as f64 / f64::from(1 << 30);
        match self {
            Self::CreateFiles => format!("create {} files", sizes.files),
            Self::ListStat => format!("list + stat {}", sizes.files),
            Self::Untar => "untar".into(),
            Self::Grep => "grep -r".into(),
            Self::AppendFsync => format!("{} x append + fsync", sizes.appends),
            Self::StreamWrite => format!("write {gib} GiB + fsync"),
            Self::StreamRead => format!("read {gib} GiB"),
        }
    }

    pub(crate) fn class(self) -> DurabilityClass {
        match self {
            Self::CreateFiles | Self::Untar => DurabilityClass::NoSync,
            Self::ListStat | Self::Grep | Self::StreamRead => DurabilityClass::ColdRead,
            Self::AppendFsync => DurabilityClass::SyncEach,
            Self::StreamWrite => DurabilityClass::SyncAtEnd,
        }
    }

    pub(crate) fn goal(self) -> Goal {
        match self {
            Self::ListStat | Self::Grep | Self::AppendFsync => Goal::FasterThanExt4(1.3),
            _ => Goal::NearFloor(1.6),
        }
    }

    /// Untimed preparation, once the file system is mounted.
    pub(crate) fn prepare(self, sizes: &Sizes) -> Result<()> {
        if self == Self::Untar {
            // So that the disk under the tarball is not measured.
            host::read_through_cache(&sizes.tarball)?;
        }
        Ok(())
    }

    /// Does the work below `root`, which is what is timed.
    pub(crate) fn run(self, root: &Path, sizes: &Sizes) -> Result<()> {
        let dir = root.join("work");
        match self {
            Self::CreateFiles => create_files(&dir, sizes.files),
            Self::ListStat => list_stat(&dir, sizes.files),
            Self::Untar => untar(&dir, &sizes.tarball),
            Self::Grep => grep(&dir),
            Self::AppendFsync => append_fsync(&dir.join("log"), sizes.appends),
            Self::StreamWrite => stream_write(&dir.join("stream"), sizes.stream_bytes),
            Self::StreamRead => stream_read(&dir.join("stream"), sizes.stream_bytes),
        }
    }
}

/// Empty files in one directory, by one thread.
fn create_files(dir: &Path, files: u32) -> Result<()> {
    let dir_file = File::open(dir)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    for number in 0..files {
        if number % 1024 == 0 {
            interrupt::check()?;
        }
        let name = format!("file-{number:07}");
        rustix::fs::openat(&dir_file, &name, flags, Mode::from_raw_mode(0o644))
            .with_context(|| format!("cannot create {name}"))?;
    }
    Ok(())
}

/// `ls -l`: every name, 32 KiB of them at a time as the C library asks for them, and the attributes of each.
fn list_stat(dir: &Path, files: u32) -> Result<()> {
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
        rustix::fs::statat(&dir_file, name, AtFlags::SYMLINK_NOFOLLOW)
            .with_context(|| format!("cannot stat {}", name.to_string_lossy()))?;
        found += 1;
    }
    ensure!(found == files, "{found} files are listed, {files} were created");
    Ok(())
}

fn untar(dir: &Path, tarball: &Path) -> Result<()> {
    host::run("tar", &["-xf".as_ref(), tarball.as_os_str(), "-C".as_ref(), dir.as_os_str()])?;
    Ok(())
}

/// Reads every file: the pattern is nowhere, so grep ends with 1.
fn grep(dir: &Path) -> Result<()> {
    let args = ["-r".as_ref(), "-l".as_ref(), "kvfs-no-such-string".as_ref(), dir.as_os_str()];
    let found = host::run_with_codes("grep", &args, &[1])?;
    ensure!(found.is_empty(), "grep found what cannot be there: {found}");
    Ok(())
}

fn append_fsync(path: &Path, appends: u32) -> Result<()> {
    let mut file = OpenOptions::new().create_new(true).append(true).open(path)?;
    let record = [0x5a; APPEND_BYTES];
    for number in 0..appends {
        if number % 64 == 0 {
            interrupt::check()?;
        }
        file.write_all(&record)?;
        file.sync_all()?;
    }
    let len = file.metadata()?.len();
    ensure!(len == u64::from(appends) * APPEND_BYTES as u64, "the log is {len} bytes long");
    Ok(())
}

fn stream_write(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create_new(path)?;
    let mut step = vec![0xc3; STREAM_STEP_BYTES];
    let mut left = bytes;
    while left > 0 {
        interrupt::check()?;
        // Each step differs, so that nothing gains by deduplication.
        step[..8].copy_from_slice(&left.to_le_bytes());
        let len = left.min(STREAM_STEP_BYTES as u64) as usize;
        file.write_all(&step[..len])?;
        left -= len as u64;
    }
    Ok(file.sync_all()?)
}

fn stream_read(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::open(path)?;
    let mut step = vec![0; STREAM_STEP_BYTES];
    let mut left = bytes;
    while left > 0 {
        interrupt::check()?;
        let len = left.min(STREAM_STEP_BYTES as u64) as usize;
        file.read_exact(&mut step[..len])?;
        ensure!(step[..8] == left.to_le_bytes(), "wrong data {left} bytes before the end");
        left -= len as u64;
    }
    Ok(())
}
