//! A rate that several threads keep together: each takes its turn on one time line.
//!
//! Pure arithmetic over times that the caller reads from its clock; no lock.

use std::time::Duration;

/// Up to when the rate has been used.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter {
    taken_until: Duration,
}

impl RateLimiter {
    /// Takes `cost` at the time `now`, and returns how long the caller has to wait for it. Time that was not
    /// taken can be made up for, up to `burst` of it. No caller waits longer than `wait_max`: what is beyond
    /// is forgiven.
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

/// What so many bytes cost at a rate above 0.
pub(crate) fn cost_of(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::try_from_secs_f64(bytes as f64 / bytes_per_second as f64).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn callers_that_come_together_wait_one_behind_the_other() {
        let mut line = RateLimiter::default();
        let now = 1000 * MS;
        let mut take = |now| line.take(now, 10 * MS, Duration::ZERO, 100 * MS);
        assert_eq!([take(now), take(now), take(now)], [10 * MS, 20 * MS, 30 * MS]);
        assert_eq!(take(now + 25 * MS), 15 * MS);
        assert_eq!(take(now + 500 * MS), 10 * MS, "what was not used is gone");
    }

    #[test]
    fn unused_time_is_made_up_for_within_bounds() {
        let mut line = RateLimiter::default();
        let mut take = |now: u32| line.take(now * MS, 10 * MS, 25 * MS, Duration::MAX);
        assert_eq!([take(1000), take(1000), take(1000)], [Duration::ZERO, Duration::ZERO, 5 * MS]);
    }

    #[test]
    fn a_wait_is_bounded_and_the_rest_forgiven() {
        let mut line = RateLimiter::default();
        let now = 1000 * MS;
        let mut take = |now, cost| line.take(now, cost, Duration::ZERO, 100 * MS);
        assert_eq!(take(now, Duration::MAX), 100 * MS);
        assert_eq!(take(now, MS), 100 * MS);
        assert_eq!(take(now + 100 * MS, MS), MS);
    }
}
