//! The store with transactions.
//!
//! Thread safety: see the crate.

use std::sync::Arc;
use std::time::Duration;

use kvfs_store::write_set::Space;
use kvfs_store::{
    Batch, BlockRange, Durability, EngineStore, Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction,
    Position, Read, Result, Store, StoreError, Transactions, Txn, TxnId, TxnOptions, TxnOutcome, Verified,
};

use crate::Base;
use crate::outcomes::KEYSPACE;
use crate::shared::Shared;
use crate::txn::HeldTxn;

/// A store of an engine without transactions, with transactions.
pub struct Transacted<S>(Arc<Shared<S>>);

impl<S: Base> Transacted<S> {
    /// Before `base`, which may take so much memory.
    pub fn new(base: S, memory_bytes: u64) -> Self {
        Self(Arc::new(Shared::new(base, memory_bytes)))
    }

    /// What it stands before.
    pub fn base(&self) -> &S {
        &self.0.base
    }
}

impl<S: Base> Read for Transacted<S> {
    kvfs_store::pass_on!(base(): get, multi_get, cursor, read_blocks, next_extent);

    fn will_need(&self, keyspace: Keyspace, ranges: Vec<BlockRange>) {
        self.base().will_need(keyspace, ranges);
    }
}

impl<S: Base> Store for Transacted<S> {
    kvfs_store::pass_on!(
        base(): snapshot, sync, position, uuid, engine_name, capabilities, space, place, follow, compress, snapshots, changes, undo
    );

    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        let keyspace = self.base().open_keyspace(name, kind, merge.clone())?;
        self.0.add_space(Space { keyspace, name: name.to_owned(), kind, merge });
        Ok(keyspace)
    }

    fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let mut all = self.base().keyspaces();
        all.retain(|info| info.name != KEYSPACE);
        all
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        batch.check_limits()?;
        self.base().admit(&batch, durability)?;
        let position = self.0.apply(batch)?;
        if durability == Durability::Synced {
            self.sync(position)?;
        }
        Ok(position)
    }

    fn stats(&self) -> Vec<(String, u64)> {
        let name = self.engine_name();
        let own = self.0.counts().map(|(count, value)| (format!("{name}.{count}"), value));
        let mut all = self.base().stats();
        all.extend(own);
        all.sort();
        all
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }
}

impl<S: Base> Transactions for Transacted<S> {
    fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Txn>> {
        Ok(Arc::new(HeldTxn::begin(&self.0, options.isolation)?))
    }

    /// What was changed since a named snapshot is not remembered.
    fn begin_at(&self, _snapshot: &str) -> Result<Arc<dyn Txn>> {
        Err(StoreError::Unsupported {
            engine: self.engine_name(),
            what: "transactions that begin at a snapshot",
        })
    }

    fn txn_outcome(&self, id: TxnId) -> TxnOutcome {
        self.0.outcome(id)
    }
}

impl<S: Base> EngineStore for Transacted<S> {
    fn failure(&self) -> Option<Arc<str>> {
        self.base().failure()
    }

    fn set_memory_bytes(&self, bytes: u64) {
        self.0.set_memory_bytes(bytes);
        self.base().set_memory_bytes(bytes);
    }

    fn set_commit_interval(&self, interval: Duration) {
        self.base().set_commit_interval(interval);
    }

    fn verify(&self) -> Result<Verified> {
        self.base().verify()
    }

    fn close(&self) -> Result<()> {
        self.base().close()
    }
}
