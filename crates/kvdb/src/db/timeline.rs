//! A rate that several threads keep together: each takes its turn on one time line.
//!
//! Pure arithmetic over times that the caller reads from its clock; no lock.

use std::time::Duration;

/// Up to when the rate has been used.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    taken_until: Duration,
}

impl Timeline {
    /// Takes `cost` at the time `now`, and returns how long the caller has to wait for it. Time that nobody took
    /// can be made up for, up to `burst` of it. Nobody waits longer than `wait_max`: what is beyond is forgiven.
    pub(crate) fn take(
        &mut self,
        now: Duration,
        cost: Duration,
        burst: Duration,
        wait_max: Duration,
    ) -> Duration {
        let from = self.taken_until.max(now.saturating_sub(burst));
        self.taken_until = from.saturating_add(cost).min(now.saturating_add(wait_max));
        self.taken_until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn those_who_come_together_wait_one_behind_the_other() {
        let mut line = Timeline::default();
        let now = 1000 * MS;
        let mut take = |now| line.take(now, 10 * MS, Duration::ZERO, 100 * MS);
        assert_eq!([take(now), take(now), take(now)], [10 * MS, 20 * MS, 30 * MS]);
        assert_eq!(take(now + 25 * MS), 15 * MS);
        assert_eq!(take(now + 500 * MS), 10 * MS, "what was not used is gone");
    }

    #[test]
    fn unused_time_is_made_up_for_within_bounds() {
        let mut line = Timeline::default();
        let mut take = |now: u32| line.take(now * MS, 10 * MS, 25 * MS, Duration::MAX);
        assert_eq!([take(1000), take(1000), take(1000)], [Duration::ZERO, Duration::ZERO, 5 * MS]);
    }

    #[test]
    fn a_wait_is_bounded_and_the_rest_forgiven() {
        let mut line = Timeline::default();
        let now = 1000 * MS;
        let mut take = |now, cost| line.take(now, cost, Duration::ZERO, 100 * MS);
        assert_eq!(take(now, Duration::MAX), 100 * MS);
        assert_eq!(take(now, MS), 100 * MS);
        assert_eq!(take(now + 100 * MS, MS), MS);
    }
}
