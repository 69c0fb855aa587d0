//! The log of slow operations.
//!
//! An operation that took as long as the threshold, and has not waited for another owner's lock, is queued,
//! and a thread says it in the log of the process, with the path. At most [`LINES_MAX`] are said in a period;
//! of the others, which come in numbers when a device stalls, the log has one line, with their number and the
//! longest.
//!
//! Thread safety: one short lock. Invariant: what waits to be said is bounded.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::operations::command_of;
use kvfs_locks::{Condvar, Mutex, class};

use super::Operations;
use super::finished::Finished;
use crate::units::human_latency;

/// Operations that are told of in one period.
const LINES_MAX: usize = 15;
const PERIOD: Duration = Duration::from_secs(10);

/// What is to be said.
#[derive(Debug, Default, PartialEq, Eq)]
struct News {
    slow: Vec<Finished>,
    /// Operations that were left out in the period before, and what the longest of them took.
    left_out: Option<(u64, Duration)>,
}

impl News {
    fn is_empty(&self) -> bool {
        self.slow.is_empty() && self.left_out.is_none()
    }
}

#[derive(Debug, Default)]
struct State {
    news: News,
    /// Since when the period lasts; `None`: nothing has been slow yet.
    since: Option<Duration>,
    /// In this period.
    lines: usize,
    left_out: u64,
    longest: Duration,
    is_stopping: bool,
}

impl State {
    /// Begins another period if this one is over.
    fn pass(&mut self, now: Duration) {
        if self.since.is_some_and(|since| now.saturating_sub(since) < PERIOD) {
            return;
        }
        if self.left_out > 0 {
            self.news.left_out = Some((self.left_out, self.longest));
        }
        (self.since, self.lines, self.left_out, self.longest) = (Some(now), 0, 0, Duration::ZERO);
    }

    fn offer(&mut self, finished: &Finished) {
        self.pass(finished.ended);
        if self.lines < LINES_MAX {
            self.lines += 1;
            self.news.slow.push(finished.clone());
        } else {
            self.left_out += 1;
            self.longest = self.longest.max(finished.duration);
        }
    }

    fn take(&mut self, now: Duration) -> News {
        if self.left_out > 0 {
            self.pass(now);
        }
        std::mem::take(&mut self.news)
    }
}

/// Slow operations that wait to be told of.
#[derive(Debug)]
pub(super) struct SlowQueue {
    /// `u64::MAX`: no operation is slow.
    threshold_nanos: AtomicU64,
    state: Mutex<State, class::ServiceOperationsSlowState>,
    changed: Condvar,
}

impl Default for SlowQueue {
    fn default() -> Self {
        Self {
            threshold_nanos: AtomicU64::new(u64::MAX),
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }
}

impl SlowQueue {
    pub(super) fn threshold_nanos(&self) -> u64 {
        self.threshold_nanos.load(Ordering::Relaxed)
    }

    /// Takes an operation, if it is slow.
    pub(super) fn offer(&self, finished: &Finished, operations: &Operations) {
        let is_slow = finished.duration.as_nanos() as u64 >= self.threshold_nanos();
        if !is_slow || finished.has_waited || finished.kind.waits_for_locks() {
            return;
        }
        let command = operations.fs().and_then(|fs| command_of(&fs, finished.pid));
        self.state.lock().offer(&finished.of_command(command));
        self.changed.notify_one();
    }

    /// Waits for something to say; `None`: the log ends.
    fn next(&self, operations: &Operations) -> Option<News> {
        let mut state = self.state.lock();
        loop {
            let news = state.take(operations.clock.monotonic());
            if !news.is_empty() {
                return Some(news);
            }
            if state.is_stopping {
                return None;
            }
            if state.left_out > 0 {
                self.changed.wait_for(&mut state, PERIOD);
            } else {
                self.changed.wait(&mut state);
            }
        }
    }
}

/// The thread that writes the log; it ends when this is dropped.
#[derive(Debug)]
pub struct SlowLog {
    operations: Arc<Operations>,
    thread: Option<JoinHandle<()>>,
}

impl SlowLog {
    /// From now on operations that take as long as `threshold` are told of in the log.
    ///
    /// # Errors
    /// The kernel refuses a thread.
    pub fn start(operations: &Arc<Operations>, threshold: Duration) -> io::Result<Self> {
        let writing = Arc::clone(operations);
        let thread = std::thread::Builder::new().name("slow-log".into()).spawn(move || write(&writing))?;
        let nanos = u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX);
        operations.slow.threshold_nanos.store(nanos, Ordering::Relaxed);
        operations.look_again();
        Ok(Self { operations: Arc::clone(operations), thread: Some(thread) })
    }
}

impl Drop for SlowLog {
    fn drop(&mut self) {
        self.operations.slow.threshold_nanos.store(u64::MAX, Ordering::Relaxed);
        self.operations.look_again();
        self.operations.slow.state.lock().is_stopping = true;
        self.operations.slow.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that tells of slow operations panicked");
        }
    }
}

/// Body of the thread.
fn write(operations: &Operations) {
    while let Some(News { slow, left_out }) = operations.slow.next(operations) {
        if let Some((count, longest)) = left_out {
            let longest = human_latency(longest);
            tracing::warn!(count, longest, "more operations were slow, and are not listed");
        }
        for finished in slow {
            // Not kept for longer: the store may be closing.
            let fs = operations.fs();
            let line = finished.line(fs.as_deref(), Duration::ZERO);
            drop(fs);
            tracing::warn!(
                kind = line.kind,
                path = %String::from_utf8_lossy(&line.target).escape_debug(),
                took = human_latency(line.duration),
                pid = line.pid,
                command = line.command,
                uid = line.uid,
                txn = line.txn,
                errno = line.errno,
                "slow operation"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use kvfs_fs::operations::{Operation, OperationKind, Target};

    use super::*;

    fn slow(ended_s: u64, took_ms: u64) -> Finished {
        let operation = Operation {
            kind: OperationKind::Write,
            start: Duration::ZERO,
            uid: 0,
            pid: 1,
            txn: 0,
            errno: 0,
            bytes: 0,
            has_waited: false,
            target: Target::Path(b"/a"),
        };
        Finished::new(&operation, Duration::from_secs(ended_s), Duration::from_millis(took_ms))
    }

    #[test]
    fn stall_of_many_operations_is_some_lines_and_a_count() {
        let mut state = State::default();
        for took in 0..1000 {
            state.offer(&slow(100, 1000 + took));
        }
        let news = state.take(Duration::from_secs(101));
        assert_eq!((news.slow.len(), news.left_out), (LINES_MAX, None));
        assert!(state.take(Duration::from_secs(105)).is_empty());
        let left_out = Some((1000 - LINES_MAX as u64, Duration::from_millis(1999)));
        assert_eq!(state.take(Duration::from_secs(110)), News { slow: Vec::new(), left_out });
        state.offer(&slow(200, 1000));
        assert_eq!(state.take(Duration::from_secs(200)).slow.len(), 1);
    }
}
