//! The model behind a thin layer that can crash and that breaks promises on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kvfs_sim::spaces::Handles;
use kvfs_sim::store_check::Subject;
use kvfs_store::model::ModelStore;
use kvfs_store::{
    Batch, Cursor, Durability, KeyRange, Keyspace, Op, Position, Read, Result, Seqno, Snapshot, Store,
};

/// Which promise is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// None.
    Sound,
    /// Every fifth delete does nothing.
    LosesDeletes,
    /// Range deletes take the end too.
    ClosedRanges,
    /// Operations of a batch are applied last first.
    ReordersBatches,
    /// Snapshots show the newest state.
    LeakySnapshots,
    /// Cursors that turn around skip an entry.
    SkippingCursors,
    /// Holes keep what was in the buffer.
    UnfilledHoles,
    /// Reopening loses the newest batch.
    ForgetfulClose,
    /// A crash loses a synced batch.
    LosesSynced,
    /// A crash loses a batch, but not the ones after it.
    TornHistory,
    /// A crash applies half a batch.
    HalfBatch,
    /// A crash leaves a position that it has given already.
    TellsLowPosition,
}

/// A model that logs its batches, so that it can be built again from a part of them.
pub(crate) struct Recorder {
    inner: Arc<ModelStore>,
    mutation: Mutation,
    has_crashed: bool,
    deletes: AtomicU64,
    log: std::sync::Mutex<Log>,
}

#[derive(Default)]
struct Log {
    batches: Vec<Batch>,
    synced: usize,
}

impl Recorder {
    fn new(mutation: Mutation, batches: Vec<Batch>, has_crashed: bool) -> Arc<Self> {
        let inner = Arc::new(ModelStore::new());
        Handles::open(&*inner).unwrap();
        for batch in &batches {
            inner.apply(batch.clone(), Durability::Buffered).unwrap();
        }
        let log = Log { synced: batches.len(), batches };
        Arc::new(Self { inner, mutation, has_crashed, deletes: AtomicU64::new(0), log: log.into() })
    }

    fn mutate(&self, op: Op) -> Op {
        match (self.mutation, op) {
            (Mutation::LosesDeletes, Op::Delete { keyspace, .. })
                if self.deletes.fetch_add(1, Ordering::Relaxed) % 5 == 4 =>
            {
                Op::Delete { keyspace, key: Bytes::from_static(b"a key that is absent") }
            }
            (Mutation::ClosedRanges, Op::DeleteRange { keyspace, start, end }) if start < end => {
                let end = [&end[..], &[0]].concat().into();
                Op::DeleteRange { keyspace, start, end }
            }
            (_, op) => op,
        }
    }
}

impl Read for Recorder {
    kvfs_store::pass_on!(inner: get, multi_get, next_extent);

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        let inner = self.inner.cursor(keyspace, range)?;
        if self.mutation == Mutation::SkippingCursors {
            return Ok(Box::new(SkippingCursor { inner, forward: true }));
        }
        Ok(inner)
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        if self.mutation != Mutation::UnfilledHoles {
            return self.inner.read_blocks(keyspace, prefix, first, buf);
        }
        for (index, chunk) in buf.chunks_mut(kvfs_store::BLOCK_BYTES).enumerate() {
            let block = first + index as u64;
            if let Some(value) = self.inner.get(keyspace, &[prefix, &block.to_be_bytes()].concat())? {
                chunk.copy_from_slice(&value);
            }
        }
        Ok(())
    }
}

impl Store for Recorder {
    kvfs_store::pass_on!(inner: open_keyspace, keyspaces, capabilities, space, stats);

