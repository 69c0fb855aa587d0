//! Calling extensions by way of `dyn Store`: one place says what an engine lacks.
//!
//! Thread safety: as the store's. No state.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{
    ChangedRanges, CheckpointInfo, Compression, KeyRange, Keyspace, Result, Seqno, Snapshot, SnapshotInfo,
    Store, StoreError, TierBytes, Txn, TxnId, TxnOptions, TxnOutcome, UndoPoint, UndoViews,
};

/// The calls of the extensions. Where the engine lacks one, they return [`StoreError::Unsupported`], or what
/// is true of a store that has none of it.
impl dyn Store + '_ {
    /// The extension, or its refusal by the name of the engine.
    fn present<T>(&self, extension: Option<T>, what: &'static str) -> Result<T> {
        extension.ok_or_else(|| StoreError::Unsupported { engine: self.engine_name(), what })
    }

    /// As [`Compress::set_compression`](crate::Compress::set_compression).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn set_compression(&self, keyspace: Keyspace, compression: Compression) -> Result<()> {
        self.present(self.compress(), "compression")?.set_compression(keyspace, compression)
    }

    /// As [`Compress::allow_compression`](crate::Compress::allow_compression).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn allow_compression(&self) -> Result<()> {
        self.present(self.compress(), "compression")?.allow_compression()
    }

    /// As [`Compress::compression`](crate::Compress::compression).
    pub fn compression(&self, keyspace: Keyspace) -> Compression {
        self.compress().map_or(Compression::None, |extension| extension.compression(keyspace))
    }

    /// As [`Place::place_by`](crate::Place::place_by). An engine without tiers heeds no wish.
    ///
    /// # Errors
    /// As there.
    pub fn place_by(&self, data: Keyspace, wishes: Keyspace) -> Result<()> {
        self.place().map_or(Ok(()), |extension| extension.place_by(data, wishes))
    }

    /// As [`Place::bytes_by_tier`](crate::Place::bytes_by_tier). An engine without devices has nothing on
    /// any.
    ///
    /// # Errors
    /// As there.
    pub fn bytes_by_tier(&self, data: Keyspace, prefix: &[u8], blocks: Range<u64>) -> Result<TierBytes> {
        let none = || Ok(TierBytes::default());
        self.place().map_or_else(none, |extension| extension.bytes_by_tier(data, prefix, blocks))
    }

    /// As [`NamedSnapshots::create_snapshot`](crate::NamedSnapshots::create_snapshot).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        self.present(self.snapshots(), "named snapshots")?.create_snapshot(name)
    }

    /// As [`NamedSnapshots::adopt_snapshot`](crate::NamedSnapshots::adopt_snapshot).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn adopt_snapshot(&self, name: &str, created: Duration) -> Result<SnapshotInfo> {
        self.present(self.snapshots(), "named snapshots")?.adopt_snapshot(name, created)
    }

    /// As [`NamedSnapshots::named_snapshots`](crate::NamedSnapshots::named_snapshots).
    pub fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        self.snapshots().map_or_else(Vec::new, crate::NamedSnapshots::named_snapshots)
    }

    /// As [`NamedSnapshots::open_snapshot`](crate::NamedSnapshots::open_snapshot).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>> {
        self.snapshots().ok_or_else(|| StoreError::NoSnapshot(name.to_owned()))?.open_snapshot(name)
    }

    /// As [`NamedSnapshots::delete_snapshot`](crate::NamedSnapshots::delete_snapshot).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.snapshots().ok_or_else(|| StoreError::NoSnapshot(name.to_owned()))?.delete_snapshot(name)
    }

    /// As [`TrackChanges::changed_ranges`](crate::TrackChanges::changed_ranges).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn changed_ranges(
        &self,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Result<Box<dyn ChangedRanges>> {
        self.present(self.changes(), "comparing snapshots")?.changed_ranges(keyspace, range, older, newer)
    }

    /// As [`Transactions::begin`](crate::Transactions::begin).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Txn>> {
        self.present(self.transactions(), "transactions")?.begin(options)
    }

    /// As [`Transactions::begin_at`](crate::Transactions::begin_at).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn begin_at(&self, snapshot: &str) -> Result<Arc<dyn Txn>> {
        self.present(self.transactions(), "transactions")?.begin_at(snapshot)
    }

    /// As [`Transactions::txn_outcome`](crate::Transactions::txn_outcome).
    pub fn txn_outcome(&self, id: TxnId) -> TxnOutcome {
        self.transactions().map_or(TxnOutcome::Unknown, |extension| extension.txn_outcome(id))
    }

    /// As [`Checkpoints::checkpointed`](crate::Checkpoints::checkpointed).
    pub fn checkpointed(&self) -> Vec<CheckpointInfo> {
        self.checkpoints().map_or_else(Vec::new, crate::Checkpoints::checkpointed)
    }

    /// As [`Checkpoints::resume`](crate::Checkpoints::resume).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn resume(&self, id: TxnId) -> Result<Arc<dyn Txn>> {
        self.checkpoints().ok_or_else(|| StoreError::NoCheckpoint(id))?.resume(id)
    }

    /// As [`Checkpoints::fork`](crate::Checkpoints::fork).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn fork(&self, id: TxnId, owner: &dyn Fn(&CheckpointInfo) -> Bytes) -> Result<TxnId> {
        self.checkpoints().ok_or_else(|| StoreError::NoCheckpoint(id))?.fork(id, owner)
    }

    /// As [`UndoHistory::undo_points`](crate::UndoHistory::undo_points).
    pub fn undo_points(&self) -> Vec<UndoPoint> {
        self.undo().map_or_else(Vec::new, crate::UndoHistory::undo_points)
    }

    /// As [`UndoHistory::open_undo`](crate::UndoHistory::open_undo).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn open_undo(&self, id: TxnId) -> Result<UndoViews> {
        self.undo().ok_or_else(|| StoreError::NotKept(id))?.open_undo(id)
    }

    /// As [`UndoHistory::undo_bytes`](crate::UndoHistory::undo_bytes).
    ///
    /// # Errors
    /// As there, and where the engine has no such extension.
    pub fn undo_bytes(&self, id: TxnId) -> Result<u64> {
        self.undo().ok_or_else(|| StoreError::NotKept(id))?.undo_bytes(id)
    }
}
