//! The façade of the engine: [`Db`] implements the store traits by joining the other modules.
//!
//! Thread safety: share a [`Db`] by `Arc`. Invariants and crash orders are told where they are kept:
//! `write`, `flush`, `merge`, `open`.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_device::Device;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{
    Batch, BlockClone, Capabilities, ChangedRanges, CheckpointInfo, Checkpoints, Compress, Compression,
    Durability, KeyRange, Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction, NamedSnapshots, Place,
    Position, Result, Seqno, Snapshot, SnapshotInfo, SpaceStats, Store, StoreError, Tier, TierBytes,
    TrackChanges, Transactions, Txn, TxnId, TxnOptions, TxnOutcome, UndoHistory, UndoPoint, UndoViews,
};

use crate::cache::CacheTraceInfo;
use crate::check::{self, Checked, ZoneMap};
use crate::devices::DeviceInfo;
use crate::format::Feature;
use crate::layers::Layers;
use crate::merge::defrag::{DefragLimit, DefragPlan, DefragPolicy, DefragProgress, Defragmented};
use crate::merge::heat_map::{HeatMap, heat_map};
use crate::merge::migrate::{MigrationInfo, MigrationPlan};
use crate::parts::Parts;
use crate::parts::memory::{ChargedMemory, LeakCheck};
use crate::read::changed::DbChangedRanges;
use crate::read::{DbSnapshot, ReadAt, Reader, read_at_layers};
use crate::space::{Budget, BudgetInfo, Placement};
use crate::threads::Threads;
use crate::txn::DbTxn;

/// An open store on one device.
///
/// Dropping it stops the background threads; [`Db::close`] also syncs and reports errors.
pub struct Db {
    pub(crate) parts: Arc<Parts>,
    threads: Threads,
    /// Looks when the parts are gone.
    _leaks: LeakCheck,
}

impl Db {
    /// Of these parts; starts their threads.
    pub(crate) fn start(parts: Parts) -> Result<Arc<Self>> {
        let parts = Arc::new(parts);
        let threads = Threads::start(&parts)?;
        // A replay may have left sealed memtables behind.
        parts.runtime.work.notify();
        let leaks = LeakCheck::of(&parts);
        Ok(Arc::new(Self { parts, threads, _leaks: leaks }))
    }

    /// Writes everything out, so that the next open has nothing to replay, and stops. Later writes fail.
    ///
    /// # Errors
    /// I/O errors; what was synced before is safe.
    pub fn close(&self) -> Result<()> {
        self.parts.runtime.close();
        self.threads.stop(&self.parts);
        let written = self.write_all_out();
        self.parts.runtime.ctx.cache.end_trace();
        written
    }

    /// Syncs, and turns memtables into runs so that the next open replays nothing.
    fn write_all_out(&self) -> Result<()> {
        if self.parts.runtime.options.read_only || self.parts.runtime.health.reason().is_some() {
            return self.parts.runtime.health.check();
        }
        self.parts.log.sync(self.parts.history.position())?;
        // Also an empty one, when the journal's tail lies before its end although everything is in runs.
        let is_behind = self.parts.log.journal()?.used_bytes() > 0;
        self.parts.sequencer.seal_if(|active| active.bytes() > 0 || is_behind);
        progress::stage("writing out", Unit::Bytes, self.parts.live.view().unflushed_bytes());
        self.parts.flusher.flush_all()?;
        self.parts.transactions.close(&self.parts.live)?;
        self.parts.sequencer.tidy_journal()?;
        self.parts.sequencer.withdraw_features_of_journal()?;
        self.parts.log.journal()?.end()
    }

    /// Turns everything in memory into runs.
    ///
    /// # Errors
    /// I/O errors, sticky.
    pub fn flush(&self) -> Result<()> {
        self.parts.sequencer.seal_if(|active| active.bytes() > 0);
        self.parts.flusher.flush_all()
    }

    /// Runs merges until none is due, of the main line and of checkpoints. Those of other threads are waited
    /// for, and what they leave is gone over.
    ///
    /// # Errors
    /// I/O errors, sticky where a write failed; where a read failed it leaves that out from then on. `Full`;
    /// `Failed` when the store is closed meanwhile.
    pub fn compact(&self) -> Result<()> {
        self.parts.merger.compact()?;
        self.parts.txns.merge_all()
    }

    /// Frees all the space that garbage holds, as far as one pass finds it.
    ///
    /// # Errors
    /// As [`Db::compact`].
    pub fn reclaim(&self) -> Result<()> {
        self.parts.merger.reclaim(Budget::Deleting)
    }

