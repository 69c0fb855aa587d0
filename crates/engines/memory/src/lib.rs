//! The engine `memory`: a store that is empty when it is opened, and gone when it is closed.
//!
//! Purpose: the reference model of `kvfs_store` behind a bound. It has transactions, checkpoints, named
//! snapshots and differences, as the model has; undo it has not, since what is kept of former states would
//! fill the memory of a store that deletes to have room.
//!
//! Thread safety: as the model. Invariants: what keys and values take, with an estimate for the maps that
//! hold them, stays within the capacity; beyond that writes fail with `StoreError::Full`, while batches that
//! delete have a reserve.

use std::sync::Arc;
use std::time::Duration;

use kvfs_store::model::{ModelOptions, ModelStore};
use kvfs_store::{EngineStore, Read, Result, Store, Verified};

/// What a version of a key takes beside its bytes: its place in the map, a third of which is empty on
/// average, the header of the value, and what the allocator rounds up (bytes; an estimate).
const ENTRY_BYTES: u64 = 256;

/// See the module.
pub struct MemoryStore {
    model: ModelStore,
}

impl MemoryStore {
    /// An empty store that takes at most so many bytes.
    pub fn new(capacity_bytes: u64, uuid: [u8; 16]) -> Self {
        let options = ModelOptions {
            capacity_bytes: Some(capacity_bytes),
            entry_bytes: ENTRY_BYTES,
            copies: true,
            uuid,
        };
        Self { model: ModelStore::with(options) }
    }
}

impl Read for MemoryStore {
    kvfs_store::pass_on!(model: get, multi_get, cursor, read_blocks, next_extent);
}

impl Store for MemoryStore {
    kvfs_store::pass_on!(
        model: open_keyspace, keyspaces, snapshot, apply, sync, position, uuid, capabilities, space, stats, snapshots, changes,
        transactions, checkpoints
    );

    fn engine_name(&self) -> &'static str {
        "memory"
    }
}

impl EngineStore for MemoryStore {
    fn failure(&self) -> Option<Arc<str>> {
        None
    }

    /// The capacity stays: a file system does not shrink while it is used.
    fn set_memory_bytes(&self, _bytes: u64) {}

    /// Nothing becomes durable.
    fn set_commit_interval(&self, _interval: Duration) {}

    fn verify(&self) -> Result<Verified> {
        let keyspaces = self.model.keyspaces().len() as u64;
        Ok(Verified { findings: Vec::new(), counts: vec![("keyspaces".to_owned(), keyspaces)] })
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
