//! A figure that goes up and down, and the most that it was.
//!
//! Thread safety: lock-free. The parts of one change arrive one by one, so a gauge may be below zero for a
//! moment: it then reads as zero, and is right when all changes have arrived.

use std::sync::atomic::{AtomicI64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    now: AtomicI64,
    peak: AtomicI64,
}

impl Gauge {
    #[inline]
    pub(super) fn add(&self, change: i64) {
        let now = self.now.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        if change > 0 {
            raise(&self.peak, now);
        }
    }

    pub(super) fn now(&self) -> u64 {
        read(&self.now)
    }

    pub(super) fn peak(&self) -> u64 {
        read(&self.peak)
    }
}

/// A peak is no less than that.
#[inline]
pub(super) fn raise(peak: &AtomicI64, now: i64) {
    if now > peak.load(Ordering::Relaxed) {
        peak.fetch_max(now, Ordering::Relaxed);
    }
}

/// What it is; zero while it is less.
pub(super) fn read(figure: &AtomicI64) -> u64 {
    figure.load(Ordering::Relaxed).try_into().unwrap_or(0)
}