    /// What [`Db::defragment`] would do now. O(zones + pieces).
    pub fn defrag_plan(&self, policy: DefragPolicy) -> DefragPlan {
        self.parts.defragmenter.plan(policy)
    }

    /// Empties zones of which much is dead, or that hold many short stretches (thesis 3.2.1), beside
    /// everything else; copies no more than `limit` says. `goes_on` is told of each piece, and may end it:
    /// what is done stays.
    ///
    /// # Errors
    /// As [`Db::compact`]; too little space ends it early without an error.
    pub fn defragment(
        &self,
        policy: DefragPolicy,
        limit: &DefragLimit,
        goes_on: &mut dyn FnMut(DefragProgress) -> bool,
    ) -> Result<Defragmented> {
        self.parts.defragmenter.run(policy, limit, goes_on)
    }

    /// The devices of the store, the first one first. O(zones).
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.parts.devices.list()
    }

    /// Takes `device`, whatever was on it, into the store; its number. Rows, metadata and the journal are on
    /// fast devices, data of files on slow ones, as far as these have room. Open the store with it from now
    /// on ([`Db::open_joined`]).
    ///
    /// # Errors
    /// It is too small; I/O errors.
    pub fn add_device(&self, device: Arc<dyn Device>, tier: Tier) -> Result<u32> {
        self.parts.devices.add(device, tier)
    }

    /// The number of `device`, if it is one of the store's, and not the first one.
    pub fn device_id(&self, device: &Arc<dyn Device>) -> Option<u32> {
        self.parts.devices.id_of(device)
    }

    /// Moves everything from a device to others, until `goes_on`, which is told how many bytes are left, says
    /// no. True: it holds nothing, and [`Db::remove_device`] lets go of it. False: `goes_on` said no, or
    /// [`Db::devices`] tells why it does not get on; in the background it does, after a restart, too, unless
    /// [`Db::refill_device`] says no. Nothing new goes there.
    ///
    /// # Errors
    /// There is no such device, or it is the first one; I/O errors.
    pub fn drain_device(&self, id: u32, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        self.parts.devices.drain(id, goes_on)
    }

    /// Nothing new goes to these devices from now on, and in the background they are drained, after a
    /// restart, too; [`Db::drain_device`] waits for one. Several at once, so that nothing moves from one to
    /// the next.
    ///
    /// # Errors
    /// As [`Db::drain_device`], of any of them: then none is drained.
    pub fn begin_drain(&self, ids: &[u32]) -> Result<()> {
        self.parts.devices.begin_drain(ids)
    }

    /// What [`Db::drain_device`] has begun is given up: the device is filled again.
    ///
    /// # Errors
    /// As [`Db::drain_device`].
    pub fn refill_device(&self, id: u32) -> Result<()> {
        self.parts.devices.refill(id)
    }

    /// Lets go of a device that holds nothing: it is no part of the store any more.
    ///
    /// # Errors
    /// It was not drained; as [`Db::drain_device`].
    pub fn remove_device(&self, id: u32) -> Result<()> {
        self.parts.devices.remove(id)
    }

    /// What [`Db::migrate`] would move now. Reads the indexes of pieces that may have blocks of files with a
    /// wish.
    ///
    /// # Errors
    /// I/O errors, corruption.
    pub fn migration_plan(&self) -> Result<MigrationPlan> {
        self.parts.migrator.plan()
    }

    /// What was moved between tiers since the store was opened, and what is left.
    pub fn migration(&self) -> MigrationInfo {
        self.parts.migrator.info()
    }

    /// Moves blocks that lie on another tier than their file wishes to that tier, beside everything else,
    /// until `goes_on`, which is told how many bytes are left, says no. True: none is left. False: the tier
    /// has no room for the rest, or merges and readers hold it; call it again. The background does it by and
    /// by.
    ///
    /// # Errors
    /// I/O errors, sticky; corruption.
    pub fn migrate(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        self.parts.migrator.migrate(goes_on)
    }

    /// How often what lies in each part of each device was lately asked for, in at most so many cells in all,
    /// or one a device. Counts from now on, where it did not before. Reads the indexes of all pieces of
    /// blocks; `None`: `goes_on`, which is asked before each, said no, or the store is being closed.
    ///
    /// # Errors
    /// I/O errors, corruption.
    pub fn heat_map(&self, cells_max: usize, goes_on: &mut dyn FnMut() -> bool) -> Result<Option<HeatMap>> {
        heat_map(&self.parts.merger, cells_max, goes_on)
    }

    /// At most so many bytes are moved between tiers each second, from now on until the store is closed; 0:
    /// any number.
    pub fn set_migration_limit(&self, bytes_per_second: u64) {
        self.parts.migrator.set_limit(bytes_per_second);
    }

    /// Longest time that an applied batch stays unsynced, from now on, until the store is closed.
    pub fn set_commit_interval(&self, interval: Duration) {
        self.parts.runtime.set_commit_interval(interval);
    }

    /// On which tier blocks of files go that have no wish, from now on, until the store is closed;
    /// [`Db::keep_placement`] for good.
    pub fn set_placement(&self, placement: Placement) {
        self.parts.runtime.ctx.zones.set_placement(placement);
    }

    /// The same, for every opening from now on that says nothing else. Durable when this returns.
    ///
    /// # Errors
    /// The store has one device, so that there is no choice; I/O errors, sticky.
    pub fn keep_placement(&self, placement: Placement) -> Result<()> {
        self.parts.devices.keep_placement(placement)
    }

    /// How much fast devices are written to, where the placement has a budget for it.
    pub fn endurance(&self) -> Option<BudgetInfo> {
        self.parts.runtime.ctx.zones.endurance().info()
    }

    /// See [`Db::set_placement`].
    pub fn placement(&self) -> Placement {
        self.parts.runtime.ctx.zones.placement()
    }

    /// Verifies every checksum and every reference of the engine.
    ///
    /// # Errors
    /// Only what keeps the check itself from going on; damage is a finding.
    pub fn check(&self) -> Result<Checked> {
        check::check(&self.parts)
    }

    /// What every zone is used for. O(zones).
    pub fn zone_map(&self) -> ZoneMap {
        check::zone_map(&self.parts.runtime.ctx.zones)
    }

    /// Why the store accepts no more writes until it is opened again; `None`: it does.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.parts.runtime.health.reason()
    }

    /// The store may reach up to `capacity_bytes`, rounded down to whole zones, from now on; less than it may
    /// already changes nothing. Durable when this returns; a crash before leaves the old capacity or the new
    /// one. Returns the capacity (bytes).
    ///
    /// # Errors
    /// I/O errors, sticky.
    pub fn grow(&self, capacity_bytes: u64) -> Result<u64> {
        self.parts.devices.grow(capacity_bytes)
    }

    /// Records what is asked of the block cache from now on in at most about `bytes_max` bytes;
    /// [`CacheTrace`](crate::CacheTrace) reads it. What happens costs a few tens of nanoseconds more
    /// meanwhile.
    ///
    /// # Errors
    /// A trace is being recorded already; those of `out`.
    pub fn start_cache_trace(&self, out: Box<dyn Write + Send>, bytes_max: u64) -> Result<()> {
        let started = self.parts.runtime.ctx.cache.start_trace(out, bytes_max);
        started.map_err(|error| StoreError::io("beginning a trace of the block cache", error))
    }

    /// Ends the trace that [`Db::start_cache_trace`] began; so does the end of the store.
    ///
    /// # Errors
    /// None is being recorded; it could not be written.
    pub fn stop_cache_trace(&self) -> Result<CacheTraceInfo> {
        let stopped = self.parts.runtime.ctx.cache.stop_trace();
        stopped.map_err(|error| StoreError::io("ending a trace of the block cache", error))
    }

    /// What is charged now, where in the code it was, and what of it no owner accounts for. O(blocks in the
    /// cache).
    pub fn charged_memory(&self) -> ChargedMemory {
        self.parts.charged_memory()
    }

    /// Moves the ceiling for everything that the engine keeps in memory (bytes). Caches give way at once,
    /// down to their floor; the size of memtables stays what it was at the open.
    pub fn set_memory_bytes(&self, bytes: u64) {
        let ctx = &self.parts.runtime.ctx;
        ctx.accountant.set_bytes_ceiling(bytes);
        ctx.pages.shrink();
        ctx.cache.shrink_to(ctx.accountant.cache_budget());
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        self.threads.stop(&self.parts);
    }
}

