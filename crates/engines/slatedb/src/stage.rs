//! How a batch becomes one of `SlateDB`: merge records, patches and range deletes are resolved on what was there before.
//!
//! Thread safety: one thread, which holds the order lock. Invariant: nothing is written here, so a failure changes nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::blocks::{block_key, patched};
use kvfs_store::{BLOCK_BYTES, Batch, KeyRange, Keyspace, Op, Result};
use slatedb::WriteBatch;

use crate::backlog::Backlog;
use crate::keys;
use crate::ranges::DeadRange;
use crate::shared::Shared;
use crate::space::Space;
use crate::view::View;

/// A range of at most so many keys is deleted key by key.
const KEYS_DELETED_MAX: usize = 64;

/// The keyspaces of a batch.
pub(crate) struct Spaces {
    by_keyspace: BTreeMap<Keyspace, Arc<Space>>,
}

impl Spaces {
    /// Finds those of `batch`, and checks that its operations fit them.
    pub(crate) fn of(shared: &Shared, batch: &Batch) -> Result<Self> {
        let mut by_keyspace = BTreeMap::new();
        for op in batch.ops() {
            let keyspace = op.keyspace();
            let space = match by_keyspace.entry(keyspace) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(shared.space(keyspace)?),
            };
            op.check_kind(space.kind, &space.name)?;
            if matches!(op, Op::Merge { .. }) {
                space.merge_function()?;
            }
        }
        Ok(Self { by_keyspace })
    }

    fn get(&self, keyspace: Keyspace) -> &Space {
        &self.by_keyspace[&keyspace]
    }
}

/// What a batch comes to.
pub(crate) struct Staged<'a> {
    view: View<'a>,
    spaces: &'a Spaces,
    /// What each key that is written or deleted by itself holds in the end.
    values: BTreeMap<(Keyspace, Bytes), Option<Bytes>>,
    /// Earlier than all of `values` that lie in them.
    deleted: Vec<(Keyspace, KeyRange)>,
}

/// What `batch` does, for `SlateDB`.
pub(crate) fn stage<'a>(shared: &'a Shared, spaces: &'a Spaces, batch: Batch) -> Result<Staged<'a>> {
    let view = View::newest(shared);
    let mut staged = Staged { view, spaces, values: BTreeMap::new(), deleted: Vec::new() };
    for op in batch.into_ops() {
        staged.add(op)?;
    }
    Ok(staged)
}

impl Staged<'_> {
    fn add(&mut self, op: Op) -> Result<()> {
        match op {
            Op::Put { keyspace, key, value } => self.set(keyspace, key, Some(value)),
            Op::Delete { keyspace, key } => self.set(keyspace, key, None),
            Op::DeleteRange { keyspace, start, end } => {
                return self.delete_range(keyspace, KeyRange::new(start, end));
            }
            Op::Merge { keyspace, key, operand } => {
                let base = self.current(keyspace, &key)?;
                let function = self.spaces.get(keyspace).merge_function()?;
                let value = function.resolve(&key, base.as_deref(), &[&operand])?;
                self.set(keyspace, key, value);
            }
            Op::PutBlocks { keyspace, prefix, first, data, .. } => {
                for index in 0..data.len() / BLOCK_BYTES {
                    let value = data.slice(index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES);
                    self.set(keyspace, block_key(&prefix, first + index as u64), Some(value));
                }
            }
            Op::PatchBlock { keyspace, prefix, block, offset, data, .. } => {
                let key = block_key(&prefix, block);
                let old = self.current(keyspace, &key)?;
                self.set(keyspace, key, Some(patched(old.as_deref(), offset, &data)));
            }
        }
        Ok(())
    }

    fn set(&mut self, keyspace: Keyspace, key: Bytes, value: Option<Bytes>) {
        self.values.insert((keyspace, key), value);
    }

    /// The value of `key` after the operations so far.
    fn current(&self, keyspace: Keyspace, key: &Bytes) -> Result<Option<Bytes>> {
        if let Some(value) = self.values.get(&(keyspace, key.clone())) {
            return Ok(value.clone());
        }
        let is_deleted = self.deleted.iter().any(|(of, range)| *of == keyspace && range.contains(key));
        if is_deleted { Ok(None) } else { self.view.get(self.spaces.get(keyspace), key) }
    }

    fn delete_range(&mut self, keyspace: Keyspace, range: KeyRange) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut keys = Vec::new();
        self.view.walk(self.spaces.get(keyspace), &range, 0, &mut |key, _| {
            keys.push(Bytes::copy_from_slice(key));
            Ok(keys.len() <= KEYS_DELETED_MAX)
        })?;
        let end = range.end.clone().unwrap_or_default();
        for (_, value) in self.values.range_mut((keyspace, range.start.clone())..(keyspace, end)) {
            *value = None;
        }
        if keys.len() <= KEYS_DELETED_MAX {
            for key in keys {
                self.set(keyspace, key, None);
            }
        } else {
            self.deleted.push((keyspace, range));
        }
        Ok(())
    }

    /// The batch, and the ranges that it deletes, with the sequence number that it will have, and what it weighs.
    pub(crate) fn into_write(self, sequence: u64) -> (WriteBatch, Vec<Arc<DeadRange>>, u64) {
        let mut write = WriteBatch::new();
        let (mut entries, mut bytes) = (0, 0);
        for ((keyspace, key), value) in self.values {
            let full = keys::full(keyspace.0, &key);
            entries += 1;
            bytes += full.len() + value.as_ref().map_or(0, Bytes::len);
            match value {
                Some(value) => write.put_bytes(full, value),
                None => write.delete(full),
            }
        }
        let dead = |(index, (keyspace, range)): (u32, (Keyspace, KeyRange))| {
            Arc::new(DeadRange { space: keyspace.0, range, sequence, index })
        };
        let dead: Vec<_> = (0..).zip(self.deleted).map(dead).collect();
        for dead in &dead {
            let (key, value) = (keys::full(keys::META, &dead.key()), dead.value());
            entries += 1;
            bytes += key.len() + value.len();
            write.put_bytes(key, value);
        }
        (write, dead, Backlog::weight(entries, bytes))
    }
}
