//! The private writes of one transaction on one keyspace, and reads through them.
//!
//! Invariants: a key inside a deleted range has an entry only if it was written after the range was deleted,
//! and none if it was deleted again; entries with operands have no private base, and lie in no deleted range;
//! deleted ranges neither overlap nor touch.
//!
//! Thread safety: [`Own`] is changed by one thread at a time, and shared with cursors by copy on write.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::table::Table;
use crate::blocks::{block_key, block_of};
use crate::{BLOCK_BYTES, Change, Extent, ExtentKind, KeyRange, KeyspaceKind, Result, Seqno, StoreError};

/// What a transaction has made of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnEntry {
    Value(Bytes),
    Deleted,
    /// Merged into what is below, oldest first.
    Operands(Vec<Bytes>),
}

/// The private writes on one keyspace.
#[derive(Debug, Clone, Default)]
pub(super) struct Own {
    entries: BTreeMap<Bytes, OwnEntry>,
    /// Start to end.
    deleted: BTreeMap<Bytes, Bytes>,
    bytes: u64,
}

impl Own {
    /// What is privately known of `key`.
    pub(super) fn get(&self, key: &[u8]) -> Option<OwnEntry> {
        self.entries.get(key).cloned().or_else(|| self.is_in_deleted(key).then_some(OwnEntry::Deleted))
    }

    fn is_in_deleted(&self, key: &[u8]) -> bool {
        let below = self.deleted.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        below.is_some_and(|(_, end)| key < &end[..])
    }

    /// Keys, values and operands held (bytes).
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keys with an entry.
    pub(super) fn entry_count(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn set(&mut self, key: Bytes, entry: OwnEntry) {
        self.forget(&key);
        if entry == OwnEntry::Deleted && self.is_in_deleted(&key) {
            return;
        }
        self.bytes += entry_bytes(&key, &entry);
        self.entries.insert(key, entry);
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some((key, entry)) = self.entries.remove_entry(key) {
            self.bytes -= entry_bytes(&key, &entry);
        }
    }

    pub(super) fn delete_range(&mut self, mut start: Bytes, mut end: Bytes) {
        if start >= end {
            return;
        }
        let keys: Vec<Bytes> =
            self.entries.range(start.clone()..end.clone()).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.forget(&key);
        }
        let touching: Vec<(Bytes, Bytes)> = self
            .deleted
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(&end[..])))
            .rev()
            .take_while(|(_, other_end)| **other_end >= start)
            .map(|(start, end)| (start.clone(), end.clone()))
            .collect();
        for (other_start, other_end) in touching {
            self.bytes -= (other_start.len() + other_end.len()) as u64;
            self.deleted.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.bytes += (start.len() + end.len()) as u64;
        self.deleted.insert(start, end);
    }

    /// The net changes in key order, range deletes before what is inside of them.
    pub(super) fn changes(&self, kind: KeyspaceKind) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        let mut deleted = self.deleted.iter().peekable();
        for (key, entry) in &self.entries {
            while let Some((start, end)) = deleted.next_if(|(start, _)| *start <= key) {
                changes.push(Change::DeleteRange { start: start.clone(), end: end.clone() });
            }
            match entry {
                OwnEntry::Deleted => changes.push(Change::Delete { key: key.clone() }),
                OwnEntry::Operands(operands) => {
                    changes.push(Change::Merge { key: key.clone(), operands: operands.clone() });
                }
                OwnEntry::Value(value) if kind == KeyspaceKind::Tuple => {
                    changes.push(Change::Put { key: key.clone(), value: value.clone() });
                }
                OwnEntry::Value(_) => push_block(&mut changes, key),
            }
        }
        changes.extend(
            deleted.map(|(start, end)| Change::DeleteRange { start: start.clone(), end: end.clone() }),
        );
        changes
    }
}

/// Appends the block under `key`, to the stretch before it if it follows there.
fn push_block(changes: &mut Vec<Change>, key: &Bytes) {
    let Some((_, number)) = key.split_last_chunk::<8>() else { return };
    let (block, key_prefix) = (u64::from_be_bytes(*number), key.slice(..key.len() - 8));
    match changes.last_mut() {
        Some(Change::Blocks { prefix, first, count })
            if *prefix == key_prefix && *first + *count == block =>
        {
            *count += 1;
        }
        _ => changes.push(Change::Blocks { prefix: key_prefix, first: block, count: 1 }),
    }
}

fn entry_bytes(key: &[u8], entry: &OwnEntry) -> u64 {
    let value = match entry {
        OwnEntry::Value(value) => value.len(),
        OwnEntry::Deleted => 0,
        OwnEntry::Operands(operands) => operands.iter().map(Bytes::len).sum(),
    };
    (key.len() + value) as u64
}

/// A keyspace at one position, below the private writes of a transaction if there is one.
#[derive(Clone)]
pub(super) struct Layers {
    pub(super) table: Arc<Table>,
    pub(super) at: Seqno,
    pub(super) own: Option<Arc<Own>>,
}

