//! Copying that leaves slow devices to those who read from them: while there are any, it takes a part of the
//! time.
//!
//! A disk with one arm answers a reader later by as long as a step of a copy takes, and there is always a
//! reader. So the share of the time in which it copies bounds how many of them meet a step. What is hot
//! spares its readers the slow device from then on, so it may take more.
//!
//! Thread safety: any thread; no lock is held while one waits. Invariant: each wait ends, when the readers
//! have gone, or the store stops, or a caller hurries, or with its time.

use std::sync::Arc;
use std::time::Duration;

use kvfs_locks::{Mutex, class};

use crate::compaction::Pace;
use crate::merge::Merger;
use crate::pressure::pace::MergePace;
use crate::runtime::Runtime;

/// While others read it takes one part in so many of the time.
pub(super) const SHARE_DIVISOR: u32 = 8;
/// The same of what is hot.
pub(super) const SHARE_DIVISOR_HOT: u32 = 2;
/// Without a read for so long, the readers have gone.
const QUIET: Duration = Duration::from_millis(30);
/// A step that took very long, for whatever reason, is not waited for in proportion.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// What was seen when the last step of the copy began.
#[derive(Debug, Clone, Copy)]
struct Step {
    reads: u64,
    began: Duration,
}

/// See the module.
pub(super) struct GivingWay {
    /// What it waits for besides, which is no time of a step.
    inner: Arc<dyn Pace>,
    merges: Arc<MergePace>,
    runtime: Arc<Runtime>,
    share_divisor: u32,
    step: Mutex<Step, class::KvdbMergeGivingWayStep>,
}

impl GivingWay {
    /// Over the pace `inner`, for a copy that begins now.
    pub(super) fn over(inner: Arc<dyn Pace>, merger: &Merger, share_divisor: u32) -> Arc<dyn Pace> {
        let (merges, runtime) = (Arc::clone(&merger.pressure.pace), Arc::clone(&merger.runtime));
        let step = Mutex::new(Step { reads: runtime.ctx.slow_reads(), began: runtime.clock.monotonic() });
        Arc::new(Self { inner, merges, runtime, share_divisor, step })
    }
}

impl Pace for GivingWay {
    fn spend(&self, bytes: u64) {
        let Runtime { clock, ctx, .. } = &*self.runtime;
        let Step { reads, began } = *self.step.lock();
        let ended = clock.monotonic();
        self.inner.spend(bytes);
        let rested = clock.monotonic().saturating_sub(ended);
        let wait = time_of_readers(ended.saturating_sub(began), rested, self.share_divisor);
        let reads_now = || (!self.merges.is_hurried()).then(|| ctx.slow_reads());
        wait_for_readers(reads, wait, reads_now, |time| self.merges.wait_unless_hurried(time));
        *self.step.lock() = Step { reads: ctx.slow_reads(), began: clock.monotonic() };
    }
}

/// How long readers are left alone behind a step that `took` so long, when they have been for `rested`.
fn time_of_readers(took: Duration, rested: Duration, share_divisor: u32) -> Duration {
    (took * (share_divisor - 1)).min(WAIT_MAX).saturating_sub(rested)
}

/// Waits for the time that a step leaves to readers, as long as there are any: their reads were `seen` when
/// it began. `reads`: those by now; `None`: nothing is to be waited for.
fn wait_for_readers(
    mut seen: u64,
    mut left: Duration,
    reads: impl Fn() -> Option<u64>,
    mut wait: impl FnMut(Duration),
) {
    while !left.is_zero()
        && let Some(now) = reads().filter(|&now| now != seen)
    {
        seen = now;
        let time = left.min(QUIET);
        wait(time);
        left -= time;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// How long is waited where a reader reads for so long, at each look.
    fn waited(took: Duration, reading: Duration) -> Duration {
        let (reads, all) = (Cell::new(0), Cell::new(Duration::ZERO));
        let look = || {
            reads.set(reads.get() + u64::from(all.get() < reading));
            Some(reads.get())
        };
        let time = time_of_readers(took, Duration::ZERO, SHARE_DIVISOR);
        wait_for_readers(0, time, look, |time| all.set(all.get() + time));
        all.get()
    }

    #[test]
    fn while_others_read_a_copy_takes_its_share_of_the_time() {
        assert_eq!(waited(STEP, Duration::MAX), STEP * (SHARE_DIVISOR - 1));
        assert_eq!(waited(Duration::from_secs(10), Duration::MAX), WAIT_MAX);
    }

    /// Of a limit, or for flushes: the copy takes the smaller of both shares, and not their product.
    #[test]
    fn time_for_which_a_copy_has_rested_anyway_is_no_time_of_its_step() {
        let left = |rested| time_of_readers(STEP, rested, SHARE_DIVISOR_HOT);
        assert_eq!([left(Duration::ZERO), left(STEP / 2), left(STEP * 9)], [STEP, STEP / 2, Duration::ZERO]);
    }

    #[test]
    fn a_copy_goes_on_when_the_readers_have_gone() {
        assert_eq!(waited(STEP, Duration::ZERO), Duration::ZERO);
        let after_one = waited(STEP, QUIET);
        assert!(after_one >= QUIET && after_one <= QUIET * 2, "{after_one:?}");
    }
}
