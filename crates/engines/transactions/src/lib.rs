//! Transactions over stores whose engines have none.
//!
//! Purpose: an engine that has atomic batches and snapshots gets transactions of both isolation levels by
//! standing behind [`Transacted`]. What a transaction writes is in memory ([`kvfs_store::write_set`]) until
//! its commit makes one batch of it; its reads see a snapshot of the engine, or the newest state, through
//! that. What others have changed since the oldest open transaction began is remembered, for "the first
//! updater wins" (`recent.rs`). Names of transactions, and the last commits, are records of the store
//! (`outcomes.rs`).
//!
//! All open transactions together hold at most a quarter of the engine's memory; what would be more is
//! refused with [`kvfs_store::StoreError::TransactionsFull`]. They end with the process: there are no
//! checkpoints.
//!
//! Thread safety: shared by all threads. Batches share the gate, which a transaction has for itself while it
//! takes its snapshot and while it is committed: no batch is between what the snapshot shows and what is
//! remembered. The lock of a transaction comes before all others, and none is held while something is synced.
//!
//! Invariants: what a transaction may ask for is remembered, or the transaction is refused ("too old"); the
//! record of a commit comes with it.

mod outcomes;
mod recent;
mod shared;
mod store;
mod txn;

use kvfs_store::{Batch, Durability, EngineStore, Position, Result};

pub use store::Transacted;

/// A store that [`Transacted`] stands before.
pub trait Base: EngineStore + 'static {
    /// Waits until a batch such as this may come, where the engine has to wait for something, or refuses it.
    /// The batch may be of any size.
    ///
    /// # Errors
    /// As [`kvfs_store::Store::apply`]: nothing was applied.
    fn admit(&self, batch: &Batch, durability: Durability) -> Result<()>;

    /// As [`kvfs_store::Store::apply`], buffered, for a batch that was admitted.
    ///
    /// # Errors
    /// As there.
    fn apply_admitted(&self, batch: Batch) -> Result<Position>;

    /// As [`kvfs_store::Store::apply`], by these two.
    ///
    /// # Errors
    /// As there.
    fn apply_in_steps(&self, batch: Batch, durability: Durability) -> Result<Position> {
        batch.check_limits()?;
        self.admit(&batch, durability)?;
        let position = self.apply_admitted(batch)?;
        if durability == Durability::Synced {
            self.sync(position)?;
        }
        Ok(position)
    }
}
