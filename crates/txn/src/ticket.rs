//! Tickets: how an operation waits for its turn, at latches and at locks.
//!
//! Thread safety: all methods are `&self`. A ticket's mutex is the innermost: nothing is locked under it.
//!
//! Invariants: a ticket is blocked at one place at a time. It keeps its places in all queues that it joined
//! until its operation is done, save that it gives up those at latches when it is blocked at a lock: a waiter
//! for a latch waits for operations that go on, never for a transaction. Its age stays, so it rejoins where
//! it was.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use kvfs_locks::{Condvar, Mutex, class};

use crate::object::ObjectKey;

type Callback = Box<dyn FnOnce() + Send>;

/// Which table a place is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Latches,
    Locks,
}

/// A table that has queues.
pub(crate) trait Queues: Send + Sync {
    /// Gives up the places of `ticket` under `keys`, and whatever else is kept of it.
    fn leave(&self, ticket: &Arc<TicketState>, keys: &[ObjectKey]);
}

/// A place in the queues, for an operation that could not take its names. Clones are the same place; it
/// is given up when the operation is done, on [`Ticket::cancel`], or when the last clone is dropped.
#[derive(Clone)]
pub struct Ticket(Arc<Handle>);

impl PartialEq for Ticket {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Ticket {}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("age", &self.0.state.age).finish_non_exhaustive()
    }
}

/// What clones share; the queues refer to the state only, so that its drop is noticed.
struct Handle {
    state: Arc<TicketState>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.state.leave_all();
    }
}

/// The part of a ticket that queues refer to.
pub(crate) struct TicketState {
    /// Smaller is older. Unique.
    pub(crate) age: u64,
    latches: Weak<dyn Queues>,
    locks: OnceLock<Weak<dyn Queues>>,
    /// Waiters before it no longer count in the lock table: it would be a deadlock to wait for them.
    passes_queues: AtomicBool,
    /// The operation was stopped at one of its guards, and has not been tried again yet.
    parked: AtomicBool,
    inner: Mutex<Inner, class::TxnTicketInner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    ready: bool,
    callback: Option<Callback>,
    blocked_on: Option<(Table, ObjectKey)>,
    places: Vec<(Table, ObjectKey)>,
}

impl Ticket {
    pub(crate) fn new(latches: Weak<dyn Queues>, age: u64) -> Self {
        let state = TicketState {
            age,
            latches,
            locks: OnceLock::new(),
            passes_queues: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            inner: Mutex::default(),
            changed: Condvar::new(),
        };
        Self(Arc::new(Handle { state: Arc::new(state) }))
    }

    pub(crate) fn age(&self) -> u64 {
        self.0.state.age
    }

    pub(crate) fn state(&self) -> &Arc<TicketState> {
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
        self.0.state.leave_all();
    }
}

impl TicketState {
    /// Remembers the place that the operation now waits at. The caller must hold the lock of `key`'s shard.
    pub(crate) fn block_on(&self, table: Table, key: ObjectKey) {
        let mut inner = self.inner.lock();
        inner.ready = false;
        inner.blocked_on = Some((table, key));
        if !inner.places.contains(&(table, key)) {
            inner.places.push((table, key));
        }
    }

    /// Tells the ticket where the queues of locks are.
    pub(crate) fn joins(&self, locks: impl FnOnce() -> Weak<dyn Queues>) {
        let _ = self.locks.get_or_init(locks);
    }

    pub(crate) fn is_blocked_on(&self, table: Table, key: ObjectKey) -> bool {
        let inner = self.inner.lock();
        !inner.ready && inner.blocked_on == Some((table, key))
    }

    pub(crate) fn passes_queues(&self) -> bool {
        self.passes_queues.load(Ordering::Relaxed)
    }

    /// The operation is stopped: it keeps its places until it is tried again.
    pub(crate) fn park(&self) {
        self.parked.store(true, Ordering::Relaxed);
    }

    /// The operation is tried again.
    pub(crate) fn go_on(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    pub(crate) fn pass_queues(&self) {
        self.passes_queues.store(true, Ordering::Relaxed);
    }

    /// The way is free: wakes the waiter. The caller must hold no lock.
    pub(crate) fn fire(&self) {
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

    /// The places in queues of one table, which the caller gives up.
    pub(crate) fn take_places(&self, table: Table) -> Vec<ObjectKey> {
        let mut inner = self.inner.lock();
        let taken = inner.places.iter().filter(|place| place.0 == table).map(|place| place.1).collect();
        inner.places.retain(|place| place.0 != table);
        taken
    }

    /// Leaves every queue.
    pub(crate) fn leave_all(self: &Arc<Self>) {
        self.leave(Table::Latches);
        self.leave(Table::Locks);
    }

    /// Leaves the queues of one table.
    pub(crate) fn leave(self: &Arc<Self>, table: Table) {
        let queues = match table {
            Table::Latches => Some(&self.latches),
            Table::Locks => self.locks.get(),
        };
        let keys = self.take_places(table);
        if !keys.is_empty()
            && let Some(queues) = queues.and_then(Weak::upgrade)
        {
            queues.leave(self, &keys);
        }
    }
}
