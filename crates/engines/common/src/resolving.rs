//! How operations become puts and deletes of single keys, for databases that know no merge records, patches
//! and blocks.
//!
//! Thread safety: one thread, which holds the order lock. Invariant: each operation sees those before it in
//! its batch.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::blocks::{block_key, patched};
use kvfs_store::{BLOCK_BYTES, KeyRange, Keyspace, MergeFunction, Op, Result};

/// What a batch comes to, so far.
pub trait Resolving {
    /// The key has this value from here on; `None`: it is deleted.
    fn set(&mut self, keyspace: Keyspace, key: Bytes, value: Option<Bytes>);

    /// The value of `key` after the operations so far.
    ///
    /// # Errors
    /// Those of the database.
    fn current(&self, keyspace: Keyspace, key: &Bytes) -> Result<Option<Bytes>>;

    /// That of the keyspace.
    ///
    /// # Errors
    /// It has none.
    fn merge_function(&self, keyspace: Keyspace) -> Result<Arc<dyn MergeFunction>>;

    /// Deletes all keys of a range that is not empty.
    ///
    /// # Errors
    /// Those of the database.
    fn delete_range(&mut self, keyspace: Keyspace, range: KeyRange) -> Result<()>;

    /// The next operation.
    ///
    /// # Errors
    /// Those of the database; a merge record that its function refuses.
    fn add(&mut self, op: Op) -> Result<()> {
        match op {
            Op::Put { keyspace, key, value } => self.set(keyspace, key, Some(value)),
            Op::Delete { keyspace, key } => self.set(keyspace, key, None),
            Op::DeleteRange { keyspace, start, end } => {
                let range = KeyRange::new(start, end);
                return if range.is_empty() { Ok(()) } else { self.delete_range(keyspace, range) };
            }
            Op::Merge { keyspace, key, operand } => {
                let base = self.current(keyspace, &key)?;
                let value = self.merge_function(keyspace)?.resolve(&key, base.as_deref(), &[&operand])?;
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
}
