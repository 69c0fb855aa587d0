//! How much fast devices are written to, against what they may be written to in a day.
//!
//! A bucket that leaks: everything that is written to fast devices goes in, whatever it is, and a day's
//! budget leaks out evenly in a day. While it holds more than an hour's part, the budget is *spent*: what has
//! a choice goes elsewhere. What has none, the journal, rows, the manifest, goes on, and makes that last
//! longer. So in any 24 hours no more is written than the budget, a 24th of it, and what was due before the
//! first decision; there is no moment of the day at which everything is allowed again.
//!
//! Thread safety: a short lock. Invariant: while the store is open monotonic time alone counts, whatever the
//! wall clock is set to; by that a store that is opened again goes on. One that was set back in between stops
//! the leak for a moment, and no more.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kvfs_locks::{Mutex, MutexGuard, class};
use kvfs_store::clock::Clock;

const HOURS: usize = 24;
const HOUR_SECONDS: u64 = 3600;
const DAY_NANOS: u128 = 24 * 3600 * 1_000_000_000;

/// What is kept of it in the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct WrittenToFast {
    /// What the bucket holds (bytes).
    pub(crate) level: u64,
    /// When (since 1970); kept by the wall clock.
    pub(crate) at: Duration,
    /// What was written in this hour and in those before it (bytes), the newest first; it has at most 24.
    pub(crate) hours: Vec<u64>,
}

/// How a budget stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetInfo {
    /// What may be written to fast devices in a day (bytes).
    pub bytes_per_day: u64,
    /// What was written to them in the last 24 hours, the first of them in part (bytes).
    pub bytes_last_day: u64,
    /// For how long what has a choice goes to slow devices, if nothing else is written; zero: it does not.
    pub spent_for: Duration,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Endurance {
    source: OnceLock<Source>,
    inner: Mutex<Inner, class::KvdbSpaceEndurance>,
}

struct Source {
    /// Bytes.
    written: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    /// By the wall clock and the monotonic one.
    opened: (Duration, Duration),
}

impl Source {
    /// Since 1970, as if the wall clock had not been set since the opening.
    fn now(&self) -> Duration {
        let (wall, monotonic) = self.opened;
        wall + self.clock.monotonic().saturating_sub(monotonic)
    }
}

#[derive(Default)]
struct Inner {
    /// What may be written in a day; `None`: any.
    per_day: Option<u64>,
    now: WrittenToFast,
    /// Of the source, what is in the bucket.
    seen: u64,
}

impl Endurance {
    /// Counts what `written` tells, from what the store has kept on. Comes after the budget is set.
    pub(crate) fn begin(&self, written: Arc<AtomicU64>, clock: Arc<dyn Clock>, kept: Option<&WrittenToFast>) {
        let mut inner = self.inner.lock();
        inner.seen = written.load(Relaxed);
        let opened = (clock.wall(), clock.monotonic());
        inner.now = kept.cloned().unwrap_or_else(|| WrittenToFast { at: opened.0, ..Default::default() });
        let _ = self.source.set(Source { written, clock, opened });
    }

    /// So much may be written in a day from now on.
    pub(crate) fn set_budget(&self, per_day: Option<u64>) {
        let mut inner = self.settled();
        inner.per_day = per_day;
    }

    /// Whether what has a choice is to go elsewhere.
    pub(crate) fn is_spent(&self) -> bool {
        self.settled().is_over(1)
    }

    /// Whether there is less than half of what spends it: what is moved is moved in one go.
    pub(crate) fn has_for_moves(&self) -> bool {
        !self.settled().is_over(2)
    }

    /// What the store is to keep; `None`: there is no budget.
    pub(crate) fn to_keep(&self) -> Option<WrittenToFast> {
        let inner = self.settled();
        inner.per_day?;
        let mut kept = inner.now.clone();
        if let Some(source) = self.source.get() {
            // The next opening goes by the wall clock.
            kept.at = source.clock.wall().saturating_sub(source.now().saturating_sub(kept.at));
        }
        Some(kept)
    }

    /// How the budget stands; `None`: there is none.
    pub(crate) fn info(&self) -> Option<BudgetInfo> {
        let inner = self.settled();
        let bytes_per_day = inner.per_day?;
        let over = inner.now.level.saturating_sub(bytes_per_day / HOURS as u64);
        let nanos = u128::from(over) * DAY_NANOS / u128::from(bytes_per_day.max(1));
        let spent_for = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Some(BudgetInfo { bytes_per_day, bytes_last_day: inner.now.bytes_last_day(), spent_for })
    }

    /// Names and values of counters.
    pub(crate) fn list(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let of_budget = |budget: BudgetInfo| {
            [
                ("endurance.bytes_per_day", budget.bytes_per_day),
                ("endurance.bytes_last_day", budget.bytes_last_day),
                ("endurance.is_spent", u64::from(!budget.spent_for.is_zero())),
            ]
        };
        self.info().map(of_budget).into_iter().flatten()
    }

    /// As of now.
    #[track_caller]
    fn settled(&self) -> MutexGuard<'_, Inner, class::KvdbSpaceEndurance> {
        let mut inner = self.inner.lock();
        if let Some(source) = self.source.get() {
            let written = source.written.load(Relaxed);
            let new = written.saturating_sub(inner.seen);
            inner.seen = written;
            let per_day = inner.per_day;
            inner.now.advance(source.now(), new, per_day);
        }
        inner
    }
}

impl Inner {
    /// Whether the bucket holds more than an hour's part, or one in `parts` of that.
    fn is_over(&self, parts: u64) -> bool {
        self.per_day.is_some_and(|per_day| self.now.level > per_day / (HOURS as u64 * parts))
    }
}