    fn position(&self) -> Position {
        let position = self.inner.position();
        let is_low = self.mutation == Mutation::TellsLowPosition && self.has_crashed;
        Position(position.0.saturating_sub(is_low.into()))
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let snapshot = self.inner.snapshot()?;
        if self.mutation == Mutation::LeakySnapshots {
            return Ok(Arc::new(LeakySnapshot { store: Arc::clone(&self.inner), snapshot }));
        }
        Ok(snapshot)
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        let ops: Vec<Op> = batch.into_ops().into_iter().map(|op| self.mutate(op)).collect();
        let mut batch = Batch::new();
        if self.mutation == Mutation::ReordersBatches {
            for op in ops.into_iter().rev() {
                batch.push(op);
            }
        } else {
            for op in ops {
                batch.push(op);
            }
        }
        let mut log = self.log.lock().unwrap();
        let position = self.inner.apply(batch.clone(), durability)?;
        log.batches.push(batch);
        if durability == Durability::Synced {
            log.synced = log.batches.len();
        }
        Ok(position)
    }

    fn sync(&self, _position: Position) -> Result<()> {
        let mut log = self.log.lock().unwrap();
        log.synced = log.batches.len();
        Ok(())
    }
}

/// Reads the newest state.
struct LeakySnapshot {
    store: Arc<ModelStore>,
    snapshot: Arc<dyn Snapshot>,
}

impl Read for LeakySnapshot {
    kvfs_store::pass_on!(store: get, multi_get, cursor, read_blocks, next_extent);
}

impl Snapshot for LeakySnapshot {
    fn seqno(&self) -> Seqno {
        self.snapshot.seqno()
    }
}

/// Skips an entry when a walk forward turns back.
struct SkippingCursor {
    inner: Box<dyn Cursor>,
    forward: bool,
}

impl Cursor for SkippingCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.forward = true;
        self.inner.seek(key)
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        self.forward = false;
        self.inner.seek_back(key)
    }

    fn first(&mut self) -> Result<()> {
        self.forward = true;
        self.inner.first()
    }

    fn last(&mut self) -> Result<()> {
        self.forward = false;
        self.inner.last()
    }

    fn next(&mut self) -> Result<()> {
        self.forward = true;
        self.inner.next()
    }

    fn prev(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.forward, false) {
            self.inner.prev()?;
        }
        self.inner.prev()
    }

    fn entry(&self) -> Option<(&[u8], &Bytes)> {
        self.inner.entry()
    }
}

/// A recorder under test. It crashes to a prefix of its log that depends on the number of crashes.
pub(crate) struct RecorderSubject {
    store: Arc<Recorder>,
    crashes: usize,
}

impl RecorderSubject {
    /// A fresh one.
    pub(crate) fn new(mutation: Mutation) -> Self {
        Self { store: Recorder::new(mutation, Vec::new(), false), crashes: 0 }
    }

    fn restart(&mut self, batches: Vec<Batch>) {
        self.store = Recorder::new(self.store.mutation, batches, self.crashes > 0);
    }

    fn log(&self) -> Log {
        std::mem::take(&mut *self.store.log.lock().unwrap())
    }
}

impl Subject for RecorderSubject {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn reopen(&mut self) -> Result<()> {
        let mut batches = self.log().batches;
        if self.store.mutation == Mutation::ForgetfulClose {
            batches.pop();
        }
        self.restart(batches);
        Ok(())
    }

    fn crash(&mut self) -> Result<()> {
        self.crashes += 1;
        let Log { mut batches, synced } = self.log();
        let unsynced = batches.len() - synced;
        match self.store.mutation {
            Mutation::LosesSynced => batches.truncate(synced.saturating_sub(1)),
            Mutation::TornHistory if unsynced > 1 => drop(batches.remove(synced)),
            Mutation::HalfBatch if unsynced > 0 => {
                let half = batches[synced].ops()[..batches[synced].len() / 2].to_vec();
                batches.truncate(synced);
                let mut batch = Batch::new();
                for op in half {
                    batch.push(op);
                }
                batches.push(batch);
            }
            _ => batches.truncate(synced + self.crashes * 7 % (unsynced + 1)),
        }
        self.restart(batches);
        Ok(())
    }
}
