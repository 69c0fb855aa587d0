//! A reader-writer lock of a class.
//!
//! Thread safety: it is a lock; a guard stays on its thread.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use crate::class::Class;
use crate::held::{Hold, Mode, Wait, check};

/// As `parking_lot::RwLock`, of class `C`.
pub struct RwLock<T, C> {
    class: PhantomData<fn() -> C>,
    inner: parking_lot::RwLock<T>,
}

/// The lock is held for reading until this is dropped.
#[must_use]
pub struct RwLockReadGuard<'l, T, C: Class> {
    // Dropped first: what is free must not look held.
    _hold: Hold,
    class: PhantomData<fn() -> C>,
    inner: parking_lot::RwLockReadGuard<'l, T>,
}

/// The lock is held for writing until this is dropped.
#[must_use]
pub struct RwLockWriteGuard<'l, T, C: Class> {
    // Dropped first: what is free must not look held.
    _hold: Hold,
    class: PhantomData<fn() -> C>,
    inner: parking_lot::RwLockWriteGuard<'l, T>,
}

impl<T, C: Class> RwLock<T, C> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self { class: PhantomData, inner: parking_lot::RwLock::new(value) }
    }

    /// Waits until no writer has the lock or waits for it.
    ///
    /// # Panics
    /// In debug builds if the thread holds a lock of this or a later class.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T, C> {
        let at = Location::caller();
        check::<C>(self.address(), at);
        let wait = || self.wait(Mode::Shared, at, || self.inner.read());
        self.reader(self.inner.try_read().unwrap_or_else(wait), at)
    }

    /// Waits until no writer has the lock, past those that wait: for a thread that has it already.
    #[inline]
    #[track_caller]
    pub fn read_recursive(&self) -> RwLockReadGuard<'_, T, C> {
        let at = Location::caller();
        let wait = || self.wait(Mode::Shared, at, || self.inner.read_recursive());
        self.reader(self.inner.try_read_recursive().unwrap_or_else(wait), at)
    }

    /// Waits until the lock is free.
    ///
    /// # Panics
    /// In debug builds if the thread holds a lock of this or a later class.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, C> {
        let at = Location::caller();
        check::<C>(self.address(), at);
        let wait = || self.wait(Mode::Exclusive, at, || self.inner.write());
        self.writer(self.inner.try_write().unwrap_or_else(wait), at)
    }

    /// `None`: a writer has it or waits for it. Waits for nothing, so it may be asked for out of order.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, C>> {
        let at = Location::caller();
        self.inner.try_read().map(|inner| self.reader(inner, at))
    }

    /// `None`: it is held. Waits for nothing, so it may be asked for out of order.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, C>> {
        let at = Location::caller();
        self.inner.try_write().map(|inner| self.writer(inner, at))
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
    fn wait<G>(&self, mode: Mode, at: &'static Location<'static>, take: impl FnOnce() -> G) -> G {
        let _wait = Wait::begin::<C>(self.address(), mode, at);
        take()
    }

    #[inline]
    fn reader<'l>(
        &self,
        inner: parking_lot::RwLockReadGuard<'l, T>,
        at: &'static Location<'static>,
    ) -> RwLockReadGuard<'l, T, C> {
        let hold = Hold::begin::<C>(self.address(), Mode::Shared, at);
        RwLockReadGuard { _hold: hold, class: PhantomData, inner }
    }

    #[inline]
    fn writer<'l>(
        &self,
        inner: parking_lot::RwLockWriteGuard<'l, T>,
        at: &'static Location<'static>,
    ) -> RwLockWriteGuard<'l, T, C> {
        let hold = Hold::begin::<C>(self.address(), Mode::Exclusive, at);
        RwLockWriteGuard { _hold: hold, class: PhantomData, inner }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(&self.inner).addr()
    }
}

impl<T: Default, C: Class> Default for RwLock<T, C> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, C> fmt::Debug for RwLock<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T, C: Class> Deref for RwLockReadGuard<'_, T, C> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, C: Class> Deref for RwLockWriteGuard<'_, T, C> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, C: Class> DerefMut for RwLockWriteGuard<'_, T, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
