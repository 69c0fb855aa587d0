//! Admission: latches for every operation, locks for transactions, behind one interface.
//!
//! Purpose: an operation names what it reads and changes, and gets all of it or a ticket. Its *latches* keep
//! others away until it is applied; a transaction's *locks* keep others away until the transaction ends. An
//! operation on the main line keeps no locks: it looks, under its latches, whether one is in the way.
//!
//! Thread safety: all methods are `&self`.
//!
//! Invariants: locks are granted and looked at under the latch of their name only, so a lock is never granted
//! on what another operation is about to change. A holder of latches never waits: an operation that must wait
//! gives up its latches first. A transaction that waits keeps its locks; that is where deadlocks come from,
//! and they are found.
//!
//! Cost: on the main line, while no transaction holds a lock, that of the latches and one relaxed load.

use std::sync::Arc;
use std::time::Duration;

use kvfs_store::TxnId;
use kvfs_store::clock::Clock;

use crate::Want;
use crate::latch::{self, Latches};
use crate::lock::{
    Asker, Doom, LockOptions, LockOwner, LockPage, LockPlace, LockShare, LockStats, LockTable, Stopped,
    TxnInfo, TxnTraits,
};
use crate::ticket::{Table, Ticket};

/// The party that an operation runs for.
#[derive(Debug, Clone, Copy)]
pub enum Party<'a> {
    /// Outside of transactions. It waits for transactions' locks as long as [`LockOptions::main_wait_max`].
    Main {
        /// Process id, for messages; 0: unknown.
        pid: u32,
    },
    /// A write outside of transactions that a committing transaction may be waiting for (a dirty page that
    /// its invalidation drives out): it dooms a holder that is committing at once. Else as `Main`.
    Launder {
        /// Process id, for messages; 0: unknown.
        pid: u32,
    },
    /// It only reads, and what it reads may be older than what transactions write: latches, and no look at
    /// locks.
    Reader,
    /// In a transaction.
    Txn(&'a LockOwner),
}

impl Party<'_> {
    fn asker(&self) -> Asker {
        match self {
            Self::Reader => Asker::Main { pid: 0, is_writeback: false },
            Self::Main { pid } => Asker::Main { pid: *pid, is_writeback: false },
            Self::Launder { pid } => Asker::Main { pid: *pid, is_writeback: true },
            Self::Txn(owner) => Asker::Txn(Arc::clone(&owner.state)),
        }
    }
}

/// Why an operation can't go on now.
#[derive(Debug, Clone)]
pub enum Refused {
    /// A name is taken: try again with this ticket when it is ready.
    Wait(Ticket),
    /// Its transaction can't go on at all.
    Doomed(Doom),
    /// Its user's transactions hold their share of the memory for locks. The transaction can go on without
    /// the operation.
    Full(LockShare),
}

/// Latches and locks of one store. Share it by `Arc`.
#[derive(Debug)]
pub struct Admission {
    latches: Arc<Latches>,
    locks: Arc<LockTable>,
}

impl Admission {
    /// Nothing is held.
    pub fn new(clock: Arc<dyn Clock>, options: LockOptions) -> Self {
        Self { latches: Arc::new(Latches::new()), locks: Arc::new(LockTable::new(clock, options)) }
    }

    /// A transaction begins. `id` is not that of another one that is open.
    pub fn begin(&self, id: TxnId, traits: TxnTraits) -> Arc<LockOwner> {
        self.locks.begin(id, traits)
    }

    /// Takes the latches of all `wants`, or none; for a transaction also locks on those for which `lock` says
    /// so (what the transaction itself has created is private and needs none). `again` is the ticket of an
    /// earlier try of the same operation.
    ///
    /// # Errors
    /// A ticket to wait with: `again` itself, or a new one. Or the transaction is doomed, or there is no
    /// memory. Locks that were granted to earlier steps of the operation stay with the transaction.
    pub fn try_acquire<'a>(
        &'a self,
        party: Party<'a>,
        wants: &[Want<'_>],
        lock: impl Fn(&Want<'_>) -> bool,
        again: Option<&Ticket>,
    ) -> Result<Guard<'a>, Refused> {
        let latches = self.latches.try_acquire(wants, again).map_err(Refused::Wait)?;
        let mut guard = Guard { latches, locks: &self.locks, party };
        guard.admit(wants, lock)?;
        Ok(guard)
    }

    /// The ticket for the next try of an operation that was refused and has kept its places
    /// ([`Guard::keep_places`]); `operation`: what it was called then, asked where any has.
    pub fn kept_places(&self, operation: impl FnOnce() -> u64) -> Option<Ticket> {
        let kept = &self.locks.kept;
        if kept.has_some() { kept.take(operation()) } else { None }
    }

