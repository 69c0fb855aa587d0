//! The mutex of the tables; in tests a schedule can be given to it.
//!
//! Purpose: one place where the tables take their mutexes, so that a test decides which thread runs next at
//! each.
//!
//! Thread safety: a mutex. Invariants: production code uses the plain one.

#[cfg(not(test))]
pub(crate) use kvfs_locks::Mutex;
#[cfg(test)]
pub(crate) use scheduled::Mutex;

#[cfg(test)]
pub(crate) mod scheduled {
    //! A mutex that asks shuttle which thread runs next, when a test says so.

    use std::cell::Cell;
    use std::marker::PhantomData;

    use parking_lot::MutexGuard;

    thread_local! {
        /// Set on the one system thread that runs all threads of a schedule.
        static IN_SCHEDULE: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `test` with every lock a point where threads may change.
    pub(crate) fn with_schedules(test: impl FnOnce()) {
        IN_SCHEDULE.set(true);
        test();
        IN_SCHEDULE.set(false);
    }

    #[derive(Debug)]
    pub(crate) struct Mutex<T, C> {
        class: PhantomData<fn() -> C>,
        inner: parking_lot::Mutex<T>,
    }

    impl<T: Default, C> Default for Mutex<T, C> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T, C> Mutex<T, C> {
        pub(crate) fn new(value: T) -> Self {
            Self { class: PhantomData, inner: parking_lot::Mutex::new(value) }
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            if !IN_SCHEDULE.get() {
                return self.inner.lock();
            }
            loop {
                shuttle::thread::yield_now();
                if let Some(guard) = self.inner.try_lock() {
                    return guard;
                }
            }
        }
    }
}
