//! The process between `kvfs txn run`, or `kvfs exec --txn`, and the command: runs the command, adopts what
//! it leaves behind, and ends when all of it has ended. When one of the two processes above the command is
//! killed, the other one ends the rest.
//!
//! The command has the process group, the session and the process numbers that it would have without
//! (docs/decisions/run-processes.md).
//!
//! Exit status: that of the command; 128 + the signal that ended it; 126 and 127 where it did not start.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getppid, set_parent_process_death_signal, wait};
use signal_hook::consts::SIGTERM;

use super::processes;
use super::supervise::{Caught, ORPHANED, SIGNALED, Watch, number, pass_on, stop_with};
use crate::error::{CliError, Code, Result};

/// After this time it is told what is waited for.
const WAIT_UNTOLD_MAX: Duration = Duration::from_secs(1);

/// From the request to end to being killed.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Where the command and what it has started are.
enum Stage {
    /// The command runs.
    Command,
    /// It has succeeded; processes that it has started run.
    Left { told: Option<Duration>, killed: Option<Duration> },
}

/// Runs `command` below this process, with such a process between.
pub(crate) fn command(kill_children: bool, command: &[OsString]) -> Command {
    let mut between = Command::new("/proc/self/exe");
    between.args(["txn", "init", "--parent", &std::process::id().to_string()]);
    between.args(kill_children.then_some("--kill-children")).arg("--").args(command);
    between
}

pub(super) fn run(parent: u32, kill_children: bool, command: &[OsString]) -> Result<ExitCode> {
    let watch = Watch::begin(&[ORPHANED])?;
    processes::adopt_orphans()?;
    if !ends_with(parent)? {
        return Ok(ExitCode::FAILURE);
    }
    let [program, arguments @ ..] = command else {
        return Err(CliError::new(Code::Usage, "which command?"));
    };
    let child = match watch.spawn(Command::new(program).args(arguments)) {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            eprintln!("kvfs: {}", super::join::cannot_run(program, &error));
            return Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound { 127 } else { 126 }));
        }
    };
    let status = supervise(&watch, child, kill_children)?;
    processes::kill_all(None);
    Ok(ExitCode::from(status as u8))
}

/// Returns the status to end with. What is left of the command is to be killed then.
fn supervise(watch: &Watch, child: Pid, kill_children: bool) -> Result<i32> {
    let mut stage = Stage::Command;
    let mut status = None;
    loop {
        let all_ended = reap(child, &mut status);
        match status {
            Some(status) if status != 0 || all_ended => return Ok(status),
            Some(_) if matches!(stage, Stage::Command) => {
                let now = watch.now();
                let killed = kill_children.then(|| now + END_TIME_MAX);
                if kill_children {
                    processes::signal_all(Signal::TERM);
                }
                stage = Stage::Left { told: killed.is_none().then(|| now + WAIT_UNTOLD_MAX), killed };
            }
            _ => {}
        }
        while let Some(Caught { signal, is_of_terminal }) = watch.take_signal() {
            match signal {
                // `kvfs txn run` has been killed, and with it the transaction.
                ORPHANED => return Ok(SIGNALED + SIGTERM),
                // Only what the command has left behind is still there.
                _ if matches!(stage, Stage::Left { .. }) => return Ok(SIGNALED + signal),
                _ if is_of_terminal => {}
                _ => pass_on(child, signal),
            }
        }
        let Stage::Left { told, killed } = &mut stage else {
            watch.sleep(None, None)?;
            continue;
        };
        watch.sleep(None, told.or(*killed))?;
        let is_due = |due: &Option<Duration>| due.is_some_and(|due| watch.now() >= due);
        if is_due(killed) {
            return Ok(0);
        }
        if is_due(told) {
            *told = None;
            report_processes_left();
        }
    }
}

fn report_processes_left() {
    let left = processes::descendants();
    if !left.is_empty() {
        eprintln!(
            "kvfs: the command has ended; the transaction is committed when what it has left behind has, {}; Ctrl-C \
             drops it (`kvfs txn run --kill-children` waits for none)",
            processes::named(&left)
        );
    }
}

/// Makes this process hear of the end of `kvfs txn run`, process `parent`. False: it has ended already.
fn ends_with(parent: u32) -> Result<bool> {
    set_parent_process_death_signal(Signal::from_named_raw(ORPHANED))
        .map_err(|errno| CliError::new(Code::Failed, format!("cannot watch `kvfs txn run`: {errno}")))?;
    Ok(getppid().is_some_and(|found| found.as_raw_nonzero().get().cast_unsigned() == parent))
}

/// Takes what has ended, of whatever process group, and follows the command when it stops. Whether nothing is
/// left.
fn reap(child: Pid, status: &mut Option<i32>) -> bool {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, how))) if how.stopped() => {
                if pid == child {
                    stop_with(child);
                }
            }
            Ok(Some((pid, how))) if pid == child => *status = Some(number(how)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}
