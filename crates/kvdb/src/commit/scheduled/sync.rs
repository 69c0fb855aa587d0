//! What the publisher waits on, under shuttle's scheduler.

use std::marker::PhantomData;

pub(super) use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{LockResult, MutexGuard, PoisonError};

/// Both ways: seen at the first look, and not.
pub(super) const SPINS: u32 = 1;

fn ignore_poison<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(super) struct Mutex<T, C> {
    class: PhantomData<C>,
    inner: shuttle::sync::Mutex<T>,
}

impl<T, C> Mutex<T, C> {
    pub(super) fn new(value: T) -> Self {
        Self { class: PhantomData, inner: shuttle::sync::Mutex::new(value) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        ignore_poison(self.inner.lock())
    }
}

#[derive(Debug, Default)]
pub(super) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(super) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        ignore_poison(self.0.wait(guard))
    }

    pub(super) fn notify_all(&self) {
        self.0.notify_all();
    }
}
