//! A transaction: a private write set over a snapshot or over the newest state, and its commit, as one batch
//! or, when it has become too large for memory, as runs that are there already.
//!
//! Thread safety: any number of threads. One lock guards the private set: batches take turns, readers take a
//! copy of what counts and read without it. Another one lets one thread at a time spill; it is held across
//! the writing of runs, while batches and reads go on. It comes first, then the private set's, then all other
//! locks of the engine; no thread holds those of two transactions.
//!
//! Invariants: an open transaction pins its snapshot, so that merges keep what tells a change after it from
//! one before; the space that its commit needs is spoken for from each `apply` on; what does not fit one
//! record of the journal is spilled.

mod checkpoints;
mod clones;
mod engine;
mod forks;
mod merges;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, ChangeCursor, Changed, Durability, Isolation, Keyspace, NOTE_LEN_MAX, Op,
    Position, Records, Result, Seqno, Snapshot, StoreError, Txn, TxnId, TxnOptions, TxnStats, check_owner,
};

pub(crate) use engine::Txns;

use crate::commit::{OwnWrites, PRIVATE, PrivateWrites, SnapshotPin, Spill};
use crate::journal::{CommitMark, CommitNote};
use crate::layers::Layers;
use crate::memtable::{BlockFill, ChangeWalk, MemTable, Merger};
use crate::read::{DbSnapshot, ReadAt, Reader, read_at_layers};
use crate::runtime::stalls::StallTimer;

/// What ends with the transaction.
struct Live {
    pin: SnapshotPin,
    writes: PrivateWrites,
    note: Bytes,
}

/// An open transaction, or what is left of one.
pub(crate) struct DbTxn {
    engine: Arc<Txns>,
    id: TxnId,
    isolation: Isolation,
    snapshot: Seqno,
    /// Held by the thread that writes private runs or decides about them.
    spilling: Mutex<(), class::KvdbTxnSpilling>,
    live: Mutex<Option<Live>, class::KvdbTxnLive>,
    /// Memory of the private set (bytes).
    bytes_memory: AtomicU64,
    /// It could not be spilled when another transaction needed room.
    is_stuck: AtomicBool,
    /// Its commit can be taken back, if commits are kept for that.
    is_kept: bool,
    /// No locks protect it: nothing is looked for at its writes.
    is_resumed: bool,
    /// It has a checkpoint, to which it goes back when it is dropped. Such a one is committed by its runs
    /// only: then the edit that adopts them takes the checkpoint away.
    is_checkpointed: AtomicBool,
}

impl DbTxn {
    pub(crate) fn begin(engine: &Arc<Txns>, options: TxnOptions) -> Result<Arc<Self>> {
        engine.runtime.check_accepting()?;
        let id = engine.transactions.open(&engine.live)?;
        Ok(Self::begin_on(engine, id, options.isolation, engine.history.pin_newest()))
    }

    /// At a named snapshot, whose position was pinned ever since: merges have kept what tells a change after
    /// it.
    pub(crate) fn begin_at(engine: &Arc<Txns>, snapshot: &str) -> Result<Arc<Self>> {
        engine.runtime.check_accepting()?;
        let pin = engine.history.named().pin(snapshot)?;
        let id = engine.transactions.open(&engine.live)?;
        Ok(Self::begin_on(engine, id, Isolation::Snapshot, pin))
    }

    fn begin_on(engine: &Arc<Txns>, id: TxnId, isolation: Isolation, pin: SnapshotPin) -> Arc<Self> {
        let writes = PrivateWrites::new(Arc::clone(&engine.runtime.ctx.accountant));
        let live = Live { pin, writes, note: Bytes::new() };
        Self::listed(Self::new(engine, id, isolation, live, false))
    }

    fn new(engine: &Arc<Txns>, id: TxnId, isolation: Isolation, live: Live, is_resumed: bool) -> Self {
        Self {
            engine: Arc::clone(engine),
            id,
            isolation,
            snapshot: live.pin.seqno(),
            spilling: Mutex::new(()),
            live: Mutex::new(Some(live)),
            bytes_memory: AtomicU64::new(0),
            is_stuck: AtomicBool::new(false),
            is_kept: true,
            is_resumed,
            is_checkpointed: AtomicBool::new(is_resumed),
        }
    }