    /// Locks all `wants` for a transaction and keeps no latches: for serializable reads, and for ranges and
    /// prefixes that a user asks for.
    ///
    /// # Errors
    /// As [`Admission::try_acquire`].
    pub fn try_lock(
        &self,
        owner: &LockOwner,
        wants: &[Want<'_>],
        again: Option<&Ticket>,
    ) -> Result<(), Refused> {
        // The latches, for a moment: an operation that has passed already must be through.
        self.try_acquire(Party::Txn(owner), wants, |_| true, again).map(drop)
    }

    /// Dooms transactions past a time limit. The caller must call it about ten times a second while there are
    /// transactions. Returns how long nothing can expire; `None`: not before something new begins.
    pub fn tick(&self) -> Option<Duration> {
        self.locks.tick()
    }

    /// The first `len_max` locks behind `after` (`None`: from the start), by what is locked and by holder.
    /// O(n log `len_max`) over all n locks; memory for the page only.
    pub fn page(&self, after: Option<LockPlace>, len_max: usize) -> LockPage {
        self.locks.page(after, len_max)
    }

    /// Every lock, for tests.
    #[cfg(test)]
    pub(crate) fn list(&self) -> Vec<crate::LockInfo> {
        self.locks.page(None, usize::MAX).locks
    }

    /// Every transaction, oldest first.
    pub fn transactions(&self) -> Vec<TxnInfo> {
        self.locks.transactions()
    }

    /// Memory of all locks (bytes).
    pub fn bytes(&self) -> usize {
        self.locks.bytes()
    }

    /// What is held, and how many were doomed.
    pub fn stats(&self) -> LockStats {
        self.locks.stats()
    }

    /// The locks, for tests.
    #[cfg(test)]
    pub(crate) fn locks(&self) -> &LockTable {
        &self.locks
    }

    /// The latches, for figures.
    pub fn latches(&self) -> &Latches {
        &self.latches
    }
}

/// The latches of an operation; dropping it releases them. Locks stay with their transaction.
#[derive(Debug)]
pub struct Guard<'a> {
    latches: latch::Guard<'a>,
    locks: &'a Arc<LockTable>,
    party: Party<'a>,
}

impl Guard<'_> {
    /// Takes further names, discovered by reading under those that are held.
    ///
    /// # Errors
    /// As [`Admission::try_acquire`]. Drop the guard then, before waiting: a holder must not wait.
    pub fn try_extend(
        &mut self,
        wants: &[Want<'_>],
        lock: impl Fn(&Want<'_>) -> bool,
    ) -> Result<(), Refused> {
        self.latches.try_extend(wants).map_err(Refused::Wait)?;
        self.admit(wants, lock)
    }

    /// The operation, which is outside of transactions, is refused with all of its names free: its party asks
    /// for it once more, at once, and calls it `operation` then ([`Admission::kept_places`]). Until that try
    /// is done, or for a moment where it does not come, transactions that ask for `wants` wait. Gives the
    /// latches back.
    pub fn keep_places<'w>(&mut self, operation: u64, wants: impl IntoIterator<Item = &'w Want<'w>>) {
        let (asker, ticket) = (self.party.asker(), self.latches.ticket().clone());
        for want in wants {
            self.locks.stand_at(&asker, want, &ticket);
        }
        self.latches.park();
        ticket.state().leave(Table::Latches);
        self.locks.kept.keep(operation, ticket, self.locks.now());
    }

    /// Whether a transaction's lock is in the way of one of these names, whose latches are held, so that
    /// `false` holds until they are given back. Waits for none: for an operation outside of transactions that
    /// has another way to go.
    pub fn meets_locks(&self, wants: &[Want<'_>]) -> bool {
        !self.locks.is_empty() && wants.iter().any(|want| self.locks.is_held_against(want))
    }

    /// Locks the names, or passes them, whose latches are held.
    fn admit(&mut self, wants: &[Want<'_>], lock: impl Fn(&Want<'_>) -> bool) -> Result<(), Refused> {
        let (asker, takes) = match self.party {
            Party::Txn(owner) => {
                owner.state.check().map_err(Refused::Doomed)?;
                (self.party.asker(), true)
            }
            Party::Reader => return Ok(()),
            _ if self.locks.is_empty() => return Ok(()),
            _ => (self.party.asker(), false),
        };
        let locked = || wants.iter().filter(|want| !takes || lock(want));
        // First it only looks, so that an operation that must wait does not hold a part of its names.
        if takes && locked().nth(1).is_some() {
            for want in locked() {
                self.attempt(&asker, want, false)?;
            }
        }
        for want in locked() {
            self.attempt(&asker, want, takes)?;
        }
        Ok(())
    }

    fn attempt(&mut self, asker: &Asker, want: &Want<'_>, take: bool) -> Result<(), Refused> {
        let again = self.latches.known_ticket().cloned();
        let latches = &mut self.latches;
        let outcome = self.locks.attempt(asker, want, take, again.as_ref(), || latches.ticket().clone());
        match outcome {
            Ok(()) => Ok(()),
            Err(Stopped::Doomed(doom)) => Err(Refused::Doomed(doom)),
            Err(Stopped::Full(share)) => Err(Refused::Full(share)),
            Err(Stopped::Blocked(wait)) => {
                let ticket = self.latches.ticket().clone();
                self.latches.park();
                ticket.state().leave(Table::Latches);
                self.locks.wait(wait).map_err(Refused::Doomed)?;
                Err(Refused::Wait(ticket))
            }
        }
    }
}
