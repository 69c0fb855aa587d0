//! The memtable: all keyspaces of one write buffer.
//!
//! Thread safety: `&self` everywhere. A reader at snapshot S sees everything at or below S, provided
//! that S was published after the writers of those seqnos returned from [`MemTable::apply`].
//! Invariants: what is charged is exactly [`MemTable::memory_bytes`] until the table is dropped.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::{BLOCK_BYTES, Batch, Compression, Keyspace, KeyspaceKind, Op, Seqno};

use super::{
    changes::{ChangeVisitor, ChangeWalk},
    fill::BlockFill,
    growth::{Growth, slack_of},
    iter::{EmptyIter, MemTableIter},
    keyspace::KeyspaceTable,
    lookup::Lookup,
    patch,
    search::BlockSearch,
    tombstones::TombstoneSet,
    writers::{WriteGuard, Writers},
};
use crate::{
    cache::{Accountant, Charge, Pool},
    format::{RecordIter, RecordKind},
    space::{Bindings, BoundOp, HoldsBound},
};

/// A write buffer: the newest records of all keyspaces, in memory.
pub(crate) struct MemTable {
    /// See [`MemTable::memory_bytes`].
    memory: Charge,
    tables: RwLock<BTreeMap<u32, Arc<KeyspaceTable>>, class::KvdbMemtableTableTables>,
    bytes: AtomicU64,
    /// What a flush may have to write for patches beyond `bytes`.
    patched_bytes: AtomicU64,
    /// See [`MemTable::space_bytes`].
    slack_bytes: AtomicU64,
    /// Blocks that lie in their final place already, by the seqno of the operation that put them.
    bound: Mutex<HashMap<Seqno, BoundOp>, class::KvdbMemtableTableBound>,
    bytes_bound: AtomicU64,
    /// See [`MemTable::note_pinned`].
    pinned: AtomicU64,
    seqno_min: AtomicU64,
    seqno_max: AtomicU64,
    writers: Writers,
    /// Says that the store is in use for as long as there is something charged.
    _accountant: Arc<Accountant>,
}

impl fmt::Debug for MemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemTable")
            .field("bytes", &self.bytes())
            .field("seqno_range", &self.seqno_range())
            .finish_non_exhaustive()
    }
}

impl HoldsBound for MemTable {
    fn count(&self, blocks: u64) {
        self.bytes_bound.fetch_add(blocks * BLOCK_BYTES as u64, Ordering::Release);
    }

    fn hold(&self, ops: Vec<(Seqno, BoundOp)>) {
        self.bound.lock().extend(ops);
    }
}

impl MemTable {
    /// An empty table, whose memory is charged to `accountant` at the place of the caller.
    #[track_caller]
    pub(crate) fn new(accountant: &Arc<Accountant>) -> Self {
        Self {
            memory: accountant.charge(Pool::Memtable, 0),
            tables: RwLock::default(),
            bytes: AtomicU64::new(0),
            patched_bytes: AtomicU64::new(0),
            slack_bytes: AtomicU64::new(0),
            bound: Mutex::default(),
            bytes_bound: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            seqno_min: AtomicU64::new(Seqno::MAX),
            seqno_max: AtomicU64::new(0),
            writers: Writers::default(),
            _accountant: Arc::clone(accountant),
        }
    }

