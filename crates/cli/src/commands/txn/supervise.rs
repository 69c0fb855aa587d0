//! Waiting for a process of `kvfs txn run`, for signals, and for the daemon, in one thread.
//!
//! Namespaces can be left by processes with one thread only, so signals come through a socket.
//!
//! Until the command is started, a signal does to this process what it does to any: nothing has happened yet.
//! A signal that this process was started to ignore stays ignored, here and in the command.
//!
//! Job control: the command stays in the process group of `kvfs txn run`, so the terminal's signals reach it
//! as they would without. A signal that a process has sent may have been sent to this process alone, and is
//! passed on; one for the whole group reaches the command more than once. What stops the command alone
//! (`suspend` in a shell that has a group of its own) stops the processes above it too, so that the shell
//! that has started them learns of it.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
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
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use signal_hook::{flag, low_level};

use crate::error::{CliError, Code, Result};
use crate::procs;

/// Added to the number of the signal that ended a command, as shells do.
pub(crate) const SIGNALED: i32 = 128;

/// Sent to the process above the command when `kvfs txn run` has died.
pub(crate) const ORPHANED: i32 = SIGUSR1;

/// Signals that end a command.
const ENDING: [i32; 4] = [SIGTERM, SIGHUP, SIGINT, SIGQUIT];

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this exit status.
    Exit(u8),
    /// This process was told to end by this signal, and passed it on; or an interrupt has ended the command.
    Told(u8),
    /// The daemon ended the transaction, and the command was ended for it.
    Cut,
    /// The transaction's time was over, and the command was ended for it.
    Late,
}

/// A signal that was caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caught {
    pub(crate) signal: i32,
    /// An interrupt of the terminal, which has reached the command by itself.
    pub(crate) is_of_terminal: bool,
}

impl Caught {
    fn of(origin: &Origin) -> Self {
        let is_of_terminal = is_interrupt(origin.signal) && origin.cause == Cause::Kernel;
        Self { signal: origin.signal, is_of_terminal }
    }
}

/// Signals are caught. While a command runs they wait; else they have their default action.
pub(crate) struct Watch {
    delivery: RefCell<SignalDelivery<UnixStream, WithOrigin>>,
    /// What was caught and not taken, each once.
    waiting: RefCell<Vec<Caught>>,
    /// A child has ended or stopped since `sleep` last returned.
    has_child_changed: Cell<bool>,
    is_default: Arc<AtomicBool>,
    /// The first signal that was taken.
    heard: Cell<Option<i32>>,
    clock: SystemClock,
}

impl Watch {
    /// From now on signals are caught, `also` among them.
    pub(crate) fn begin(also: &[i32]) -> Result<Self> {
        let failed = |error: io::Error| CliError::new(Code::Failed, format!("cannot catch signals: {error}"));
        let is_default = Arc::new(AtomicBool::new(true));
        let ignored = procs::ignored_signals();
        let caught = ENDING.iter().filter(|signal| !ignored.contains(signal)).chain(also);
        for &signal in caught.clone() {
            flag::register_conditional_default(signal, Arc::clone(&is_default)).map_err(failed)?;
        }
        let (wake, waker) = UnixStream::pair().map_err(failed)?;
        let delivery =
            SignalDelivery::with_pipe(wake, waker, WithOrigin::default(), caught.chain(&[SIGCHLD]));
        Ok(Self {
            delivery: RefCell::new(delivery.map_err(failed)?),
            waiting: RefCell::default(),
            has_child_changed: Cell::new(false),
            is_default,
            heard: Cell::new(None),
            clock: SystemClock::new(),
        })
    }

    /// Starts a command; from now on signals wait.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.hold();
        let child = command.spawn()?;
        // The terminal's, too: what was sent before the command was there has not reached it.
        while let Some(caught) = self.take(is_interrupt) {
            pass_on(Pid::from_child(&child), caught.signal);
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
        if let Some(caught) = self.take_signal() {
            // It fails for signals that there are not.
            let _ = low_level::emulate_default_handler(caught.signal);
        }
    }

    /// A signal that has come, if one has.
    pub(crate) fn take_signal(&self) -> Option<Caught> {
        self.take(|_| true)
    }

    /// Whether this process or the command was told to end, whatever the command has made of it.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.get().is_some()
    }

    fn take(&self, which: impl Fn(i32) -> bool) -> Option<Caught> {
        self.collect();
        let mut waiting = self.waiting.borrow_mut();
        let index = waiting.iter().position(|caught| which(caught.signal))?;
        let caught = waiting.remove(index);
        self.heard.set(self.heard.get().or(Some(caught.signal)));
        Some(caught)
    }

    /// Puts what was delivered to what waits.
    fn collect(&self) {
        let mut waiting = self.waiting.borrow_mut();
        for origin in self.delivery.borrow_mut().pending() {
            let caught = Caught::of(&origin);
            if origin.signal == SIGCHLD {
                self.has_child_changed.set(true);
            } else if !waiting.contains(&caught) {
                waiting.push(caught);
            }
        }
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
                    while let Some(Caught { signal, .. }) = self.take_signal() {
                        passed_on = if is_interrupt(signal) { passed_on } else { signal };
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
            while let Some(caught) = self.take_signal() {
                match caught.signal {
                    _ if caught.is_of_terminal => {}
                    // What comes of it is the command's affair, however often it is sent.
                    signal if is_interrupt(signal) => pass_on(pid, signal),
                    signal => {
                        // Said a second time it is meant.
                        pass_on(pid, if passed_on == 0 { signal } else { SIGKILL });
                        passed_on = signal;
                    }
                }
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

    /// Waits until something happens, at most until `until`; the caller looks at its children and takes
    /// signals before the next call. Whether something happened on the line.
    pub(crate) fn sleep(&self, line: Option<BorrowedFd<'_>>, until: Option<Duration>) -> Result<bool> {
        let delivery = self.delivery.borrow();
        let mut polled = vec![PollFd::new(delivery.get_read(), PollFlags::IN)];
        polled.extend(line.map(|line| PollFd::from_borrowed_fd(line, PollFlags::IN)));
        let until = if self.has_child_changed.get() { Some(Duration::ZERO) } else { until };
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
        drop(delivery);
        self.collect();
        self.has_child_changed.set(false);
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

/// Whether a terminal sends it to all of its foreground process group.
fn is_interrupt(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGQUIT)
}

/// Sends one of the signals that are caught, or SIGKILL.
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
