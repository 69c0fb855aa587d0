//! The descendants of this process, as /proc shows them: what a transaction's command has started.
//!
//! `kvfs txn run` and the process between it and the command (`init`) both adopt orphans, so whichever of the
//! two is killed, the other one finds all that is left and ends it.
//!
//! Invariant: a signal goes to the process that was listed, never to a later one of the same number.

use std::collections::BTreeMap;
use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper, wait,
};

use crate::error::{CliError, Code, Result};

/// Processes that a message names.
const NAMED_MAX: usize = 5;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    parent: u32,
    /// Since the system's start (clock ticks); with the number, an identity.
    started: u64,
    is_zombie: bool,
    name: String,
}

impl Process {
    /// The process of this number, if there is one.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let text = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        Self::parse(pid, &String::from_utf8_lossy(&text))
    }

    /// `1234 (a name) S 1 …`: a name may contain parentheses and blanks.
    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        let (start, rest) = stat.rsplit_once(')')?;
        let (_, name) = start.split_once('(')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // Field 22 of proc(5); this is field 5 now.
        let started = fields.nth(17)?.parse().ok()?;
        Some(Self { pid, parent, started, is_zombie: matches!(state, "Z" | "X"), name: name.to_owned() })
    }

    /// Sends a signal to this very process.
    fn signal(&self, signal: Signal) {
        let Ok(handle) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        if Self::of(self.pid).is_some_and(|now| now.started == self.started) {
            // It may have ended this very moment.
            let _ = pidfd_send_signal(handle, signal);
        }
    }
}

/// From now on orphaned descendants become children of this process.
pub(crate) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).map_err(|errno| {
        CliError::new(Code::Failed, format!("cannot adopt the command's processes: {errno}"))
    })
}

/// The living descendants of this process.
pub(crate) fn descendants() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all = pids.filter_map(Pid::from_raw).filter_map(Process::of);
    below(getpid().as_raw_nonzero().get() as u32, all)
}

fn below(root: u32, all: impl Iterator<Item = Process>) -> Vec<Process> {
    let mut children: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(parent) = next.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            next.push(process.pid.as_raw_nonzero().get() as u32);
            if !process.is_zombie {
                found.push(process);
            }
        }
    }
    found.sort_by_key(|process| process.started);
    found
}

/// Sends `signal` to every living descendant.
pub(crate) fn signal_all(signal: Signal) {
    for process in descendants() {
        process.signal(signal);
    }
}

/// Kills every descendant that is not older than `eldest`, and returns when they are gone.
pub(crate) fn kill_all(eldest: Option<&Process>) {
    if reap() {
        return;
    }
    loop {
        let left = descendants();
        let mut left =
            left.iter().filter(|process| eldest.is_none_or(|eldest| process.started >= eldest.started));
        let Some(first) = left.next() else { return };
        first.signal(Signal::KILL);
        left.for_each(|process| process.signal(Signal::KILL));
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Takes what has ended. Whether there is no child, and so no descendant.
fn reap() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// `2 processes: 4711 (make), 4712 (cc)`.
pub(crate) fn named(processes: &[Process]) -> String {
    let names = processes.iter().take(NAMED_MAX);
    let names: Vec<String> =
        names.map(|process| format!("{} ({})", process.pid.as_raw_nonzero(), process.name)).collect();
    let what = if processes.len() == 1 { "process" } else { "processes" };
    let more = if processes.len() > NAMED_MAX { ", …" } else { "" };
    format!("{} {what}: {}{more}", processes.len(), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: u32, name: &str) -> Process {
        let stat = format!("{pid} ({name}) S {parent} 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {pid}00 9 9");
        Process::parse(Pid::from_raw(pid).expect("is a number"), &stat).expect("is a line")
    }

    #[test]
    fn stat_with_parentheses_in_name_is_parsed() {
        let found = process(12, 7, "a) b (c");
        assert_eq!((found.parent, found.started, found.is_zombie), (7, 1200, false));
        assert_eq!(found.name, "a) b (c");
    }

    #[test]
    fn descendants_of_root_are_found_at_any_depth() {
        let all = [
            process(5, 4, "cc"),
            process(2, 1, "root"),
            process(3, 2, "sh"),
            process(4, 3, "make"),
            process(9, 1, "x"),
        ];
        let found = below(2, all.into_iter());
        assert_eq!(named(&found), "3 processes: 3 (sh), 4 (make), 5 (cc)");
        assert_eq!(named(&found[..1]), "1 process: 3 (sh)");
    }
}
