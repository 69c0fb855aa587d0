//! Waiting for the command of `kvfs txn run`, for signals, and for the daemon, in one thread.
//!
//! Namespaces can be left by processes with one thread only, so signals come through a socket.

use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::error::{CliError, Code, Result};

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// With this exit status.
    Exit(u8),
    /// This process was told to end by this signal, and passed it on.
    Told(u8),
    /// The daemon ended the transaction, and the command was ended for it.
    Cut,
}

/// Signals are caught, and wait.
pub(super) struct Watch {
    wake: UnixStream,
    told: Arc<AtomicUsize>,
}

impl Watch {
    /// From now on signals are noted. SIGINT and SIGQUIT are left to the command: the terminal sends them to
    /// everybody.
    pub(super) fn begin() -> Result<Self> {
        let failed =
            |error: std::io::Error| CliError::new(Code::Failed, format!("cannot catch signals: {error}"));
        let (wake, waker) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let told = Arc::new(AtomicUsize::new(0));
        for signal in [SIGTERM, SIGHUP] {
            flag::register_usize(signal, Arc::clone(&told), signal as usize).map_err(failed)?;
        }
        for signal in [SIGCHLD, SIGTERM, SIGHUP, SIGINT, SIGQUIT] {
            low_level::pipe::register(signal, waker.try_clone().map_err(failed)?).map_err(failed)?;
        }
        Ok(Self { wake, told })
    }

    /// Waits for the end of `child`. When something happens on `line`, the child is ended.
    pub(super) fn wait(&mut self, child: &mut Child, line: Option<BorrowedFd<'_>>) -> Result<Ended> {
        let pid = Pid::from_child(child);
        let mut passed_on = 0;
        let mut is_cut = false;
        loop {
            let ended = child
                .try_wait()
                .map_err(|error| CliError::new(Code::Failed, format!("cannot wait: {error}")))?;
            if let Some(status) = ended {
                let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                return Ok(match passed_on {
                    _ if is_cut => Ended::Cut,
                    0 => Ended::Exit(code as u8),
                    signal => Ended::Told(signal as u8),
                });
            }
            let told = self.told.swap(0, Ordering::AcqRel);
            if told != 0 {
                // Who says it twice means it.
                let signal = match (passed_on, told as i32) {
                    (0, SIGHUP) => Signal::HUP,
                    (0, _) => Signal::TERM,
                    _ => Signal::KILL,
                };
                passed_on = told;
                let _ = kill_process(pid, signal);
            }
            is_cut |= self.sleep(line.filter(|_| !is_cut), pid)?;
        }
    }

    /// Waits until something happens. Whether the line was cut.
    fn sleep(&mut self, line: Option<BorrowedFd<'_>>, child: Pid) -> Result<bool> {
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        let mut polled = vec![wake];
        polled.extend(line.map(|line| PollFd::from_borrowed_fd(line, PollFlags::IN)));
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(CliError::new(Code::Failed, format!("cannot wait: {errno}"))),
        }
        let is_cut = polled.get(1).is_some_and(|line| !line.revents().is_empty());
        drop(polled);
        // Only that something came counts; a full or empty socket is as good.
        let _ = self.wake.read(&mut [0; 64]);
        if is_cut {
            let _ = kill_process(child, Signal::KILL);
        }
        Ok(is_cut)
    }
}
