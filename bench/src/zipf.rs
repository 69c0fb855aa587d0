//! Popularity as it is found in many places: the n-th most popular is asked for 1/n^0.99 times as often as
//! the first.
//!
//! Thread safety: plain data.

use kvfs_device::Rng;

/// As in YCSB.
const EXPONENT: f64 = 0.99;

/// Draws ranks by a table of the sums of their weights.
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// Of so many ranks.
    pub fn new(count: usize) -> Self {
        let mut sum = 0.0;
        let weight = |rank: usize| {
            sum += 1.0 / (rank as f64).powf(EXPONENT);
            sum
        };
        Self((1..=count).map(weight).collect())
    }

    /// A rank, from 0.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let most = self.0.last().copied().unwrap_or(0.0);
        let at = rng.next_u64() as f64 / u64::MAX as f64 * most;
        self.0.partition_point(|&sum| sum < at).min(self.0.len() - 1)
    }
}
