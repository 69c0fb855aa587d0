//! A lock with a condition as a seam: group commit runs over the standard library's in production, and over a
//! scheduler that explores interleavings in tests.

use std::ops::DerefMut;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::gate::{Gate, Pass};

/// A mutex over `T` with one condition variable.
pub(super) trait Monitor<T>: Send + Sync {
    /// Proof that the lock is held.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;

    fn new(value: T) -> Self;
    fn lock(&self) -> Self::Guard<'_>;
    /// Whether a thread has panicked with the lock.
    fn is_poisoned(&self) -> bool;
    /// Unlocks, waits for a notification (or for nothing), and locks again.
    fn wait<'a>(&'a self, guard: Self::Guard<'a>) -> Self::Guard<'a>;
    /// As [`Self::wait`], for so much time; says whether that is over.
    fn wait_at_most<'a>(&'a self, guard: Self::Guard<'a>, time: Duration) -> (Self::Guard<'a>, bool);
    fn notify_one(&self);
    fn notify_all(&self);
    /// A new gate over a monitor of this kind.
    fn gate() -> Arc<dyn Gate>;
}

/// The monitor of production. Its `notify_all` wakes all threads by one call; that of `parking_lot` wakes
/// one, and each wakes the next.
pub(super) struct Waking<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T: Send> Monitor<T> for Waking<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_poisoned(&self) -> bool {
        self.value.is_poisoned()
    }

    fn wait<'a>(&'a self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_at_most<'a>(&'a self, guard: MutexGuard<'a, T>, time: Duration) -> (MutexGuard<'a, T>, bool) {
        let (guard, timeout) = self.changed.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
        (guard, timeout.timed_out())
    }

    fn notify_one(&self) {
        self.changed.notify_one();
    }

    fn notify_all(&self) {
        self.changed.notify_all();
    }

    fn gate() -> Arc<dyn Gate> {
        Arc::new(Waking::<Pass>::new(Pass::default()))
    }
}
