//! One object: the holders of its parts, and the waiters.
//!
//! Thread safety: under the mutex of a shard.
//!
//! Invariants: waiters are in the order of their ranks; an owner has one holding at most; no two owners hold
//! overlapping parts in modes that conflict.

use std::sync::Arc;
use std::time::Duration;

use super::charge::Charge;
use super::doom::{Doom, Rival};
use super::held::Held;
use super::owner::OwnerState;
use super::span::Span;
use crate::object::ObjectKey;
use crate::ticket::{Table, TicketState};
use crate::{LockNameBuf, Mode};

/// The party that waits, or asks.
#[derive(Clone)]
pub(crate) enum Asker {
    /// An operation on the main line; `is_writeback`: a dirty page that a committing transaction may wait
    /// for.
    Main { pid: u32, is_writeback: bool },
    /// An operation of a transaction.
    Txn(Arc<OwnerState>),
}

/// Smaller goes first: importance, then age. The main line is before all transactions, since it keeps
/// nothing.
type Rank = (i64, u64);

impl Asker {
    pub(super) fn rank(&self, age: u64) -> Rank {
        match self {
            Self::Main { .. } => (i64::MIN, age),
            Self::Txn(owner) => (i64::from(owner.traits.priority), age),
        }
    }

    pub(super) fn rival(&self) -> Rival {
        match self {
            Self::Main { pid, .. } => Rival::Main { pid: *pid },
            Self::Txn(owner) => owner.rival(),
        }
    }

    pub(super) fn is(&self, owner: &Arc<OwnerState>) -> bool {
        matches!(self, Self::Txn(own) if Arc::ptr_eq(own, owner))
    }

    fn is_same_owner(&self, other: &Self) -> bool {
        matches!(other, Self::Txn(owner) if self.is(owner))
    }
}

/// What an asker wants of an object.
pub(super) struct Request<'a> {
    pub(super) asker: &'a Asker,
    pub(super) span: &'a Span,
    pub(super) mode: Mode,
    pub(super) rank: Rank,
    /// Waiters don't count.
    pub(super) passes_queue: bool,
}

/// One owner's part of an object.
pub(super) struct Holding {
    pub(super) owner: Arc<OwnerState>,
    pub(super) held: Held,
    /// Since the first lock on the object.
    pub(super) since: Duration,
    /// As counted in the owner and in the table.
    pub(super) bytes: usize,
}

/// One place in the queue.
pub(super) struct Waiting {
    pub(super) ticket: Arc<TicketState>,
    pub(super) asker: Asker,
    pub(super) name: LockNameBuf,
    pub(super) span: Span,
    pub(super) mode: Mode,
    /// The ticket was stopped here at its last try, not at another part of the same object.
    pub(super) is_last: bool,
    /// Of an operation of a transaction.
    pub(super) _charge: Option<Charge>,
}

impl Waiting {
    fn request(&self) -> Request<'_> {
        Request {
            asker: &self.asker,
            span: &self.span,
            mode: self.mode,
            rank: self.asker.rank(self.ticket.age),
            passes_queue: self.ticket.passes_queues(),
        }
    }

    pub(super) fn is_blocked_at(&self, key: ObjectKey) -> bool {
        self.is_last && self.ticket.is_blocked_on(Table::Locks, key)
    }
}

/// What a waiter waits for.
#[derive(Clone)]
pub(super) struct Blocker {
    pub(super) asker: Asker,
    /// The ticket of a waiter that is before it in the queue; `None`: a holder.
    pub(super) queued: Option<u64>,
    /// A holder that only shares what is wanted.
    pub(super) shares: bool,
}

/// Holders and waiters of one object.
#[derive(Default)]
pub(super) struct Object {
    pub(super) holdings: Vec<Holding>,
    pub(super) waiting: Vec<Waiting>,
}

impl Object {
    pub(super) fn is_unused(&self) -> bool {
        self.holdings.is_empty() && self.waiting.is_empty()
    }

