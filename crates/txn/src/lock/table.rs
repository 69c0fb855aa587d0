//! The table of locks: what transactions hold until they end.
//!
//! Purpose: grants parts of objects to owners, lets operations of the main line pass, and releases all that
//! an owner holds at once.
//!
//! Thread safety: all methods are `&self`. Order: waits → shard → owner, ticket; no two shards at once;
//! callbacks of tickets run with none held.
//!
//! Invariants: an operation that asks must hold the latch of the name, so that a name is not granted between
//! another one's looking and acting; each change that may let a waiter go on looks at the queue of its
//! object.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvfs_locks::class;
use kvfs_store::TxnId;
use kvfs_store::clock::Clock;

use super::charge::Charge;
use super::doom::Doom;
use super::kept::KeptPlaces;
use super::options::LockOptions;
use super::owner::{LockOwner, OwnerState, Stop, TxnTraits};
use super::queue::{Asker, Granted, Object, Request, Waiting};
use super::span::Span;
use super::waits::{Node, Wait, Waits, waiting_bytes};
use crate::object::ObjectKey;
use crate::sync::Mutex;
use crate::ticket::{Queues, Table, Ticket, TicketState};
use crate::{Mode, Want};

/// Power of two.
const SHARDS: usize = 64;

const ROOT_UID: u32 = 0;

pub(super) type Shard = HashMap<ObjectKey, Object>;

/// A shard on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct PaddedShard(Mutex<Shard, class::TxnLockTableShard>);

/// Tickets to fire when no lock is held any more.
pub(super) type Ready = Vec<Arc<TicketState>>;

/// What transactions hold, and the operations that wait for it.
pub(crate) struct LockTable {
    shards: Box<[PaddedShard]>,
    /// Owners that hold something.
    holders_count: AtomicUsize,
    /// Of locks, and of operations of transactions that wait for some.
    bytes: Arc<AtomicUsize>,
    dooms: AtomicU64,
    pub(super) waits: Mutex<Waits, class::TxnLockTableWaits>,
    pub(super) owners: Mutex<BTreeMap<TxnId, Arc<OwnerState>>, class::TxnLockTableOwners>,
    /// What each user that has transactions takes of `bytes`.
    users: Mutex<HashMap<u32, Weak<AtomicUsize>>, class::TxnLockTableUsers>,
    pub(crate) kept: KeptPlaces,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: LockOptions,
}

/// What all transactions together hold now, and how many could not go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockStats {
    /// Transactions that have begun and not ended.
    pub owners: u64,
    /// Memory of all locks, and of the operations of transactions that wait for locks (bytes).
    pub bytes: u64,
    /// Transactions that were doomed, since the start.
    pub dooms: u64,
}

/// Why a name was not granted.
pub(crate) enum Stopped {
    /// The ticket has a place in the queue.
    Blocked(Wait),
    Doomed(Doom),
    /// There is no memory for one more lock of this user.
    Full(LockShare),
}

/// What the transactions of a user hold of the memory for locks, and what they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockShare {
    /// Memory of their locks (bytes).
    pub bytes: usize,
    /// Memory that all users' locks leave free (bytes): only root's may have more than that.
    pub bytes_free: usize,
}

