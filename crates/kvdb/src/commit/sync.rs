//! The primitives that the publisher waits on; tests put scheduled ones in their place.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_locks::Class;
pub(super) use kvfs_locks::{Mutex, MutexGuard};

/// How often a thread looks before it sleeps: some microseconds.
pub(super) const SPINS: u32 = 100;

/// A condition variable whose wait takes and returns the guard.
#[derive(Debug, Default)]
pub(super) struct Condvar(kvfs_locks::Condvar);

impl Condvar {
    #[track_caller]
    pub(super) fn wait<'a, T, C: Class>(&self, mut guard: MutexGuard<'a, T, C>) -> MutexGuard<'a, T, C> {
        self.0.wait(&mut guard);
        guard
    }

    pub(super) fn notify_all(&self) {
        self.0.notify_all();
    }
}
