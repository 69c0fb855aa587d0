//! Counts the writers inside a memtable, so that a sealed one can be flushed when they are out.

use std::sync::atomic::{AtomicUsize, Ordering};

use kvfs_locks::{Condvar, Mutex, class};

/// Number of writers inside.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    count: AtomicUsize,
    lock: Mutex<(), class::KvdbMemtableWritersLock>,
    quiescent: Condvar,
}

/// One writer inside a memtable; leaves on drop.
#[derive(Debug)]
#[must_use = "the writer leaves when this is dropped"]
pub(crate) struct WriteGuard<'a>(&'a Writers);

impl Writers {
    /// One more writer is inside.
    pub(crate) fn enter(&self) -> WriteGuard<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        WriteGuard(self)
    }

    /// Waits until no writer is inside. Pairs with the release in the drop of the last guard, so all
    /// that the writers did is visible afterwards.
    pub(crate) fn wait_quiescent(&self) {
        let mut lock = self.lock.lock();
        while self.count.load(Ordering::Acquire) != 0 {
            self.quiescent.wait(&mut lock);
        }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Release) == 1 {
            // Taking the lock closes the gap between a waiter's look at the count and its wait.
            drop(self.0.lock.lock());
            self.0.quiescent.notify_all();
        }
    }
}
