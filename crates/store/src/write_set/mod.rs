//! Private writes over a state of a store, for engines whose transactions keep theirs in memory.
//!
//! Purpose: [`WriteSet`] is what a transaction has made of one keyspace, [`WriteSets`] of all of them:
//! batches go in, the net write set comes out, as a walk or as one batch. [`Overlay`] reads a keyspace
//! through them.
//!
//! Thread safety: changed by one thread at a time. A copy takes constant time and stays as it is, so a reader
//! takes one and holds no lock. Invariants: a key inside a deleted range has an entry only if it was written
//! after the range was deleted, and none if it was deleted again; entries with operands have no private base,
//! and lie in no deleted range; deleted ranges neither overlap nor touch.

mod charge;
mod cursor;
mod overlay;
mod sets;

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use rpds::RedBlackTreeMapSync;

use crate::blocks::block_of_key;
use crate::{Change, ChangeCursor, KeyRange, Keyspace, KeyspaceKind, MergeFunction, Result, StoreError};

pub use charge::Charge;
pub use overlay::Overlay;
pub use sets::WriteSets;

/// What writes to a keyspace have to know of it.
pub struct Space {
    /// Its handle.
    pub keyspace: Keyspace,
    /// Its name, in messages.
    pub name: String,
    /// What it holds.
    pub kind: KeyspaceKind,
    /// As it was opened with.
    pub merge: Option<Arc<dyn MergeFunction>>,
}

impl Space {
    /// The merge function, which merges need.
    ///
    /// # Errors
    /// There is none.
    pub fn merge_function(&self) -> Result<&dyn MergeFunction> {
        self.merge.as_deref().ok_or_else(|| StoreError::NoMergeFunction(self.name.clone()))
    }

    /// Fails with [`StoreError::WrongKind`] unless the keyspace holds `kind`.
    ///
    /// # Errors
    /// See above.
    pub fn expect_kind(&self, kind: KeyspaceKind, operation: &'static str) -> Result<()> {
        if self.kind == kind { Ok(()) } else { Err(StoreError::wrong_kind(operation, &self.name, self.kind)) }
    }
}

/// What a transaction has made of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It has this value, whatever was there.
    Value(Bytes),
    /// It is gone.
    Deleted,
    /// These are merged into what is below, oldest first.
    Operands(Vec<Bytes>),
}

/// The private writes on one keyspace.
#[derive(Debug, Clone, Default)]
pub struct WriteSet {
    entries: RedBlackTreeMapSync<Bytes, Written>,
    /// Start to end.
    deleted: RedBlackTreeMapSync<Bytes, Bytes>,
    bytes: u64,
}

