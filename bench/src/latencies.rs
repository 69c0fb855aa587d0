//! How long single calls take.
//!
//! Thread safety: plain values.

use std::time::{Duration, Instant};

/// Of one kind of call.
#[derive(Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Times a call.
    pub fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.0.push(start.elapsed());
        result
    }

    /// The longest (seconds).
    pub fn max(&self) -> f64 {
        self.0.iter().max().map_or(0.0, Duration::as_secs_f64)
    }

    /// Adds one that was timed elsewhere.
    pub fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Adds all of another.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// What so many of a thousand stay below (seconds).
    pub fn below(&mut self, of_thousand: usize) -> f64 {
        self.0.sort_unstable();
        self.0.get(self.0.len() * of_thousand / 1000).map_or(0.0, Duration::as_secs_f64)
    }

    /// How many took longer than so long.
    pub fn longer_than(&self, limit: Duration) -> usize {
        self.0.iter().filter(|took| **took > limit).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_all_but_one_of_a_thousand() {
        let mut latencies = Latencies((1..=2000).map(Duration::from_millis).collect());
        assert!((latencies.max() - 2.0).abs() < 1e-9);
        assert!((latencies.below(999) - 1.999).abs() < 1e-9);
        assert_eq!(latencies.longer_than(Duration::from_millis(1990)), 10);
        assert!(Latencies::default().max() < 1e-9);
    }
}
