//! What is held and awaited, by shard.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use super::ticket::TicketState;
use crate::{Fields, LockName, Mode};

/// The object that a name is about; names of one object may overlap in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotKey {
    kind: u8,
    id: u64,
    name_hash: u64,
}

impl SlotKey {
    pub(super) fn of(name: &LockName<'_>) -> Self {
        let (kind, id, name_hash) = match *name {
            LockName::Entry { directory, name } => (0, directory, hash_bytes(name)),
            LockName::Identity { directory } => (1, directory, 0),
            LockName::Counters { directory } => (2, directory, 0),
            LockName::Placement { directory } => (3, directory, 0),
            LockName::Attributes { inode, .. } => (4, inode, 0),
            LockName::Blocks { inode, .. } => (5, inode, 0),
            LockName::Keys { keyspace, .. } => (6, u64::from(keyspace.0), 0),
        };
        Self { kind, id, name_hash }
    }

    /// Spreads keys over shards (Fibonacci hashing; the name's hash is well mixed already).
    pub(super) fn hash(self) -> u64 {
        let mixed =
            (self.id ^ self.name_hash ^ (u64::from(self.kind) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed >> 32
    }
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Which part of the object.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Whole,
    Fields(Fields),
    Blocks { first: u64, end: u64 },
    Keys { start: Bytes, end: Option<Bytes> },
}

impl Part {
    pub(super) fn of(name: &LockName<'_>) -> Self {
        match *name {
            LockName::Attributes { fields, .. } => Self::Fields(fields),
            LockName::Blocks { first, end, .. } => Self::Blocks { first, end },
            LockName::Keys { start, end, .. } => {
                Self::Keys { start: Bytes::copy_from_slice(start), end: end.map(Bytes::copy_from_slice) }
            }
            _ => Self::Whole,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fields(a), Self::Fields(b)) => a.intersects(*b),
            (Self::Blocks { first, end }, Self::Blocks { first: first_2, end: end_2 }) => {
                first < end_2 && first_2 < end
            }
            (Self::Keys { start, end }, Self::Keys { start: start_2, end: end_2 }) => {
                end_2.as_ref().is_none_or(|end_2| start < end_2)
                    && end.as_ref().is_none_or(|end| start_2 < end)
            }
            _ => true,
        }
    }
}

/// One held name.
pub(super) struct Held {
    pub(super) key: SlotKey,
    pub(super) owner: u64,
    pub(super) mode: Mode,
    pub(super) part: Part,
}

/// One place in a queue.
pub(super) struct Waiting {
    pub(super) key: SlotKey,
    pub(super) ticket: Arc<TicketState>,
    pub(super) mode: Mode,
    pub(super) part: Part,
}

/// Flat lists: a shard holds a handful of entries, which are found faster by looking at them than by hashing,
/// and their memory is reused.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) held: Vec<Held>,
    /// Oldest first.
    pub(super) waiting: Vec<Waiting>,
}

impl Shard {
    /// Whether `owner`, of this `age`, must wait for a holder or for somebody older.
    pub(super) fn is_blocked(&self, key: SlotKey, mode: Mode, part: &Part, owner: u64, age: u64) -> bool {
        let conflicts =
            |other_mode: Mode, other_part: &Part| !mode.compatible(other_mode) && part.overlaps(other_part);
        self.held
            .iter()
            .any(|held| held.key == key && held.owner != owner && conflicts(held.mode, &held.part))
            || self
                .waiting
                .iter()
                .any(|other| other.key == key && other.ticket.age < age && conflicts(other.mode, &other.part))
    }

    /// Joins the queue at the place of the ticket's age; a place that the ticket has already is renewed.
    pub(super) fn enqueue(&mut self, waiting: Waiting) {
        let same = |other: &Waiting| Arc::ptr_eq(&other.ticket, &waiting.ticket) && other.key == waiting.key;
        if let Some(place) = self.waiting.iter_mut().find(|other| same(other)) {
            *place = waiting;
            return;
        }
        let index = self.waiting.partition_point(|other| other.ticket.age < waiting.ticket.age);
        self.waiting.insert(index, waiting);
    }

    /// Adds the tickets that are blocked on `key` and need not be any longer.
    pub(super) fn collect_ready(&self, key: SlotKey, ready: &mut Vec<Arc<TicketState>>) {
        for waiting in self.waiting.iter().filter(|waiting| waiting.key == key) {
            let free = !self.is_blocked(key, waiting.mode, &waiting.part, u64::MAX, waiting.ticket.age);
            if free && waiting.ticket.is_blocked_on(key) {
                ready.push(Arc::clone(&waiting.ticket));
            }
        }
    }
}
