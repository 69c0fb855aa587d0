//! Transactions of the model.
//!
//! Thread safety: one lock for each transaction, taken before the commit lock.
//! Invariants: an open transaction pins its snapshot and is listed under the commit lock, so that changes
//! since then are remembered; both end together. A checkpoint has a pin of its own, and stays on the list.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::apply::{self, Tables};
use super::recent::{OwnChanges, records_of};
use super::snapshot::Pin;
use super::{Commit, Shared, named};
use crate::write_set::{Charge, Overlay, WriteSets};
use crate::{
    Batch, ChangeCursor, Changed, CheckpointInfo, Cursor, Durability, Extent, ExtentKind, Isolation,
    KeyRange, Keyspace, NOTE_LEN_MAX, Op, Position, Read, Records, Result, Seqno, Snapshot, StoreError, Txn,
    TxnId, TxnOptions, TxnOutcome, TxnStats, check_owner,
};

/// Commits whose outcome is known.
const OUTCOMES_MAX: usize = 4096;

/// The transactions of a store.
#[derive(Default)]
pub(super) struct Transactions {
    last_id: u64,
    /// Snapshots of those that are open.
    open: BTreeMap<TxnId, Seqno>,
    /// By id, the last few.
    committed: BTreeMap<TxnId, Position>,
    checkpoints: BTreeMap<TxnId, Checkpoint>,
}

/// What a transaction goes back to when it is dropped.
struct Checkpoint {
    info: CheckpointInfo,
    own: WriteSets,
    /// What they take, for as long as this is what the transaction goes back to.
    _charge: Charge,
    stats: TxnStats,
    changes: OwnChanges,
    forks: Vec<Fork>,
    /// Another transaction began with it.
    is_forked: bool,
}

impl Checkpoint {
    /// The same for another transaction.
    fn fork(&self, shared: &Shared) -> Self {
        Self {
            info: self.info.clone(),
            own: self.own.clone(),
            _charge: Charge::new(&shared.bytes_private, bytes_of(shared, &self.own)),
            stats: self.stats,
            changes: OwnChanges::default(),
            forks: vec![Fork::at(self.info.operations, &self.own)],
            is_forked: false,
        }
    }
}

/// A state in which a transaction parted from another one: one of them began with it.
#[derive(Clone)]
struct Fork {
    /// So many operations led to it.
    operations: u64,
    before: WriteSets,
    /// What was written since.
    since: WriteSets,
}

impl Fork {
    /// Here.
    fn at(operations: u64, own: &WriteSets) -> Self {
        Self { operations, before: own.clone(), since: WriteSets::default() }
    }
}

impl Transactions {
    /// Another one, that begins at `snapshot`.
    fn list(&mut self, snapshot: Seqno) -> TxnId {
        self.last_id += 1;
        let id = TxnId(self.last_id);
        self.open.insert(id, snapshot);
        id
    }

    pub(super) fn are_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn count_open(&self) -> usize {
        self.open.len()
    }

    pub(super) fn checkpointed(&self) -> Vec<CheckpointInfo> {
        self.checkpoints.values().map(|checkpoint| checkpoint.info.clone()).collect()
    }

    pub(super) fn outcome(&self, id: TxnId) -> TxnOutcome {
        if self.open.contains_key(&id) {
            return TxnOutcome::Open;
        }
        self.committed.get(&id).map_or(TxnOutcome::Unknown, |&position| TxnOutcome::Committed(position))
    }

    fn remember(&mut self, id: TxnId, position: Position) {
        self.committed.insert(id, position);
        if self.committed.len() > OUTCOMES_MAX {
            self.committed.pop_first();
        }
    }
}

/// What ends with the transaction.
struct Live {
    pin: Arc<Pin>,
    own: WriteSets,
    charge: Charge,
    stats: TxnStats,
    note: Bytes,
    /// From the first checkpoint on.
    changes: Option<OwnChanges>,
    forks: Vec<Fork>,
    /// Its last checkpoint, which may become one of them.
    checkpointed: Option<Fork>,
}

impl Live {
    fn new(shared: &Shared, pin: Arc<Pin>) -> Self {
        Self {
            pin,
            own: WriteSets::default(),
            charge: Charge::new(&shared.bytes_private, 0),
            stats: TxnStats::default(),
            note: Bytes::new(),
            changes: None,
            forks: Vec::new(),
            checkpointed: None,
        }
    }

    /// The state after so many operations.
    fn fork_at(&self, id: TxnId, operations: u64) -> Result<&Fork> {
        let known = || self.forks.iter().chain(&self.checkpointed);
        if let Some(fork) = known().find(|fork| fork.operations == operations) {
            return Ok(fork);
        }
        if known().next().is_none() {
            return Err(StoreError::NoCheckpoint(id));
        }
        let what = "states of transactions where they did not fork";
        Err(StoreError::Unsupported { engine: "the model", what })
    }

