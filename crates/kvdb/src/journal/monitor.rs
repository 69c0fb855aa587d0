//! A lock with a condition, as a seam: group commit runs over `parking_lot` in production, and over a
//! scheduler that explores interleavings in tests.

use std::ops::DerefMut;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// A mutex over `T` with one condition variable.
pub(super) trait Monitor<T>: Send + Sync {
    /// Proof that the lock is held.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;

    fn new(value: T) -> Self;
    fn lock(&self) -> Self::Guard<'_>;
    /// Unlocks, waits for a notification (or for nothing), and locks again.
    fn wait<'a>(&'a self, guard: Self::Guard<'a>) -> Self::Guard<'a>;
    fn notify_all(&self);
}

/// The monitor of production.
pub(super) struct Parking<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T: Send> Monitor<T> for Parking<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    fn wait<'a>(&'a self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed.wait(&mut guard);
        guard
    }

    fn notify_all(&self) {
        self.changed.notify_all();
    }
}
