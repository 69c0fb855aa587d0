//! Requests that wait, and interrupts.
//!
//! Purpose: the thread that removes a parked request from the registry has the right to answer it, so an
//! interrupt and the end of the wait can meet in any order. An interrupt that comes for a request which isn't
//! parked (it runs, it is about to park, or it is answered already) is remembered; when the memory overflows,
//! the oldest is handed back to the kernel, which sends it again if its request still runs. Thread safety:
//! one short mutex, held for map operations only.

use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_locks::{Mutex, class};
use rustix::io::Errno;

use super::payload::Payload;
use super::reply::{Reply, Slot};

/// Interrupts that are remembered for requests that aren't parked.
const EARLY_MAX: usize = 256;

/// Why a request can't be parked. It has been answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParkError {
    /// Its caller was interrupted.
    #[error("the request was interrupted before it could wait")]
    Interrupted,
    /// Too many requests wait already.
    #[error("too many requests wait; the limit is SessionConfig::parked_max")]
    Full,
    /// The connection ended.
    #[error("the connection has ended")]
    Ended,
}

impl ParkError {
    pub(super) fn errno(self) -> Errno {
        match self {
            Self::Interrupted => Errno::INTR,
            Self::Full => Errno::AGAIN,
            Self::Ended => Errno::NODEV,
        }
    }
}

type Cancel = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    parked: HashMap<u64, (Slot, Cancel)>,
    early: VecDeque<u64>,
}

/// The parked requests of a session.
pub(crate) struct Registry {
    state: Mutex<State, class::FuseDispatchParkState>,
    parked_max: usize,
    ended: AtomicBool,
}

impl Registry {
    pub(crate) fn new(parked_max: usize) -> Self {
        Self { state: Mutex::default(), parked_max, ended: AtomicBool::new(false) }
    }

    pub(super) fn insert(&self, slot: Slot, cancel: Cancel) -> Result<(), (Slot, ParkError)> {
        let mut state = self.state.lock();
        if self.has_ended() {
            return Err((slot, ParkError::Ended));
        }
        if let Some(index) = state.early.iter().position(|&unique| unique == slot.unique()) {
            state.early.remove(index);
            return Err((slot, ParkError::Interrupted));
        }
        if state.parked.len() >= self.parked_max {
            return Err((slot, ParkError::Full));
        }
        let unique = slot.unique();
        state.parked.insert(unique, (slot, cancel));
        Ok(())
    }

    fn remove(&self, unique: u64) -> Option<(Slot, Cancel)> {
        self.state.lock().parked.remove(&unique)
    }

    /// The caller of `unique` wants it no more. Returns an interrupt to be handed back to the kernel.
    pub(crate) fn interrupt(&self, unique: u64) -> Option<u64> {
        let mut state = self.state.lock();
        if let Some((slot, cancel)) = state.parked.remove(&unique) {
            drop(state);
            cancel();
            slot.error(Errno::INTR);
            return None;
        }
        state.early.push_back(unique);
        if state.early.len() > EARLY_MAX { state.early.pop_front() } else { None }
    }

    /// Whether the caller of `unique`, which is not parked, wants it no more.
    pub(super) fn is_interrupted(&self, unique: u64) -> bool {
        self.has_ended() || self.state.lock().early.contains(&unique)
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The connection has ended: cancels whatever still waits.
    pub(crate) fn end(&self) {
        let parked = {
            let mut state = self.state.lock();
            self.ended.store(true, Ordering::Relaxed);
            std::mem::take(&mut state.parked)
        };
        for (slot, cancel) in parked.into_values() {
            cancel();
            slot.error(Errno::NODEV);
        }
    }

    /// Number of parked requests.
    pub(crate) fn parked_count(&self) -> usize {
        self.state.lock().parked.len()
    }
}

/// A request that waits. Dropped without [`Parked::resume`], it answers EIO.
#[must_use = "a dropped parked request answers EIO"]
pub struct Parked<T: Payload> {
    registry: Option<Arc<Registry>>,
    unique: u64,
    answer: PhantomData<fn(T)>,
}

impl<T: Payload> Parked<T> {
    pub(super) fn new(registry: Arc<Registry>, unique: u64) -> Self {
        Self { registry: Some(registry), unique, answer: PhantomData }
    }

    /// Ends the wait: the duty to answer, or `None` when an interrupt was faster (it answered).
    pub fn resume(mut self) -> Option<Reply<T>> {
        let (slot, _cancel) = self.registry.take()?.remove(self.unique)?;
        Some(Reply::from_slot(slot))
    }
}

impl<T: Payload> Drop for Parked<T> {
    fn drop(&mut self) {
        if let Some((slot, _cancel)) = self.registry.take().and_then(|registry| registry.remove(self.unique))
        {
            drop(Reply::<T>::from_slot(slot));
        }
    }
}
