//! A condition variable for mutexes of any class.
//!
//! Thread safety: it is shared. Invariant: while a thread waits, it does not count as a holder of the mutex.

use std::time::Duration;

use parking_lot::WaitTimeoutResult;

use crate::class::Class;
use crate::mutex::MutexGuard;

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// One that has no waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Lets go of the lock, waits for a notification (or for nothing), and takes it again.
    #[track_caller]
    pub fn wait<T, C: Class>(&self, guard: &mut MutexGuard<'_, T, C>) {
        MutexGuard::paused(guard, |inner| self.0.wait(inner));
    }

    /// As [`Self::wait`], for so much time at most.
    #[track_caller]
    pub fn wait_for<T, C: Class>(
        &self,
        guard: &mut MutexGuard<'_, T, C>,
        time: Duration,
    ) -> WaitTimeoutResult {
        MutexGuard::paused(guard, |inner| self.0.wait_for(inner, time))
    }

    /// Waits as long as `condition` holds.
    #[track_caller]
    pub fn wait_while<T, C: Class>(
        &self,
        guard: &mut MutexGuard<'_, T, C>,
        condition: impl FnMut(&mut T) -> bool,
    ) {
        MutexGuard::paused(guard, |inner| self.0.wait_while(inner, condition));
    }

    /// As [`Self::wait_while`], for so much time at most.
    #[track_caller]
    pub fn wait_while_for<T, C: Class>(
        &self,
        guard: &mut MutexGuard<'_, T, C>,
        condition: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) -> WaitTimeoutResult {
        MutexGuard::paused(guard, |inner| self.0.wait_while_for(inner, condition, time))
    }

    /// Wakes one waiter; says whether there was one.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    /// Wakes all waiters; says how many.
    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}
