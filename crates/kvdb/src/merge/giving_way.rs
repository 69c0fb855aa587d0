//! Copying that leaves slow devices to those who read from them: while there are any, it takes a part of the
//! time.
//!
//! A disk with one arm answers a reader later by as long as a step of a copy takes, and there is always a
//! reader. So the share of the time in which it copies bounds how many of them meet a step.
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
const SHARE_DIVISOR: u32 = 8;
/// Without a read for so long, the readers have gone.
const QUIET: Duration = Duration::from_millis(30);
/// A step that took very long, for whatever reason, is not waited for in proportion.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// What was seen when the last step of the copy began.
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    reads: u64,
    began: Duration,
}

/// See the module.
pub(super) struct GivingWay {
    merges: Arc<MergePace>,
    runtime: Arc<Runtime>,
    step: Mutex<Step, class::KvdbMergeGivingWayStep>,
}

impl GivingWay {
    /// The pace of merges, and reads from slow devices first.
    pub(super) fn over(merger: &Merger) -> Arc<dyn Pace> {
        let (merges, runtime) = (Arc::clone(&merger.pressure.pace), Arc::clone(&merger.runtime));
        Arc::new(Self { merges, runtime, step: Mutex::default() })
    }
}

impl Pace for GivingWay {
    fn spend(&self, bytes: u64) {
        self.merges.spend(bytes);
        let Runtime { clock, ctx, .. } = &*self.runtime;
        let Step { reads, began } = *self.step.lock();
        let took = clock.monotonic().saturating_sub(began);
        let reads_now = || (!self.merges.is_hurried()).then(|| ctx.slow_reads());
        wait_for_readers(reads, took, reads_now, |time| self.merges.wait_unless_hurried(time));
        *self.step.lock() = Step { reads: ctx.slow_reads(), began: clock.monotonic() };
    }
}

/// Waits for the time that a step of this length leaves to readers, as long as there are any: their reads
/// were `seen` when it began. `reads`: those by now; `None`: nothing is to be waited for.
fn wait_for_readers(
    mut seen: u64,
    took: Duration,
    reads: impl Fn() -> Option<u64>,
    mut wait: impl FnMut(Duration),
) {
    let mut left = (took * (SHARE_DIVISOR - 1)).min(WAIT_MAX);
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
        wait_for_readers(0, took, look, |time| all.set(all.get() + time));
        all.get()
    }

    #[test]
    fn while_others_read_a_copy_takes_its_share_of_the_time() {
        assert_eq!(waited(STEP, Duration::MAX), STEP * (SHARE_DIVISOR - 1));
        assert_eq!(waited(Duration::from_secs(10), Duration::MAX), WAIT_MAX);
    }

    #[test]
    fn a_copy_goes_on_when_the_readers_have_gone() {
        assert_eq!(waited(STEP, Duration::ZERO), Duration::ZERO);
        let after_one = waited(STEP, QUIET);
        assert!(after_one >= QUIET && after_one <= QUIET * 2, "{after_one:?}");
    }
}
