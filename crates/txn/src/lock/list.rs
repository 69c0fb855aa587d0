//! The locks and transactions of now, for people.
//!
//! Thread safety: shards are looked at one after the other, so the list as a whole is of no one moment, nor
//! are two pages of it. Invariants: what is listed was true when its shard was looked at; a page takes memory
//! for its own rows only, and nothing is put into words under a lock.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use kvfs_store::TxnId;

use super::doom::{Doom, Owner, Rival};
use super::owner::{OwnerState, Phase};
use super::queue::{Object, Waiting};
use super::span::Span;
use super::table::LockTable;
use crate::object::{Kind, ObjectKey};
use crate::{LockNameBuf, Mode};

/// A lock, and the operations that wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInfo {
    /// Its holder.
    pub holder: Rival,
    /// What.
    pub name: LockNameBuf,
    /// How.
    pub mode: Mode,
    /// Since the holder's first lock on the object.
    pub age: Duration,
    /// What waits for it, in the order in which they will have it: the first [`WAITERS_LISTED_MAX`].
    pub waiters: Vec<WaiterInfo>,
    /// How many wait for it.
    pub waiters_count: usize,
}

/// Waiters of one lock that a list names.
pub const WAITERS_LISTED_MAX: usize = 32;

/// Where a list of locks goes on: behind a lock that was listed. Others may have come and gone meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockPlace {
    key: ObjectKey,
    holder: TxnId,
    index: usize,
}

impl LockPlace {
    /// As numbers, for a wire.
    pub fn to_parts(self) -> (u8, u64, u64, u64) {
        (self.key.kind as u8, self.key.id, self.holder.0, self.index as u64)
    }

    /// From [`LockPlace::to_parts`]; `None`: these are no place.
    pub fn from_parts((kind, id, holder, index): (u8, u64, u64, u64)) -> Option<Self> {
        let key = ObjectKey { kind: Kind::from_number(kind)?, id };
        Some(Self { key, holder: TxnId(holder), index: usize::try_from(index).ok()? })
    }
}

/// A part of the list of locks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LockPage {
    /// Ordered by kind and number of what is locked, then by holder.
    pub locks: Vec<LockInfo>,
    /// Where each of them is in the list.
    pub places: Vec<LockPlace>,
    /// Where to go on: the last place; `None`: these were the last.
    pub next: Option<LockPlace>,
}

/// A row that may get onto the page. Compared by its place.
struct Row {
    place: LockPlace,
    info: LockInfo,
}

impl Ord for Row {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place.cmp(&other.place)
    }
}

impl PartialOrd for Row {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for Row {}

/// The first rows behind a place, as many as fit.
struct Collector {
    after: Option<LockPlace>,
    len_max: usize,
    rows: BinaryHeap<Row>,
    is_cut: bool,
}

impl Collector {
    /// Whether a row of this place would be kept.
    fn takes(&mut self, place: LockPlace) -> bool {
        if self.after.is_some_and(|after| place <= after) {
            return false;
        }
        let takes = self.rows.len() < self.len_max || self.rows.peek().is_some_and(|last| place < last.place);
        self.is_cut |= !takes;
        takes
    }

    /// Whether a row of the holding whose first place this is may be kept.
    fn may_take(&mut self, first: LockPlace) -> bool {
        let Some(after) = self.after else { return self.takes(first) };
        let last = LockPlace { index: usize::MAX, ..first };
        last > after && (first <= after || self.takes(first))
    }

    fn push(&mut self, row: Row) {
        self.rows.push(row);
        if self.rows.len() > self.len_max {
            self.rows.pop();
            self.is_cut = true;
        }
    }

