//! Copying that comes after everything else: it keeps a rate of its own, and waits for all that merges wait for.
//!
//! Thread safety: any thread; no lock is held while one waits. Invariant: a wait ends when the store stops; a limit that is changed
//! holds from the next bytes on.

use std::sync::Arc;
use std::time::Duration;

use kvfs_locks::{Mutex, class};

use crate::compaction::Pace;
use crate::pressure::rate_limiter::{RateLimiter, cost_of};
use crate::runtime::Runtime;

/// What a wait may grow to: a limit that was raised is felt then.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Limited<F> {
    merges: Arc<dyn Pace>,
    runtime: Arc<Runtime>,
    /// Bytes each second; 0: any number.
    limit: F,
    line: Mutex<RateLimiter, class::KvdbMergeLimitedLine>,
}

impl<F: Fn() -> u64 + Send + Sync + 'static> Limited<F> {
    /// The pace of merges, and at most as many bytes each second as `limit` says at the time.
    pub(super) fn over(merges: Arc<dyn Pace>, runtime: &Arc<Runtime>, limit: F) -> Arc<dyn Pace> {
        Arc::new(Self { merges, runtime: Arc::clone(runtime), limit, line: Mutex::default() })
    }
}

impl<F: Fn() -> u64 + Send + Sync> Pace for Limited<F> {
    fn spend(&self, bytes: u64) {
        self.merges.spend(bytes);
        let rate = (self.limit)();
        if rate == 0 {
            return;
        }
        let now = self.runtime.clock.monotonic();
        let wait = self.line.lock().take(now, cost_of(bytes, rate), Duration::ZERO, WAIT_MAX);
        if !wait.is_zero() && !self.runtime.is_stopping() {
            self.runtime.timer.wait(wait);
        }
    }
}
