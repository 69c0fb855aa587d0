//! The private write set of one transaction, in memory.
//!
//! Purpose: a memtable of its own, which lies above the layers that everybody sees. Its records are numbered
//! from [`PRIVATE`] on, so that they come before everything else in record order; what they become at the
//! commit is the *net* set (module `net`), as one batch.
//!
//! Thread safety: writers take turns (the transaction's lock); readers hold the table and the number of the
//! last batch that was whole when they came, see [`OwnTable`].
//!
//! Invariants: everything at or below `last` is wholly in the table; block data is kept by the operation that
//! brought it, so that the commit writes stretches, not blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Batch, Keyspace, KeyspaceKind, Op, Result, Seqno, TxnStats};

use super::net::{NetChanges, NetSource, net_batch};
use crate::cache::Accountant;
use crate::memtable::{MemTable, Merger};

/// Private records have seqnos above this, all others below.
pub const PRIVATE: Seqno = 1 << 63;

/// What a reader sees of a private write set.
#[derive(Debug, Clone)]
pub struct OwnTable {
    /// The records.
    pub table: Arc<MemTable>,
    /// The newest seqno that counts.
    pub limit: Seqno,
}

/// The private writes of one transaction.
pub struct PrivateWrites {
    table: Arc<MemTable>,
    /// Of the last batch.
    last: Seqno,
    /// First block and data of each operation that wrote blocks.
    block_writes: BlockWrites,
    stats: TxnStats,
}

/// First block and data by the seqno that they have in the private table.
pub(super) type BlockWrites = BTreeMap<Seqno, (u64, Bytes)>;

impl PrivateWrites {
    /// An empty set, whose memory is charged to `accountant`.
    pub fn new(accountant: Arc<Accountant>) -> Self {
        Self {
            table: Arc::new(MemTable::new(accountant)),
            last: PRIVATE,
            block_writes: BTreeMap::new(),
            stats: TxnStats::default(),
        }
    }

    /// Adds a batch that has passed all checks. Can't fail.
    pub fn apply(&mut self, batch: &Batch, kind_of: impl Fn(Keyspace) -> KeyspaceKind) {
        for (op, seqno) in batch.ops().iter().zip(self.last + 1..) {
            if let Op::PutBlocks { first, data, .. } = op {
                self.block_writes.insert(seqno, (*first, data.clone()));
            }
        }
        self.table.apply(batch, self.last + 1, kind_of);
        self.last += batch.len() as u64;
        self.stats.batches += 1;
        self.stats.operations += batch.len() as u64;
        self.stats.bytes_written += batch.payload_bytes() as u64;
    }

    /// The set as it is now; `None` while it is empty.
    pub fn own(&self) -> Option<OwnTable> {
        (!self.table.is_empty()).then(|| OwnTable { table: Arc::clone(&self.table), limit: self.last })
    }

    /// Sizes.
    pub fn stats(&self) -> TxnStats {
        TxnStats { bytes_memory: self.table.bytes(), ..self.stats }
    }

    /// The net changes of one keyspace as they are now.
    pub fn changes(&self, keyspace: u32, kind: KeyspaceKind, merger: Merger) -> NetChanges {
        NetChanges::new(self.source(keyspace, kind, merger))
    }

    fn source(&self, keyspace: u32, kind: KeyspaceKind, merger: Merger) -> NetSource {
        NetSource { table: Arc::clone(&self.table), keyspace, kind, merger, limit: self.last }
    }

    /// The net changes of all keyspaces as one batch. `meta` knows the layout and the merge function of each.
    ///
    /// # Errors
    /// Those of `meta`, and of merge functions.
    pub fn batch(&self, meta: impl Fn(u32) -> Result<(KeyspaceKind, Merger)>) -> Result<Batch> {
        let mut batch = Batch::new();
        for keyspace in self.table.keyspaces() {
            let (kind, merger) = meta(keyspace)?;
            net_batch(&self.source(keyspace, kind, merger), &self.block_writes, &mut batch)?;
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests;
