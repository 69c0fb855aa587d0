//! How merges give way: to flushes, to a limit of bytes each second, and not at all when a caller waits for
//! their end.
//!
//! Thread safety: shared by all merges; the lock of the time line is held for a few instructions. No thread
//! waits here with a lock held.
//!
//! Invariant: every wait ends. One for flushes is bounded, and there is none when flushes can't go on (a
//! merge may make the space that they need) or when merges are behind, too. One for the limit ends with its
//! time, or when a caller hurries. So does what others wait here, each for reasons of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::clock::Clock;

use crate::compaction::Pace;
use crate::pressure::rate_limiter::{RateLimiter, cost_of};
use crate::runtime::event::Event;

/// Sealed memtables beyond which merges pause: one is being flushed while the next one fills.
const SEALED_NORMAL: usize = 1;

/// Longest pause for flushes at one step of a merge, and how often it looks again meanwhile.
const PAUSE_MAX: Duration = Duration::from_millis(200);
const LOOKS: u32 = 4;

/// Bytes that were not moved lately may be made up for, of so much time.
const BURST: Duration = Duration::from_millis(250);

/// Where all merges of a store give way.
pub(crate) struct MergePace {
    clock: Arc<dyn Clock>,
    /// False: one thread does everything, so nothing moves while it waits.
    waits: bool,
    /// Bytes that merges may read and write each second; 0: any.
    bytes_per_second: u64,
    line: Mutex<RateLimiter, class::KvdbPressurePaceLine>,
    /// Notified when a reason to wait may have gone.
    changed: Event,
    /// Notified when a caller hurries.
    hurried: Event,
    sealed: AtomicUsize,
    merges_are_behind: AtomicBool,
    flushes_are_stuck: AtomicBool,
    /// Callers that wait for the end of merges.
    hurries: AtomicUsize,
    pause_us: AtomicU64,
    limit_us: AtomicU64,
}

/// Merges don't wait while this lives.
pub(crate) struct Hurry<'a>(&'a MergePace);

impl MergePace {
    /// Holds no merge back yet.
    pub(crate) fn new(clock: Arc<dyn Clock>, waits: bool, bytes_per_second: u64) -> Self {
        Self {
            clock,
            waits,
            bytes_per_second,
            line: Mutex::default(),
            changed: Event::default(),
            hurried: Event::default(),
            sealed: AtomicUsize::new(0),
            merges_are_behind: AtomicBool::new(false),
            flushes_are_stuck: AtomicBool::new(false),
            hurries: AtomicUsize::new(0),
            pause_us: AtomicU64::new(0),
            limit_us: AtomicU64::new(0),
        }
    }

    /// So many layers wait for their flush now.
    pub(crate) fn note_sealed(&self, count: usize) {
        let before = self.sealed.swap(count, Ordering::AcqRel);
        if before > SEALED_NORMAL && count <= SEALED_NORMAL {
            self.changed.notify();
        }
    }

    /// Whether writers are held back because of what is to be merged.
    pub(crate) fn note_behind(&self, behind: bool) {
        self.merges_are_behind.store(behind, Ordering::Release);
    }

    /// Whether the last flush failed.
    pub(crate) fn note_stuck(&self, stuck: bool) {
        self.flushes_are_stuck.store(stuck, Ordering::Release);
    }

