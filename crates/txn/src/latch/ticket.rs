//! Tickets: how an operation waits for its turn.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use super::Latches;
use super::slot::SlotKey;

type Callback = Box<dyn FnOnce() + Send>;

/// A place in the queues, for an operation that could not take its names. Clones are the same place; it
/// is given up when the operation is done, on [`Ticket::cancel`], or when the last clone is dropped.
#[derive(Clone)]
pub struct Ticket(Arc<Handle>);

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("age", &self.0.state.age).finish_non_exhaustive()
    }
}

/// What clones share; the queues refer to the state only, so that its drop is noticed.
struct Handle {
    latches: Weak<Latches>,
    state: Arc<TicketState>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(latches) = self.latches.upgrade() {
            self.state.leave_all(&latches);
        }
    }
}

/// The part of a ticket that queues refer to.
pub(super) struct TicketState {
    /// Smaller is older.
    pub(super) age: u64,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    ready: bool,
    callback: Option<Callback>,
    blocked_on: Option<SlotKey>,
    places: Vec<SlotKey>,
}

impl Ticket {
    pub(super) fn new(latches: &Arc<Latches>, age: u64) -> Self {
        let state = TicketState { age, inner: Mutex::default(), changed: Condvar::new() };
        Self(Arc::new(Handle { latches: Arc::downgrade(latches), state: Arc::new(state) }))
    }

    pub(super) fn age(&self) -> u64 {
        self.0.state.age
    }

    pub(super) fn state(&self) -> &Arc<TicketState> {
        &self.0.state
    }

    /// Blocks until the operation is worth trying again. For callers that may block.
    pub fn wait(&self) {
        let mut inner = self.0.state.inner.lock();
        while !inner.ready {
            self.0.state.changed.wait(&mut inner);
        }
    }

    /// Whether the operation is worth trying again.
    pub fn is_ready(&self) -> bool {
        self.0.state.inner.lock().ready
    }

    /// Calls `callback` once when the operation is worth trying again: at once when it already is, else
    /// on the thread that releases the last name in the way. The callback must be short and must take no
    /// latches: let it queue the request. It replaces an earlier callback.
    pub fn on_ready(&self, callback: Callback) {
        let mut inner = self.0.state.inner.lock();
        if inner.ready {
            drop(inner);
            callback();
        } else {
            inner.callback = Some(callback);
        }
    }

    /// Gives up the place (INTERRUPT). A callback that has not been called is dropped uncalled; threads
    /// in [`Ticket::wait`] return.
    pub fn cancel(&self) {
        let callback = {
            let mut inner = self.0.state.inner.lock();
            inner.ready = true;
            self.0.state.changed.notify_all();
            inner.callback.take()
        };
        drop(callback);
        if let Some(latches) = self.0.latches.upgrade() {
            self.0.state.leave_all(&latches);
        }
    }
}

impl TicketState {
    /// Remembers the place that the operation now waits at. Called with the shard of `key` locked.
    pub(super) fn block_on(&self, key: SlotKey) {
        let mut inner = self.inner.lock();
        inner.ready = false;
        inner.blocked_on = Some(key);
        if !inner.places.contains(&key) {
            inner.places.push(key);
        }
    }

    pub(super) fn is_blocked_on(&self, key: SlotKey) -> bool {
        let inner = self.inner.lock();
        !inner.ready && inner.blocked_on == Some(key)
    }

    /// The way is free: wakes whoever waits. Called with no lock held.
    pub(super) fn fire(&self) {
        let callback = {
            let mut inner = self.inner.lock();
            inner.ready = true;
            self.changed.notify_all();
            inner.callback.take()
        };
        if let Some(callback) = callback {
            callback();
        }
    }

    /// Leaves every queue.
    pub(super) fn leave_all(self: &Arc<Self>, latches: &Latches) {
        let places = std::mem::take(&mut self.inner.lock().places);
        for key in places {
            latches.leave(self, key);
        }
    }
}
