//! Latches: short locks on logical names, for operations that plan, take all names, and apply one batch.
//!
//! Purpose: [`Latches::try_acquire`] takes every name of an operation or none. An operation that can't
//! have its names gets a [`Ticket`], gives up everything, and is called again when the ticket is ready.
//!
//! Thread safety: all methods are `&self`. Locks inside are taken in the order shard, then ticket; no two
//! shards are locked at once; callbacks run with none of them held.
//!
//! Invariants:
//! * A holder never waits while it holds, so there is no deadlock.
//! * A ticket keeps its place in every queue that it joined until its operation is done, and places are
//!   ordered by age: the oldest ticket is only ever stopped by holders, all of which finish. So none
//!   starves, however many newcomers there are.
//! * Names of entries are compared by a 64-bit hash: two names that collide only take turns needlessly,
//!   because an owner never conflicts with itself. All entries of a directory are in one shard, so that a
//!   name for all of them conflicts with each.
//!
//! Cost: one uncontended mutex and a scan of a handful of entries for each name; no allocation for up
//! to [`INLINE_NAMES`] names of an operation, save the bounds of key ranges.

mod slot;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::Want;
use crate::object::ObjectKey;
use crate::sync::Mutex;
use crate::ticket::{Queues, Table, Ticket, TicketState};
use kvfs_locks::class;
use slot::{Held, Part, Shard, Waiting};

/// Power of two. Many more than threads, so that a shard holds a handful of entries.
const SHARDS: usize = 256;

/// Names of an operation that need no allocation.
const INLINE_NAMES: usize = 8;

/// Age of an operation that has no ticket yet: younger than any that has.
const AGE_NEWCOMER: u64 = u64::MAX;

/// A shard on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct PaddedShard(Mutex<Shard, class::TxnLatchShard>);

/// The latch table. Share it by `Arc`.
pub struct Latches {
    shards: Box<[PaddedShard]>,
    next_owner: AtomicU64,
}

impl fmt::Debug for Latches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latches").field("held", &self.held_count()).finish_non_exhaustive()
    }
}

impl Default for Latches {
    fn default() -> Self {
        Self::new()
    }
}

impl Latches {
    /// An empty table.
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| PaddedShard::default()).collect(), next_owner: AtomicU64::new(0) }
    }

    /// Takes all `wants` or none. `again` is the ticket of an earlier try of the same operation.
    ///
    /// # Errors
    /// A ticket to wait with: `again` itself, or a new one.
    pub fn try_acquire(
        self: &Arc<Self>,
        wants: &[Want<'_>],
        again: Option<&Ticket>,
    ) -> Result<Guard<'_>, Ticket> {
        let owner = self.next_owner.fetch_add(1, Ordering::Relaxed);
        if let Some(ticket) = again {
            ticket.state().go_on();
        }
        let mut guard = Guard { latches: self, owner, ticket: again.cloned(), places: Places::default() };
        guard.try_extend(wants)?;
        Ok(guard)
    }

    /// A ticket that is younger than all others.
    fn new_ticket(self: &Arc<Self>) -> Ticket {
        let latches: Weak<Self> = Arc::downgrade(self);
        Ticket::new(latches, self.next_owner.fetch_add(1, Ordering::Relaxed))
    }

    /// Number of names held now.
    pub fn held_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().held.len()).sum()
    }

    /// Number of places in queues now.
    pub fn waiting_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().waiting.len()).sum()
    }

    fn shard(&self, key: ObjectKey) -> &Mutex<Shard, class::TxnLatchShard> {
        &self.shards[key.hash() as usize % SHARDS].0
    }

    /// Removes what `owner` holds under `key` and wakes the waiters that can go on.
    fn release(&self, owner: u64, key: ObjectKey) {
        let mut ready = Vec::new();
        {
            let mut shard = self.shard(key).lock();
            shard.held.retain(|held| held.owner != owner || held.key != key);
            shard.collect_ready(key, &mut ready);
        }
        for ticket in &ready {
            ticket.fire();
        }
    }
}

