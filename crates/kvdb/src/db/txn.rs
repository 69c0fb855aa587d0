//! A transaction: a private write set over a snapshot or over the newest state, and its commit as one batch.
//!
//! Thread safety: any number of threads. One lock guards the private set: batches take turns, readers take a
//! copy of what counts and read without it. It comes before all other locks of the engine.
//!
//! Invariants: an open transaction pins its snapshot, so that merges keep what tells a change after it from
//! one before; the space that its commit needs is spoken for from each `apply` on.

use std::sync::Arc;

use kvfs_store::{
    BLOCK_BYTES, Batch, ChangeCursor, Changed, Durability, Isolation, KeyRange, Keyspace, Op, Position,
    Records, Result, Seqno, StoreError, Touch, Txn, TxnId, TxnOptions, TxnStats,
};
use parking_lot::Mutex;

use super::inner::Inner;
use super::layers::Layers;
use super::read::ReadAt;
use crate::commit::{PrivateWrites, SnapshotPin};
use crate::memtable::{Merger, NewerSearch};

/// What ends with the transaction.
struct Live {
    pin: SnapshotPin,
    writes: PrivateWrites,
}

/// An open transaction, or what is left of one.
pub(crate) struct DbTxn {
    inner: Arc<Inner>,
    id: TxnId,
    isolation: Isolation,
    snapshot: Seqno,
    live: Mutex<Option<Live>>,
}

impl DbTxn {
    pub(crate) fn begin(inner: &Arc<Inner>, options: TxnOptions) -> Result<Self> {
        inner.check_accepting()?;
        let id = inner.open_transaction()?;
        let pin = inner.snapshots.pin_newest(&inner.publisher);
        let snapshot = pin.seqno();
        let writes = PrivateWrites::new(Arc::clone(&inner.ctx.accountant));
        let (inner, isolation) = (Arc::clone(inner), options.isolation);
        Ok(Self { inner, id, isolation, snapshot, live: Mutex::new(Some(Live { pin, writes })) })
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
        let mut search = NewerSearch::new(records, self.snapshot, merger);
        self.inner.view().find_newer(keyspace.0, &mut search)?;
        Ok(search.into_found().map(|(key, seqno)| Changed { keyspace, key, seqno }))
    }

    fn find_conflict(&self, batch: &Batch) -> Result<()> {
        // Nothing at all was committed since then.
        if self.inner.publisher.visible() == self.snapshot {
            return Ok(());
        }
        for op in batch.ops() {
            let keyspace = op.keyspace();
            let merger = self.inner.keyspaces.get(keyspace.0)?.merger;
            if let Some(changed) = self.find_changed(keyspace, &records_of(op, &merger), &merger)? {
                self.inner.transactions.note_conflict();
                return Err(StoreError::Conflict { changed });
            }
        }
        Ok(())
    }

    /// Refuses a batch that would make the commit larger than one record of the journal.
    fn check_fits(&self, stats: &TxnStats, batch: &Batch) -> Result<()> {
        let bytes = stats.bytes_written + batch.payload_bytes() as u64;
        let operations = stats.operations + batch.len() as u64;
        let journal = self.inner.journal()?;
        // Half of what the journal holds: overwritten in the middle, a stretch of blocks becomes several.
        let bytes_max = (journal.area_bytes() / 2).min(self.inner.options.memory_bytes / 2);
        if bytes <= bytes_max && journal.holds(2 * operations, bytes) {
            return Ok(());
        }
        Err(StoreError::TxnTooLarge { bytes, bytes_max })
    }

    fn end(&self, live: &mut Option<Live>) {
        if let Some(Live { pin, writes }) = live.take() {
            self.inner.transactions.remove_private(writes.stats().bytes_written);
            drop((pin, writes));
        }
    }
}

/// What an operation changes.
fn records_of(op: &Op, merger: &Merger) -> Records {
    match op {
        Op::Put { key, .. } | Op::Delete { key, .. } => Records::Key { key: key.clone(), touch: Touch::ALL },
        Op::Merge { key, operand, .. } => {
            Records::Key { key: key.clone(), touch: merger.touch(key, operand) }
        }
        Op::DeleteRange { start, end, .. } => Records::Range(KeyRange::new(start.clone(), end.clone())),
        Op::PutBlocks { prefix, first, data, .. } => Records::Blocks {
            prefix: prefix.clone(),
            first: *first,
            count: (data.len() / BLOCK_BYTES) as u64,
        },
    }
}

impl ReadAt for DbTxn {
    fn inner(&self) -> &Inner {
        &self.inner
    }

    fn layers(&self) -> Result<Layers> {
        let own = self.with(|live| Ok(live.writes.own()))?;
        Ok(match self.isolation {
            Isolation::Snapshot => Layers { view: self.inner.view(), seqno: self.snapshot, own },
            Isolation::Serializable => Layers { own, ..self.inner.newest_layers() },
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

    fn apply(&self, batch: Batch) -> Result<()> {
        self.inner.check_accepting()?;
        batch.check_limits()?;
        self.inner.keyspaces.check(&batch)?;
        self.with(|_| Ok(()))?;
        if self.isolation == Isolation::Snapshot {
            self.find_conflict(&batch)?;
        }
        self.inner.admit_space(&batch)?;
        let kinds = self.inner.keyspaces.kinds_of(&batch)?;
        self.with(|live| {
            self.check_fits(&live.writes.stats(), &batch)?;
            live.writes.apply(&batch, kinds);
            self.inner.transactions.add_private(batch.payload_bytes() as u64);
            Ok(())
        })
    }

    fn changed_since_snapshot(&self, keyspace: Keyspace, records: &[Records]) -> Result<Option<Changed>> {
        let merger = self.inner.keyspaces.get(keyspace.0)?.merger;
        self.with(|_| Ok(()))?;
        for records in records {
            if let Some(changed) = self.find_changed(keyspace, records, &merger)? {
                return Ok(Some(changed));
            }
        }
        Ok(None)
    }

    fn changes(&self, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        let meta = self.inner.keyspaces.get(keyspace.0)?;
        self.with(|live| Ok(Box::new(live.writes.changes(keyspace.0, meta.kind, meta.merger)) as _))
    }

    fn stats(&self) -> TxnStats {
        self.live.lock().as_ref().map_or_else(TxnStats::default, |live| live.writes.stats())
    }

    fn prepare(&self) -> Result<()> {
        self.inner.check_accepting()?;
        let bytes = self.with(|live| Ok(live.writes.stats().bytes_written))?;
        self.inner.wait_to_commit(bytes)
    }

    fn commit(&self, durability: Durability) -> Result<Position> {
        self.inner.check_accepting()?;
        let mut live = self.live.lock();
        let Some(open) = &*live else { return Err(StoreError::TxnEnded(self.id)) };
        let keyspaces = &self.inner.keyspaces;
        let batch = open.writes.batch(|id| keyspaces.get(id).map(|meta| (meta.kind, meta.merger)))?;
        if batch.is_empty() {
            let position = self.inner.position();
            self.end(&mut live);
            self.inner.transactions.note_empty_commit(self.id, position);
            return Ok(position);
        }
        let position = self.inner.commit_batch(&batch, self.id)?;
        self.end(&mut live);
        drop(live);
        self.inner.finish_write(position, durability)?;
        Ok(position)
    }

    fn abort(&self) {
        let mut live = self.live.lock();
        if live.is_some() {
            self.end(&mut live);
            self.inner.transactions.note_abort(self.id);
        }
    }
}

impl Drop for DbTxn {
    fn drop(&mut self) {
        self.abort();
    }
}
