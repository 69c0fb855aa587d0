//! What every part of an open store runs on: options, clock, caches and device, health, counters, wake-ups.
//!
//! Thread safety: shared by reference; the parts that change are atomics and short locks of their own.
//!
//! Invariants: nothing starts after `stopping` is set; a store that has failed accepts no write until it is
//! opened anew.

pub(crate) mod counters;
pub(crate) mod event;
pub(crate) mod health;
pub(crate) mod options;
pub(crate) mod stalls;
pub(crate) mod unsynced;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kvfs_store::clock::Clock;
use kvfs_store::{Result, StoreError};

use crate::memtable::MemTable;
use crate::runtime::counters::Counters;
use crate::runtime::event::Event;
use crate::runtime::health::Health;
use crate::runtime::options::Options;
use crate::runtime::stalls::{StallTimer, Stalls};
use crate::runtime::unsynced::Unsynced;
use crate::table::RunContext;

/// After a failure a thread tries again this soon.
pub(crate) const ERROR_WAIT: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Runtime {
    pub(crate) options: Options,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) health: Health,
    pub(crate) ctx: Arc<RunContext>,
    pub(crate) counters: Counters,
    pub(crate) stalls: Stalls,
    /// A memtable is sealed when it has grown to this (bytes): the option, unless the journal is too short
    /// for it.
    pub(crate) table_bytes: u64,
    /// Notified when there is something to do.
    pub(crate) work: Event,
    /// Notified when something was done.
    pub(crate) progress: Event,
    /// Notified when the store stops.
    pub(crate) timer: Event,
    /// What is written and not durable.
    pub(crate) unsynced: Unsynced,
    /// Notified when what is not durable has come to half of what it may.
    pub(crate) commit_due: Event,
    /// Notified when the journal's open group should be written.
    pub(crate) journal_due: Event,
    /// Notified when a device is to be drained.
    pub(crate) drain_due: Event,
    /// Longest time that an applied batch stays unsynced (nanoseconds): the option, until it is changed.
    commit_nanos: AtomicU64,
    stopping: AtomicBool,
    closed: AtomicBool,
}

impl Runtime {
    /// Of a store that has just been opened.
    pub(crate) fn new(
        options: Options,
        clock: Arc<dyn Clock>,
        ctx: Arc<RunContext>,
        table_bytes: u64,
    ) -> Self {
        let commit_nanos = AtomicU64::new(nanos(options.commit_interval));
        Self {
            options,
            clock,
            health: Health::default(),
            ctx,
            counters: Counters::default(),
            stalls: Stalls::default(),
            table_bytes,
            work: Event::default(),
            progress: Event::default(),
            timer: Event::default(),
            unsynced: Unsynced::default(),
            commit_due: Event::default(),
            journal_due: Event::default(),
            drain_due: Event::default(),
            commit_nanos,
            stopping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Whether the background threads are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells the background threads to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let Self { work, progress, timer, commit_due, journal_due, drain_due, .. } = self;
        for event in [work, progress, timer, commit_due, journal_due, drain_due] {
            event.notify();
        }
    }

    /// Whether so much is not durable that it is to be synced now, in the background.
    pub(crate) fn is_commit_due(&self) -> bool {
        let bytes_max = self.options.unsynced_bytes_max;
        bytes_max > 0 && self.unsynced.bytes() > bytes_max / 2
    }

    /// Longest time that an applied batch stays unsynced.
    pub(crate) fn commit_interval(&self) -> Duration {
        Duration::from_nanos(self.commit_nanos.load(Ordering::Relaxed))
    }

    /// Another one from now on; the commit thread looks at it twice a second.
    pub(crate) fn set_commit_interval(&self, interval: Duration) {
        self.commit_nanos.store(nanos(interval), Ordering::Relaxed);
    }

    /// Nothing new comes in from now on, while what is there is written out.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// After a merge that found no space: a new one now would do the same work in vain.
    pub(crate) fn back_off(&self) {
        let seen = self.timer.count();
        if !self.is_stopping() {
            self.timer.wait_after(seen, ERROR_WAIT);
        }
    }

    /// What was written before is durable. A failure is the store's: nothing is known of what it lost.
    pub(crate) fn flush_device(&self, what: &str) -> Result<()> {
        let flushed = self.ctx.device.flush();
        let flushed =
            flushed.map_err(|error| StoreError::io(format!("flushing {what} to the device"), error));
        self.health.observe(flushed).or_else(|_| self.health.check())
    }

    /// A write of a piece that failed is told to all. What could not be read is where it was: nothing is lost
    /// yet.
    pub(crate) fn observe_writes<T>(&self, result: Result<T>) -> Result<T> {
        if self.ctx.has_write_failed() { self.health.observe(result) } else { result }
    }

    #[track_caller]
    pub(crate) fn new_memtable(&self) -> MemTable {
        MemTable::new(&self.ctx.accountant)
    }

    /// Whether this opening of the store goes on: when it has ended, the device may be another one's.
    pub(crate) fn check_running(&self) -> Result<()> {
        if self.is_stopping() {
            return Err(StoreError::Failed { reason: "the store was closed".into() });
        }
        self.check_writable()
    }

    /// Does what a write may have to wait for, and adds how long it took.
    pub(crate) fn hold<T>(&self, held: &mut StallTimer, wait: impl FnOnce() -> T) -> T {
        let start = self.clock.monotonic();
        let done = wait();
        held.add(self.clock.monotonic().saturating_sub(start));
        done
    }

    /// A write is over that has been held back so long, if at all.
    pub(crate) fn note_held(&self, held: &StallTimer) {
        self.stalls.note(held);
    }

    /// Whether callers may write: not after `close`, and not when only transactions still hold the store.
    pub(crate) fn check_accepting(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) || self.is_stopping() {
            return Err(StoreError::Failed { reason: "the store was closed".into() });
        }
        self.check_writable()
    }

    /// Whether the store may write at all.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(StoreError::ReadOnly);
        }
        self.health.check()
    }
}

/// Whether it went well; `Full` is no, other errors stay errors.
pub(crate) fn ok_unless_full(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(StoreError::Full) => Ok(false),
        Err(error) => Err(error),
    }
}

fn nanos(interval: Duration) -> u64 {
    u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX)
}