impl WrittenToFast {
    fn advance(&mut self, now: Duration, written: u64, per_day: Option<u64>) {
        let passed = now.saturating_sub(self.at);
        let per_day = u128::from(per_day.unwrap_or(0));
        let leaked = per_day * passed.as_nanos() / DAY_NANOS;
        let before = self.at;
        if now < before || leaked >= self.level.into() || per_day == 0 {
            (self.level, self.at) = (self.level.saturating_sub(leaked as u64), now);
        } else {
            // What has not made a whole byte does so later.
            self.level -= leaked as u64;
            self.at += Duration::from_nanos((leaked * DAY_NANOS / per_day) as u64);
        }
        let hour = |time: Duration| time.as_secs() / HOUR_SECONDS;
        for _ in 0..hour(self.at).saturating_sub(hour(before)).min(HOURS as u64) {
            self.hours.insert(0, 0);
        }
        if self.hours.is_empty() {
            self.hours.push(0);
        }
        self.hours.truncate(HOURS);
        self.hours[0] = self.hours[0].saturating_add(written);
        self.level = if per_day == 0 { 0 } else { self.level.saturating_add(written) };
    }

    // What a store says may be absurd.
    fn bytes_last_day(&self) -> u64 {
        self.hours.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use kvfs_store::clock::ManualClock;

    use super::*;

    #[test]
    fn what_a_damaged_store_says_of_its_budget_does_no_harm() {
        let clock = Arc::new(ManualClock::at(Duration::from_hours(1000)));
        let (endurance, written) = (Endurance::default(), Arc::new(AtomicU64::new(0)));
        endurance.set_budget(Some(u64::MAX));
        let absurd =
            WrittenToFast { level: u64::MAX, at: Duration::from_nanos(u64::MAX), hours: vec![u64::MAX; 30] };
        endurance.begin(Arc::clone(&written), Arc::clone(&clock) as _, Some(&absurd));
        written.store(5, Relaxed);
        let info = endurance.info().expect("has a budget");
        assert_eq!((info.bytes_last_day, endurance.is_spent()), (u64::MAX, true));
    }

    /// Whose wall clock is set to something else.
    #[derive(Default)]
    struct SetClock {
        wall_seconds: AtomicU64,
        passed_seconds: AtomicU64,
    }

    impl Clock for SetClock {
        fn wall(&self) -> Duration {
            Duration::from_secs(self.wall_seconds.load(Relaxed))
        }

        fn monotonic(&self) -> Duration {
            Duration::from_secs(self.passed_seconds.load(Relaxed))
        }
    }

    #[test]
    fn wall_clock_that_is_set_while_the_store_is_open_forgives_nothing() {
        for set_to_hours in [0, 1, 999, 1001, 1_000_000] {
            let clock = Arc::new(SetClock::default());
            clock.wall_seconds.store(1000 * 3600, Relaxed);
            let (endurance, written) = (Endurance::default(), Arc::new(AtomicU64::new(0)));
            endurance.set_budget(Some(24 << 20));
            endurance.begin(Arc::clone(&written), Arc::clone(&clock) as _, None);
            written.store(3 << 20, Relaxed);
            assert!(endurance.is_spent());
            let spent_for = |endurance: &Endurance| endurance.info().expect("has a budget").spent_for;
            clock.wall_seconds.store(set_to_hours * 3600, Relaxed);
            assert_eq!(spent_for(&endurance), Duration::from_hours(2), "set to {set_to_hours} hours");
            clock.passed_seconds.fetch_add(3600, Relaxed);
            clock.wall_seconds.fetch_add(3600, Relaxed);
            assert_eq!(spent_for(&endurance), Duration::from_hours(1), "set to {set_to_hours} hours");

            let again = Endurance::default();
            again.set_budget(Some(24 << 20));
            again.begin(Arc::default(), clock, endurance.to_keep().as_ref());
            assert_eq!(spent_for(&again), Duration::from_hours(1), "set to {set_to_hours} hours");
        }
    }

    #[test]
    fn a_budget_leaks_evenly_and_goes_on_after_a_restart() {
        let clock = Arc::new(ManualClock::at(Duration::from_hours(1000)));
        let (endurance, written) = (Endurance::default(), Arc::new(AtomicU64::new(7)));
        endurance.begin(Arc::clone(&written), Arc::clone(&clock) as _, None);
        assert_eq!((endurance.info(), endurance.is_spent(), endurance.to_keep()), (None, false, None));
        endurance.set_budget(Some(24 << 20));
        let write = |bytes| {
            written.fetch_add(bytes, Relaxed);
        };
        write(1 << 20);
        assert!(!endurance.is_spent() && !endurance.has_for_moves());
        write(1 << 20);
        let info = endurance.info().expect("has a budget");
        assert_eq!((info.bytes_last_day, info.spent_for), (2 << 20, Duration::from_hours(1)));
        assert!(endurance.is_spent());
        let kept = endurance.to_keep().expect("has a budget");

        clock.advance(Duration::from_mins(30));
        let again = Endurance::default();
        again.set_budget(Some(24 << 20));
        again.begin(Arc::default(), Arc::clone(&clock) as _, Some(&kept));
        assert!(again.info().expect("has a budget").spent_for <= Duration::from_mins(30));
        (0..31 * 60).for_each(|_| {
            clock.advance(Duration::from_secs(1));
            again.is_spent();
        });
        assert!(!again.is_spent() && !again.has_for_moves());
        clock.advance(Duration::from_hours(1));
        assert!(again.has_for_moves());
        assert_eq!(again.info().expect("has a budget").bytes_last_day, 2 << 20);
        clock.advance(Duration::from_hours(24));
        assert_eq!(again.info().expect("has a budget").bytes_last_day, 0);
    }
}