    fn page(self) -> LockPage {
        let rows = self.rows.into_sorted_vec();
        let next = if self.is_cut { rows.last().map(|row| row.place) } else { None };
        let (places, locks) = rows.into_iter().map(|row| (row.place, row.info)).unzip();
        LockPage { locks, places, next }
    }
}

/// An operation that waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterInfo {
    /// Its holder.
    pub waiter: Rival,
    /// What it wants.
    pub name: LockNameBuf,
    /// How.
    pub mode: Mode,
    /// How long it has waited for locks in all.
    pub waited: Duration,
}

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxnInfo {
    /// Its name.
    pub id: TxnId,
    /// The process that asked for it.
    pub owner: Owner,
    /// As a nice value.
    pub priority: i32,
    /// How far it is.
    pub phase: Phase,
    /// Why it can't go on.
    pub doom: Option<Doom>,
    /// Since its begin.
    pub age: Duration,
    /// Names it holds; blocks and keys that lie together count as one.
    pub names_count: usize,
    /// Memory of its locks (bytes).
    pub bytes: usize,
    /// Operations that wait for locks.
    pub waiting_count: usize,
}

impl LockTable {
    /// The first `len_max` locks behind `after`, by name and holder. O(n log `len_max`) over all n locks.
    pub(crate) fn page(&self, after: Option<LockPlace>, len_max: usize) -> LockPage {
        let now = self.now();
        let since: Vec<(u64, Duration)> =
            self.waits.lock().iter().map(|wait| (wait.ticket.age, wait.since)).collect();
        let waited = |waiting: &Waiting| {
            let found = since.binary_search_by_key(&waiting.ticket.age, |(age, _)| *age);
            found.map_or(Duration::ZERO, |index| now.saturating_sub(since[index].1))
        };
        let mut found = Collector { after, len_max: len_max.max(1), rows: BinaryHeap::new(), is_cut: false };
        for shard in self.shards() {
            for (&key, object) in shard.lock().iter() {
                for holding in &object.holdings {
                    let place = |index| LockPlace { key, holder: holding.owner.id, index };
                    if !found.may_take(place(0)) {
                        continue;
                    }
                    for (index, (name, span, mode)) in holding.held.names(key).into_iter().enumerate() {
                        if !found.takes(place(index)) {
                            continue;
                        }
                        let (waiters, waiters_count) =
                            waiters_for(key, object, &holding.owner, &span, mode, &waited);
                        let age = now.saturating_sub(holding.since);
                        let holder = holding.owner.rival();
                        let info = LockInfo { holder, name, mode, age, waiters, waiters_count };
                        found.push(Row { place: place(index), info });
                    }
                }
            }
        }
        found.page()
    }

    /// Every transaction that has begun and not ended.
    pub(crate) fn transactions(&self) -> Vec<TxnInfo> {
        let now = self.now();
        let waits = self.waits.lock();
        self.owners
            .lock()
            .values()
            .map(|owner| TxnInfo {
                id: owner.id,
                owner: owner.traits.owner.clone(),
                priority: owner.traits.priority,
                phase: owner.phase(),
                doom: owner.doom(),
                age: now.saturating_sub(owner.begun),
                names_count: owner.names_count(),
                bytes: owner.bytes(),
                waiting_count: waits.count_of(owner.id),
            })
            .collect()
    }
}

/// The waiters because of one lock: the first of them, and how many there are.
fn waiters_for(
    key: ObjectKey,
    object: &Object,
    holder: &Arc<OwnerState>,
    span: &Span,
    mode: Mode,
    waited: &impl Fn(&Waiting) -> Duration,
) -> (Vec<WaiterInfo>, usize) {
    let waits_for_it = |waiting: &&Waiting| {
        waiting.is_blocked_at(key)
            && !waiting.asker.is(holder)
            && !waiting.mode.compatible(mode)
            && waiting.span.overlaps(span)
    };
    let info = |waiting: &Waiting| WaiterInfo {
        waiter: waiting.asker.rival(),
        name: waiting.name.clone(),
        mode: waiting.mode,
        waited: waited(waiting),
    };
    let mut waiting = object.waiting.iter().filter(waits_for_it);
    let listed: Vec<WaiterInfo> = waiting.by_ref().take(WAITERS_LISTED_MAX).map(info).collect();
    let count = listed.len() + waiting.count();
    (listed, count)
}