impl WriteSet {
    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.deleted.is_empty()
    }

    /// What is privately known of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Written> {
        let written = self.entries.get(key).cloned();
        written.or_else(|| self.deleted_around(key).map(|_| Written::Deleted))
    }

    /// The deleted range that `key` lies in.
    fn deleted_around(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        let below = (Bound::Unbounded, Bound::Included(key));
        self.deleted.range::<[u8], _>(below).next_back().filter(|(_, end)| key < &end[..])
    }

    /// Whether anything was written in `range`.
    pub fn touches(&self, range: &KeyRange) -> bool {
        if range.is_empty() || self.is_empty() {
            return false;
        }
        let end = range.end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
        self.entry_from(Bound::Included(&range.start), end).is_some()
            || self.deleted_around(&range.start).is_some()
            || self.deleted.range::<[u8], _>((Bound::Included(&range.start[..]), end)).next().is_some()
    }

    /// The first entry between the bounds.
    fn entry_from(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Option<(&Bytes, &Written)> {
        if !is_ordered(lower, upper) {
            return None;
        }
        self.entries.range::<[u8], _>((lower, upper)).next()
    }

    /// The last entry between the bounds.
    fn entry_to(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Option<(&Bytes, &Written)> {
        if !is_ordered(lower, upper) {
            return None;
        }
        self.entries.range::<[u8], _>((lower, upper)).next_back()
    }

    /// Keys, values and operands held (bytes).
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keys that have an entry, and ranges.
    pub fn entry_count(&self) -> u64 {
        (self.entries.size() + self.deleted.size()) as u64
    }

    fn set(&mut self, key: Bytes, written: Written) {
        self.forget(&key);
        if written == Written::Deleted && self.deleted_around(&key).is_some() {
            return;
        }
        self.bytes += entry_bytes(&key, &written);
        self.entries.insert_mut(key, written);
    }

    /// One more operand over those that `key` has, with the newest of which `fold` may make it one.
    fn push_operand(&mut self, key: &Bytes, operand: Bytes, fold: impl Fn(&[u8], &[u8]) -> Option<Bytes>) {
        let Some(Written::Operands(operands)) = self.entries.get_mut(key) else {
            return self.set(key.clone(), Written::Operands(vec![operand]));
        };
        let folded = operands.last().and_then(|last| Some((last.len(), fold(last, &operand)?)));
        if let Some((len, folded)) = folded {
            self.bytes = self.bytes - len as u64 + folded.len() as u64;
            operands.pop();
            operands.push(folded);
        } else {
            self.bytes += operand.len() as u64;
            operands.push(operand);
        }
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some((key, written)) = self.entries.get_key_value(key) {
            self.bytes -= entry_bytes(key, written);
            self.entries.remove_mut(key.clone().as_ref());
        }
    }

    fn delete_range(&mut self, mut start: Bytes, mut end: Bytes) {
        if start >= end {
            return;
        }
        let inside = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
        let keys: Vec<Bytes> = self.entries.range::<[u8], _>(inside).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.forget(&key);
        }
        let below = (Bound::Unbounded, Bound::Included(&end[..]));
        let reversed = self.deleted.range::<[u8], _>(below).rev();
        let touching: Vec<(Bytes, Bytes)> = reversed
            .take_while(|(_, other_end)| **other_end >= start)
            .map(|(start, end)| (start.clone(), end.clone()))
            .collect();
        for (other_start, other_end) in touching {
            self.bytes -= (other_start.len() + other_end.len()) as u64;
            self.deleted.remove_mut(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.bytes += (start.len() + end.len()) as u64;
        self.deleted.insert_mut(start, end);
    }

    /// The net changes in key order, range deletes before what is inside of them.
    pub fn changes(&self, kind: KeyspaceKind) -> Box<dyn ChangeCursor> {
        let mut changes: Vec<Change> = Vec::new();
        let range =
            |(start, end): (&Bytes, &Bytes)| Change::DeleteRange { start: start.clone(), end: end.clone() };
        let mut deleted = self.deleted.iter().peekable();
        for (key, written) in &self.entries {
            while let Some(earlier) = deleted.next_if(|(start, _)| *start <= key) {
                changes.push(range(earlier));
            }
            match written {
                Written::Deleted => changes.push(Change::Delete { key: key.clone() }),
                Written::Operands(operands) => {
                    changes.push(Change::Merge { key: key.clone(), operands: operands.clone() });
                }
                Written::Value(value) if kind == KeyspaceKind::Tuple => {
                    changes.push(Change::Put { key: key.clone(), value: value.clone() });
                }
                Written::Value(_) => push_block(&mut changes, key),
            }
        }
        changes.extend(deleted.map(range));
        Box::new(Changes(changes.into_iter()))
    }
}

/// A walk over a list.
struct Changes(std::vec::IntoIter<Change>);

impl ChangeCursor for Changes {
    fn next(&mut self) -> Result<Option<Change>> {
        Ok(self.0.next())
    }
}

/// Appends the block under `key`, to the stretch before it if it follows there.
fn push_block(changes: &mut Vec<Change>, key: &Bytes) {
    let Some((of, block)) = block_of_key(key) else { return };
    match changes.last_mut() {
        Some(Change::Blocks { prefix, first, count }) if *prefix == of && *first + *count == block => {
            *count += 1;
        }
        _ => changes.push(Change::Blocks { prefix: of, first: block, count: 1 }),
    }
}

fn entry_bytes(key: &[u8], written: &Written) -> u64 {
    let value = match written {
        Written::Value(value) => value.len(),
        Written::Deleted => 0,
        Written::Operands(operands) => operands.iter().map(Bytes::len).sum(),
    };
    (key.len() + value) as u64
}

/// Whether a range with these ends is one that a map takes: not backwards.
fn is_ordered(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Excluded(lower), Bound::Excluded(upper)) => lower < upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower <= upper,
    }
}

#[cfg(test)]
mod tests;
