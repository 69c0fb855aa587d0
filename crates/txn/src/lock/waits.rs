//! Waits for locks: deadlocks and time-outs.
//!
//! Purpose: a list of all operations that wait for locks. The wait-for graph is not kept but asked for: its
//! edges are the holders of, and those queued before a waiter at, the object where it waits now.
//!
//! Thread safety: one mutex over the list, taken by waiters and by ends of transactions, never by an
//! operation that finds its locks free. Order: waits → shard → owner, ticket.
//!
//! Invariants: an operation is in the list from its first wait for a lock until it is done or given up. A
//! party that adds an edge (by waiting, or by being granted what others wait for) must look for cycles after
//! it is visible; so the last edge of a cycle finds it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kvfs_store::TxnId;

use super::doom::{Doom, DoomReason};
use super::owner::{OwnerState, Phase, Stop};
use super::queue::{Asker, Blocker, Waiting};
use super::span::{Span, Stretch};
use super::table::{LockTable, Ready, fire};
use crate::object::{Kind, ObjectKey};
use crate::ticket::{Table, TicketState};
use crate::{LockNameBuf, Mode};

/// An operation that waits for a lock, or is about to try again.
#[derive(Clone)]
pub(crate) struct Wait {
    pub(super) ticket: Arc<TicketState>,
    pub(super) asker: Asker,
    /// Where it was stopped at last.
    pub(super) key: ObjectKey,
    /// Since its first wait for a lock.
    pub(super) since: Duration,
}

/// Memory of an operation that waits for `span` (bytes): its place in the queue of the object and in the list
/// of all, its ticket, and the name and the span themselves.
pub(super) fn waiting_bytes(span: &Span) -> usize {
    const FIXED: usize = (size_of::<Waiting>() + size_of::<Wait>() + size_of::<TicketState>()) * 3 / 2;
    FIXED + 2 * span.cost_max()
}

/// All operations that wait, by the age of their tickets.
#[derive(Default)]
pub(crate) struct Waits {
    by_age: BTreeMap<u64, Wait>,
    by_owner: HashMap<TxnId, Vec<u64>>,
}

impl Waits {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Wait> {
        self.by_age.values()
    }

    pub(super) fn has_owner(&self, id: TxnId) -> bool {
        self.by_owner.contains_key(&id)
    }

    pub(super) fn count_of(&self, id: TxnId) -> usize {
        self.by_owner.get(&id).map_or(0, Vec::len)
    }

    /// Adds it; if it is known already, it goes on waiting at its new place.
    fn add(&mut self, wait: Wait) {
        let age = wait.ticket.age;
        if let Some(known) = self.by_age.get_mut(&age) {
            known.key = wait.key;
            return;
        }
        if let Asker::Txn(owner) = &wait.asker {
            self.by_owner.entry(owner.id).or_default().push(age);
        }
        self.by_age.insert(age, wait);
    }

    pub(super) fn remove(&mut self, age: u64) {
        let Some(wait) = self.by_age.remove(&age) else { return };
        if let Asker::Txn(owner) = &wait.asker
            && let Some(ages) = self.by_owner.get_mut(&owner.id)
        {
            ages.retain(|other| *other != age);
            if ages.is_empty() {
                self.by_owner.remove(&owner.id);
            }
        }
    }

    /// Removes and returns all that `id` waits for.
    fn take_owner(&mut self, id: TxnId) -> Vec<Wait> {
        let ages = self.by_owner.remove(&id).unwrap_or_default();
        ages.iter().filter_map(|age| self.by_age.remove(age)).collect()
    }

    /// The waits of one node of the graph.
    fn of(&self, node: Node) -> impl Iterator<Item = &Wait> {
        let (one, many) = match node {
            Node::Txn(id) => (None, self.by_owner.get(&id)),
            Node::Main(age) => (Some(age), None),
        };
        one.into_iter().chain(many.into_iter().flatten().copied()).filter_map(|age| self.by_age.get(&age))
    }
}

/// A party of the wait-for graph. Operations on the main line hold nothing: others only wait behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Txn(TxnId),
    /// Age of its ticket.
    Main(u64),
}