    /// Announces a writer. Take it under the lock that also seals tables, before the table can be
    /// replaced, and keep it until the batch is applied *and published*: then a quiescent table
    /// holds nothing above the visible watermark.
    pub(crate) fn begin_write(&self) -> WriteGuard<'_> {
        self.writers.enter()
    }

    /// Waits until every announced writer has left. The caller has made sure that no more come.
    pub(crate) fn wait_quiescent(&self) {
        self.writers.wait_quiescent();
    }

    /// Inserts `batch`: operation i has seqno `base + i`, all blocks of a `PutBlocks` have the same. In a
    /// block keyspace a `Delete` becomes a range tombstone over its key. `kind_of` knows every keyspace of
    /// the batch; the batch has been checked against limits and kinds. Long values are shared with the batch,
    /// all else is copied. O(log n) per record.
    pub(crate) fn apply(&self, batch: &Batch, base: Seqno, kind_of: impl Fn(Keyspace) -> KeyspaceKind) {
        if batch.is_empty() {
            return;
        }
        let pinned = self.pinned.load(Ordering::Acquire);
        let mut growth = Growth::default();
        let mut table: Option<(Keyspace, Arc<KeyspaceTable>)> = None;
        for (op, seqno) in batch.ops().iter().zip(base..) {
            let keyspace = op.keyspace();
            let (_, table) = match &mut table {
                Some(table) if table.0 == keyspace => table,
                table => table.insert((keyspace, self.table_or_new(keyspace.0))),
            };
            growth += insert(table, op, seqno, pinned, &kind_of);
            growth.slack_bytes += slack_of(op);
        }
        self.seqno_min.fetch_min(base, Ordering::Release);
        self.seqno_max.fetch_max(base + batch.len() as u64 - 1, Ordering::Release);
        self.grow(growth);
    }

    /// Holds the places of blocks that [`MemTable::apply`] has put here with the same `base`, until the table
    /// is dropped.
    pub(crate) fn bind(&self, batch: &Batch, base: Seqno, bindings: &Bindings) {
        if bindings.is_empty() {
            return;
        }
        let ops = bindings.iter().filter_map(|(at, bound)| match batch.ops().get(at) {
            Some(&Op::PutBlocks { first, .. } | &Op::PatchBlock { block: first, .. }) => {
                Some((base + at as u64, BoundOp { first, bound: Arc::clone(bound) }))
            }
            _ => None,
        });
        self.hold(ops.collect());
        self.count(bindings.blocks());
    }

    /// Of a batch that was applied, operations whose blocks can't be read, and how many each has put: reads
    /// of them fail, in the place of what older layers have.
    pub(crate) fn put_unreadable(&self, batch: &Batch, base: Seqno, unreadable: &[(usize, u64)]) {
        for &(op, blocks) in unreadable {
            if let Some(Op::PutBlocks { keyspace, prefix, first, .. }) = batch.ops().get(op) {
                let table = self.table_or_new(keyspace.0);
                self.grow(table.insert_unreadable(prefix, *first, blocks, base + op as u64));
            }
        }
    }

    /// The operation of this seqno, if its blocks are bound. Of a patch it is the block that it completes, as
    /// it is then.
    pub(crate) fn bound(&self, seqno: Seqno) -> Option<BoundOp> {
        self.bound.lock().get(&seqno).cloned()
    }

    /// Blocks that lie in their final place already, overwritten ones included (bytes).
    pub(crate) fn bytes_bound(&self) -> u64 {
        self.bytes_bound.load(Ordering::Acquire)
    }

    fn grow(&self, growth: Growth) {
        self.memory.grow(growth.memory_bytes as u64);
        if growth.patched_bytes > 0 {
            self.patched_bytes.fetch_add(growth.patched_bytes as u64, Ordering::Release);
        }
        if growth.slack_bytes > 0 {
            self.slack_bytes.fetch_add(growth.slack_bytes as u64, Ordering::Release);
        }
        self.bytes.fetch_add(growth.bytes as u64, Ordering::Release);
    }

    /// There is a reader at `seqno`: a patch of a block that was changed before makes the flush write one
    /// more version. Call it before patches are applied.
    pub(crate) fn note_pinned(&self, seqno: Seqno) {
        self.pinned.fetch_max(seqno, Ordering::AcqRel);
    }

    fn table(&self, keyspace: u32) -> Option<Arc<KeyspaceTable>> {
        self.tables.read().get(&keyspace).cloned()
    }

    fn table_or_new(&self, keyspace: u32) -> Arc<KeyspaceTable> {
        let found = self.table(keyspace);
        found.unwrap_or_else(|| Arc::clone(self.tables.write().entry(keyspace).or_default()))
    }

    /// What the table holds: keys, values, and an estimate of what comes with them (bytes).
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Memory that the table takes (bytes): what it holds, and what its arenas have taken for what is to
    /// come.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// About what its runs come to (bytes): a patched block becomes a whole one there. No less than
    /// [`Self::bytes`].
    pub(crate) fn flush_bytes(&self) -> u64 {
        self.bytes() + self.patched_bytes.load(Ordering::Acquire)
    }

    /// The most that its flush still takes on the device (bytes), but for filters and padding of short
    /// records. No less than [`Self::unwritten_bytes`].
    pub(crate) fn space_bytes(&self) -> u64 {
        self.unwritten_bytes() + self.slack_bytes.load(Ordering::Acquire)
    }

    /// About what its flush still has to write (bytes): not what is bound.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.flush_bytes().saturating_sub(self.bytes_bound())
    }

    /// Whether any patch may lie on something that is not in this table.
    pub(crate) fn has_patches(&self) -> bool {
        self.patched_bytes.load(Ordering::Acquire) > 0
    }

    /// Whether nothing was applied.
    pub(crate) fn is_empty(&self) -> bool {
        self.seqno_range().is_none()
    }

    /// The keyspaces that have records or tombstones here, ascending.
    pub(crate) fn keyspaces(&self) -> Vec<u32> {
        let tables = self.tables.read();
        tables.iter().filter(|(_, table)| !table.is_empty()).map(|(&keyspace, _)| keyspace).collect()
    }

    /// Smallest and greatest seqno applied.
    pub(crate) fn seqno_range(&self) -> Option<(Seqno, Seqno)> {
        let (min, max) = (self.seqno_min.load(Ordering::Acquire), self.seqno_max.load(Ordering::Acquire));
        (min <= max).then_some((min, max))
    }

    /// Takes a point read through this layer. Expected O(log n).
    pub(crate) fn lookup(&self, keyspace: u32, lookup: &mut Lookup<'_>) {
        if let Some(table) = self.tables.read().get(&keyspace) {
            table.lookup(lookup);
        }
    }

    /// Keeps what `key` comes to at `seqno`, which is published, if that is a position of this table; says
    /// whether. Later reads meet it in the place of what it came from.
    pub(crate) fn keep(&self, keyspace: u32, key: &[u8], seqno: Seqno, value: Option<&Bytes>) -> bool {
        let is_here = self.seqno_range().is_some_and(|(min, max)| (min..=max).contains(&seqno));
        if is_here && let Some(table) = self.table(keyspace) {
            self.grow(table.keep(key, seqno, value));
        }
        is_here
    }

    /// Takes a read of blocks through this layer. O(log n + records in the range).
    pub(crate) fn fill(&self, keyspace: u32, fill: &mut BlockFill<'_>) {
        if let Some(table) = self.table(keyspace) {
            let growth = table.fill(fill);
            if growth != Growth::default() {
                self.grow(growth);
            }
        }
    }

    /// Takes a walk over changes through this layer: not at all when nothing here lies between its positions,
    /// else O(log n + records in its range).
    pub(crate) fn walk_changes(&self, keyspace: u32, walk: &mut ChangeWalk<impl ChangeVisitor>) {
        if self.seqno_range().is_some_and(|(min, max)| walk.concerns(min, max))
            && let Some(table) = self.table(keyspace)
        {
            table.walk_changes(walk);
        }
    }

    /// Takes a search for the next block through this layer. O(log n + tombstones met).
    pub(crate) fn search(&self, keyspace: u32, search: &mut BlockSearch<'_>) {
        if let Some(table) = self.table(keyspace) {
            table.search(search);
        }
    }

    /// A walk over the point records of a keyspace, which keeps the table alive. It also meets
    /// records that come in meanwhile: ignore those above your snapshot.
    pub(crate) fn iter(self: &Arc<Self>, keyspace: u32) -> Box<dyn RecordIter> {
        match self.table(keyspace) {
            Some(table) => Box::new(MemTableIter::new(Arc::clone(self), &table)),
            None => Box::new(EmptyIter),
        }
    }

    /// How blocks of `prefix` were last wished to be stored by a batch that came here.
    pub(crate) fn compression(&self, keyspace: u32, prefix: &[u8]) -> Compression {
        self.table(keyspace).map_or(Compression::None, |table| table.compression(prefix))
    }

    /// All range tombstones of a keyspace as one set, for a flush. Costs a rebuild after changes;
    /// readers use [`MemTable::tombstone_sets`].
    pub(crate) fn tombstones(&self, keyspace: u32) -> Arc<TombstoneSet> {
        self.table(keyspace).map(|table| table.tombstones().whole()).unwrap_or_default()
    }

    /// All range tombstones of a keyspace, as O(log n) sets that may overlap. Cheap.
    pub(crate) fn tombstone_sets(&self, keyspace: u32) -> Vec<Arc<TombstoneSet>> {
        self.table(keyspace).map(|table| table.tombstones().sets()).unwrap_or_default()
    }
}