    /// What it goes back to from now on, in the place of `former`.
    fn checkpoint(
        &mut self,
        shared: &Shared,
        info: CheckpointInfo,
        former: Option<&Checkpoint>,
    ) -> Checkpoint {
        let parted = self.checkpointed.replace(Fork::at(self.stats.operations, &self.own));
        self.forks.extend(parted.filter(|_| former.is_some_and(|former| former.is_forked)));
        Checkpoint {
            info,
            own: self.own.clone(),
            _charge: Charge::new(&shared.bytes_private, bytes_of(shared, &self.own)),
            stats: self.stats,
            changes: self.changes.clone().unwrap_or_default(),
            forks: self.forks.clone(),
            is_forked: false,
        }
    }
}

/// What a transaction sees.
#[derive(Clone)]
struct Seen {
    shared: Arc<Shared>,
    below: Arc<Pin>,
    own: WriteSets,
}

/// A transaction.
pub(super) struct ModelTxn {
    shared: Arc<Shared>,
    id: TxnId,
    isolation: Isolation,
    snapshot: Seqno,
    /// It was resumed: no locks protect it, so nothing is looked for at its writes.
    is_resumed: bool,
    live: Mutex<Option<Live>>,
}

impl ModelTxn {
    pub(super) fn begin(shared: &Arc<Shared>, options: TxnOptions) -> Self {
        let (pin, id) = Pin::newest_with(shared, |commit, seqno| commit.transactions.list(seqno));
        Self::new(shared, id, pin, options.isolation)
    }

    /// At the position of a named snapshot.
    pub(super) fn begin_at(shared: &Arc<Shared>, name: &str) -> Result<Self> {
        let (pin, id) = named::open_with(shared, name, |commit, seqno| commit.transactions.list(seqno))?;
        Ok(Self::new(shared, id, pin, Isolation::Snapshot))
    }

    fn new(shared: &Arc<Shared>, id: TxnId, pin: Pin, isolation: Isolation) -> Self {
        let snapshot = pin.at();
        let live = Live::new(shared, Arc::new(pin));
        let shared = Arc::clone(shared);
        Self { shared, id, isolation, snapshot, is_resumed: false, live: Mutex::new(Some(live)) }
    }

    pub(super) fn resume(shared: &Arc<Shared>, id: TxnId) -> Result<Self> {
        let mut guard = shared.commit.lock();
        let commit = &mut *guard;
        let checkpoint = commit.transactions.checkpoints.get_mut(&id).ok_or(StoreError::NoCheckpoint(id))?;
        if std::mem::replace(&mut checkpoint.info.is_open, true) {
            return Err(StoreError::CheckpointOpen(id));
        }
        let (snapshot, isolation) = (checkpoint.info.snapshot, checkpoint.info.isolation);
        let (own, stats) = (checkpoint.own.clone(), checkpoint.stats);
        let (changes, forks) = (Some(checkpoint.changes.clone()), checkpoint.forks.clone());
        let checkpointed = Some(Fork::at(checkpoint.info.operations, &own));
        let pin = Arc::new(Pin::another(shared, commit, snapshot));
        drop(guard);
        let mut live = Live { own, stats, changes, forks, checkpointed, ..Live::new(shared, pin) };
        live.charge.set(bytes_of(shared, &live.own));
        let live = Mutex::new(Some(live));
        Ok(Self { shared: Arc::clone(shared), id, isolation, snapshot, is_resumed: true, live })
    }