/// One party waits for another.
struct Edge {
    /// The waiter, with what it waits for.
    wait: Wait,
    name: LockNameBuf,
    /// What it waits for.
    to: Blocker,
}

impl Blocker {
    fn node(&self) -> Node {
        match (&self.asker, self.queued) {
            (Asker::Txn(owner), _) => Node::Txn(owner.id),
            (Asker::Main { .. }, age) => Node::Main(age.unwrap_or_default()),
        }
    }
}

impl LockTable {
    /// After an operation was stopped: enters it in the list, breaks the deadlock that it may have closed,
    /// and dooms the holders that it need not wait for.
    ///
    /// # Errors
    /// Its own transaction is doomed.
    pub(crate) fn wait(&self, wait: Wait) -> Result<(), Doom> {
        // Without transactions nothing looks from time to time: this may stand behind what is over.
        self.kept.expire(self.now());
        let mut ready = Ready::new();
        let asker = wait.asker.clone();
        {
            let mut waits = self.waits.lock();
            let age = wait.ticket.age;
            waits.add(wait);
            if let Asker::Txn(owner) = &asker
                && owner.check().is_err()
            {
                // It was stopped before it was in the list, so its wait has not been refused yet.
                self.refuse_waits(&mut waits, owner, &mut ready);
            }
            // Also one on the main line can close a cycle: others may stand behind it in a queue.
            let node = match &asker {
                Asker::Txn(owner) => Node::Txn(owner.id),
                Asker::Main { .. } => Node::Main(age),
            };
            self.break_cycles(&mut waits, node, &mut ready);
            if let Some(wait) = waits.by_age.get(&age).cloned() {
                self.expire(&mut waits, &wait, self.now(), &mut ready);
            }
        }
        fire(ready);
        match &asker {
            Asker::Txn(owner) => owner.check(),
            Asker::Main { .. } => Ok(()),
        }
    }

    /// Dooms transactions past a time limit: of the whole transaction, of one of its waits, of the main
    /// line's wait for its locks. Returns how long nothing further can expire; `None`: not before something
    /// new begins.
    pub(crate) fn tick(&self) -> Option<Duration> {
        let now = self.now();
        let mut ready = Ready::new();
        let mut next: Option<Duration> = self.kept.expire(now);
        {
            let mut waits = self.waits.lock();
            let all: Vec<Wait> = waits.iter().cloned().collect();
            for wait in &all {
                let due = self.expire(&mut waits, wait, now, &mut ready);
                next = next.into_iter().chain(due).min();
            }
            let owners: Vec<Arc<OwnerState>> = self.owners.lock().values().cloned().collect();
            for owner in owners {
                let Some((due, reason)) = deadline(&owner) else { continue };
                if due <= now {
                    self.stop_in(&mut waits, &owner, Stop::Doom(Doom::new(reason)), &mut ready);
                } else {
                    next = next.into_iter().chain([due.saturating_sub(now)]).min();
                }
            }
        }
        fire(ready);
        next
    }

    /// `owner` is about to commit: a dirty page that waits for it was made of what is there without it, and
    /// would take back what it commits.
    ///
    /// # Errors
    /// It is doomed, or is not active any more.
    pub(super) fn begin_commit(&self, owner: &Arc<OwnerState>) -> Result<(), Doom> {
        let mut ready = Ready::new();
        {
            // Under this lock, so that each such page either is in the list by now, or finds the transaction
            // committing.
            let mut waits = self.waits.lock();
            owner.advance(Phase::Active, Phase::Committing)?;
            let is_writeback = |wait: &&Wait| matches!(wait.asker, Asker::Main { is_writeback: true, .. });
            let pages: Vec<Wait> = waits.iter().filter(is_writeback).cloned().collect();
            for page in &pages {
                let Some((name, blockers)) = self.blockers(page) else { continue };
                let is_blocker =
                    |blocker: &Blocker| matches!(&blocker.asker, Asker::Txn(it) if it.id == owner.id);
                // It may have come no further than to the file's attributes.
                if blockers.iter().any(is_blocker) && self.has_written_blocks(owner, page.key.id) {
                    let rival = Some(page.asker.rival());
                    let doom = Doom { reason: DoomReason::Conflict, rival, name: Some(name) };
                    self.stop_in(&mut waits, owner, Stop::DoomLate(doom), &mut ready);
                }
            }
        }
        fire(ready);
        owner.check()
    }

