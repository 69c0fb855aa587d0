//! How a batch is applied: check everything, resolve merges aside, then change the maps at once.
//!
//! Nothing fails after the first change, so a batch is applied wholly or not at all.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::table::{Map, NEWEST, Table};
use super::versions::Versions;
use super::{Commit, Shared};
use crate::blocks::{block_key, patched};
use crate::{BLOCK_BYTES, Batch, KeyRange, Keyspace, Op, Position, Result, Seqno, StoreError, TxnId};

/// Outdated keys that one batch cleans up beyond two for each of its operations.
const SWEEP_KEYS_MIN: usize = 64;

/// Applies `batch` and gives its position.
pub(super) fn apply(shared: &Shared, batch: Batch) -> Result<Position> {
    batch.check_limits()?;
    apply_any_size(shared, batch, None, |_, _| ())
}

/// As [`apply`], for batches whose parts were checked; `commit_of` is the transaction that ends with it, and
/// its note. `then` runs when it took effect, still under the lock.
pub(super) fn apply_any_size(
    shared: &Shared,
    batch: Batch,
    commit_of: Option<(TxnId, Bytes)>,
    then: impl FnOnce(&mut Commit, Position),
) -> Result<Position> {
    let mut commit = shared.commit.lock();
    let tables = Tables::of(shared, &batch)?;
    let merged = resolve_merges(&tables, &batch)?;
    sweep(shared, &mut commit, SWEEP_KEYS_MIN + 2 * batch.len());
    // What a transaction has taken, it commits.
    let takes_reserve = batch.is_deleting() || commit_of.is_some();
    check_space(shared, &mut commit, &batch, takes_reserve)?;

    let base = shared.newest();
    let newest = base + batch.len() as u64;
    let kept = commit_of.filter(|_| commit.undo.count_max > 0 && newest > base);
    if kept.is_some() {
        // Before anything is overwritten.
        commit.pin(base);
    }
    if commit.transactions.are_open() || commit.named.oldest().is_some() {
        for (op, seqno) in batch.ops().iter().zip(base + 1..) {
            commit.recent.push(op, seqno, tables.get(op.keyspace()))?;
        }
    }
    let mut maps: Vec<_> = tables.0.iter().map(|table| table.map.write()).collect();
    let mut merged = merged.into_iter();
    for (op, seqno) in batch.into_ops().into_iter().zip(base + 1..) {
        let index = tables.index(op.keyspace());
        let keyspace = op.keyspace();
        let mut writer = Writer { shared, commit: &mut commit, map: &mut maps[index], keyspace, seqno };
        match op {
            Op::Put { key, value, .. } => writer.put(key, value),
            Op::Delete { key, .. } => writer.delete(&key),
            Op::DeleteRange { start, end, .. } => writer.delete_range(start, end),
            Op::Merge { key, .. } => match merged.next().flatten() {
                Some(value) => writer.put(key, value),
                None => writer.delete(&key),
            },
            Op::PutBlocks { prefix, first, data, .. } => writer.put_blocks(&prefix, first, &data),
            Op::PatchBlock { prefix, block, offset, data, .. } => {
                writer.patch_block(&block_key(&prefix, block), offset, &data);
            }
        }
    }
    // Published while the keyspaces are locked: a reader that sees the change sees the position too.
    shared.newest.store(newest, Ordering::Release);
    drop(maps);
    commit.batches += 1;
    if let Some(txn) = kept {
        commit.keep(txn, base, newest);
    }
    then(&mut commit, Position(newest));
    Ok(Position(newest))
}

/// The keyspaces of a batch, ordered by handle.
pub(super) struct Tables(Vec<Arc<Table>>);

impl Tables {
    /// Finds and checks the keyspaces of `batch`.
    pub(super) fn of(shared: &Shared, batch: &Batch) -> Result<Self> {
        let mut tables: Vec<Arc<Table>> = Vec::new();
        for op in batch.ops() {
            let keyspace = op.keyspace();
            let index = tables.partition_point(|table| table.keyspace < keyspace);
            if tables.get(index).is_none_or(|table| table.keyspace != keyspace) {
                tables.insert(index, shared.table(keyspace)?);
            }
            let table = &tables[index];
            op.check_kind(table.kind, &table.name)?;
            if matches!(op, Op::Merge { .. }) {
                table.merge_function()?;
            }
        }
        Ok(Self(tables))
    }