    /// As [`crate::Checkpoints::fork`].
    pub(super) fn fork(
        shared: &Arc<Shared>,
        id: TxnId,
        owner: &dyn Fn(&CheckpointInfo) -> Bytes,
    ) -> Result<TxnId> {
        let forked = {
            let mut guard = shared.commit.lock();
            let from = guard.transactions.checkpoints.get_mut(&id).ok_or(StoreError::NoCheckpoint(id))?;
            from.is_forked = true;
            from.fork(shared)
        };
        // Without the lock: the caller may ask the store for something.
        let owner = owner(&forked.info);
        check_owner(&owner)?;
        let mut guard = shared.commit.lock();
        let commit = &mut *guard;
        let snapshot = forked.info.snapshot;
        // Its versions may be gone.
        if !commit.transactions.checkpoints.contains_key(&id) {
            return Err(StoreError::NoCheckpoint(id));
        }
        let id = commit.transactions.list(snapshot);
        let info = CheckpointInfo { id, owner, is_open: false, ..forked.info };
        commit.transactions.checkpoints.insert(id, Checkpoint { info, ..forked });
        commit.pin(snapshot);
        Ok(id)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Live) -> Result<R>) -> Result<R> {
        match &mut *self.live.lock() {
            Some(live) => work(live),
            None => Err(StoreError::TxnEnded(self.id)),
        }
    }

    /// What it sees now.
    fn seen(&self) -> Result<Seen> {
        self.with(|live| Ok(self.seen_by(live)))
    }

    fn seen_by(&self, live: &Live) -> Seen {
        let below = match self.isolation {
            Isolation::Snapshot => Arc::clone(&live.pin),
            Isolation::Serializable => Arc::new(Pin::newest(&self.shared)),
        };
        Seen { shared: Arc::clone(&self.shared), below, own: live.own.clone() }
    }

    fn find_conflict(&self, tables: &Tables, batch: &Batch) -> Result<()> {
        let commit = self.shared.commit.lock();
        for op in batch.ops() {
            let records = records_of(op, tables.get(op.keyspace()))?;
            if let Some(changed) = commit.recent.find(op.keyspace(), &records, self.snapshot) {
                return Err(StoreError::Conflict { changed });
            }
        }
        Ok(())
    }

    /// Takes the transaction off the list and forgets what only it asked for.
    fn unlist(&self, commit: &mut Commit) {
        commit.transactions.open.remove(&self.id);
        if commit.transactions.checkpoints.remove(&self.id).is_some() {
            commit.unpin(self.snapshot);
        }
        let named = commit.named.oldest();
        let oldest = commit.transactions.open.values().min().copied().into_iter().chain(named).min();
        commit.recent.forget_up_to(oldest);
    }
}

fn bytes_of(shared: &Shared, own: &WriteSets) -> u64 {
    own.bytes() + own.entry_count() * shared.options.entry_bytes
}

impl Seen {
    /// Reads a keyspace through what was written.
    fn read<R>(&self, keyspace: Keyspace, read: impl FnOnce(Overlay<'_>) -> Result<R>) -> Result<R> {
        let space = self.shared.table(keyspace)?.space();
        read(Overlay::new(&*self.below, space, self.own.of(keyspace)))
    }
}

impl Read for Seen {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(keyspace, |overlay| overlay.get(key))
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.read(keyspace, |overlay| overlay.multi_get(keys))
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        self.read(keyspace, |overlay| overlay.cursor(range))
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.read(keyspace, |overlay| overlay.read_blocks(prefix, first, buf))
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.read(keyspace, |overlay| overlay.next_extent(prefix, blocks, kind))
    }
}

impl Snapshot for Seen {
    fn seqno(&self) -> Seqno {
        self.below.at()
    }
}

impl Read for ModelTxn {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.seen()?.get(keyspace, key)
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.seen()?.multi_get(keyspace, keys)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        self.seen()?.cursor(keyspace, range)
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.seen()?.read_blocks(keyspace, prefix, first, buf)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.seen()?.next_extent(keyspace, prefix, blocks, kind)
    }
}