read_at_layers!(Db);

impl ReadAt for Db {
    fn reader(&self) -> &Reader {
        &self.parts.reader
    }

    fn layers(&self) -> Result<Layers> {
        Ok(self.parts.history.newest_layers())
    }
}

impl Store for Db {
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        self.parts.catalog.open_keyspace(name, kind, merge)
    }

    fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        self.parts.keyspaces.list()
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(DbSnapshot::new(Arc::clone(&self.parts.reader))))
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.parts.writer.apply(&batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.parts.log.sync(position)
    }

    fn position(&self) -> Position {
        self.parts.history.position()
    }

    fn engine_name(&self) -> &'static str {
        "kvdb"
    }

    fn uuid(&self) -> [u8; 16] {
        self.parts.uuid
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: true, range_delete_constant: true, blind_patches: true }
    }

    fn space(&self) -> SpaceStats {
        self.parts.space()
    }

    fn stats(&self) -> Vec<(String, u64)> {
        self.parts.stats()
    }

    fn compress(&self) -> Option<&dyn Compress> {
        Some(self)
    }

    fn place(&self) -> Option<&dyn Place> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn NamedSnapshots> {
        Some(self)
    }

    fn changes(&self) -> Option<&dyn TrackChanges> {
        Some(self)
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }

    fn checkpoints(&self) -> Option<&dyn Checkpoints> {
        Some(self)
    }

    fn undo(&self) -> Option<&dyn UndoHistory> {
        Some(self)
    }
}