    /// A keyspace of the batch.
    pub(super) fn get(&self, keyspace: Keyspace) -> &Table {
        &self.0[self.index(keyspace)]
    }

    /// Index of a keyspace of the batch.
    fn index(&self, keyspace: Keyspace) -> usize {
        self.0.partition_point(|table| table.keyspace < keyspace)
    }
}

/// The values that the merges of `batch` lead to, in their order. `None`: absent afterwards.
fn resolve_merges(tables: &Tables, batch: &Batch) -> Result<Vec<Option<Bytes>>> {
    let mut merged = Vec::new();
    if !batch.ops().iter().any(|op| matches!(op, Op::Merge { .. })) {
        return Ok(merged);
    }
    let mut staged = Staged::default();
    for op in batch.ops() {
        match op {
            Op::Put { keyspace, key, value } => staged.set(*keyspace, key, Some(value.clone())),
            Op::Delete { keyspace, key } => staged.set(*keyspace, key, None),
            Op::DeleteRange { keyspace, start, end } => staged.delete_range(*keyspace, start, end),
            Op::Merge { keyspace, key, operand } => {
                let table = &tables.0[tables.index(*keyspace)];
                let base = staged.get(*keyspace, key, || table.get(key, NEWEST));
                let function = table.merge.read().clone();
                let function = function.ok_or_else(|| StoreError::NoMergeFunction(table.name.clone()))?;
                let value = function.resolve(key, base.as_deref(), &[operand])?;
                staged.set(*keyspace, key, value.clone());
                merged.push(value);
            }
            Op::PutBlocks { .. } | Op::PatchBlock { .. } => {}
        }
    }
    Ok(merged)
}

/// What the operations of a batch so far lead to, beside the maps.
#[derive(Default)]
struct Staged {
    values: BTreeMap<(Keyspace, Bytes), Option<Bytes>>,
    deleted: Vec<(Keyspace, KeyRange)>,
}

impl Staged {
    fn set(&mut self, keyspace: Keyspace, key: &Bytes, value: Option<Bytes>) {
        self.values.insert((keyspace, key.clone()), value);
    }

    fn delete_range(&mut self, keyspace: Keyspace, start: &Bytes, end: &Bytes) {
        if start >= end {
            return;
        }
        for (_, value) in self.values.range_mut((keyspace, start.clone())..(keyspace, end.clone())) {
            *value = None;
        }
        self.deleted.push((keyspace, KeyRange::new(start.clone(), end.clone())));
    }

    /// The value of `key` after the operations so far, `in_map` being the one before the batch.
    fn get(&self, keyspace: Keyspace, key: &Bytes, in_map: impl FnOnce() -> Option<Bytes>) -> Option<Bytes> {
        if let Some(value) = self.values.get(&(keyspace, key.clone())) {
            return value.clone();
        }
        let deleted = self.deleted.iter().any(|(of, range)| *of == keyspace && range.contains(key));
        if deleted { None } else { in_map() }
    }
}

/// Drops old versions of up to `keys_max` keys that no snapshot sees any more.
fn sweep(shared: &Shared, commit: &mut Commit, keys_max: usize) {
    let oldest_pin = commit.pins.keys().next().copied().unwrap_or(Seqno::MAX);
    for _ in 0..keys_max {
        let Some((_, keyspace, key)) = commit.outdated.pop_front_if(|(seqno, ..)| *seqno <= oldest_pin)
        else {
            return;
        };
        let Ok(table) = shared.table(keyspace) else { continue };
        let mut map = table.map.write();
        let Some(versions) = map.get_mut(&key) else { continue };
        let key_bytes = shared.key_bytes(&key);
        let bytes_before = versions.bytes(key_bytes);
        versions.prune(&commit.pins);
        account(shared, bytes_before, versions.bytes(key_bytes));
        if versions.is_absent() {
            account(shared, versions.bytes(key_bytes), 0);
            map.remove(&key);
        }
    }
}

/// Fails with `Full` when the store has a limit and `batch` may not take what it needs.
fn check_space(shared: &Shared, commit: &mut Commit, batch: &Batch, takes_reserve: bool) -> Result<()> {
    if !is_full_for(shared, batch, takes_reserve) {
        return Ok(());
    }
    sweep(shared, commit, usize::MAX);
    if is_full_for(shared, batch, takes_reserve) { Err(StoreError::Full) } else { Ok(()) }
}

