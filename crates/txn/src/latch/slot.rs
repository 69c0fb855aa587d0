//! What is held and awaited, by shard.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use crate::object::ObjectKey;
use crate::ticket::{Table, TicketState};
use crate::{Fields, LockName, Mode};

fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Which part of the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// An entry's name, by its hash.
    Name(u64),
    Fields(Fields),
    Blocks {
        first: u64,
        end: u64,
    },
    Keys {
        start: Bytes,
        end: Option<Bytes>,
    },
}

impl Part {
    pub(super) fn of(name: &LockName<'_>) -> Self {
        match *name {
            LockName::Entry { name, .. } => Self::Name(hash_bytes(name)),
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
            (Self::Name(a), Self::Name(b)) => a == b,
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
    pub(super) key: ObjectKey,
    pub(super) owner: u64,
    pub(super) mode: Mode,
    pub(super) part: Part,
}

/// One place in a queue.
pub(super) struct Waiting {
    pub(super) key: ObjectKey,
    pub(super) ticket: Arc<TicketState>,
    pub(super) mode: Mode,
    pub(super) part: Part,
    /// The ticket was stopped here at its last try, not at another part under the same key.
    pub(super) is_last: bool,
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
    /// Whether `owner`, of this `age`, must wait for a holder or for an older waiter.
    pub(super) fn is_blocked(&self, key: ObjectKey, mode: Mode, part: &Part, owner: u64, age: u64) -> bool {
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
    /// Whether that has changed a place, so that others may go on.
    pub(super) fn enqueue(&mut self, waiting: Waiting) -> bool {
        let (mut known, mut changed) = (false, false);
        for other in &mut self.waiting {
            if Arc::ptr_eq(&other.ticket, &waiting.ticket) && other.key == waiting.key {
                other.is_last = other.part == waiting.part;
                if other.is_last {
                    changed = other.mode != waiting.mode;
                    other.mode = waiting.mode;
                    known = true;
                }
            }
        }
        if !known {
            let index = self.waiting.partition_point(|other| other.ticket.age < waiting.ticket.age);
            self.waiting.insert(index, waiting);
        }
        changed
    }

    /// Adds the tickets that are blocked on `key` and need not be any longer.
    pub(super) fn collect_ready(&self, key: ObjectKey, ready: &mut Vec<Arc<TicketState>>) {
        for waiting in self.waiting.iter().filter(|waiting| waiting.key == key && waiting.is_last) {
            let free = !self.is_blocked(key, waiting.mode, &waiting.part, u64::MAX, waiting.ticket.age);
            if free && waiting.ticket.is_blocked_on(Table::Latches, key) {
                ready.push(Arc::clone(&waiting.ticket));
            }
        }
    }
}
