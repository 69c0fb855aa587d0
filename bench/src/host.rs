//! The machine: commands, caches, memory, and what to write about it into a report.
//!
//! Thread safety: free functions.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is made last to be synced.
const LAST_FILE: &str = ".made-last";

/// What a reader of the figures has to know about the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    kernel: String,
    cpus: usize,
    memory_bytes: u64,
    load_average_at_start: String,
}

impl Machine {
    /// This machine, now.
    pub fn describe() -> Result<Self> {
        let release = rustix::system::uname();
        Ok(Self {
            kernel: release.release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism()?.get(),
            memory_bytes: memory_total_bytes()?,
            load_average_at_start: fs::read_to_string("/proc/loadavg")?.trim().to_owned(),
        })
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        let Self { kernel, cpus, load_average_at_start, .. } = self;
        format!("Linux {kernel}, {cpus} CPUs, {gib:.1} GiB, load {load_average_at_start}")
    }
}

/// Physical memory (bytes).
pub fn memory_total_bytes() -> Result<u64> {
    meminfo_bytes("MemTotal:")
}

fn meminfo_bytes(field: &str) -> Result<u64> {
    kib_field(&fs::read_to_string("/proc/meminfo")?, field)
        .with_context(|| format!("/proc/meminfo has no {field}"))
}

/// The value of a line such as `VmHWM:   1234 kB`, in bytes.
pub fn kib_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Runs a command to its end; its standard error is part of the error.
pub fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Result<String> {
    run_with_codes(program, args, &[0])
}

/// As [`run`], for programs whose exit code says more than success.
pub fn run_with_codes<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: &[S],
    codes: &[i32],
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    end(&mut command, codes)
}

/// As [`run`], for a command that has an environment of its own.
pub fn succeed(command: &mut Command) -> Result<String> {
    end(command, &[0])
}

fn end(command: &mut Command, codes: &[i32]) -> Result<String> {
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if output.status.code().is_none_or(|code| !codes.contains(&code)) {
        bail!("{command:?} failed, {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program of this name is where programs are, those of the administrator included.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .any(|dir| dir.join(name).is_file())
}

/// Drops clean pages, dentries and inodes of the whole machine.
pub fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the kernel's caches")
}

/// Writes out the dirty pages of the file system that holds `dir`.
pub fn sync_file_system(dir: &Path) -> Result<()> {
    let dir_file = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    rustix::fs::syncfs(&dir_file).with_context(|| format!("cannot sync {}", dir.display()))
}

/// Makes everything durable that was changed in the file system of `dir`. The kernel tells a FUSE daemon
/// nothing of `syncfs`, and an fsync of a directory waits for what was changed of the directory: so a file is
/// made last, and synced.
pub fn make_durable(dir: &Path) -> Result<()> {
    sync_file_system(dir)?;
    let last = dir.join(LAST_FILE);
    File::create(&last)
        .and_then(|file| file.sync_all())
        .with_context(|| format!("cannot sync {}", last.display()))?;
    fs::remove_file(&last).with_context(|| format!("cannot remove {}", last.display()))
}

/// Reads every file below `dir`: what grep looks for is nowhere, so it ends with 1.
pub fn grep_in_vain(dir: &Path) -> Result<()> {
    let words = ["-r".as_ref(), "-l".as_ref(), "kvfs-no-such-string".as_ref(), dir.as_os_str()];
    let found = run_with_codes("grep", &words, &[1])?;
    ensure!(found.is_empty(), "grep found what cannot be there: {found}");
    Ok(())
}

/// Reads a file through the page cache, where its pages stay.
pub fn read_through_cache(path: &Path) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut buf = vec![0; 1 << 20];
    while file.read(&mut buf)? > 0 {
        crate::interrupt::check()?;
    }
    Ok(())
}

/// Touches a gibibyte of free memory and gives it back at once, so that the next allocations get pages that
/// are there. A virtual machine gives free memory back to its host within seconds, and getting it again costs
/// microseconds per page: more than most of what is measured. With several gibibytes the giving back itself
/// would fall into the timing.
pub fn touch_free_memory() -> Result<()> {
    let bytes = (1 << 30).min(meminfo_bytes("MemAvailable:")? / 2);
    std::hint::black_box(vec![1_u8; usize::try_from(bytes)?]);
    Ok(())
}

/// Polls until `done` says so; false when `limit` has passed before.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<bool> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > limit {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// Refuses to start where the measurement cannot work.
pub fn check_rights() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the benchmark mounts file systems and drops the kernel's caches: run it as root"
    );
    Ok(())
}

/// First line of what a program says about its version; empty when it says nothing.
pub fn version(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    let Ok(output) = output else { return String::new() };
    // Some print it to standard error.
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
}
