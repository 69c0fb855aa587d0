//! Whether a flush waits for more clients before it begins. Pure arithmetic, no clock.
//!
//! A flush lets all its clients go at once, and they come back one by one. If the first of them led the next
//! flush at once, it would have one to itself, and all others a whole flush to wait before theirs. So for
//! about as long as two flushes take, the next one waits until as many have come as there were. A lone client
//! expects no other.
//!
//! Thread safety: a value, behind the journal's lock.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Flushes that do not wait for clients after one that waited in vain: so many at first, and twice as many
/// each time, up to the last number. One client that was held up costs little; those whose work takes longer
/// than a flush lose a sixtieth, not half.
pub(super) const SKIPS: RangeInclusive<u32> = 4..=64;
/// The longest wait.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(4);

/// What is expected after the last flush.
#[derive(Debug, Default)]
pub(super) struct GroupCommitDelay {
    /// How many clients the last flush has let go, and how many more had come before it ended.
    expected: u32,
    /// When they should have come (monotonic).
    until: Duration,
    /// So many flushes from now on do not wait for clients.
    skips_left: u32,
    /// How many it were after the last wait in vain; 0: all have come since.
    skips_last: u32,
}

impl GroupCommitDelay {
    /// A flush that took so long has ended `now`; so many clients were `served`, so many wait for the next
    /// one.
    pub(super) fn note_flush(&mut self, now: Duration, took: Duration, served: u32, waiting: u32) {
        if self.skips_left > 0 {
            self.skips_left -= 1;
        } else if served >= self.expected {
            self.skips_last = 0;
        }
        self.expected = served + waiting;
        // On few CPUs, many clients need about as long as the flush did.
        self.until = now + (2 * took).min(WAIT_MAX);
    }

    /// How long `gathered` clients wait for more at most; `None`: not at all.
    pub(super) fn wait(&self, gathered: u32, now: Duration) -> Option<Duration> {
        if self.skips_left > 0 || gathered >= self.expected {
            return None;
        }
        self.until.checked_sub(now).filter(|time| !time.is_zero())
    }

    /// So many had gathered when their time was over.
    pub(super) fn note_time_over(&mut self, gathered: u32) {
        self.until = Duration::ZERO;
        // With most of them there it was worth the wait.
        if 4 * u64::from(gathered) >= 3 * u64::from(self.expected) {
            return;
        }
        self.skips_last = (2 * self.skips_last).clamp(*SKIPS.start(), *SKIPS.end());
        self.skips_left = self.skips_last;
    }
}