impl LockTable {
    pub(crate) fn new(clock: Arc<dyn Clock>, options: LockOptions) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| PaddedShard::default()).collect(),
            holders_count: AtomicUsize::new(0),
            bytes: Arc::default(),
            dooms: AtomicU64::new(0),
            waits: Mutex::new(Waits::default()),
            owners: Mutex::new(BTreeMap::new()),
            users: Mutex::new(HashMap::new()),
            kept: KeptPlaces::default(),
            clock,
            options,
        }
    }

    /// Whether no lock is held. The caller must hold the latches of the names in question: no other can lock
    /// those in the meantime, and what was locked under an earlier latch is seen.
    pub(crate) fn is_empty(&self) -> bool {
        self.holders_count.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> LockStats {
        LockStats {
            owners: self.owners.lock().len() as u64,
            bytes: self.bytes() as u64,
            dooms: self.dooms.load(Ordering::Relaxed),
        }
    }

    pub(super) fn shard(&self, key: ObjectKey) -> &Mutex<Shard, class::TxnLockTableShard> {
        &self.shards[key.hash() as usize % SHARDS].0
    }

    /// Every shard, for lists.
    pub(super) fn shards(&self) -> impl Iterator<Item = &Mutex<Shard, class::TxnLockTableShard>> {
        self.shards.iter().map(|shard| &shard.0)
    }

    pub(crate) fn begin(self: &Arc<Self>, id: TxnId, traits: TxnTraits) -> Arc<LockOwner> {
        let user_bytes = self.user_bytes(traits.owner.uid);
        let state = Arc::new(OwnerState::new(id, traits, self.clock.monotonic(), user_bytes));
        self.owners.lock().insert(id, Arc::clone(&state));
        Arc::new(LockOwner { table: Arc::clone(self), state })
    }

    fn user_bytes(&self, uid: u32) -> Arc<AtomicUsize> {
        let mut users = self.users.lock();
        if let Some(known) = users.get(&uid).and_then(Weak::upgrade) {
            return known;
        }
        users.retain(|_, bytes| bytes.strong_count() > 0);
        let bytes = Arc::default();
        users.insert(uid, Arc::downgrade(&bytes));
        bytes
    }

    /// Whether a lock is in the way of an operation on the main line that wants `want`. The caller must hold
    /// the latch of that name; `false` holds until it is given back.
    pub(crate) fn is_held_against(&self, want: &Want<'_>) -> bool {
        let key = ObjectKey::of(&want.name);
        let shard = self.shard(key).lock();
        shard.get(&key).is_some_and(|object| object.is_held_against(&Span::of(&want.name), want.mode))
    }

    /// Looks whether `want` is free for `asker`, and takes it if `take` says so and it is a transaction's.
    /// Where there is no memory for that, the transaction's locks collapse before it is refused.
    pub(crate) fn attempt(
        self: &Arc<Self>,
        asker: &Asker,
        want: &Want<'_>,
        take: bool,
        again: Option<&Ticket>,
        mut ticket: impl FnMut() -> Ticket,
    ) -> Result<(), Stopped> {
        loop {
            let share = match self.attempt_now(asker, want, take, again, &mut ticket) {
                Err(Stopped::Full(share)) => share,
                outcome => return outcome,
            };
            let Asker::Txn(owner) = asker else { return Err(Stopped::Full(share)) };
            if !self.collapse_largest(owner) {
                return Err(Stopped::Full(share));
            }
        }
    }

    fn attempt_now(
        self: &Arc<Self>,
        asker: &Asker,
        want: &Want<'_>,
        take: bool,
        again: Option<&Ticket>,
        ticket: impl FnOnce() -> Ticket,
    ) -> Result<(), Stopped> {
        let key = ObjectKey::of(&want.name);
        let span = Span::of(&want.name);
        let request = Request {
            asker,
            span: &span,
            mode: want.mode,
            rank: asker.rank(again.map_or(u64::MAX, Ticket::age)),
            passes_queue: again.is_some_and(|ticket| ticket.state().passes_queues()),
        };
        let mut shard = self.shard(key).lock();
        if let Some(object) = shard.get_mut(&key)
            && object.is_blocked(&request)
        {
            let ticket = Arc::clone(ticket().state());
            let mut ready = Ready::new();
            let placed = self.enqueue(object, key, asker, want, span, &ticket, &mut ready);
            drop(shard);
            fire(ready);
            placed.map_err(Stopped::Full)?;
            let since = self.now();
            return Err(Stopped::Blocked(Wait { ticket, asker: asker.clone(), key, since }));
        }
        if let (true, Asker::Txn(owner)) = (take, asker) {
            let object = shard.entry(key).or_default();
            let mut ready = Ready::new();
            let outcome = self.grant(object, key, owner, &span, want.mode);
            if outcome.is_ok() {
                object.collect_ready(key, &mut ready);
            }
            let has_waiters = !object.waiting.is_empty();
            if object.is_unused() {
                shard.remove(&key);
            }
            drop(shard);
            outcome?;
            self.after_grant(owner, has_waiters, ready);
        }
        Ok(())
    }

    /// Gives the ticket a place in the queue of `object`, whose shard is locked, if there is memory for it.
    #[expect(clippy::too_many_arguments, reason = "the parts of one place")]
    fn enqueue(
        self: &Arc<Self>,
        object: &mut Object,
        key: ObjectKey,
        asker: &Asker,
        want: &Want<'_>,
        span: Span,
        ticket: &Arc<TicketState>,
        ready: &mut Ready,
    ) -> Result<(), LockShare> {
        let charge = match asker {
            Asker::Txn(owner) if !object.has_place(ticket, &span) => {
                let bytes = waiting_bytes(&span);
                self.check_room(owner, bytes)?;
                Some(Charge::new(&self.bytes, &owner.user_bytes, bytes))
            }
            // The table does not know the user of an operation on the main line.
            Asker::Txn(_) | Asker::Main { .. } => None,
        };
        ticket.joins(|| {
            let table: Weak<Self> = Arc::downgrade(self);
            table
        });
        ticket.block_on(Table::Locks, key);
        let waiting = Waiting {
            ticket: Arc::clone(ticket),
            asker: asker.clone(),
            name: want.name.into(),
            span,
            mode: want.mode,
            is_last: true,
            _charge: charge,
        };
        if object.enqueue(waiting) {
            object.collect_ready(key, ready);
        }
        Ok(())
    }

    /// Gives the ticket of an operation outside of transactions a place at `want`, though that is free:
    /// transactions wait behind it until the ticket leaves. The caller must hold the latch of that name.
    pub(crate) fn stand_at(self: &Arc<Self>, asker: &Asker, want: &Want<'_>, ticket: &Ticket) {
        let (key, span) = (ObjectKey::of(&want.name), Span::of(&want.name));
        let mut ready = Ready::new();
        let mut shard = self.shard(key).lock();
        let object = shard.entry(key).or_default();
        // Room is counted for transactions alone.
        let _ = self.enqueue(object, key, asker, want, span, ticket.state(), &mut ready);
        drop(shard);
        fire(ready);
    }

    /// Gives `owner` a part of `object`, whose shard is locked, if there is memory for it.
    fn grant(
        &self,
        object: &mut Object,
        key: ObjectKey,
        owner: &Arc<OwnerState>,
        span: &Span,
        mode: Mode,
    ) -> Result<(), Stopped> {
        self.check_room(owner, object.growth_max(owner, span, mode)).map_err(Stopped::Full)?;
        let now = || self.clock.monotonic();
        let granted = object.grant(key, owner, span, mode, now).map_err(Stopped::Doomed)?;
        self.count(owner, &granted);
        Ok(())
    }

    /// Whether the locks of the owner's user may take so many bytes more.
    fn check_room(&self, owner: &OwnerState, growth: usize) -> Result<(), LockShare> {
        let bytes = owner.user_bytes.load(Ordering::Relaxed);
        let bytes_free = self.options.bytes_max.saturating_sub(self.bytes());
        let share =
            if owner.traits.owner.uid == ROOT_UID { bytes_free } else { bytes_free.saturating_sub(bytes) };
        if growth == 0 || growth <= share { Ok(()) } else { Err(LockShare { bytes, bytes_free }) }
    }

    pub(super) fn count(&self, owner: &OwnerState, granted: &Granted) {
        if granted.is_first {
            self.holders_count.fetch_add(1, Ordering::Relaxed);
        }
        // Additions wrap, so a negative number subtracts.
        owner.names_count.fetch_add(granted.names as usize, Ordering::Relaxed);
        owner.bytes.fetch_add(granted.bytes as usize, Ordering::Relaxed);
        owner.user_bytes.fetch_add(granted.bytes as usize, Ordering::Relaxed);
        self.bytes.fetch_add(granted.bytes as usize, Ordering::Relaxed);
    }

    /// What a new lock may mean for others.
    pub(super) fn after_grant(&self, owner: &Arc<OwnerState>, has_waiters: bool, mut ready: Ready) {
        if has_waiters {
            // Another thread of the owner may wait for a party that waits for this lock.
            let mut waits = self.waits.lock();
            if waits.has_owner(owner.id) {
                self.break_cycles(&mut waits, Node::Txn(owner.id), &mut ready);
            }
        }
        fire(ready);
    }

    /// Dooms or ends `owner`: its locks are released, its waiting operations will be refused. Whether it
    /// could be stopped so.
    pub(super) fn stop(&self, owner: &Arc<OwnerState>, stop: Stop) -> bool {
        let mut ready = Ready::new();
        let is_end = matches!(stop, Stop::End);
        let stopped = self.stop_in(&mut self.waits.lock(), owner, stop, &mut ready);
        fire(ready);
        if is_end && stopped {
            self.owners.lock().remove(&owner.id);
        }
        stopped
    }

    pub(super) fn stop_in(
        &self,
        waits: &mut Waits,
        owner: &Arc<OwnerState>,
        stop: Stop,
        ready: &mut Ready,
    ) -> bool {
        let is_doom = !matches!(stop, Stop::End);
        let Some(objects) = owner.stop(stop) else { return false };
        if is_doom {
            self.dooms.fetch_add(1, Ordering::Relaxed);
        }
        for &key in &objects {
            self.release(key, owner, ready);
        }
        if !objects.is_empty() {
            self.holders_count.fetch_sub(1, Ordering::Relaxed);
        }
        self.refuse_waits(waits, owner, ready);
        true
    }

    fn release(&self, key: ObjectKey, owner: &Arc<OwnerState>, ready: &mut Ready) {
        let mut shard = self.shard(key).lock();
        let Some(object) = shard.get_mut(&key) else { return };
        let Some(index) = object.holdings.iter().position(|holding| Arc::ptr_eq(&holding.owner, owner))
        else {
            return;
        };
        let holding = object.holdings.swap_remove(index);
        self.bytes.fetch_sub(holding.bytes, Ordering::Relaxed);
        owner.bytes.fetch_sub(holding.bytes, Ordering::Relaxed);
        owner.user_bytes.fetch_sub(holding.bytes, Ordering::Relaxed);
        owner.names_count.fetch_sub(holding.held.names_count(), Ordering::Relaxed);
        object.collect_ready(key, ready);
        if object.is_unused() {
            shard.remove(&key);
        }
    }

    pub(super) fn leave_object(&self, key: ObjectKey, ticket: &Arc<TicketState>, ready: &mut Ready) {
        let mut shard = self.shard(key).lock();
        let Some(object) = shard.get_mut(&key) else { return };
        object.waiting.retain(|waiting| !Arc::ptr_eq(&waiting.ticket, ticket));
        object.collect_ready(key, ready);
        if object.is_unused() {
            shard.remove(&key);
        }
    }

    /// Whether nothing at all is left, for tests.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.is_empty()
            && self.shards().all(|shard| shard.lock().is_empty())
            && self.waits.lock().iter().next().is_none()
            && self.owners.lock().is_empty()
    }

    /// Looks again at the queue of `key`.
    pub(super) fn collect_ready(&self, key: ObjectKey, ready: &mut Ready) {
        if let Some(object) = self.shard(key).lock().get(&key) {
            object.collect_ready(key, ready);
        }
    }

    /// Time since the table was made, or since whatever its clock counts from.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }
}

impl fmt::Debug for LockTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockTable").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Queues for LockTable {
    fn leave(&self, ticket: &Arc<TicketState>, keys: &[ObjectKey]) {
        let mut ready = Ready::new();
        for &key in keys {
            self.leave_object(key, ticket, &mut ready);
        }
        self.waits.lock().remove(ticket.age);
        fire(ready);
    }
}

/// Wakes all of them. The caller must hold no lock.
pub(super) fn fire(ready: Ready) {
    for ticket in ready {
        ticket.fire();
    }
}