    /// Takes all waiting operations of `owner` from the queues, to be tried again and refused.
    pub(super) fn refuse_waits(&self, waits: &mut Waits, owner: &OwnerState, ready: &mut Ready) {
        for wait in waits.take_owner(owner.id) {
            for key in wait.ticket.take_places(Table::Locks) {
                self.leave_object(key, &wait.ticket, ready);
            }
            ready.push(wait.ticket);
        }
    }

    /// Whether `owner` holds blocks of `inode` as a writer does.
    fn has_written_blocks(&self, owner: &OwnerState, inode: u64) -> bool {
        let key = ObjectKey { kind: Kind::Blocks, id: inode };
        let shard = self.shard(key).lock();
        let holding = shard
            .get(&key)
            .and_then(|object| object.holdings.iter().find(|holding| holding.owner.id == owner.id));
        let all = Span::Blocks(Stretch { start: 0, end: None });
        // What only reads can be shared with others.
        holding.is_some_and(|holding| holding.held.conflicts(&all, Mode::Shared))
    }

    /// What stops `wait` now, and the name that it wants.
    fn blockers(&self, wait: &Wait) -> Option<(LockNameBuf, Vec<Blocker>)> {
        self.shard(wait.key).lock().get(&wait.key)?.blockers(wait.key, &wait.ticket)
    }

    /// Dooms the transactions that `wait` need not wait for any longer, or its own if that has waited too
    /// long; else returns how long it still has.
    fn expire(&self, waits: &mut Waits, wait: &Wait, now: Duration, ready: &mut Ready) -> Option<Duration> {
        let waited = now.saturating_sub(wait.since);
        let (wait_max, is_writeback) = match &wait.asker {
            Asker::Main { is_writeback, .. } => (self.options.main_wait_max, *is_writeback),
            Asker::Txn(owner) => return self.expire_of_txn(waits, wait, owner, waited, ready),
        };
        let is_over = waited >= wait_max;
        if !is_over && !is_writeback {
            return Some(wait_max.saturating_sub(waited));
        }
        let (name, blockers) = self.blockers(wait)?;
        for blocker in blockers {
            let Asker::Txn(owner) = &blocker.asker else { continue };
            let doom = |reason| Doom { reason, rival: Some(wait.asker.rival()), name: Some(name.clone()) };
            if is_writeback && owner.phase() == Phase::Committing {
                self.stop_in(waits, owner, Stop::DoomLate(doom(DoomReason::Conflict)), ready);
            } else if is_over {
                self.stop_in(waits, owner, Stop::Doom(doom(DoomReason::MainLine)), ready);
            }
        }
        (!is_over).then(|| wait_max.saturating_sub(waited))
    }

    /// As [`Self::expire`], for an operation of `owner`: it gives up after its own time; before that, those
    /// give way that only share what it wants. They may be of users that can read, and do nothing else.
    fn expire_of_txn(
        &self,
        waits: &mut Waits,
        wait: &Wait,
        owner: &Arc<OwnerState>,
        waited: Duration,
        ready: &mut Ready,
    ) -> Option<Duration> {
        let left = |wait_max: Duration| wait_max.checked_sub(waited).filter(|left| !left.is_zero());
        let (own_max, shared_max) = (owner.traits.lock_wait_max, self.options.shared_wait_max);
        if let Some(shared_left) = left(shared_max)
            && let Some(own_left) = own_max.map_or(Some(shared_left), left)
        {
            return Some(own_left.min(shared_left));
        }
        let (name, blockers) = self.blockers(wait)?;
        if own_max.is_some_and(|own_max| left(own_max).is_none()) {
            let rival = blockers.first().map(|blocker| blocker.asker.rival());
            let doom = Doom { reason: DoomReason::LockTimeout, rival, name: Some(name) };
            self.stop_in(waits, owner, Stop::Doom(doom), ready);
            return None;
        }
        for blocker in blockers.iter().filter(|blocker| blocker.shares) {
            let Asker::Txn(reader) = &blocker.asker else { continue };
            if reader.traits.owner.uid != owner.traits.owner.uid {
                let (rival, name) = (Some(wait.asker.rival()), Some(name.clone()));
                let doom = Doom { reason: DoomReason::MainLine, rival, name };
                self.stop_in(waits, reader, Stop::Doom(doom), ready);
            }
        }
        // Others that share it may be let in before this one.
        Some(own_max.and_then(left).map_or(shared_max, |own_left| own_left.min(shared_max)))
    }

