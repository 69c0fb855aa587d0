//! Median and extremes.
//!
//! Thread safety: plain values.

use serde::Serialize;

/// Median and extremes of some numbers, and the numbers.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    all: Vec<f64>,
}

impl Summary {
    /// `None` without numbers.
    pub(crate) fn of(all: Vec<f64>) -> Option<Self> {
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