/// Whether the store has a limit, and `batch` may not take what it needs.
pub(super) fn is_full_for(shared: &Shared, batch: &Batch, takes_reserve: bool) -> bool {
    let Some(bytes_max) = shared.options.capacity_bytes else { return false };
    let bytes_needed: u64 = batch.ops().iter().map(|op| bytes_needed(shared, op)).sum();
    let bytes_allowed = if takes_reserve { bytes_max } else { bytes_max - shared.bytes_reserved() };
    bytes_needed > 0 && shared.bytes_taken() + bytes_needed > bytes_allowed
}

/// What an operation may add to `bytes_used`, not counting tombstones.
fn bytes_needed(shared: &Shared, op: &Op) -> u64 {
    match op {
        Op::Put { .. } | Op::Merge { .. } => op.payload_bytes() as u64 + shared.options.entry_bytes,
        Op::PutBlocks { prefix, data, .. } => {
            (data.len() + data.len() / BLOCK_BYTES * (shared.key_bytes(prefix) + 8)) as u64
        }
        Op::PatchBlock { prefix, .. } => (shared.key_bytes(prefix) + 8 + BLOCK_BYTES) as u64,
        Op::Delete { .. } | Op::DeleteRange { .. } => 0,
    }
}

fn account(shared: &Shared, bytes_before: u64, bytes_after: u64) {
    // Wrapping: the difference may be negative, the sum never is.
    shared.bytes_used.fetch_add(bytes_after.wrapping_sub(bytes_before), Ordering::Relaxed);
}

/// Changes one map on behalf of one operation.
struct Writer<'a> {
    shared: &'a Shared,
    commit: &'a mut Commit,
    map: &'a mut Map,
    keyspace: Keyspace,
    seqno: Seqno,
}

impl Writer<'_> {
    fn put(&mut self, key: Bytes, value: Bytes) {
        let (key, value) = (self.shared.kept(key), self.shared.kept(value));
        match self.map.entry(key) {
            Entry::Vacant(entry) => {
                account(self.shared, 0, (self.shared.key_bytes(entry.key()) + value.len()) as u64);
                entry.insert(Versions::new(self.seqno, value));
            }
            Entry::Occupied(mut entry) => {
                let key_bytes = self.shared.key_bytes(entry.key());
                let bytes_before = entry.get().bytes(key_bytes);
                entry.get_mut().push(self.seqno, Some(value), &self.commit.pins);
                account(self.shared, bytes_before, entry.get().bytes(key_bytes));
                if entry.get().has_older() {
                    self.commit.outdated.push_back((self.seqno, self.keyspace, entry.key().clone()));
                }
            }
        }
    }

    fn delete(&mut self, key: &Bytes) {
        let Some(versions) = self.map.get_mut(key) else { return };
        if versions.at(NEWEST).is_none() {
            return;
        }
        let key_bytes = self.shared.key_bytes(key);
        let bytes_before = versions.bytes(key_bytes);
        versions.push(self.seqno, None, &self.commit.pins);
        if versions.is_absent() {
            account(self.shared, bytes_before, 0);
            self.map.remove(key);
        } else {
            account(self.shared, bytes_before, versions.bytes(key_bytes));
            self.commit.outdated.push_back((self.seqno, self.keyspace, key.clone()));
        }
    }

    fn delete_range(&mut self, start: Bytes, end: Bytes) {
        if start >= end {
            return;
        }
        let keys: Vec<Bytes> = self.map.range(start..end).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.delete(&key);
        }
    }

    fn put_blocks(&mut self, prefix: &[u8], first: u64, data: &Bytes) {
        for index in 0..data.len() / BLOCK_BYTES {
            let value = data.slice(index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES);
            self.put(block_key(prefix, first + index as u64), value);
        }
    }

    fn patch_block(&mut self, key: &Bytes, offset: u16, data: &[u8]) {
        let old = self.map.get(key).and_then(|versions| versions.at(NEWEST));
        let value = patched(old.map(|old| &old[..]), offset, data);
        self.put(key.clone(), value);
    }
}
