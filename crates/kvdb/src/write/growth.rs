//! What deleting batches have made larger on a full store.
//!
//! A batch that deletes may use the reserve, and may bring rows, too: times, counters, the other name of a
//! file. So that no sequence of such batches fills the reserve, each is charged with what it brings less what
//! it deletes and replaces, and together they may be charged with [`GROWTH_MAX`] until there is ordinary
//! space again.
//!
//! Thread safety: an atomic sum; batches admitted at the same time may pass the bound by one batch each.
//!
//! Invariant: the sum is never negative, since what was deleted is free only later, or not at all where a
//! snapshot has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Batch, KeyRange, Keyspace, Op, Result};

use crate::layers::Layers;
use crate::memtable::block_key;
use crate::read::Reader;

/// Most that deleting batches may add to a full store (bytes).
const GROWTH_MAX: u64 = 1 << 20;

/// See the module.
pub(super) struct ReserveGrowth {
    reader: Arc<Reader>,
    bytes: AtomicU64,
}

impl ReserveGrowth {
    pub(super) fn new(reader: &Arc<Reader>) -> Self {
        Self { reader: Arc::clone(reader), bytes: AtomicU64::new(0) }
    }

    /// There is ordinary space, so nothing of the reserve is in use.
    pub(super) fn reset(&self) {
        if self.bytes.load(Relaxed) != 0 {
            self.bytes.store(0, Relaxed);
        }
    }

    pub(super) fn allows(&self, growth: i64) -> bool {
        is_within(self.bytes.load(Relaxed), growth)
    }

    pub(super) fn note(&self, growth: i64) {
        self.bytes.update(Relaxed, Relaxed, |bytes| bytes.saturating_add_signed(growth));
    }

    /// What the store grows by with the batch (bytes), by what `layers` say of its keys. Of a deleted range
    /// the first record counts alone.
    pub(super) fn growth_of(&self, batch: &Batch, layers: &Layers) -> i64 {
        if batch.ops().iter().all(Op::is_deletion) {
            return 0;
        }
        let mut changes = Changes { reader: &self.reader, layers, sizes: HashMap::new() };
        batch.ops().iter().for_each(|op| changes.add(op));
        changes.sizes.values().map(|(old, new)| *new as i64 - *old as i64).sum()
    }
}

/// Whether a batch may grow the store where others have by `bytes`. One that grows nothing always may, also
/// where others have passed the bound together.
fn is_within(bytes: u64, growth: i64) -> bool {
    growth <= 0 || bytes.saturating_add_signed(growth) <= GROWTH_MAX
}

/// What each key of a batch takes before and after it (bytes).
struct Changes<'a> {
    reader: &'a Reader,
    layers: &'a Layers,
    sizes: HashMap<(Keyspace, Bytes), (usize, usize)>,
}

impl Changes<'_> {
    fn add(&mut self, op: &Op) {
        let keyspace = op.keyspace();
        match op {
            Op::Put { key, .. } => *self.size_of(keyspace, key.clone()) = op.payload_bytes(),
            Op::Delete { key, .. } => *self.size_of(keyspace, key.clone()) = 0,
            Op::Merge { key, .. } => {
                let size = self.size_of(keyspace, key.clone());
                *size = op.payload_bytes().max(*size);
            }
            Op::DeleteRange { start, end, .. } => {
                if let Some(key) = self.first_key(keyspace, start, end).ok().flatten() {
                    *self.size_of(keyspace, key) = 0;
                }
            }
            Op::PutBlocks { prefix, first, data, .. } => {
                for block in (*first..).take(data.len() / BLOCK_BYTES) {
                    *self.size_of(keyspace, block_key(prefix, block).into()) = BLOCK_BYTES;
                }
            }
            Op::PatchBlock { prefix, block, .. } => {
                *self.size_of(keyspace, block_key(prefix, *block).into()) = BLOCK_BYTES;
            }
        }
    }

    /// What the key takes after the operations so far.
    fn size_of(&mut self, keyspace: Keyspace, key: Bytes) -> &mut usize {
        let (reader, layers) = (self.reader, self.layers);
        let (_, new) = self.sizes.entry((keyspace, key)).or_insert_with_key(|(keyspace, key)| {
            // What can't be read is not known to give anything back.
            let value = reader.get_at(layers, *keyspace, key).ok().flatten();
            let size = value.map_or(0, |value| key.len() + value.len());
            (size, size)
        });
        new
    }

    fn first_key(&self, keyspace: Keyspace, start: &Bytes, end: &Bytes) -> Result<Option<Bytes>> {
        let range = KeyRange { start: start.clone(), end: Some(end.clone()) };
        let mut cursor = self.reader.cursor_at(self.layers.clone(), keyspace, range)?;
        cursor.first()?;
        Ok(cursor.entry().map(|(key, _)| Bytes::copy_from_slice(key)))
    }
}

#[cfg(test)]
mod tests;
