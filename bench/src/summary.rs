//! Median and extremes.
//!
//! Thread safety: plain values.

use serde::{Deserialize, Serialize};

/// Median and extremes of some numbers, and the numbers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// Middle one, or the mean of the two in the middle.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    all: Vec<f64>,
}

impl Summary {
    /// `None` without numbers.
    pub fn of(all: Vec<f64>) -> Option<Self> {
        let mut sorted = all.clone();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max, all })
    }
}
