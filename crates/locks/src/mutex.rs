//! A mutex of a class.
//!
//! Thread safety: it is a mutex; a guard stays on its thread.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use crate::class::Class;
use crate::held::{Hold, Mode, Wait, check};

/// As `parking_lot::Mutex`, of class `C`.
pub struct Mutex<T, C> {
    class: PhantomData<fn() -> C>,
    inner: parking_lot::Mutex<T>,
}

/// The lock is held until this is dropped.
#[must_use]
pub struct MutexGuard<'l, T, C: Class> {
    // Dropped first: what is free must not look held.
    hold: Hold,
    class: PhantomData<fn() -> C>,
    inner: parking_lot::MutexGuard<'l, T>,
}

impl<T, C: Class> Mutex<T, C> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self { class: PhantomData, inner: parking_lot::Mutex::new(value) }
    }

    /// Waits until the lock is free.
    ///
    /// # Panics
    /// In debug builds if the thread holds a lock of this or a later class.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, C> {
        let at = Location::caller();
        check::<C>(address(&self.inner), at);
        let inner = self.inner.try_lock().unwrap_or_else(|| self.wait(at));
        MutexGuard::new(inner, at)
    }

    /// `None`: it is held. Waits for nothing, so it may be asked for out of order.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, C>> {
        let at = Location::caller();
        self.inner.try_lock().map(|inner| MutexGuard::new(inner, at))
    }

    /// What it protects, without a lock: there is no other reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// What it protected.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    #[cold]
    fn wait(&self, at: &'static Location<'static>) -> parking_lot::MutexGuard<'_, T> {
        let _wait = Wait::begin::<C>(address(&self.inner), Mode::Exclusive, at);
        self.inner.lock()
    }
}

fn address<T>(lock: &parking_lot::Mutex<T>) -> usize {
    std::ptr::from_ref(lock).addr()
}

impl<'l, T, C: Class> MutexGuard<'l, T, C> {
    #[inline]
    fn new(inner: parking_lot::MutexGuard<'l, T>, at: &'static Location<'static>) -> Self {
        let address = address(parking_lot::MutexGuard::mutex(&inner));
        Self { hold: Hold::begin::<C>(address, Mode::Exclusive, at), class: PhantomData, inner }
    }

    /// Runs `call` while the lock is free, and waits for it again.
    ///
    /// # Panics
    /// In debug builds if the thread holds a lock of this or a later class.
    #[track_caller]
    pub fn unlocked<R>(guard: &mut Self, call: impl FnOnce() -> R) -> R {
        Self::paused(guard, |inner| parking_lot::MutexGuard::unlocked(inner, call))
    }

    /// Runs `call`, which lets go of the lock and takes it again: under what else the thread holds, as if it
    /// had been free.
    #[track_caller]
    pub(crate) fn paused<R>(
        guard: &mut Self,
        call: impl FnOnce(&mut parking_lot::MutexGuard<'l, T>) -> R,
    ) -> R {
        let at = Location::caller();
        let address = address(parking_lot::MutexGuard::mutex(&guard.inner));
        guard.hold.end();
        check::<C>(address, at);
        let result = call(&mut guard.inner);
        guard.hold = Hold::begin::<C>(address, Mode::Exclusive, at);
        result
    }
}

impl<T: Default, C: Class> Default for Mutex<T, C> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, C> fmt::Debug for Mutex<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T, C: Class> Deref for MutexGuard<'_, T, C> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, C: Class> DerefMut for MutexGuard<'_, T, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug, C: Class> fmt::Debug for MutexGuard<'_, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
