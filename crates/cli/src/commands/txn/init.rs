//! The first process in the PID namespace of `kvfs txn run`: runs the command, and ends when it and all its
//! descendants have ended. Its own end ends everybody in the namespace.
//!
//! Exit status: that of the command; 128 + the signal that ended it; 126 and 127 where it did not start.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, set_parent_process_death_signal, waitpid,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{CliError, Code, Result};

/// Added to the number of the signal that ended a command, as shells do.
const SIGNALED: i32 = 128;

pub(super) fn run(parent: u32, proc: bool, command: &[OsString]) -> Result<ExitCode> {
    if !ends_with(parent)? {
        return Ok(ExitCode::FAILURE);
    }
    if proc {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        // Where it is refused, `ps` shows processes of the outside; nothing else suffers.
        let _ = rustix::mount::mount("proc", "/proc", "proc", flags, None);
    }
    // Caught before the child is there, so that none is missed. SIGINT and SIGQUIT of the terminal reach the
    // command itself.
    let mut signals = Signals::new([SIGCHLD, SIGTERM, SIGHUP, SIGINT, SIGQUIT])
        .map_err(|error| CliError::new(Code::Failed, format!("cannot catch signals: {error}")))?;
    let [program, arguments @ ..] = command else {
        return Err(CliError::new(Code::Usage, "which command?"));
    };
    let child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            eprintln!("kvfs: {}", super::join::cannot_run(program, &error));
            return Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound { 127 } else { 126 }));
        }
    };
    let mut status = None;
    for signal in &mut signals {
        match signal {
            SIGCHLD => {
                let everybody_ended = reap(child, &mut status);
                match status {
                    Some(status) if status != 0 || everybody_ended => return Ok(exit(status)),
                    _ => {}
                }
            }
            // Only what it left in the background is still there.
            _ if status.is_some() => return Ok(exit(SIGNALED + signal)),
            SIGTERM => forward(child, Signal::TERM),
            SIGHUP => forward(child, Signal::HUP),
            _ => {}
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Makes this process end with its parent, process `parent` in the namespace of /proc. False: it has ended
/// already.
fn ends_with(parent: u32) -> Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| CliError::new(Code::Failed, format!("cannot watch `kvfs txn run`: {errno}")))?;
    // The parent lives in another namespace, where getppid(2) doesn't reach.
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else { return Ok(true) };
    let found = text.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok());
    Ok(found.is_none_or(|found| found == parent))
}

/// Takes what has ended. Whether nobody is left.
fn reap(child: Pid, status: &mut Option<i32>) -> bool {
    loop {
        match waitpid(None, WaitOptions::NOHANG) {
            Ok(Some((pid, how))) if pid == child => *status = Some(number(how)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

fn number(how: WaitStatus) -> i32 {
    how.exit_status().or_else(|| Some(SIGNALED + how.terminating_signal()?)).unwrap_or(1)
}

fn exit(status: i32) -> ExitCode {
    ExitCode::from(status as u8)
}

fn forward(child: Pid, signal: Signal) {
    // It may have ended this very moment.
    let _ = kill_process(child, signal);
}
