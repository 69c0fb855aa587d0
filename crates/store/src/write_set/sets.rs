//! The private writes on all keyspaces.
//!
//! Thread safety and invariants: see the module above.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{Space, WriteSet, Written};
use crate::blocks::{block_key, block_of_key, patched};
use crate::{BLOCK_BYTES, Batch, Keyspace, KeyspaceKind, Op, Read, Result};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct WriteSets(BTreeMap<Keyspace, WriteSet>);

impl WriteSets {
    /// That on one keyspace.
    pub fn of(&self, keyspace: Keyspace) -> WriteSet {
        self.0.get(&keyspace).cloned().unwrap_or_default()
    }

    /// Keys, values and operands held (bytes).
    pub fn bytes(&self) -> u64 {
        self.0.values().map(WriteSet::bytes).sum()
    }

    /// Keys that have an entry, and ranges.
    pub fn entry_count(&self) -> u64 {
        self.0.values().map(WriteSet::entry_count).sum()
    }

    /// Takes in `batch`, wholly or not at all. Merges are resolved where there is a private base, patches of
    /// blocks on `base` below what was written. Keys and values are copied, so that none keeps a larger
    /// buffer.
    ///
    /// # Errors
    /// An operation that does not fit its keyspace; those of `spaces`, of merge functions, and of reading
    /// `base`.
    pub fn apply(
        &mut self,
        batch: Batch,
        spaces: &dyn Fn(Keyspace) -> Result<Arc<Space>>,
        base: &dyn Read,
    ) -> Result<()> {
        let mut next = self.clone();
        for op in batch.into_ops() {
            next.take_in(op, spaces, base)?;
        }
        *self = next;
        Ok(())
    }

    fn take_in(
        &mut self,
        op: Op,
        spaces: &dyn Fn(Keyspace) -> Result<Arc<Space>>,
        base: &dyn Read,
    ) -> Result<()> {
        let space = spaces(op.keyspace())?;
        op.check_kind(space.kind, &space.name)?;
        let own = self.0.entry(op.keyspace()).or_default();
        match op {
            Op::Put { key, value, .. } => own.set(copied(&key), Written::Value(copied(&value))),
            Op::Delete { key, .. } => own.set(copied(&key), Written::Deleted),
            Op::DeleteRange { start, end, .. } => own.delete_range(copied(&start), copied(&end)),
            Op::Merge { key, operand, .. } => merge(own, &space, &copied(&key), &operand)?,
            Op::PutBlocks { prefix, first, data, .. } => {
                for (value, block) in data.chunks_exact(BLOCK_BYTES).zip(first..) {
                    own.set(block_key(&prefix, block), Written::Value(Bytes::copy_from_slice(value)));
                }
            }
            Op::PatchBlock { prefix, block, offset, data, .. } => {
                let key = block_key(&prefix, block);
                let old = match own.get(&key) {
                    Some(Written::Value(value)) => Some(value),
                    Some(_) => None,
                    None => base.get(space.keyspace, &key)?,
                };
                own.set(key, Written::Value(patched(old.as_deref(), offset, &data)));
            }
        }
        Ok(())
    }

    /// The net write set as one batch, of any size. Values are shared with it.
    ///
    /// # Errors
    /// Those of `spaces`.
    pub fn to_batch(&self, spaces: &dyn Fn(Keyspace) -> Result<Arc<Space>>) -> Result<Batch> {
        let mut batch = Batch::new();
        for (&keyspace, own) in &self.0 {
            let kind = spaces(keyspace)?.kind;
            // All of them first: nothing that is written lies before one that it lies in.
            for (start, end) in &own.deleted {
                batch.delete_range(keyspace, start.clone(), end.clone());
            }
            for (key, written) in &own.entries {
                match written {
                    Written::Deleted => batch.delete(keyspace, key.clone()),
                    Written::Operands(operands) => {
                        for operand in operands {
                            batch.merge(keyspace, key.clone(), operand.clone());
                        }
                    }
                    Written::Value(value) if kind == KeyspaceKind::Tuple => {
                        batch.put(keyspace, key.clone(), value.clone());
                    }
                    Written::Value(value) => {
                        if let Some((prefix, block)) = block_of_key(key) {
                            batch.put_blocks(keyspace, prefix, block, value.clone());
                        }
                    }
                }
            }
        }
        Ok(batch)
    }
}

/// Merges `operand` into what is privately known of `key`.
fn merge(own: &mut WriteSet, space: &Space, key: &Bytes, operand: &[u8]) -> Result<()> {
    let function = space.merge_function()?;
    let base = match own.get(key) {
        None | Some(Written::Operands(_)) => {
            own.push_operand(key, Bytes::copy_from_slice(operand), |older, newer| {
                function.fold(key, older, newer)
            });
            return Ok(());
        }
        Some(Written::Value(value)) => Some(value),
        Some(Written::Deleted) => None,
    };
    let value = function.resolve(key, base.as_deref(), &[operand])?;
    own.set(key.clone(), value.map_or(Written::Deleted, Written::Value));
    Ok(())
}

fn copied(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