    /// Lets merges go on without any wait.
    pub(crate) fn hurry(&self) -> Hurry<'_> {
        self.hurries.fetch_add(1, Ordering::AcqRel);
        self.changed.notify();
        self.hurried.notify();
        Hurry(self)
    }

    /// The store stops: no merge waits any more.
    pub(crate) fn stop(&self) {
        std::mem::forget(self.hurry());
    }

    /// Names and values.
    pub(crate) fn list(&self) -> [(&'static str, u64); 2] {
        [
            ("merge.pause_us", self.pause_us.load(Ordering::Relaxed)),
            ("merge.limit_us", self.limit_us.load(Ordering::Relaxed)),
        ]
    }

    /// Waits for so long, or until a caller hurries; not at all while one does.
    pub(crate) fn wait_unless_hurried(&self, time: Duration) {
        let seen = self.hurried.count();
        if !self.is_hurried() {
            self.hurried.wait_after(seen, time);
        }
    }

    /// Whether a caller waits for the end of merges.
    pub(crate) fn is_hurried(&self) -> bool {
        self.hurries.load(Ordering::Acquire) > 0
    }

    /// Whether flushes come first now.
    fn flushes_come_first(&self) -> bool {
        self.sealed.load(Ordering::Acquire) > SEALED_NORMAL
            && !self.merges_are_behind.load(Ordering::Acquire)
            && !self.flushes_are_stuck.load(Ordering::Acquire)
            && !self.is_hurried()
    }

    fn pause_for_flushes(&self) {
        if !self.flushes_come_first() {
            return;
        }
        let start = self.clock.monotonic();
        for _ in 0..LOOKS {
            let seen = self.changed.count();
            if !self.flushes_come_first() {
                break;
            }
            self.changed.wait_after(seen, PAUSE_MAX / LOOKS);
        }
        self.note(&self.pause_us, start);
    }

    fn keep_limit(&self, bytes: u64) {
        if self.bytes_per_second == 0 || self.is_hurried() {
            return;
        }
        let start = self.clock.monotonic();
        let cost = cost_of(bytes, self.bytes_per_second);
        let wait = self.line.lock().take(start, cost, BURST, Duration::MAX);
        let until = start.saturating_add(wait);
        loop {
            let seen = self.changed.count();
            let left = until.saturating_sub(self.clock.monotonic());
            if left.is_zero() || self.is_hurried() {
                break;
            }
            self.changed.wait_after(seen, left);
        }
        self.note(&self.limit_us, start);
    }

    fn note(&self, counter: &AtomicU64, start: Duration) {
        let took = self.clock.monotonic().saturating_sub(start);
        counter.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Pace for MergePace {
    fn spend(&self, bytes: u64) {
        if self.waits {
            self.pause_for_flushes();
            self.keep_limit(bytes);
        }
    }
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurries.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use kvfs_store::clock::{ManualClock, SystemClock};

    use super::*;

    fn pace(bytes_per_second: u64) -> MergePace {
        MergePace::new(Arc::new(SystemClock::new()), true, bytes_per_second)
    }

    #[test]
    fn the_limit_holds_over_all_merges_together() {
        let pace = pace(10 << 20);
        let start = pace.clock.monotonic();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..8).for_each(|_| pace.spend(256 << 10)));
            }
        });
        let took = pace.clock.monotonic().saturating_sub(start);
        // 4 MiB at 10 MiB/s, but for what may be made up for.
        assert!(took + BURST >= Duration::from_millis(400), "{took:?}");
        assert!(pace.list()[1].1 > 0);
    }

    #[test]
    fn limit_when_a_caller_hurries_delays_no_merge() {
        let pace = pace(1);
        let hurry = pace.hurry();
        pace.spend(1 << 30);
        drop(hurry);
        std::thread::scope(|scope| {
            let merge = scope.spawn(|| pace.spend(1 << 30));
            while pace.line.lock().take(Duration::ZERO, Duration::ZERO, BURST, Duration::MAX).is_zero() {
                std::thread::yield_now();
            }
            let _hurry = pace.hurry();
            merge.join().expect("ends, although its time has not come for 34 years");
        });
    }

    #[test]
    fn merges_pause_for_flushes_unless_these_are_stuck_or_merges_are_behind() {
        let pace = pace(0);
        assert!(!pace.flushes_come_first());
        pace.note_sealed(1);
        assert!(!pace.flushes_come_first(), "one is normal");
        pace.note_sealed(2);
        assert!(pace.flushes_come_first());
        pace.note_stuck(true);
        assert!(!pace.flushes_come_first());
        pace.note_stuck(false);
        pace.note_behind(true);
        assert!(!pace.flushes_come_first());
        pace.note_behind(false);
        pace.spend(1);
        assert!(pace.list()[0].1 >= 100_000, "and go on after a while");
        let hurry = pace.hurry();
        assert!(!pace.flushes_come_first());
        drop(hurry);
        std::thread::scope(|scope| {
            let merge = scope.spawn(|| pace.spend(1));
            pace.note_sealed(1);
            merge.join().expect("ends");
        });
    }

    #[test]
    fn without_threads_there_is_no_wait() {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
        let pace = MergePace::new(clock, false, 1);
        pace.note_sealed(9);
        pace.spend(u64::MAX);
    }
}
