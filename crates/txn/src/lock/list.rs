//! The locks and transactions of now, for people.
//!
//! Thread safety: shards are looked at one after the other, so the list as a whole is of no one moment.
//! Invariants: what is listed was true when its shard was looked at.

use std::sync::Arc;
use std::time::Duration;

use kvfs_store::TxnId;

use super::doom::{Doom, Owner, Rival};
use super::owner::{OwnerState, Phase};
use super::queue::{Object, Waiting};
use super::span::Span;
use super::table::LockTable;
use crate::object::ObjectKey;
use crate::{LockNameBuf, Mode};

/// A lock, and who waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInfo {
    /// Who holds it.
    pub holder: Rival,
    /// What.
    pub name: LockNameBuf,
    /// How.
    pub mode: Mode,
    /// Since the holder's first lock on the object.
    pub age: Duration,
    /// Who waits for it, in the order in which they will have it.
    pub waiters: Vec<WaiterInfo>,
}

/// An operation that waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterInfo {
    /// Whose.
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
    /// Who asked for it.
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
    /// Every lock, ordered by name and holder. O(n log n).
    pub(crate) fn list(&self) -> Vec<LockInfo> {
        let now = self.now();
        let since: Vec<(u64, Duration)> =
            self.waits.lock().iter().map(|wait| (wait.ticket.age, wait.since)).collect();
        let waited = |waiting: &Waiting| {
            let found = since.binary_search_by_key(&waiting.ticket.age, |(age, _)| *age);
            found.map_or(Duration::ZERO, |index| now.saturating_sub(since[index].1))
        };
        let mut rows: Vec<(ObjectKey, usize, LockInfo)> = Vec::new();
        for shard in self.shards() {
            for (key, object) in shard.lock().iter() {
                for holding in &object.holdings {
                    for (index, (name, span, mode)) in holding.held.names(*key).into_iter().enumerate() {
                        let waiters = waiters_for(*key, object, &holding.owner, &span, mode, &waited);
                        let age = now.saturating_sub(holding.since);
                        let holder = holding.owner.rival();
                        rows.push((*key, index, LockInfo { holder, name, mode, age, waiters }));
                    }
                }
            }
        }
        let holder = |info: &LockInfo| match info.holder {
            Rival::Txn { id, .. } => id,
            Rival::Main { .. } => TxnId(0),
        };
        rows.sort_by_key(|(key, index, info)| (*key, holder(info), *index));
        rows.into_iter().map(|(_, _, info)| info).collect()
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

/// Those who wait because of one lock.
fn waiters_for(
    key: ObjectKey,
    object: &Object,
    holder: &Arc<OwnerState>,
    span: &Span,
    mode: Mode,
    waited: &impl Fn(&Waiting) -> Duration,
) -> Vec<WaiterInfo> {
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
    object.waiting.iter().filter(waits_for_it).map(info).collect()
}
