//! The reference model as an engine without any extension.

use std::sync::Arc;
use std::time::Duration;

use kvfs_engine_transactions::Base;
use kvfs_store::model::ModelStore;
use kvfs_store::{
    BATCH_BYTES_MAX, Batch, Durability, EngineStore, Position, Read, Result, Store, TxnOptions, Verified,
};

/// What is in it stays when it is opened again.
#[derive(Clone, Default)]
pub(crate) struct Bare(pub(crate) Arc<ModelStore>);

impl Read for Bare {
    kvfs_store::pass_on!(model(): get, multi_get, cursor, read_blocks, next_extent);
}

impl Bare {
    fn model(&self) -> &ModelStore {
        &self.0
    }
}

impl Store for Bare {
    kvfs_store::pass_on!(
        model(): open_keyspace, keyspaces, snapshot, apply, sync, position, capabilities, space, stats
    );
}

impl EngineStore for Bare {
    fn failure(&self) -> Option<Arc<str>> {
        None
    }

    fn set_memory_bytes(&self, _bytes: u64) {}

    fn set_commit_interval(&self, _interval: Duration) {}

    fn verify(&self) -> Result<Verified> {
        Ok(Verified::default())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl Base for Bare {
    fn admit(&self, _batch: &Batch, _durability: Durability) -> Result<()> {
        Ok(())
    }

    fn apply_admitted(&self, batch: Batch) -> Result<Position> {
        if batch.whole_bytes() <= BATCH_BYTES_MAX {
            return self.0.apply(batch, Durability::Buffered);
        }
        // What the model takes in parts, and applies at once.
        let parts = (&*self.0 as &dyn Store).begin(TxnOptions::default())?;
        for op in batch.into_ops() {
            let mut part = Batch::new();
            part.push(op);
            parts.apply(part)?;
        }
        parts.commit(Durability::Buffered)
    }
}
