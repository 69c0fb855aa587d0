//! Wake-ups between writers and background threads.
//!
//! A bell counts its rings, so that one who looked for work, found none, and then waits for the next
//! ring after the one he saw first, never misses any.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Something that can be waited for.
#[derive(Default)]
pub(crate) struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    /// Wakes everybody who waits.
    pub(crate) fn ring(&self) {
        *self.rings.lock() += 1;
        self.rung.notify_all();
    }

    /// Rings so far: look at this, then for work, then wait.
    pub(crate) fn rings(&self) -> u64 {
        *self.rings.lock()
    }

    /// Returns at the next ring, or when `time_max` has passed.
    pub(crate) fn wait(&self, time_max: Duration) {
        self.wait_after(self.rings(), time_max);
    }

    /// Returns at the first ring after number `seen`, or when `time_max` has passed.
    pub(crate) fn wait_after(&self, seen: u64, time_max: Duration) {
        let mut rings = self.rings.lock();
        if *rings == seen {
            self.rung.wait_for(&mut rings, time_max);
        }
    }
}
