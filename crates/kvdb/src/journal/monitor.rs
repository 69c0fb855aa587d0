//! A lock with a condition, and signals to single threads, as a seam: group commit runs over `parking_lot` in
//! production, and over a scheduler that explores interleavings in tests.

use std::ops::DerefMut;
use std::sync::Arc;

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
    /// A signal for one thread, which waits for it without the lock.
    fn signal() -> Arc<dyn Signal>;
}

/// Given once, to one thread. A thread that waits for its own signal need not take the lock of all others
/// after it has been woken, one after the other.
pub(super) trait Signal: Send + Sync {
    /// Returns when the signal was given, and what with it.
    fn wait(&self) -> Wake;
    fn give(&self, wake: Wake);
}

/// Why a thread is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// What it waits for has happened.
    Done,
    /// It should look again.
    Look,
}

#[derive(Default)]
struct ParkingSignal {
    wake: Mutex<Option<Wake>>,
    given: Condvar,
}

impl Signal for ParkingSignal {
    fn wait(&self) -> Wake {
        let mut wake = self.wake.lock();
        loop {
            if let Some(wake) = *wake {
                return wake;
            }
            self.given.wait(&mut wake);
        }
    }

    fn give(&self, wake: Wake) {
        *self.wake.lock() = Some(wake);
        self.given.notify_one();
    }
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

    fn signal() -> Arc<dyn Signal> {
        Arc::new(ParkingSignal::default())
    }
}
