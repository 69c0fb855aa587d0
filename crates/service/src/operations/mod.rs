//! What the operations of a store come to: how many of each kind there were, how long they took, which of
//! them were slow, and each as it ends for readers that ask.
//!
//! Thread safety: any number of threads. An operation costs a few relaxed atomics in one of eight shards;
//! only while there is a reader, or for a slow one, a lock is taken, for moments. Invariant:
//! [`Operations::record`] waits for nothing and calls nothing of the file system that a front end may hold a
//! lock of: paths are found out by the threads that show them.

mod finished;
mod histogram;
mod slow;
mod trace;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_fs::operations::{Operation, OperationKind, Recorder, record_operations};
use kvfs_store::clock::{Clock, SystemClock};

pub use histogram::{BUCKETS, bucket_of, bucket_start};
pub use slow::SlowLog;

use crate::lines::{OperationLine, OperationLines};
use finished::Finished;
use histogram::{Histogram, Sum};
use slow::SlowQueue;
use trace::Readers;

/// Threads are spread over so many counters of each kind, so that they seldom meet in a cache line.
const SHARDS: usize = 8;

thread_local! {
    /// The shard of this thread.
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// One for each kind; made when the first one ends.
type Shard = Box<[OnceLock<Box<Histogram>>]>;

/// See the module.
pub struct Operations {
    clock: Arc<dyn Clock>,
    begun: Duration,
    shards: [Shard; SHARDS],
    next_shard: AtomicUsize,
    /// An operation that took less is only counted (ns).
    heeded_nanos: AtomicU64,
    slow: SlowQueue,
    readers: Readers,
    fs: OnceLock<Weak<FileSystem>>,
}

impl std::fmt::Debug for Operations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operations").finish_non_exhaustive()
    }
}

impl Default for Operations {
    fn default() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }
}

impl Operations {
    /// None yet, by this clock.
    pub(crate) fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let shard = || OperationKind::ALL.iter().map(|_| OnceLock::new()).collect();
        Self {
            begun: clock.monotonic(),
            clock,
            shards: std::array::from_fn(|_| shard()),
            next_shard: AtomicUsize::default(),
            heeded_nanos: AtomicU64::new(u64::MAX),
            slow: SlowQueue::default(),
            readers: Readers::default(),
            fs: OnceLock::new(),
        }
    }

    /// They are those of `fs`, in all its views.
    pub(crate) fn watch(self: &Arc<Self>, fs: &Arc<FileSystem>) {
        let _ = self.fs.set(Arc::downgrade(fs));
        record_operations(fs, Arc::clone(self) as Arc<dyn Recorder>);
    }

    /// Counts and latencies by kind, of those that have ended.
    pub fn lines(&self) -> OperationLines {
        let kinds = OperationKind::ALL.iter().filter_map(|&kind| {
            let mut sum = Sum::default();
            for shard in &self.shards {
                if let Some(histogram) = shard[kind as usize].get() {
                    histogram.add_to(&mut sum);
                }
            }
            let buckets = sum.buckets.iter().enumerate().filter(|&(_, &count)| count > 0);
            let buckets: Vec<_> = buckets.map(|(index, &count)| (index as u16, count)).collect();
            let Sum { errors, bytes, nanos, nanos_max, .. } = sum;
            let kind = kind.name().to_owned();
            (!buckets.is_empty()).then_some(OperationLine { kind, errors, bytes, nanos, nanos_max, buckets })
        });
        OperationLines { kinds: kinds.collect(), since: self.clock.monotonic().saturating_sub(self.begun) }
    }

    fn shard(&self) -> &Shard {
        let place = SHARD.get().unwrap_or_else(|| {
            let place = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            SHARD.set(Some(place));
            place
        });
        &self.shards[place]
    }

    /// What [`Recorder::record`] looks at one by one has changed.
    fn look_again(&self) {
        let heeded = if self.readers.are_there() { 0 } else { self.slow.threshold_nanos() };
        self.heeded_nanos.store(heeded, Ordering::Relaxed);
    }

    fn fs(&self) -> Option<Arc<FileSystem>> {
        self.fs.get()?.upgrade()
    }
}

impl Recorder for Operations {
    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn record(&self, operation: &Operation<'_>) {
        let now = self.clock.monotonic();
        let duration = now.saturating_sub(operation.start);
        let nanos = duration.as_nanos() as u64;
        let histogram = self.shard()[operation.kind as usize].get_or_init(Box::default);
        histogram.add(nanos, operation.errno != 0, operation.bytes);
        if nanos >= self.heeded_nanos.load(Ordering::Relaxed) {
            let finished = Finished::new(operation, now, duration);
            self.slow.offer(&finished, self);
            self.readers.offer(&finished, self);
        }
    }

    fn wants_target(&self, start: Duration) -> bool {
        let nanos = self.clock.monotonic().saturating_sub(start).as_nanos() as u64;
        nanos >= self.heeded_nanos.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