impl Txn for ModelTxn {
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
        self.with(|live| Ok(Arc::clone(&live.pin) as Arc<dyn Snapshot>))
    }

    fn describe(&self, note: Bytes) {
        if let Some(live) = &mut *self.live.lock() {
            live.note = note.slice(..note.len().min(NOTE_LEN_MAX));
        }
    }

    fn apply(&self, batch: Batch) -> Result<()> {
        batch.check_limits()?;
        let tables = Tables::of(&self.shared, &batch)?;
        self.with(|live| {
            if self.isolation == Isolation::Snapshot && !self.is_resumed {
                self.find_conflict(&tables, &batch)?;
            }
            let (operations, bytes) = (batch.len() as u64, batch.payload_bytes() as u64);
            if apply::is_full_for(&self.shared, &batch, batch.is_deleting()) {
                return Err(StoreError::Full);
            }
            let seen = self.seen_by(live);
            let spaces = |keyspace| Ok(self.shared.table(keyspace)?.space());
            let records = |op: &Op| Ok((op.keyspace(), records_of(op, tables.get(op.keyspace()))?));
            let changes = batch.ops().iter().map(records).collect::<Result<_>>()?;
            let (mut forks, mut checkpointed) = (live.forks.clone(), live.checkpointed.clone());
            for fork in forks.iter_mut().chain(&mut checkpointed) {
                fork.since.apply(batch.clone(), &spaces, &seen)?;
            }
            live.own.apply(batch, &spaces, &*seen.below)?;
            (live.forks, live.checkpointed) = (forks, checkpointed);
            if let Some(own) = &mut live.changes {
                own.push(changes, live.stats.operations + 1);
            }
            live.charge.set(bytes_of(&self.shared, &live.own));
            live.stats.batches += 1;
            live.stats.operations += operations;
            live.stats.bytes_written += bytes;
            Ok(())
        })
    }

    fn changed_since_snapshot(&self, keyspace: Keyspace, records: &[Records]) -> Result<Option<Changed>> {
        self.shared.table(keyspace)?;
        self.with(|_| {
            let commit = self.shared.commit.lock();
            Ok(records.iter().find_map(|records| commit.recent.find(keyspace, records, self.snapshot)))
        })
    }

    fn changes(&self, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        let kind = self.shared.table(keyspace)?.kind;
        self.with(|live| Ok(live.own.of(keyspace).changes(kind)))
    }

    fn as_of(&self, operations: u64) -> Result<Arc<dyn Snapshot>> {
        self.with(|live| {
            let seen = self.seen_by(live);
            if operations == live.stats.operations {
                return Ok(Arc::new(seen) as Arc<dyn Snapshot>);
            }
            let own = live.fork_at(self.id, operations)?.before.clone();
            Ok(Arc::new(Seen { own, ..seen }) as Arc<dyn Snapshot>)
        })
    }

    fn changes_after(&self, operations: u64, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        let kind = self.shared.table(keyspace)?.kind;
        self.with(|live| Ok(live.fork_at(self.id, operations)?.since.of(keyspace).changes(kind)))
    }

    fn changed_after(
        &self,
        operations: u64,
        keyspace: Keyspace,
        records: &[Records],
    ) -> Result<Option<Changed>> {
        self.shared.table(keyspace)?;
        self.with(|live| {
            let own = live.changes.as_ref().ok_or(StoreError::NoCheckpoint(self.id))?;
            Ok(records.iter().find_map(|records| own.find(keyspace, records, operations)))
        })
    }

    fn stats(&self) -> TxnStats {
        self.live
            .lock()
            .as_ref()
            .map_or_else(TxnStats::default, |live| TxnStats { bytes_memory: live.own.bytes(), ..live.stats })
    }

    fn prepare(&self) -> Result<()> {
        self.with(|live| {
            if let Some(checkpoint) = self.shared.commit.lock().transactions.checkpoints.get_mut(&self.id) {
                let TxnStats { operations, bytes_written: bytes, .. } = live.stats;
                let info = CheckpointInfo { operations, bytes, ..checkpoint.info.clone() };
                *checkpoint = live.checkpoint(&self.shared, info, Some(checkpoint));
            }
            Ok(())
        })
    }

    fn checkpoint(&self, owner: &[u8]) -> Result<()> {
        check_owner(owner)?;
        self.with(|live| {
            let mut guard = self.shared.commit.lock();
            let commit = &mut *guard;
            if commit.refuses_checkpoints.as_ref().is_some_and(|refuses| refuses(self.id)) {
                return Err(StoreError::Full);
            }
            let info = CheckpointInfo {
                id: self.id,
                isolation: self.isolation,
                snapshot: self.snapshot,
                created: Duration::ZERO,
                operations: live.stats.operations,
                bytes: live.stats.bytes_written,
                is_open: true,
                owner: Bytes::copy_from_slice(owner),
            };
            live.changes.get_or_insert_default();
            let former = commit.transactions.checkpoints.get(&self.id);
            let checkpoint = live.checkpoint(&self.shared, info, former);
            if commit.transactions.checkpoints.insert(self.id, checkpoint).is_none() {
                commit.pin(self.snapshot);
            }
            Ok(())
        })
    }

    fn commit(&self, _durability: Durability) -> Result<Position> {
        let mut live = self.live.lock();
        let Some(open) = &mut *live else { return Err(StoreError::TxnEnded(self.id)) };
        let batch = open.own.to_batch(&|keyspace| Ok(self.shared.table(keyspace)?.space()))?;
        let commit_of = Some((self.id, open.note.clone()));
        // What becomes visible is no longer private: it counts once.
        let bytes = open.charge.bytes();
        open.charge.set(0);
        let committed = apply::apply_any_size(&self.shared, batch, commit_of, |commit, position| {
            self.unlist(commit);
            commit.transactions.remember(self.id, position);
        });
        match committed {
            Ok(_) => *live = None,
            Err(_) => open.charge.set(bytes),
        }
        committed
    }

    fn abort(&self) {
        if let Some(live) = self.live.lock().take() {
            drop(live);
            self.unlist(&mut self.shared.commit.lock());
        }
    }

    fn suspend(&self) {
        let Some(live) = self.live.lock().take() else { return };
        drop(live);
        let mut commit = self.shared.commit.lock();
        match commit.transactions.checkpoints.get_mut(&self.id) {
            Some(checkpoint) => checkpoint.info.is_open = false,
            None => self.unlist(&mut commit),
        }
    }
}

impl Drop for ModelTxn {
    fn drop(&mut self) {
        self.suspend();
    }
}