impl Layers {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.own.as_ref().and_then(|own| own.get(key)) {
            Some(entry) => self.resolve(key, entry),
            None => Ok(self.table.get(key, self.at)),
        }
    }

    fn resolve(&self, key: &[u8], entry: OwnEntry) -> Result<Option<Bytes>> {
        match entry {
            OwnEntry::Value(value) => Ok(Some(value)),
            OwnEntry::Deleted => Ok(None),
            OwnEntry::Operands(operands) => {
                let operands: Vec<&[u8]> = operands.iter().map(|operand| &operand[..]).collect();
                let base = self.table.get(key, self.at);
                self.table.merge_function()?.resolve(key, base.as_deref(), &operands)
            }
        }
    }

    /// The first entry of `range` behind `lower`.
    pub(super) fn entry_after(
        &self,
        range: &KeyRange,
        lower: Bound<&[u8]>,
    ) -> Result<Option<(Bytes, Bytes)>> {
        let Some(own) = &self.own else { return Ok(self.table.entry_after(range, lower, self.at)) };
        if range.is_empty() {
            return Ok(None);
        }
        let mut lower = range.lower_of(lower).map(Bytes::copy_from_slice);
        loop {
            let from = lower.as_ref().map(|key| &key[..]);
            let below = self.table.entry_after(range, from, self.at);
            let end = range.end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
            let above =
                if is_ordered(from, end) { own.entries.range::<[u8], _>((from, end)).next() } else { None };
            let key = match (&below, above) {
                (None, None) => return Ok(None),
                (Some((below, _)), Some((above, _))) => below.min(above).clone(),
                (Some((key, _)), None) | (None, Some((key, _))) => key.clone(),
            };
            if let Some(value) = self.get(&key)? {
                return Ok(Some((key, value)));
            }
            lower = Bound::Excluded(key);
        }
    }

    /// The last entry of `range` before `upper`.
    pub(super) fn entry_before(
        &self,
        range: &KeyRange,
        upper: Bound<&[u8]>,
    ) -> Result<Option<(Bytes, Bytes)>> {
        let Some(own) = &self.own else { return Ok(self.table.entry_before(range, upper, self.at)) };
        if range.is_empty() {
            return Ok(None);
        }
        let mut upper = range.upper_of(upper).map(Bytes::copy_from_slice);
        loop {
            let to = upper.as_ref().map(|key| &key[..]);
            let below = self.table.entry_before(range, to, self.at);
            let start = Bound::Included(&range.start[..]);
            let above = if is_ordered(start, to) {
                own.entries.range::<[u8], _>((start, to)).next_back()
            } else {
                None
            };
            let key = match (&below, above) {
                (None, None) => return Ok(None),
                (Some((below, _)), Some((above, _))) => below.max(above).clone(),
                (Some((key, _)), None) | (None, Some((key, _))) => key.clone(),
            };
            if let Some(value) = self.get(&key)? {
                return Ok(Some((key, value)));
            }
            upper = Bound::Excluded(key);
        }
    }

    pub(super) fn read_blocks(&self, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.table.read_blocks(prefix, first, buf, self.at)?;
        let Some(own) = &self.own else { return Ok(()) };
        for (at, data) in (0..).zip(buf.chunks_mut(BLOCK_BYTES)) {
            match own.get(&block_key(prefix, first + at)) {
                Some(OwnEntry::Value(value)) => data.copy_from_slice(&value),
                Some(_) => data.fill(0),
                None => {}
            }
        }
        Ok(())
    }

    pub(super) fn next_extent(&self, prefix: &[u8], from: u64, kind: ExtentKind) -> Result<Option<Extent>> {
        if self.own.is_none() {
            return self.table.next_extent(prefix, from, kind, self.at);
        }
        self.table.expect_kind(KeyspaceKind::Block, "next_extent")?;
        let mut end = block_key(prefix, u64::MAX).to_vec();
        end.push(0);
        let range = KeyRange::new(block_key(prefix, from), end);
        let mut failed = None;
        let mut last: Option<Bytes> = None;
        let mut blocks = std::iter::from_fn(|| {
            loop {
                let lower = last.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
                match self.entry_after(&range, lower) {
                    Ok(Some((key, _))) => {
                        let block = block_of(prefix, &key);
                        last = Some(key);
                        if block.is_some() {
                            return block;
                        }
                    }
                    Ok(None) => return None,
                    Err(error) => {
                        failed = Some(error);
                        return None;
                    }
                }
            }
        });
        let extent = crate::blocks::extent(from, kind, &mut blocks);
        failed.map_or(Ok(extent), Err)
    }
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

impl Table {
    /// The merge function, which merges need.
    pub(super) fn merge_function(&self) -> Result<Arc<dyn crate::MergeFunction>> {
        self.merge.read().clone().ok_or_else(|| StoreError::NoMergeFunction(self.name.clone()))
    }
}

impl KeyRange {
    /// `lower`, or the start of the range if that is higher.
    fn lower_of<'a>(&'a self, lower: Bound<&'a [u8]>) -> Bound<&'a [u8]> {
        match lower {
            Bound::Included(key) | Bound::Excluded(key) if key >= &self.start[..] => lower,
            _ => Bound::Included(&self.start[..]),
        }
    }

    /// `upper`, or the end of the range if that is lower.
    fn upper_of<'a>(&'a self, upper: Bound<&'a [u8]>) -> Bound<&'a [u8]> {
        match (upper, &self.end) {
            (Bound::Included(key) | Bound::Excluded(key), Some(end)) if key >= &end[..] => {
                Bound::Excluded(&end[..])
            }
            (Bound::Unbounded, Some(end)) => Bound::Excluded(&end[..]),
            _ => upper,
        }
    }
}
