//! Wake-ups between writers and background threads.
//!
//! Thread safety: shared. Invariant: an event counts its notifications, so a thread that reads the count,
//! looks for work, finds none, and waits for a notification after that count misses none.

use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};

/// Something that can be waited for.
#[derive(Default)]
pub(crate) struct Event {
    notified: Mutex<u64, class::KvdbRuntimeEventNotified>,
    changed: Condvar,
}

impl Event {
    /// Wakes all threads that wait.
    pub(crate) fn notify(&self) {
        *self.notified.lock() += 1;
        self.changed.notify_all();
    }

    /// Notifications so far: to be read before looking for work, and then waited after.
    pub(crate) fn count(&self) -> u64 {
        *self.notified.lock()
    }

    /// Returns at the next notification, or when `time_max` has passed.
    pub(crate) fn wait(&self, time_max: Duration) {
        self.wait_after(self.count(), time_max);
    }

    /// Returns at the first notification after number `seen`, or when `time_max` has passed.
    pub(crate) fn wait_after(&self, seen: u64, time_max: Duration) {
        let mut notified = self.notified.lock();
        if *notified == seen {
            self.changed.wait_for(&mut notified, time_max);
        }
    }
}
