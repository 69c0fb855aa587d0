//! The façade of the engine: [`Db`] implements the store traits by joining the other modules.
//!
//! Thread safety: share a [`Db`] by `Arc`. Invariants and crash orders are told where they are kept:
//! `write`, `flush`, `merges`, `open`.

mod admission;
mod adopted;
mod background;
mod binding;
mod changed;
mod check;
mod checkpoints;
mod compression;
mod counters;
mod features;
mod flush;
mod flush_blocks;
mod health;
mod inner;
mod keyspaces;
mod layers;
mod merges;
mod named;
mod open;
mod options;
mod outlived;
mod patches;
mod read;
mod repair;
mod signals;
mod spill;
mod stalls;
mod throttle;
mod timeline;
mod transactions;
mod txn;
mod undo;
mod view;
mod write;
mod zones;

use std::sync::Arc;
use std::time::Duration;

use kvfs_store::{
    Batch, Capabilities, ChangedRanges, CheckpointInfo, Compression, Durability, KeyRange, Keyspace,
    KeyspaceInfo, KeyspaceKind, MergeFunction, Position, Result, Seqno, Snapshot, SnapshotInfo, SpaceStats,
    Store, Txn, TxnId, TxnOptions, TxnOutcome, UndoPoint, UndoViews,
};

pub use check::Checked;
pub use options::{Background, CreateOptions, Options};
pub use repair::{Lost, LostKeys, Repaired, repair};
pub use zones::{ZoneInfo, ZoneKind, ZoneMap};

use background::Threads;
use changed::DbChangedRanges;
use inner::Inner;
use layers::Layers;
use read::{DbSnapshot, ReadAt};
use txn::DbTxn;

use crate::format::Feature;
use crate::zone::Budget;

/// An open store on one device.
///
/// Dropping it stops the background threads; [`Db::close`] also syncs and reports errors.
pub struct Db {
    inner: Arc<Inner>,
    threads: Threads,
}

impl Db {
    /// Writes everything out, so that the next open has nothing to replay, and stops. Later writes fail.
    ///
    /// # Errors
    /// I/O errors; what was synced before is safe.
    pub fn close(&self) -> Result<()> {
        self.inner.closed.store(true, std::sync::atomic::Ordering::Release);
        self.threads.stop(&self.inner);
        self.inner.close()
    }

    /// Turns everything in memory into runs.
    ///
    /// # Errors
    /// I/O errors, sticky.
    pub fn flush(&self) -> Result<()> {
        self.inner.seal_if(|active| active.bytes() > 0);
        self.inner.flush_all()
    }

    /// Runs merges until none is due. Those of other threads are waited for, and what they leave is gone over.
    ///
    /// # Errors
    /// I/O errors, sticky; `Full`; `Failed` when the store is closed meanwhile.
    pub fn compact(&self) -> Result<()> {
        self.inner.compact()
    }

    /// Frees all the space that garbage holds, as far as one pass finds it.
    ///
    /// # Errors
    /// As [`Db::compact`].
    pub fn reclaim(&self) -> Result<()> {
        self.inner.reclaim(Budget::Deleting)
    }

    /// Verifies every checksum and every reference of the engine.
    ///
    /// # Errors
    /// Only what keeps the check itself from going on; damage is a finding.
    pub fn check(&self) -> Result<Checked> {
        self.inner.check()
    }

    /// Moves the ceiling for everything that the engine keeps in memory (bytes). Caches give way at once,
    /// down to their floor; the size of memtables stays what it was at the open.
    pub fn set_memory_bytes(&self, bytes: u64) {
        let ctx = &self.inner.ctx;
        ctx.accountant.set_bytes_ceiling(bytes);
        ctx.pages.shrink();
        ctx.cache.shrink_to(ctx.accountant.cache_budget());
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        self.threads.stop(&self.inner);
    }
}

impl ReadAt for Db {
    fn inner(&self) -> &Inner {
        &self.inner
    }

    fn layers(&self) -> Result<Layers> {
        Ok(self.inner.newest_layers())
    }
}

impl Store for Db {
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        self.inner.open_keyspace(name, kind, merge)
    }

    fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        self.inner.keyspaces.list()
    }

    fn set_compression(&self, keyspace: Keyspace, compression: Compression) -> Result<()> {
        self.inner.set_compression(keyspace, compression)
    }

    fn allow_compression(&self) -> Result<()> {
        self.inner.check_accepting()?;
        self.inner.announce(Feature::Packed)
    }

    fn compression(&self, keyspace: Keyspace) -> Compression {
        self.inner.keyspaces.get(keyspace.0).map_or(Compression::None, |meta| meta.compression)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(DbSnapshot::new(Arc::clone(&self.inner))))
    }

    fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        self.inner.create_snapshot(name, None)
    }

    fn adopt_snapshot(&self, name: &str, created: Duration) -> Result<SnapshotInfo> {
        self.inner.create_snapshot(name, Some(created))
    }

    fn uuid(&self) -> [u8; 16] {
        self.inner.uuid
    }

    fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        self.inner.named.list()
    }

    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(DbSnapshot::at(Arc::clone(&self.inner), self.inner.named.pin(name)?)))
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.inner.delete_snapshot(name)
    }

    fn changed_ranges(
        &self,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Result<Box<dyn ChangedRanges>> {
        let inner = Arc::clone(&self.inner);
        Ok(Box::new(DbChangedRanges::new(inner, keyspace, range, older, newer)?))
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.inner.apply(&batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.inner.sync(position)
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Txn>> {
        Ok(DbTxn::begin(&self.inner, options)?)
    }

    fn checkpointed(&self) -> Vec<CheckpointInfo> {
        self.inner.checkpoints.list()
    }

    fn resume(&self, id: TxnId) -> Result<Arc<dyn Txn>> {
        Ok(DbTxn::resume(&self.inner, id)?)
    }

    fn txn_outcome(&self, id: TxnId) -> TxnOutcome {
        match self.inner.transactions.outcome(id) {
            TxnOutcome::Unknown if self.inner.checkpoints.contains(id) => TxnOutcome::Open,
            outcome => outcome,
        }
    }

    fn undo_points(&self) -> Vec<UndoPoint> {
        self.inner.undo_points()
    }

    fn open_undo(&self, id: TxnId) -> Result<UndoViews> {
        let [before, after] = self.inner.undo_pins(id)?;
        let view = |pin| Arc::new(DbSnapshot::at(Arc::clone(&self.inner), pin));
        Ok(UndoViews { before: view(before), after: view(after) })
    }

    fn undo_bytes(&self, id: TxnId) -> Result<u64> {
        self.inner.undo_bytes(id)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            range_delete_constant: true,
            transactions: true,
            named_snapshots: true,
            checkpoints: true,
        }
    }

    fn space(&self) -> SpaceStats {
        self.inner.space()
    }

    fn stats(&self) -> Vec<(String, u64)> {
        self.inner.stats()
    }
}
