//! How a batch becomes a `WriteBatch`: what `RocksDB` knows is passed on, the rest is resolved on what was there before.
//!
//! Thread safety: one thread, which holds the order lock. Invariant: nothing is written here, so a failure changes nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::blocks::{block_key, patched};
use kvfs_store::{BLOCK_BYTES, Batch, KeyRange, Keyspace, KeyspaceKind, Op, Result};
use rocksdb::{BoundColumnFamily, WriteBatch};

use crate::shared::Shared;
use crate::space::Space;
use crate::view::View;

/// A range of at most so many keys is deleted key by key.
const KEYS_DELETED_MAX: usize = 64;

/// The keyspaces of a batch.
pub(crate) struct Spaces<'a> {
    by_keyspace: BTreeMap<Keyspace, (Arc<Space>, Arc<BoundColumnFamily<'a>>)>,
}

impl<'a> Spaces<'a> {
    /// Finds those of `batch`, and checks that its operations fit them.
    pub(crate) fn of(shared: &'a Shared, batch: &Batch) -> Result<Self> {
        let mut by_keyspace = BTreeMap::new();
        for op in batch.ops() {
            let keyspace = op.keyspace();
            let (space, _) = match by_keyspace.entry(keyspace) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let space = shared.space(keyspace)?;
                    let family = shared.family(&space)?;
                    new.insert((space, family))
                }
            };
            match op {
                Op::Put { .. } => space.expect_kind(KeyspaceKind::Tuple, "put")?,
                Op::PutBlocks { .. } => space.expect_kind(KeyspaceKind::Block, "put_blocks")?,
                Op::PatchBlock { .. } => space.expect_kind(KeyspaceKind::Block, "patch_block")?,
                Op::Merge { .. } => {
                    space.expect_kind(KeyspaceKind::Tuple, "merge")?;
                    space.merge_function()?;
                }
                Op::Delete { .. } | Op::DeleteRange { .. } => {}
            }
        }
        Ok(Self { by_keyspace })
    }
}

/// What the operations of a batch so far have come to, as far as later ones have to know.
#[derive(Default)]
struct Staged {
    values: BTreeMap<(Keyspace, Bytes), Option<Bytes>>,
    /// Earlier than all of `values` that lie in them.
    deleted: Vec<(Keyspace, KeyRange)>,
}

impl Staged {
    fn set(&mut self, keyspace: Keyspace, key: Bytes, value: Option<Bytes>) {
        self.values.insert((keyspace, key), value);
    }

    fn delete_range(&mut self, keyspace: Keyspace, range: &KeyRange) {
        let end = range.end.clone().unwrap_or_default();
        for (_, value) in self.values.range_mut((keyspace, range.start.clone())..(keyspace, end)) {
            *value = None;
        }
        self.deleted.push((keyspace, range.clone()));
    }

    /// The value of `key` after the operations so far, `below` being the one before the batch.
    fn get(
        &self,
        keyspace: Keyspace,
        key: &Bytes,
        below: impl FnOnce() -> Result<Option<Bytes>>,
    ) -> Result<Option<Bytes>> {
        if let Some(value) = self.values.get(&(keyspace, key.clone())) {
            return Ok(value.clone());
        }
        let is_deleted = self.deleted.iter().any(|(of, range)| *of == keyspace && range.contains(key));
        if is_deleted { Ok(None) } else { below() }
    }
}

/// A batch on its way.
struct Stage<'a> {
    view: View<'a>,
    spaces: &'a Spaces<'a>,
    write: WriteBatch,
    staged: Staged,
    /// Later operations read what earlier ones have written.
    resolves: bool,
    /// The keyspaces that were written to.
    touched: Vec<Keyspace>,
}

/// What `batch` does, for `RocksDB`.
pub(crate) fn stage(shared: &Shared, spaces: &Spaces<'_>, batch: Batch) -> Result<WriteBatch> {
    let resolves = batch.has_patches() || batch.ops().iter().any(|op| matches!(op, Op::Merge { .. }));
    let mut stage = Stage {
        view: View::newest(shared),
        spaces,
        write: WriteBatch::default(),
        staged: Staged::default(),
        resolves,
        touched: Vec::new(),
    };
    for op in batch.into_ops() {
        let keyspace = op.keyspace();
        stage.add(op)?;
        if stage.touched.last() != Some(&keyspace) {
            stage.touched.push(keyspace);
        }
    }
    Ok(stage.write)
}

impl Stage<'_> {
    fn add(&mut self, op: Op) -> Result<()> {
        match op {
            Op::Put { keyspace, key, value } => self.set(keyspace, key, Some(value)),
            Op::Delete { keyspace, key } => self.set(keyspace, key, None),
            Op::DeleteRange { keyspace, start, end } => {
                return self.delete_range(keyspace, &KeyRange::new(start, end));
            }
            Op::Merge { keyspace, key, operand } => {
                let base = self.current(keyspace, &key)?;
                let function = self.spaces.by_keyspace[&keyspace].0.merge_function()?;
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
        let (_, family) = &self.spaces.by_keyspace[&keyspace];
        match &value {
            Some(value) => self.write.put_cf(family, &key, value),
            None => self.write.delete_cf(family, &key),
        }
        if self.resolves {
            self.staged.set(keyspace, key, value);
        }
    }

    fn current(&self, keyspace: Keyspace, key: &Bytes) -> Result<Option<Bytes>> {
        let (space, _) = &self.spaces.by_keyspace[&keyspace];
        self.staged.get(keyspace, key, || self.view.get(space, key))
    }

    fn delete_range(&mut self, keyspace: Keyspace, range: &KeyRange) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (space, family) = &self.spaces.by_keyspace[&keyspace];
        let mut keys = Vec::new();
        // What the batch itself has written is in no iterator.
        let is_fresh = !self.touched.contains(&keyspace);
        if is_fresh {
            self.view.walk(space, range, &mut |key, _| {
                keys.push(Bytes::copy_from_slice(key));
                Ok(keys.len() <= KEYS_DELETED_MAX)
            })?;
        }
        if is_fresh && keys.len() <= KEYS_DELETED_MAX {
            for key in keys {
                self.write.delete_cf(family, &key);
            }
        } else {
            let end = range.end.as_deref().unwrap_or_default();
            self.write.delete_range_cf(family, &range.start[..], end);
        }
        if self.resolves {
            self.staged.delete_range(keyspace, range);
        }
        Ok(())
    }
}
