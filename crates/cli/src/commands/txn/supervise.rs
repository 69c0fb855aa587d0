//! Waiting for a process of `kvfs txn run`, for signals, and for the daemon, in one thread.
//!
//! Namespaces can be left by processes with one thread only, so signals come through a socket.
//!
//! Until the command is started, a signal does to this process what it does to any: nothing has happened yet.
//! A signal that this process was started to ignore stays ignored, here and in the command.
//!
//! Job control: the command stays in the process group of `kvfs txn run`, so the terminal's signals reach it
//! as they would without. What stops the command alone (`suspend` in a shell that has a group of its own)
//! stops the processes above it too, so that the shell that has started them learns of it.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvfs_store::clock::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpgrp, getpid, kill_process, kill_process_group, waitpid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

use crate::error::{CliError, Code, Result};
use crate::procs;

/// Added to the number of the signal that ended a command, as shells do.
pub(crate) const SIGNALED: i32 = 128;

/// Sent to the process above the command when `kvfs txn run` has died.
pub(crate) const ORPHANED: i32 = SIGUSR1;

/// Signals that are noted; those of a terminal reach the command by themselves.
const NOTED: [i32; 4] = [SIGTERM, SIGHUP, SIGINT, SIGQUIT];

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this exit status.
    Exit(u8),
    /// This process was told to end by this signal, and passed it on; or the terminal's signal has ended the
    /// command.
    Told(u8),
    /// The daemon ended the transaction, and the command was ended for it.
    Cut,
    /// The transaction's time was over, and the command was ended for it.
    Late,
}

/// Signals are caught. While a command runs they wait; else they have their default action.
pub(crate) struct Watch {
    wake: UnixStream,
    noted: Vec<(i32, Arc<AtomicBool>)>,
    is_default: Arc<AtomicBool>,
    /// The first signal that was taken.
    heard: Cell<Option<i32>>,
    clock: SystemClock,
}

impl Watch {
    /// From now on signals are caught, `also` among them.
    pub(crate) fn begin(also: &[i32]) -> Result<Self> {
        let failed = |error: io::Error| CliError::new(Code::Failed, format!("cannot catch signals: {error}"));
        let (wake, waker) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let is_default = Arc::new(AtomicBool::new(true));
        let mut noted = Vec::new();
        let ignored = procs::ignored_signals();
        let caught = NOTED.iter().filter(|signal| !ignored.contains(signal)).chain(also);
        for &signal in caught.clone() {
            flag::register_conditional_default(signal, Arc::clone(&is_default)).map_err(failed)?;
            let flag = Arc::new(AtomicBool::new(false));
            flag::register(signal, Arc::clone(&flag)).map_err(failed)?;
            noted.push((signal, flag));
        }
        for &signal in caught.chain(&[SIGCHLD]) {
            low_level::pipe::register(signal, waker.try_clone().map_err(failed)?).map_err(failed)?;
        }
        Ok(Self { wake, noted, is_default, heard: Cell::new(None), clock: SystemClock::new() })
    }

