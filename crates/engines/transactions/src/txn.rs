//! A transaction whose writes are in memory.
//!
//! Thread safety: one lock for each transaction, before all others. Readers take what they need under it, and
//! read without it. Invariant: an open transaction is on the list of the store; both end together.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use kvfs_store::write_set::{Charge, Overlay, WriteSets};
use kvfs_store::{
    Batch, ChangeCursor, Changed, Cursor, Durability, Extent, ExtentKind, Isolation, KeyRange, Keyspace,
    Position, Read, Records, Result, Seqno, Snapshot, StoreError, Txn, TxnId, TxnStats,
};

use crate::Base;
use crate::shared::Shared;

/// What ends with the transaction.
struct Live {
    pin: Arc<dyn Snapshot>,
    own: WriteSets,
    charge: Charge,
    stats: TxnStats,
}

/// See the module.
pub(crate) struct HeldTxn<S: Base> {
    shared: Arc<Shared<S>>,
    id: TxnId,
    isolation: Isolation,
    snapshot: Seqno,
    live: Mutex<Option<Live>, class::EngineTransactionsLive>,
}

impl<S: Base> HeldTxn<S> {
    pub(crate) fn begin(shared: &Arc<Shared<S>>, isolation: Isolation) -> Result<Self> {
        let (id, pin) = shared.begin()?;
        let (snapshot, charge) = (pin.seqno(), Charge::new(&shared.bytes_private, 0));
        let live = Live { pin, own: WriteSets::default(), charge, stats: TxnStats::default() };
        Ok(Self { shared: Arc::clone(shared), id, isolation, snapshot, live: Mutex::new(Some(live)) })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Live) -> Result<R>) -> Result<R> {
        match &mut *self.live.lock() {
            Some(live) => work(live),
            None => Err(StoreError::TxnEnded(self.id)),
        }
    }

    /// Reads a keyspace through what was written. What needs one position for several looks `at_once` gets
    /// one.
    fn read<R>(
        &self,
        keyspace: Keyspace,
        at_once: bool,
        read: impl FnOnce(Overlay<'_>) -> Result<R>,
    ) -> Result<R> {
        let space = self.shared.space(keyspace)?;
        let (pin, own) = self.with(|live| Ok((Arc::clone(&live.pin), live.own.of(keyspace))))?;
        match self.isolation {
            Isolation::Snapshot => read(Overlay::new(&*pin, space, own)),
            Isolation::Serializable if at_once => {
                let newest = self.shared.base.snapshot()?;
                read(Overlay::new(&*newest, space, own))
            }
            Isolation::Serializable => read(Overlay::new(&self.shared.base, space, own)),
        }
    }

    fn find_conflict(&self, batch: &Batch) -> Result<()> {
        for op in batch.ops() {
            let records = self.shared.records_of(op)?;
            if let Some(changed) = self.shared.find_change(op.keyspace(), &records, self.snapshot) {
                return Err(StoreError::Conflict { changed });
            }
        }
        Ok(())
    }

    /// Applies what was written; the lock is held.
    fn commit_live(&self, live: &mut Option<Live>, durability: Durability) -> Result<Position> {
        let Some(open) = live else { return Err(StoreError::TxnEnded(self.id)) };
        let batch = open.own.to_batch(&|keyspace| self.shared.space(keyspace))?;
        if batch.is_empty() {
            let position = self.shared.base.position();
            self.shared.end(self.id, Some(position));
            *live = None;
            return Ok(position);
        }
        self.shared.base.admit(&batch, durability)?;
        let committed = self.shared.commit(self.id, batch);
        match &committed {
            Ok(_) => *live = None,
            // Whether it was committed is not known.
            Err(StoreError::Failed { .. }) => {
                self.shared.end(self.id, None);
                *live = None;
            }
            Err(_) => {}
        }
        committed
    }
}

impl<S: Base> Read for HeldTxn<S> {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(keyspace, false, |overlay| overlay.get(key))
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.read(keyspace, true, |overlay| overlay.multi_get(keys))
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        self.read(keyspace, true, |overlay| overlay.cursor(range))
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.read(keyspace, false, |overlay| overlay.read_blocks(prefix, first, buf))
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.read(keyspace, true, |overlay| overlay.next_extent(prefix, blocks, kind))
    }
}

impl<S: Base> Txn for HeldTxn<S> {
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
        self.with(|live| Ok(Arc::clone(&live.pin)))
    }

    fn apply(&self, batch: Batch) -> Result<()> {
        batch.check_limits()?;
        self.with(|live| {
            if self.isolation == Isolation::Snapshot {
                self.find_conflict(&batch)?;
            }
            self.shared.check_memory(&batch)?;
            let (operations, bytes) = (batch.len() as u64, batch.payload_bytes() as u64);
            let spaces = |keyspace| self.shared.space(keyspace);
            match self.isolation {
                Isolation::Snapshot => live.own.apply(batch, &spaces, &*Arc::clone(&live.pin))?,
                Isolation::Serializable => live.own.apply(batch, &spaces, &self.shared.base)?,
            }
            live.charge.set(Shared::<S>::bytes_of(&live.own));
            live.stats.batches += 1;
            live.stats.operations += operations;
            live.stats.bytes_written += bytes;
            Ok(())
        })
    }

    fn changed_since_snapshot(&self, keyspace: Keyspace, records: &[Records]) -> Result<Option<Changed>> {
        self.shared.space(keyspace)?;
        let find = |records| self.shared.find_change(keyspace, records, self.snapshot);
        self.with(|_| Ok(records.iter().find_map(find)))
    }

    fn changes(&self, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        let kind = self.shared.space(keyspace)?.kind;
        let own = self.with(|live| Ok(live.own.of(keyspace)))?;
        Ok(own.changes(kind))
    }

    fn stats(&self) -> TxnStats {
        let of = |live: &Live| TxnStats { bytes_memory: live.charge.bytes(), ..live.stats };
        self.live.lock().as_ref().map_or_else(TxnStats::default, of)
    }

    fn prepare(&self) -> Result<()> {
        self.with(|_| Ok(()))
    }

    fn checkpoint(&self, _owner: &[u8]) -> Result<()> {
        Err(StoreError::Unsupported {
            engine: self.shared.base.engine_name(),
            what: "transactions that outlast the mount, as branches do",
        })
    }

    fn commit(&self, durability: Durability) -> Result<Position> {
        let position = self.commit_live(&mut self.live.lock(), durability)?;
        if durability == Durability::Synced {
            self.shared.base.sync(position)?;
        }
        Ok(position)
    }

    fn abort(&self) {
        if self.live.lock().take().is_some() {
            self.shared.end(self.id, None);
        }
    }
}

impl<S: Base> Drop for HeldTxn<S> {
    fn drop(&mut self) {
        self.abort();
    }
}
