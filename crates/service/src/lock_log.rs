//! Which thread of this process holds or waits for which lock in memory: on demand, and in the log.
//!
//! Thread safety: shared. Invariant: nothing here takes a lock of the daemon, so it answers while all others
//! wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use kvfs_locks::{Access, HOLD_TIME_MAX, Held, Watch};
use kvfs_store::clock::{Clock, SystemClock};

use crate::lines::{HeldLine, HeldLines};

/// Looks at the locks of this process. Of what was seen in an earlier look the age is known.
#[derive(Debug, Default)]
pub struct LockWatch {
    clock: SystemClock,
    watch: Watch,
}

impl LockWatch {
    /// Everything that is held and waited for.
    pub(crate) fn lines(&self) -> HeldLines {
        let mut held = self.watch.look(self.clock.monotonic());
        held.sort_by_key(|entry| (entry.rank, entry.address, entry.access == Access::Waits));
        let cycle = kvfs_locks::cycle(&held);
        HeldLines { held: held.iter().map(line_of).collect(), cycle }
    }

    /// Logs what has become too old since the last call.
    fn log(&self) {
        let report = self.watch.report(self.clock.monotonic());
        for (held, waiters) in &report.long_held {
            let (lock, thread, at, age) = (held.lock, held.thread_name(), held.at, held.age);
            // Some are held that long by design: what keeps other threads waiting is worth a warning.
            if *waiters > 0 {
                tracing::warn!(lock, rank = held.rank, thread, %at, ?age, waiters, "a lock is held for long");
            } else {
                tracing::info!(lock, rank = held.rank, thread, %at, ?age, "a lock is held for long");
            }
        }
        for wait in &report.cycle {
            let (lock, thread, at) = (wait.lock, wait.thread_name(), wait.at);
            tracing::error!(lock, rank = wait.rank, thread, %at, "this thread and others wait for each other");
        }
    }
}

fn line_of(held: &Held) -> HeldLine {
    HeldLine {
        lock: held.lock.to_owned(),
        rank: held.rank,
        address: held.address as u64,
        thread: held.thread,
        thread_name: held.thread_name(),
        waits: held.access == Access::Waits,
        is_shared: held.is_shared,
        age: held.age,
        file: held.at.file().to_owned(),
        line: held.at.line(),
    }
}

/// The thread that writes the log, until this is dropped.
#[derive(Debug)]
pub struct LockLog {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LockLog {
    /// Starts it.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(watch: &Arc<LockWatch>) -> io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let (watch, stop) = (Arc::clone(watch), Arc::clone(&stopping));
        let body = move || {
            while !stop.load(Ordering::Acquire) {
                thread::park_timeout(HOLD_TIME_MAX);
                watch.log();
            }
        };
        let thread = thread::Builder::new().name("kvfs-lock-log".into()).spawn(body)?;
        Ok(Self { stopping, thread: Some(thread) })
    }
}

impl Drop for LockLog {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        if thread.join().is_err() {
            tracing::error!("the thread that watches locks panicked");
        }
    }
}
