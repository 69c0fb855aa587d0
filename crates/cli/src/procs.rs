//! Processes that keep a mount in use, and those that serve one.
//!
//! Thread safety: plain functions over `/proc`; what others do meanwhile may be missed. Invariant: no file
//! system is asked anything, since the one that is meant may not answer.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::names;

/// Processes that a message names.
const SHOWN_MAX: usize = 10;

/// A process that has something below a directory open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// Its name, as `ps` shows it.
    pub(crate) command: String,
    /// What it has there: `working directory`, `open file`, `mapped file`, …
    pub(crate) what: &'static str,
}

/// The processes that use what is mounted on `dir`, as far as this process may look.
pub(crate) fn users_of(dir: &Path) -> Vec<User> {
    let own = std::process::id();
    let mut users: Vec<User> = pids().filter(|&pid| pid != own).filter_map(|pid| user(pid, dir)).collect();
    users.sort_by_key(|user| user.pid);
    users
}

/// How a message names them; nothing: none was found.
pub(crate) fn describe(users: &[User]) -> String {
    let line = |user: &User| {
        let User { pid, uid, command, what } = user;
        format!("\n  pid {pid}  {command}  (user {}, {what})", names::user(*uid))
    };
    let more = users.len().saturating_sub(SHOWN_MAX);
    let rest = if more == 0 { String::new() } else { format!("\n  … and {more} more") };
    users.iter().take(SHOWN_MAX).map(line).chain([rest]).collect()
}

/// The ids of all processes.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    numbers_in("/proc")
}

/// The numbers that are names in a directory; none where this process may not look.
pub(crate) fn numbers_in(directory: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether `/proc` shows the processes that this one has numbers of: it may be that of another PID namespace.
pub(crate) fn are_of_this_namespace() -> bool {
    let own = fs::read_link("/proc/self").ok();
    own.is_some_and(|own| own.as_os_str() == &*std::process::id().to_string())
}

/// The name of a process.
pub(crate) fn command(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The command line of a process.
pub(crate) fn words(pid: u32) -> Vec<PathBuf> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).map(|word| OsStr::from_bytes(word).into()).collect()
}

/// What a process has open, by path; nothing where this process may not look.
pub(crate) fn opened(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(|path| path.is_absolute())
}

/// The signals that this process ignores, as whatever has started it wanted.
pub(crate) fn ignored_signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask & (1 << (signal - 1)) != 0).collect()
}

/// A field of what the kernel says of a process, the third one of all being number 0.
fn stat_field(pid: u32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may have blanks and parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(number).map(str::to_owned)
}

/// Whether a process has a number and does not run any more, though threads of it may wait in the kernel.
pub(crate) fn is_dead(pid: u32) -> bool {
    stat_field(pid, 0).is_some_and(|state| matches!(&*state, "Z" | "X"))
}

/// When a process began (since 1970).
pub(crate) fn began(pid: u32) -> Option<Duration> {
    let ticks: u64 = stat_field(pid, 19)?.parse().ok()?;
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_secs(boot) + Duration::from_millis(ticks * 1000 / per_second))
}

fn user(pid: u32, dir: &Path) -> Option<User> {
    let base = format!("/proc/{pid}");
    let leads = |name: &str| fs::read_link(format!("{base}/{name}")).is_ok_and(|path| path.starts_with(dir));
    let what = if leads("cwd") {
        "working directory"
    } else if leads("root") {
        "root directory"
    } else if leads("exe") {
        "running program"
    } else if has_open(&base, dir) {
        "open file"
    } else if has_mapped(&base, dir) {
        "mapped file"
    } else {
        return None;
    };
    let uid = fs::metadata(&base).ok()?.uid();
    Some(User { pid, uid, command: command(pid), what })
}

fn has_open(base: &str, dir: &Path) -> bool {
    let entries = fs::read_dir(format!("{base}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path.starts_with(dir))
}

fn has_mapped(base: &str, dir: &Path) -> bool {
    let maps = fs::read(format!("{base}/maps")).unwrap_or_default();
    let dir = dir.as_os_str().as_bytes();
    maps.split(|&byte| byte == b'\n').any(|line| {
        let path = line.iter().position(|&byte| byte == b'/').map(|at| &line[at..]);
        path.and_then(|path| path.strip_prefix(dir)).is_some_and(|rest| rest.starts_with(b"/"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_its_working_directory_below_is_found_and_has_begun() {
        let dir = std::env::temp_dir().join(format!("cli-procs-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("makes a directory");
        let dir = dir.canonicalize().expect("resolves");
        let mut child =
            std::process::Command::new("sleep").arg("100").current_dir(&dir).spawn().expect("starts");
        let found = user(child.id(), &dir).expect("is found");
        assert_eq!((found.pid, found.what), (child.id(), "working directory"));
        assert!(describe(&[found]).contains("working directory"));
        assert!(began(child.id()).is_some_and(|at| at > Duration::from_secs(1_000_000_000)));
        assert!(!is_dead(child.id()) && are_of_this_namespace());
        child.kill().expect("ends");
        rustix::process::waitid(
            rustix::process::WaitId::Pid(rustix::process::Pid::from_child(&child)),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .expect("is a child");
        assert!(is_dead(child.id()));
        child.wait().expect("ends");
        assert!(!is_dead(child.id()));
        assert_eq!(user(std::process::id(), &dir), None);
        fs::remove_dir(&dir).expect("cleans up");
    }
}
