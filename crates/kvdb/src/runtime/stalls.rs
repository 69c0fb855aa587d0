//! How long writers were held back: a histogram over writes, in powers of two.
//!
//! Thread safety: relaxed atomics, which order nothing. A write that is not held back touches none of this,
//! and reads no clock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bucket n holds stalls below 2ⁿ ms that the buckets before don't; the last one all that are longer.
const BUCKETS: usize = 14;

/// Stalls of all writes since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    buckets: [AtomicU64; BUCKETS],
    us: AtomicU64,
    us_max: AtomicU64,
}

/// How long one write has been held back so far.
#[derive(Debug, Default)]
pub(crate) struct StallTimer(Duration);

impl StallTimer {
    /// The write has waited so long once more.
    pub(crate) fn add(&mut self, stall: Duration) {
        self.0 += stall;
    }
}

impl Stalls {
    /// A write is over that has been held back so long, if at all.
    pub(crate) fn note(&self, held: &StallTimer) {
        if !held.0.is_zero() {
            self.note_stall(held.0);
        }
    }

    fn note_stall(&self, stall: Duration) {
        let us = stall.as_micros() as u64;
        self.buckets[bucket(us)].fetch_add(1, Relaxed);
        self.us.fetch_add(us, Relaxed);
        self.us_max.fetch_max(us, Relaxed);
    }

    /// Names and values; empty buckets are left out.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let filled = counts.enumerate().filter(|&(_, count)| count > 0);
        let mut list: Vec<_> = filled.map(|(bucket, count)| (name(bucket), count)).collect();
        list.push(("write.stalls".to_owned(), list.iter().map(|(_, count)| count).sum()));
        list.push(("write.stall_us".to_owned(), self.us.load(Relaxed)));
        list.push(("write.stall_us_max".to_owned(), self.us_max.load(Relaxed)));
        list
    }
}

/// The number of the bucket for a stall of so many microseconds.
fn bucket(us: u64) -> usize {
    let ms = us / 1000;
    ((u64::BITS - ms.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// The bucket's bound, padded so that names are ordered as numbers.
fn name(bucket: usize) -> String {
    if bucket == BUCKETS - 1 {
        format!("write.stalls_ms.from_{:04}", 1 << (bucket - 1))
    } else {
        format!("write.stalls_ms.below_{:04}", 1 << bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double_and_sort_as_numbers() {
        let in_bucket = |us| name(bucket(us));
        assert_eq!(in_bucket(1), "write.stalls_ms.below_0001");
        assert_eq!(in_bucket(999), "write.stalls_ms.below_0001");
        assert_eq!(in_bucket(1000), "write.stalls_ms.below_0002");
        assert_eq!(in_bucket(199_999), "write.stalls_ms.below_0256");
        assert_eq!(in_bucket(4_095_999), "write.stalls_ms.below_4096");
        assert_eq!(in_bucket(4_096_000), "write.stalls_ms.from_4096");
        assert_eq!(in_bucket(u64::MAX), "write.stalls_ms.from_4096");
        let names: Vec<_> = (0..BUCKETS).map(name).collect();
        assert!(names.is_sorted());
    }

    #[test]
    fn the_list_has_counts_sum_and_maximum() {
        let stalls = Stalls::default();
        for ms in [3, 3, 100] {
            stalls.note_stall(Duration::from_millis(ms));
        }
        let list = stalls.list();
        let expected = [
            ("write.stalls_ms.below_0004", 2),
            ("write.stalls_ms.below_0128", 1),
            ("write.stalls", 3),
            ("write.stall_us", 106_000),
            ("write.stall_us_max", 100_000),
        ];
        assert_eq!(list, expected.map(|(name, value)| (name.to_owned(), value)));
    }
}
