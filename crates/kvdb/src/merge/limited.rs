//! Copying that comes after everything else: it keeps a rate of its own, and waits for all that merges wait
//! for.
//!
//! Thread safety: any thread; no lock is held while one waits. Invariant: a wait ends when the store stops,
//! or a caller hurries, and while one does there is none; a limit that is changed holds from the next bytes
//! on.

use std::sync::Arc;
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::clock::Clock;

use crate::compaction::Pace;
use crate::merge::Merger;
use crate::pressure::pace::MergePace;
use crate::pressure::rate_limiter::{RateLimiter, cost_of};

/// What a wait may grow to: a limit that was raised is felt then.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Limited<F> {
    /// What is waited for first.
    inner: Arc<dyn Pace>,
    merges: Arc<MergePace>,
    clock: Arc<dyn Clock>,
    /// Bytes each second; 0: any number.
    limit: F,
    line: Mutex<RateLimiter, class::KvdbMergeLimitedLine>,
}

impl<F: Fn() -> u64 + Send + Sync + 'static> Limited<F> {
    /// The pace `inner`, which is that of the merges of `merger`, or lies over it, and at most as many bytes
    /// each second as `limit` says at the time.
    pub(super) fn over(inner: Arc<dyn Pace>, merger: &Merger, limit: F) -> Arc<dyn Pace> {
        let (merges, clock) = (Arc::clone(&merger.pressure.pace), Arc::clone(&merger.runtime.clock));
        Arc::new(Self { inner, merges, clock, limit, line: Mutex::default() })
    }
}

impl<F: Fn() -> u64 + Send + Sync> Pace for Limited<F> {
    fn spend(&self, bytes: u64) {
        self.inner.spend(bytes);
        let rate = (self.limit)();
        if rate == 0 || self.merges.is_hurried() {
            return;
        }
        let now = self.clock.monotonic();
        let wait = self.line.lock().take(now, cost_of(bytes, rate), Duration::ZERO, WAIT_MAX);
        self.merges.wait_unless_hurried(wait);
    }
}

#[cfg(test)]
mod tests {
    use kvfs_store::clock::SystemClock;

    use super::*;

    #[test]
    fn a_limit_delays_nothing_while_a_caller_hurries() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let merges = Arc::new(MergePace::new(Arc::clone(&clock), true, 0));
        let inner = Arc::clone(&merges) as Arc<dyn Pace>;
        let limited =
            Limited { inner, merges: Arc::clone(&merges), clock, limit: || 1, line: Mutex::default() };
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| (0..1 << 20).for_each(|_| limited.spend(1 << 20)));
            while limited.line.lock().take(Duration::ZERO, Duration::ZERO, Duration::ZERO, Duration::MAX)
                == Duration::ZERO
            {
                std::thread::yield_now();
            }
            let _hurry = merges.hurry();
            copy.join().expect("ends, although it is to take 12 days at least");
        });
    }
}
