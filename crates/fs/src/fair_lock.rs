//! A reader-writer lock for readers that never stop coming.
//!
//! Purpose: the writer (a commit, the end of a view) waits for the readers that are under way when it comes,
//! and for no later one. A reader may take the lock again on its own thread, which must not wait for a writer
//! that waits for it.
//!
//! Thread safety: a lock; a guard stays on its thread. Invariant: a thread that holds the lock for reading
//! must not ask to write.

use std::cell::RefCell;
use std::ops::Deref;

use kvfs_locks::{Class, RwLock, RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    /// Addresses of the locks that this thread holds for reading, once for each guard.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FairLock<T, C>(RwLock<T, C>);

/// Shared access until it is dropped.
#[must_use]
pub(crate) struct ReadGuard<'l, T, C: Class> {
    guard: RwLockReadGuard<'l, T, C>,
    address: usize,
}

impl<T, C: Class> FairLock<T, C> {
    pub(crate) fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Waits while a writer has the lock or waits for it, unless this thread holds the lock already.
    #[track_caller]
    pub(crate) fn read(&self) -> ReadGuard<'_, T, C> {
        let address = std::ptr::from_ref(self).addr();
        let is_nested = HELD.with_borrow(|held| held.contains(&address));
        let guard = if is_nested { self.0.read_recursive() } else { self.0.read() };
        HELD.with_borrow_mut(|held| held.push(address));
        ReadGuard { guard, address }
    }

    /// Waits for the readers that are under way.
    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T, C> {
        self.0.write()
    }

    /// `None`: it is held.
    #[track_caller]
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, C>> {
        self.0.try_write()
    }
}

impl<T, C: Class> Deref for ReadGuard<'_, T, C> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, C: Class> Drop for ReadGuard<'_, T, C> {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            if let Some(index) = held.iter().rposition(|address| *address == self.address) {
                held.swap_remove(index);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use kvfs_locks::class;

    use super::*;

    /// Waits until a new reader would have to wait: a writer is waiting.
    fn until_a_writer_waits(lock: &FairLock<u32, class::FsViewCommitPhase>) {
        while lock.0.try_read().is_some() {
            thread::yield_now();
        }
    }

    #[test]
    fn fair_lock_writer_waits_for_readers_under_way_only() {
        let lock = FairLock::<_, class::FsViewCommitPhase>::new(0);
        let (is_done, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            // At every moment one of them holds the lock: each lets go only when another one has it.
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Acquire) {
                        let guard = lock.read();
                        let seen = rounds.fetch_add(1, Ordering::AcqRel) + 1;
                        while *guard == 0 && rounds.load(Ordering::Acquire) == seen {
                            if lock.0.try_read().is_none() {
                                break;
                            }
                            thread::yield_now();
                        }
                    }
                });
            }
            while rounds.load(Ordering::Acquire) < 100 {
                thread::yield_now();
            }
            *lock.write() += 1;
            is_done.store(true, Ordering::Release);
        });
        assert_eq!(*lock.read(), 1);
    }

    #[test]
    fn fair_lock_nested_reader_passes_a_waiting_writer() {
        let lock = FairLock::<_, class::FsViewCommitPhase>::new(0);
        let outer = lock.read();
        thread::scope(|scope| {
            let writer = scope.spawn(|| *lock.write() += 1);
            until_a_writer_waits(&lock);
            let late = scope.spawn(|| *lock.read());
            assert_eq!(*lock.read(), 0, "the same thread has it already");
            drop(outer);
            writer.join().expect("writes");
            assert_eq!(late.join().expect("reads"), 1, "a reader that came later has waited for the writer");
        });
    }
}