    fn own(&self, asker: &Asker) -> Option<&Held> {
        self.holdings.iter().find(|holding| asker.is(&holding.owner)).map(|holding| &holding.held)
    }

    /// Holders that are in the way.
    fn holders_against<'o>(&'o self, request: &'o Request<'_>) -> impl Iterator<Item = &'o Holding> {
        self.holdings.iter().filter(|holding| {
            !request.asker.is(&holding.owner) && holding.held.conflicts(request.span, request.mode)
        })
    }

    /// Waiters that go first: more important or older, and not stopped by what the asker itself holds (to
    /// wait for those would be a deadlock). They never stop the main line, which keeps nothing.
    fn waiters_before<'o>(&'o self, request: &'o Request<'_>) -> impl Iterator<Item = &'o Waiting> {
        let counts = !request.passes_queue && matches!(request.asker, Asker::Txn(_));
        let own = if counts { self.own(request.asker) } else { None };
        self.waiting.iter().filter(move |other| {
            counts
                && other.asker.rank(other.ticket.age) < request.rank
                && !request.mode.compatible(other.mode)
                && !other.asker.is_same_owner(request.asker)
                && request.span.overlaps(&other.span)
                && !own.is_some_and(|own| own.conflicts(&other.span, other.mode))
        })
    }

    /// Whether any transaction holds what conflicts with `mode` on `span`.
    pub(super) fn is_held_against(&self, span: &Span, mode: Mode) -> bool {
        self.holdings.iter().any(|holding| holding.held.conflicts(span, mode))
    }

    pub(super) fn is_blocked(&self, request: &Request<'_>) -> bool {
        if self.own(request.asker).is_some_and(|own| own.covers(request.span, request.mode)) {
            return false;
        }
        self.holders_against(request).next().is_some() || self.waiters_before(request).next().is_some()
    }

    /// What `ticket` waits for here, and all that stops it; nothing when it does not wait here.
    pub(super) fn blockers(
        &self,
        key: ObjectKey,
        ticket: &Arc<TicketState>,
    ) -> Option<(LockNameBuf, Vec<Blocker>)> {
        let place = |waiting: &&Waiting| Arc::ptr_eq(&waiting.ticket, ticket) && waiting.is_blocked_at(key);
        let waiting = self.waiting.iter().find(place)?;
        let request = waiting.request();
        if self.own(request.asker).is_some_and(|own| own.covers(request.span, request.mode)) {
            return None;
        }
        let holders = self.holders_against(&request).map(|holding| Blocker {
            asker: Asker::Txn(Arc::clone(&holding.owner)),
            queued: None,
            shares: !holding.held.conflicts(request.span, Mode::Shared),
        });
        let queued = self.waiters_before(&request).map(|waiting| Blocker {
            asker: waiting.asker.clone(),
            queued: Some(waiting.ticket.age),
            shares: false,
        });
        Some((waiting.name.clone(), holders.chain(queued).collect()))
    }

    /// Whether the ticket waits for this part already.
    pub(super) fn has_place(&self, ticket: &Arc<TicketState>, span: &Span) -> bool {
        self.waiting.iter().any(|waiting| Arc::ptr_eq(&waiting.ticket, ticket) && waiting.span == *span)
    }

    /// Joins the queue at the place of its rank; a place that the ticket has already is renewed. Whether that
    /// has changed a place, so that others may go on.
    pub(super) fn enqueue(&mut self, waiting: Waiting) -> bool {
        let (mut known, mut changed) = (false, false);
        for other in &mut self.waiting {
            if Arc::ptr_eq(&other.ticket, &waiting.ticket) {
                other.is_last = other.span == waiting.span;
                if other.is_last {
                    changed = other.mode != waiting.mode;
                    other.mode = waiting.mode;
                    known = true;
                }
            }
        }
        if !known {
            let rank = waiting.asker.rank(waiting.ticket.age);
            let index = self.waiting.partition_point(|other| other.asker.rank(other.ticket.age) < rank);
            self.waiting.insert(index, waiting);
        }
        changed
    }

    /// Adds the tickets that wait here and need not any longer.
    pub(super) fn collect_ready(&self, key: ObjectKey, ready: &mut Vec<Arc<TicketState>>) {
        for waiting in &self.waiting {
            if waiting.is_blocked_at(key) && !self.is_blocked(&waiting.request()) {
                ready.push(Arc::clone(&waiting.ticket));
            }
        }
    }

    fn holding_of(&self, owner: &Arc<OwnerState>) -> Option<&Holding> {
        self.holdings.iter().find(|holding| Arc::ptr_eq(&holding.owner, owner))
    }

    /// The most that `owner` would hold more, had it this part too (bytes).
    pub(super) fn growth_max(&self, owner: &Arc<OwnerState>, span: &Span, mode: Mode) -> usize {
        match self.holding_of(owner) {
            Some(holding) if holding.held.covers(span, mode) => 0,
            Some(_) => span.cost_max(),
            None => BYTES_HOLDING + span.cost_max(),
        }
    }

    /// Gives `owner` this part; the holding, and what it has grown by. The caller has seen that nothing is in
    /// the way.
    pub(super) fn grant(
        &mut self,
        key: ObjectKey,
        owner: &Arc<OwnerState>,
        span: &Span,
        mode: Mode,
        now: impl FnOnce() -> Duration,
    ) -> Result<Granted, Doom> {
        let mut granted = Granted::default();
        let known = self.holdings.iter().position(|holding| Arc::ptr_eq(&holding.owner, owner));
        if known.is_none() {
            granted.is_first = owner.note_object(key)?;
            granted.bytes += BYTES_HOLDING as isize;
            self.holdings.reserve_exact(1);
            let held = Held::new(span);
            self.holdings.push(Holding { owner: Arc::clone(owner), held, since: now(), bytes: 0 });
        }
        let index = known.unwrap_or(self.holdings.len() - 1);
        let holding = &mut self.holdings[index];
        let growth = holding.held.add(span, mode);
        granted.names += growth.names;
        granted.bytes += growth.bytes;
        holding.bytes = holding.bytes.saturating_add_signed(granted.bytes);
        Ok(granted)
    }

    /// How many parts of `owner` could become one, the whole object: fewer than two are none, and no other
    /// owner's locks may stand against it.
    pub(super) fn collapsible(&self, owner: &Arc<OwnerState>) -> usize {
        let holding = self.holding_of(owner).filter(|holding| holding.held.names_count() > 1);
        let Some((holding, (whole, mode))) =
            holding.and_then(|holding| Some((holding, holding.held.whole()?)))
        else {
            return 0;
        };
        let others = self.holdings.iter().filter(|other| !Arc::ptr_eq(&other.owner, owner));
        let is_free = !others.into_iter().any(|other| other.held.conflicts(&whole, mode));
        if is_free { holding.held.names_count() } else { 0 }
    }

    /// Lets the parts of `owner`, which are [`Object::collapsible`], become the whole object.
    pub(super) fn collapse(&mut self, owner: &Arc<OwnerState>) -> Granted {
        let mut granted = Granted::default();
        let mut holdings = self.holdings.iter_mut();
        if let Some(holding) = holdings.find(|holding| Arc::ptr_eq(&holding.owner, owner))
            && let Some((whole, mode)) = holding.held.whole()
        {
            let growth = holding.held.collapse(&whole, mode);
            (granted.names, granted.bytes) = (growth.names, growth.bytes);
            holding.bytes = holding.bytes.saturating_add_signed(growth.bytes);
        }
        granted
    }
}

/// What a grant has changed.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Granted {
    pub(super) names: isize,
    pub(super) bytes: isize,
    /// The owner held nothing at all before.
    pub(super) is_first: bool,
}

/// Memory of an object with one holding (bytes): its place in a hash table that is seven eighths full at
/// most, the holding, the key in the owner's list.
const BYTES_HOLDING: usize = (size_of::<ObjectKey>() + size_of::<Object>()) * 3 / 2
    + size_of::<Holding>()
    + size_of::<ObjectKey>() * 3 / 2;