impl Compress for Db {
    fn set_compression(&self, keyspace: Keyspace, compression: Compression) -> Result<()> {
        self.parts.catalog.set_compression(keyspace, compression)
    }

    fn allow_compression(&self) -> Result<()> {
        self.parts.runtime.check_accepting()?;
        self.parts.live.announce(Feature::Packed)
    }

    fn compression(&self, keyspace: Keyspace) -> Compression {
        self.parts.keyspaces.get(keyspace.0).map_or(Compression::None, |meta| meta.compression)
    }
}

impl Place for Db {
    fn place_by(&self, data: Keyspace, wishes: Keyspace) -> Result<()> {
        self.parts.live.place_by(&self.parts.keyspaces, data, wishes)
    }

    fn bytes_by_tier(&self, data: Keyspace, prefix: &[u8], blocks: Range<u64>) -> Result<TierBytes> {
        self.parts.reader.bytes_by_tier(data, prefix, blocks)
    }
}

impl NamedSnapshots for Db {
    fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        self.parts.history.create_snapshot(name, None)
    }

    fn adopt_snapshot(&self, name: &str, created: Duration) -> Result<SnapshotInfo> {
        self.parts.history.create_snapshot(name, Some(created))
    }

    fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        self.parts.history.named().list()
    }

    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(DbSnapshot::at(Arc::clone(&self.parts.reader), self.parts.history.named().pin(name)?)))
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.parts.history.delete_snapshot(name)
    }
}

impl TrackChanges for Db {
    fn changed_ranges(
        &self,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Result<Box<dyn ChangedRanges>> {
        self.parts.keyspaces.kind(keyspace.0)?;
        Ok(Box::new(DbChangedRanges::new(Arc::clone(&self.parts.live), keyspace, range, older, newer)))
    }
}

impl Transactions for Db {
    fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Txn>> {
        Ok(DbTxn::begin(&self.parts.txns, options)?)
    }

    fn begin_at(&self, snapshot: &str) -> Result<Arc<dyn Txn>> {
        Ok(DbTxn::begin_at(&self.parts.txns, snapshot)?)
    }

    fn clones_blocks(&self) -> bool {
        true
    }

    fn apply_with_clones(&self, batch: Batch, data: Keyspace, clones: &[BlockClone]) -> Result<Position> {
        DbTxn::begin_unkept(&self.parts.txns)?.commit_with_clones(batch, data, clones)
    }

    fn txn_outcome(&self, id: TxnId) -> TxnOutcome {
        match self.parts.transactions.outcome(id) {
            TxnOutcome::Unknown if self.parts.checkpoints.contains(id) => TxnOutcome::Open,
            outcome => outcome,
        }
    }
}

impl Checkpoints for Db {
    fn checkpointed(&self) -> Vec<CheckpointInfo> {
        self.parts.checkpoints.list()
    }

    fn resume(&self, id: TxnId) -> Result<Arc<dyn Txn>> {
        Ok(DbTxn::resume(&self.parts.txns, id)?)
    }

    fn fork(&self, id: TxnId, owner: &dyn Fn(&CheckpointInfo) -> Bytes) -> Result<TxnId> {
        DbTxn::fork(&self.parts.txns, id, owner)
    }
}

impl UndoHistory for Db {
    fn undo_points(&self) -> Vec<UndoPoint> {
        self.parts.undo.points()
    }

    fn open_undo(&self, id: TxnId) -> Result<UndoViews> {
        let [before, after] = self.parts.undo.pins(id)?;
        let view = |pin| Arc::new(DbSnapshot::at(Arc::clone(&self.parts.reader), pin));
        Ok(UndoViews { before: view(before), after: view(after) })
    }

    fn undo_bytes(&self, id: TxnId) -> Result<u64> {
        self.parts.undo.bytes(id)
    }
}