    /// Starts a command; from now on signals wait.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.hold();
        let child = command.spawn()?;
        // What the terminal sent before the command was there has not reached it.
        while let Some(signal) = self.take(|signal| matches!(signal, SIGINT | SIGQUIT)) {
            pass_on(Pid::from_child(&child), signal);
        }
        Ok(child)
    }

    /// From now on signals wait.
    pub(crate) fn hold(&self) {
        self.is_default.store(false, Ordering::SeqCst);
    }

    /// From now on signals have their default action, also one that waits.
    pub(crate) fn release(&self) {
        self.is_default.store(true, Ordering::SeqCst);
        if let Some(signal) = self.take_signal() {
            // It fails for signals that there are not.
            let _ = low_level::emulate_default_handler(signal);
        }
    }

    /// A signal that has come, if one has.
    pub(crate) fn take_signal(&self) -> Option<i32> {
        self.take(|_| true)
    }

    /// Whether this process or the command was told to end, whatever the command has made of it.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.get().is_some()
    }

    fn take(&self, which: impl Fn(i32) -> bool) -> Option<i32> {
        let came =
            self.noted.iter().find(|(signal, flag)| which(*signal) && flag.swap(false, Ordering::AcqRel));
        let signal = came.map(|(signal, _)| *signal)?;
        self.heard.set(self.heard.get().or(Some(signal)));
        Some(signal)
    }

    /// By this watch's clock.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Waits for the end of `child`. When something happens on `line`, or `until` has come, the child is
    /// killed.
    pub(crate) fn wait(
        &self,
        child: &Child,
        line: Option<BorrowedFd<'_>>,
        until: Option<Duration>,
    ) -> Result<Ended> {
        let pid = Pid::from_child(child);
        let mut passed_on = 0;
        let mut cut = None;
        loop {
            match waitpid(Some(pid), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((_, status))) if status.stopped() => stop_with(pid),
                Ok(Some((_, status))) => {
                    // What came while it ended was for it, too.
                    while let Some(told) = self.take_signal() {
                        passed_on = if matches!(told, SIGINT | SIGQUIT) { passed_on } else { told };
                    }
                    let number = number(status);
                    return Ok(match (cut, passed_on) {
                        (Some(ended), _) => ended,
                        (None, 0) => match self.heard.get() {
                            Some(signal) if number == SIGNALED + signal => Ended::Told(signal as u8),
                            _ => Ended::Exit(number as u8),
                        },
                        (None, signal) => Ended::Told(signal as u8),
                    });
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(errno) => return Err(CliError::new(Code::Failed, format!("cannot wait: {errno}"))),
            }
            while let Some(told) = self.take_signal() {
                // Said a second time it is meant.
                let signal = match (passed_on, told) {
                    (_, SIGINT | SIGQUIT) => continue,
                    (0, _) => told,
                    _ => SIGKILL,
                };
                passed_on = told;
                pass_on(pid, signal);
            }
            let until = until.filter(|_| cut.is_none());
            let is_cut = self.sleep(line.filter(|_| cut.is_none()), until)?;
            let is_late = until.is_some_and(|until| self.now() >= until);
            if is_late || is_cut {
                cut = Some(if is_late { Ended::Late } else { Ended::Cut });
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Waits until something happens, at most until `until`. Whether something happened on the line.
    pub(crate) fn sleep(&self, line: Option<BorrowedFd<'_>>, until: Option<Duration>) -> Result<bool> {
        let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
        polled.extend(line.map(|line| PollFd::from_borrowed_fd(line, PollFlags::IN)));
        let left = until.map(|until| until.saturating_sub(self.now()));
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(CliError::new(Code::Failed, format!("cannot wait: {errno}"))),
        }
        let is_cut = polled.get(1).is_some_and(|line| !line.revents().is_empty());
        drop(polled);
        // Only that something came counts; a full or empty socket is as good.
        let _ = (&self.wake).read(&mut [0; 64]);
        Ok(is_cut)
    }
}

/// Stops this process because its child has stopped, and lets the child go on when it goes on itself. Without
/// a terminal there is no shell that would let it go on.
pub(crate) fn stop_with(child: Pid) {
    let Ok(terminal) = File::open("/dev/tty") else { return };
    // Returns when this process goes on.
    let _ = kill_process(getpid(), Signal::STOP);
    let Ok(group) = getpgid(Some(child)) else { return };
    // The shell has put this process group in the foreground; the child's own one is what it would have put
    // there.
    if group != getpgrp() && tcgetpgrp(&terminal).is_ok_and(|foreground| foreground == getpgrp()) {
        let _ = tcsetpgrp(&terminal, group);
    }
    // The child may have ended meanwhile.
    let _ = kill_process_group(group, Signal::CONT);
}

/// Sends one of the noted signals, or SIGKILL.
pub(crate) fn pass_on(child: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        // The child may have ended this very moment.
        let _ = kill_process(child, signal);
    }
}

/// An exit status as shells have it.
pub(crate) fn number(how: WaitStatus) -> i32 {
    how.exit_status().or_else(|| Some(SIGNALED + how.terminating_signal()?)).unwrap_or(1)
}