    fn listed(self) -> Arc<Self> {
        let txn = Arc::new(self);
        txn.engine.open.add(txn.id, Arc::downgrade(&txn));
        txn
    }

    fn is_checkpointed(&self) -> bool {
        self.is_checkpointed.load(Ordering::Acquire)
    }

    /// Memory of the private set (bytes).
    fn bytes_memory(&self) -> u64 {
        self.bytes_memory.load(Ordering::Acquire)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Live) -> Result<R>) -> Result<R> {
        match &mut *self.live.lock() {
            Some(live) => work(live),
            None => Err(StoreError::TxnEnded(self.id)),
        }
    }

    fn find_changed(
        &self,
        keyspace: Keyspace,
        records: &Records,
        merger: &Merger,
    ) -> Result<Option<Changed>> {
        let mut walk = ChangeWalk::conflict(records, self.snapshot, merger);
        self.engine.live.view().walk_changes(keyspace.0, &mut walk)?;
        Ok(walk.into_found().map(|(key, seqno)| Changed { keyspace, key, seqno }))
    }

    fn find_conflict(&self, batch: &Batch) -> Result<()> {
        // Nothing at all was committed since then.
        if self.engine.history.position().0 == self.snapshot {
            return Ok(());
        }
        for op in batch.ops() {
            let keyspace = op.keyspace();
            let merger = self.engine.keyspaces.get(keyspace.0)?.merger;
            let records = Records::of(op, |key, operand| Ok(merger.touch(key, operand)))?;
            if let Some(changed) = self.find_changed(keyspace, &records, &merger)? {
                self.engine.transactions.note_conflict();
                return Err(StoreError::Conflict { changed });
            }
        }
        Ok(())
    }

    /// Whether `writes` with so much more can be committed as one batch.
    fn fits(&self, writes: &PrivateWrites, operations: u64, bytes: u64) -> Result<bool> {
        let stats = writes.stats();
        let (operations, bytes) = (stats.operations + operations, stats.bytes_written + bytes);
        let journal = self.engine.history.log.journal()?;
        // Half of what the journal holds: overwritten in the middle, a stretch of blocks becomes several.
        let bytes_max = (journal.area_bytes() / 2).min(self.engine.runtime.options.memory_bytes / 2);
        let may_be_batch = !writes.is_spilled() && !self.is_checkpointed();
        Ok(may_be_batch && bytes <= bytes_max && journal.holds(2 * operations, bytes))
    }

    /// Whether to commit as one batch, rather than by way of runs.
    fn is_batch(&self, writes: &PrivateWrites) -> Result<bool> {
        let is_small = writes.stats().bytes_written < self.engine.runtime.options.batch_commit_bytes_max;
        Ok(is_small && self.fits(writes, 0, 0)?)
    }

    /// Changes the private set, and counts what it takes then.
    fn change<R>(&self, writes: &mut PrivateWrites, change: impl FnOnce(&mut PrivateWrites) -> R) -> R {
        let size = |writes: &PrivateWrites| (writes.bytes_space(), writes.bytes_memory());
        let before = size(writes);
        let changed = change(writes);
        let now = size(writes);
        self.bytes_memory.store(now.1, Ordering::Release);
        self.engine.transactions.resize_private(before, now);
        changed
    }

    /// Spills until a batch may come in: this transaction when it has its half of all private memory, or
    /// would not fit the journal; the largest one while all together have too much.
    fn make_room(&self, batch: &Batch) -> Result<()> {
        self.engine.live.announce_wishes_of(batch)?;
        let (operations, bytes) = (batch.len() as u64, batch.payload_bytes() as u64);
        let engine = &self.engine;
        let share = engine.runtime.options.private_bytes;
        let own = self.bytes_memory();
        let fits =
            self.with(|live| Ok(live.writes.is_spilled() || self.fits(&live.writes, operations, bytes)?))?;
        if own > 0 && (own + bytes > share / 2 || !fits) {
            self.spill()?;
        }
        while engine.transactions.bytes_memory() + bytes > share {
            let Some(largest) = engine.open.largest() else { break };
            match largest.spill() {
                // No matter of this one. Its own batches will meet it; until then it keeps what it has.
                Err(StoreError::Corrupt { .. } | StoreError::Full) if largest.id != self.id => {
                    largest.is_stuck.store(true, Ordering::Release);
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Whether others can make room by having it spill.
    fn can_spill(&self) -> bool {
        self.bytes_memory() > 0 && !self.is_stuck.load(Ordering::Acquire)
    }

    /// Turns what is in memory into runs. Nothing happens when the transaction has ended.
    fn spill(&self) -> Result<()> {
        let _one_at_a_time = self.spilling.lock();
        self.spill_alone()
    }

    /// As [`Self::spill`]; the caller holds the lock for it.
    fn spill_alone(&self) -> Result<()> {
        let sealed =
            self.live.lock().as_mut().and_then(|live| self.change(&mut live.writes, PrivateWrites::seal));
        let Some(sealed) = sealed else { return Ok(()) };
        let spill = self.write(&sealed)?;
        drop(sealed);
        if let Some(live) = &mut *self.live.lock() {
            self.change(&mut live.writes, |writes| writes.spilled(spill));
        }
        Ok(())
    }

    /// Turns all that was written before the call into runs; the caller holds the lock for it.
    fn spill_whole(&self) -> Result<()> {
        let is_left_over = self.with(|live| Ok(live.writes.is_sealed()))?;
        self.spill_alone()?;
        if is_left_over {
            // That was what a failed spill had left, not what came in after it.
            self.spill_alone()?;
        }
        Ok(())
    }

    fn write(&self, table: &Arc<MemTable>) -> Result<Spill> {
        // Not a failure of the store, so not observed.
        self.engine.runtime.check_running()?;
        let spill = self.engine.flusher.write_private(self.id, table);
        // Nothing is lost when a merge function refuses an operand, or space is short.
        let spill = if let Err(StoreError::Corrupt { .. }) = spill {
            spill
        } else {
            self.engine.runtime.health.observe(spill)
        };
        let spill = spill?;
        self.is_stuck.store(false, Ordering::Release);
        self.engine.transactions.note_spill(spill.bytes());
        Ok(spill)
    }

    /// Applies a checked batch of whole blocks, unless others have come in after the one that ended at
    /// `seen`; says whether it did.
    fn apply_unless_changed(&self, batch: &Batch, seen: Option<Seqno>) -> Result<bool> {
        let mut held = StallTimer::default();
        let admitted = self.engine.writer.admission.admit_space(batch, || self.layers(), &mut held);
        self.engine.runtime.note_held(&held);
        admitted?;
        self.make_room(batch)?;
        let kinds = self.engine.keyspaces.kinds_of(batch)?;
        self.with(|live| {
            if seen.is_some_and(|seen| live.writes.last() != seen) {
                return Ok(false);
            }
            self.change(&mut live.writes, |writes| writes.apply(batch, kinds));
            Ok(true)
        })
    }

    /// `batch` with whole blocks in the place of patches, which lie on what the transaction sees. So nothing
    /// in private tables, runs and net batches is a patch. And the newest own record that was seen.
    fn whole_blocks(&self, batch: &Batch) -> Result<(Batch, Seqno)> {
        let layers = self.layers()?;
        // What comes before a patch in the batch.
        let staged = MemTable::new(&self.engine.runtime.ctx.accountant);
        let first = layers.top() + 1;
        staged.apply(batch, first, self.engine.keyspaces.kinds_of(batch)?);
        let mut whole = Batch::new();
        for (op, seqno) in batch.ops().iter().zip(first..) {
            let Op::PatchBlock { keyspace, prefix, block, compression, .. } = op else {
                whole.push(op.clone());
                continue;
            };
            let mut data = vec![0; BLOCK_BYTES];
            let mut fill = BlockFill::new(prefix, *block, seqno, &mut data);
            staged.fill(keyspace.0, &mut fill);
            layers.fill(keyspace.0, fill)?;
            whole.put_blocks_packed(*keyspace, prefix.clone(), *block, data, *compression);
        }
        Ok((whole, layers.own.as_ref().map_or(PRIVATE, OwnWrites::limit)))
    }

    /// What the journal says of the commit.
    fn mark(&self, live: &Live) -> CommitMark {
        let note = (self.is_kept && self.engine.undo.is_on()).then(|| CommitNote {
            committed: self.engine.runtime.clock.wall().as_nanos() as u64,
            note: live.note.clone(),
        });
        CommitMark { txn: self.id, note }
    }

    /// Commits as one batch; `None`: it came to nothing.
    fn commit_batch(&self, live: &Live) -> Result<Option<Position>> {
        let keyspaces = &self.engine.keyspaces;
        let batch = live.writes.batch(|id| keyspaces.get(id).map(|meta| (meta.kind, meta.merger)))?;
        if batch.is_empty() {
            return Ok(None);
        }
        self.engine.writer.commit_batch(&batch, &self.mark(live)).map(Some)
    }

    /// Commits by way of runs; `None`: it came to nothing. The caller holds both locks.
    fn commit_spilled(&self, live: &mut Live) -> Result<Option<Position>> {
        // Twice at the most: what a failed spill left, and what came in after it.
        while let Some(sealed) = self.change(&mut live.writes, PrivateWrites::seal) {
            let spill = self.write(&sealed)?;
            self.change(&mut live.writes, |writes| writes.spilled(spill));
        }
        if live.writes.runs().is_empty() {
            return Ok(None);
        }
        let save = self.plan_save(live, None);
        self.tell(&save)?;
        self.note_saved(live, save);
        let stats = live.writes.stats();
        let position =
            self.engine.writer.commit_runs(&self.mark(live), stats.operations, live.writes.runs())?;
        self.engine.runtime.counters.note_spilled_commit(stats.operations, stats.bytes_written);
        Ok(Some(position))
    }

    /// Lets go what the transaction holds; its runs too, unless they have been committed.
    fn end(&self, live: &mut Option<Live>, is_committed: bool) {
        let Some(Live { pin, mut writes, .. }) = live.take() else { return };
        self.engine.open.remove(self.id);
        self.engine.transactions.resize_private((writes.bytes_space(), writes.bytes_memory()), (0, 0));
        self.bytes_memory.store(0, Ordering::Release);
        if self.is_checkpointed() {
            self.engine.history.note_deleted(self.engine.checkpoints.remove(self.id));
        }
        if !is_committed && (writes.is_spilled() || self.is_checkpointed()) {
            self.engine.flusher.drop_private(self.id, writes.take_runs());
        }
        drop((pin, writes));
    }
}

read_at_layers!(DbTxn);

impl ReadAt for DbTxn {
    fn reader(&self) -> &Reader {
        &self.engine.reader
    }

    fn layers(&self) -> Result<Layers> {
        let own = self.with(|live| Ok(live.writes.own()))?;
        Ok(match self.isolation {
            Isolation::Snapshot => Layers { view: self.engine.live.view(), seqno: self.snapshot, own },
            Isolation::Serializable => Layers { own, ..self.engine.history.newest_layers() },
        })
    }
}

impl Txn for DbTxn {
    fn id(&self) -> TxnId {
        self.id
    }

    fn isolation(&self) -> Isolation {
        self.isolation
    }

    fn snapshot_seqno(&self) -> Seqno {
        self.snapshot
    }

    fn base(&self) -> Result<Arc<dyn Snapshot>> {
        // Its own pin keeps what is seen there.
        let pin = self.with(|live| Ok(self.engine.history.pin(live.pin.seqno())))?;
        Ok(Arc::new(DbSnapshot::at(Arc::clone(&self.engine.reader), pin)))
    }

    fn describe(&self, note: Bytes) {
        if let Some(live) = &mut *self.live.lock() {
            // A copy: it is kept for long.
            live.note = Bytes::copy_from_slice(&note[..note.len().min(NOTE_LEN_MAX)]);
        }
    }

    fn apply(&self, batch: Batch) -> Result<()> {
        self.engine.runtime.check_accepting()?;
        batch.check_limits()?;
        self.engine.keyspaces.check(&batch)?;
        self.with(|_| Ok(()))?;
        if self.isolation == Isolation::Snapshot && !self.is_resumed {
            self.find_conflict(&batch)?;
        }
        if !batch.has_patches() {
            return self.apply_unless_changed(&batch, None).map(drop);
        }
        loop {
            // Read without the lock: it may take long. Batches that come in between are rare.
            let (whole, seen) = self.whole_blocks(&batch)?;
            if self.apply_unless_changed(&whole, Some(seen))? {
                return Ok(());
            }
        }
    }

    fn clone_blocks(&self, keyspace: Keyspace, clones: &[BlockClone]) -> Result<()> {
        self.clone_now(keyspace, None, clones)
    }

    fn clone_blocks_of(&self, from: &dyn Snapshot, keyspace: Keyspace, clones: &[BlockClone]) -> Result<()> {
        self.clone_now(keyspace, Some(from), clones)
    }

    fn changed_since_snapshot(&self, keyspace: Keyspace, records: &[Records]) -> Result<Option<Changed>> {
        let merger = self.engine.keyspaces.get(keyspace.0)?.merger;
        self.with(|_| Ok(()))?;
        for records in records {
            if let Some(changed) = self.find_changed(keyspace, records, &merger)? {
                return Ok(Some(changed));
            }
        }
        Ok(None)
    }

    fn changes(&self, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        self.net_changes(0, keyspace)
    }

    fn as_of(&self, operations: u64) -> Result<Arc<dyn Snapshot>> {
        self.seen_after(operations)
    }

    fn changes_after(&self, operations: u64, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        self.net_changes(operations, keyspace)
    }

    fn changed_after(
        &self,
        operations: u64,
        keyspace: Keyspace,
        records: &[Records],
    ) -> Result<Option<Changed>> {
        self.own_changed(operations, keyspace, records)
    }

    fn stats(&self) -> TxnStats {
        self.live.lock().as_ref().map_or_else(TxnStats::default, |live| live.writes.stats())
    }

    fn prepare(&self) -> Result<()> {
        self.engine.runtime.check_accepting()?;
        let (is_batch, bytes) =
            self.with(|live| Ok((self.is_batch(&live.writes)?, live.writes.stats().bytes_written)))?;
        if is_batch {
            // What has written nothing needs no space.
            return if bytes > 0 { self.engine.writer.wait_to_commit(bytes) } else { Ok(()) };
        }
        self.prepare_spilled(None)?;
        self.engine.writer.wait_to_commit_runs()
    }

    fn checkpoint(&self, owner: &[u8]) -> Result<()> {
        self.engine.runtime.check_accepting()?;
        check_owner(owner)?;
        self.prepare_spilled(Some(owner))
    }

    fn commit(&self, durability: Durability) -> Result<Position> {
        self.engine.runtime.check_accepting()?;
        let _one_at_a_time = self.spilling.lock();
        let mut live = self.live.lock();
        let Some(open) = &mut *live else { return Err(StoreError::TxnEnded(self.id)) };
        let committed =
            if self.is_batch(&open.writes)? { self.commit_batch(open)? } else { self.commit_spilled(open)? };
        let Some(position) = committed else {
            let position = self.engine.history.position();
            self.end(&mut live, false);
            self.engine.transactions.note_empty_commit(self.id, position);
            return Ok(position);
        };
        self.end(&mut live, true);
        drop(live);
        self.engine.writer.finish_write(position, durability)?;
        Ok(position)
    }

    fn abort(&self) {
        let _one_at_a_time = self.spilling.lock();
        let mut live = self.live.lock();
        if live.is_some() {
            if self.engine.history.position().0 > self.snapshot {
                // What only its snapshot saw; a writer that finds no space need not wait until it is worth a
                // pass.
                self.engine.live.note_garbage();
            }
            self.end(&mut live, false);
            self.engine.transactions.note_abort(self.id);
        }
    }

    fn suspend(&self) {
        if !self.is_checkpointed() {
            return self.abort();
        }
        let _one_at_a_time = self.spilling.lock();
        let Some(Live { pin, mut writes, .. }) = self.live.lock().take() else { return };
        self.engine.open.remove(self.id);
        self.engine.transactions.resize_private((writes.bytes_space(), writes.bytes_memory()), (0, 0));
        self.bytes_memory.store(0, Ordering::Release);
        if self.engine.runtime.check_running().is_err() {
            // After a failure the manifest may name what came after the checkpoint: its space is not given
            // away, for as long as this opening lasts.
            self.engine.transactions.keep_dropped(self.id, writes.take_runs());
        }
        drop((pin, writes));
        self.engine.transactions.note_suspended(self.id);
        self.engine.checkpoints.close(self.id);
    }
}

impl Drop for DbTxn {
    fn drop(&mut self) {
        self.suspend();
    }
}