    /// Breaks every cycle through `start`, where an edge of the graph has begun: where a member only stands
    /// in a queue behind another, it may pass; else the least important one, then the youngest, is doomed.
    pub(super) fn break_cycles(&self, waits: &mut Waits, start: Node, ready: &mut Ready) {
        while let Some(cycle) = self.find_cycle(waits, start) {
            if let Some(edge) = cycle.iter().find(|edge| edge.to.queued.is_some()) {
                edge.wait.ticket.pass_queues();
                self.collect_ready(edge.wait.key, ready);
                continue;
            }
            let members = cycle.iter().filter_map(|edge| match &edge.wait.asker {
                Asker::Txn(owner) => Some((owner, edge)),
                Asker::Main { .. } => None,
            });
            let Some((owner, edge)) = members.max_by_key(|(owner, _)| victim_rank(owner)) else { return };
            let (rival, name) = (Some(edge.to.asker.rival()), Some(edge.name.clone()));
            let doom = Doom { reason: DoomReason::Deadlock, rival, name };
            if !self.stop_in(waits, owner, Stop::DoomLate(doom), ready) {
                return;
            }
        }
    }

    /// A shortest cycle through `start`, as its edges. Time O(waiters · what stops them), memory O(waiters).
    fn find_cycle(&self, waits: &Waits, start: Node) -> Option<Vec<Edge>> {
        // The nodes that were met, each with the edge that led to it and the node where that begins.
        let mut met: HashMap<Node, (Node, Edge)> = HashMap::new();
        let mut coming = VecDeque::from([start]);
        while let Some(node) = coming.pop_front() {
            for wait in waits.of(node) {
                let Some((name, blockers)) = self.blockers(wait) else { continue };
                for to in blockers {
                    let target = to.node();
                    if target != start && met.contains_key(&target) {
                        continue;
                    }
                    let edge = Edge { wait: wait.clone(), name: name.clone(), to };
                    if target == start {
                        return Some(path_to(node, edge, met));
                    }
                    met.insert(target, (node, edge));
                    coming.push_back(target);
                }
            }
        }
        None
    }
}

/// The way by which `node` was met, and `last`.
fn path_to(mut node: Node, last: Edge, mut met: HashMap<Node, (Node, Edge)>) -> Vec<Edge> {
    let mut path = vec![last];
    while let Some((from, edge)) = met.remove(&node) {
        path.push(edge);
        node = from;
    }
    path.reverse();
    path
}

/// Which member of a cycle is doomed: the greatest. One that is not committing, the least important, the
/// youngest.
fn victim_rank(owner: &OwnerState) -> (bool, i32, TxnId) {
    (owner.phase() == Phase::Active, owner.traits.priority, owner.id)
}

/// When the time of an active transaction is over, as a whole or without an operation, if it ever is.
fn deadline(owner: &OwnerState) -> Option<(Duration, DoomReason)> {
    if owner.phase() != Phase::Active {
        return None;
    }
    let whole =
        owner.traits.timeout.map(|timeout| (owner.begun.saturating_add(timeout), DoomReason::TimedOut));
    let idle = owner.traits.idle_max.map(|idle_max| {
        let idle_max_ms = u32::try_from(idle_max.as_millis()).unwrap_or(u32::MAX);
        (owner.used().saturating_add(idle_max), DoomReason::Idle { idle_max_ms })
    });
    whole.into_iter().chain(idle).min_by_key(|(due, _)| *due)
}