impl Queues for Latches {
    fn leave(&self, ticket: &Arc<TicketState>, keys: &[ObjectKey]) {
        for &key in keys {
            let mut ready = Vec::new();
            {
                let mut shard = self.shard(key).lock();
                shard.waiting.retain(|waiting| waiting.key != key || !Arc::ptr_eq(&waiting.ticket, ticket));
                shard.collect_ready(key, &mut ready);
            }
            for ticket in &ready {
                ticket.fire();
            }
        }
    }
}

/// Keys that a guard holds something under; the first few without allocation.
#[derive(Default)]
struct Places {
    inline: [Option<ObjectKey>; INLINE_NAMES],
    count: usize,
    more: Vec<ObjectKey>,
}

impl Places {
    fn push(&mut self, key: ObjectKey) {
        match self.inline.get_mut(self.count) {
            Some(place) => *place = Some(key),
            None => self.more.push(key),
        }
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        self.inline.iter().flatten().copied().chain(self.more.iter().copied())
    }
}

/// Held names; dropping it releases them.
pub struct Guard<'l> {
    latches: &'l Arc<Latches>,
    owner: u64,
    ticket: Option<Ticket>,
    places: Places,
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("owner", &self.owner)
            .field("names", &self.places.count)
            .finish_non_exhaustive()
    }
}

impl Guard<'_> {
    /// Takes further names, discovered by reading under those that are held.
    ///
    /// # Errors
    /// A ticket to wait with. Drop the guard then, before waiting: a holder must not wait.
    pub fn try_extend(&mut self, wants: &[Want<'_>]) -> Result<(), Ticket> {
        for want in wants {
            self.try_take(want)?;
        }
        Ok(())
    }

    fn try_take(&mut self, want: &Want<'_>) -> Result<(), Ticket> {
        let key = ObjectKey::of(&want.name);
        let part = Part::of(&want.name);
        let mut shard = self.latches.shard(key).lock();
        let age = self.ticket.as_ref().map_or(AGE_NEWCOMER, Ticket::age);
        if !shard.is_blocked(key, want.mode, &part, self.owner, age) {
            shard.held.push(Held { key, owner: self.owner, mode: want.mode, part });
            drop(shard);
            self.places.push(key);
            return Ok(());
        }
        let ticket = self.ticket.get_or_insert_with(|| self.latches.new_ticket());
        ticket.state().block_on(Table::Latches, key);
        let place = Waiting { key, ticket: Arc::clone(ticket.state()), mode: want.mode, part, is_last: true };
        let mut ready = Vec::new();
        if shard.enqueue(place) {
            shard.collect_ready(key, &mut ready);
        }
        drop(shard);
        let ticket = ticket.clone();
        self.park();
        for ticket in &ready {
            ticket.fire();
        }
        Err(ticket)
    }

    /// The ticket of the operation, if it has one.
    pub(crate) fn known_ticket(&self) -> Option<&Ticket> {
        self.ticket.as_ref()
    }

    /// The ticket of the operation, or a new one.
    pub(crate) fn ticket(&mut self) -> &Ticket {
        self.ticket.get_or_insert_with(|| self.latches.new_ticket())
    }

    /// Gives up what is held, but not the places of the ticket: the operation will be called again.
    pub(crate) fn park(&mut self) {
        self.ticket().state().park();
        self.release_all();
    }

    fn release_all(&mut self) {
        let places = std::mem::take(&mut self.places);
        for key in places.iter() {
            self.latches.release(self.owner, key);
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.release_all();
        // The operation is done (or failed for good): its places in queues must stop no other. If it was
        // stopped, at this guard or at another one, it will be called again.
        if let Some(ticket) = self.ticket.as_ref().filter(|ticket| !ticket.state().is_parked()) {
            ticket.state().leave_all();
        }
    }
}