/// Inserts one operation.
fn insert(
    table: &KeyspaceTable,
    op: &Op,
    seqno: Seqno,
    pinned: Seqno,
    kind_of: &impl Fn(Keyspace) -> KeyspaceKind,
) -> Growth {
    match op {
        Op::Put { key, value, .. } => table.insert(key, seqno, RecordKind::Put, value),
        Op::Merge { key, operand, .. } => table.insert(key, seqno, RecordKind::Merge, operand),
        Op::Delete { key, keyspace } => match kind_of(*keyspace) {
            KeyspaceKind::Tuple => table.insert(key, seqno, RecordKind::Delete, &Bytes::new()),
            KeyspaceKind::Block => table.insert_block_delete(key, seqno),
        },
        Op::DeleteRange { start, end, .. } => table.insert_tombstone(start.clone(), end.clone(), seqno),
        Op::PutBlocks { prefix, first, data, compression, .. } => {
            let mut growth = table.insert_blocks(prefix, *first, data, seqno);
            growth += table.wish(prefix, *compression);
            growth
        }
        Op::PatchBlock { prefix, block, offset, data, compression, .. } => {
            let operand = patch::operand(*offset, data);
            let mut growth = table.insert_patch(prefix, *block, &operand, seqno, pinned);
            growth += table.wish(prefix, *compression);
            growth
        }
    }
}

#[cfg(test)]
mod tests;
