//! The private write set of one transaction: the newest batches in memory, older ones in private runs.
//!
//! Purpose: a memtable of its own, which lies above the layers that all readers see. Its records are numbered
//! from [`PRIVATE`] on, so that they come before everything else in record order. What fits in memory
//! becomes, at the commit, the *net* set (module `net`) as one batch. What does not has become runs before
//! (module `spilled`), whose seqnos count from [`PRIVATE`] until the commit gives them another base.
//!
//! Thread safety: writers take turns (the transaction's lock); readers hold tables and runs, and the number
//! of the last batch that was whole when they came, see [`OwnWrites`].
//!
//! Invariants: everything at or below `last` is wholly in the set, and `last` never falls: a view of the set
//! whose limit it still is shows all of it; each table is newer than all below it; block data is kept by the
//! operation that brought it, so that the commit writes stretches, not blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Batch, Compression, Keyspace, KeyspaceKind, Op, Result, Seqno, TxnStats};

use super::SnapshotPin;
use super::net::{NetChanges, NetSource, net_batch};
use super::spilled::{PrivateRuns, Spill};
use crate::cache::Accountant;
use crate::memtable::{
    BlockFill, BlockSearch, ChangeVisitor, ChangeWalk, Lookup, MemTable, Merger, space_of,
};
use crate::version::{Edit, Run, TakePiece};

/// Private records have seqnos above this, all others below.
pub(crate) const PRIVATE: Seqno = 1 << 63;

/// What a reader sees of a private write set.
#[derive(Clone)]
pub(crate) struct OwnWrites {
    /// The newest records.
    table: Arc<MemTable>,
    /// Older ones, on their way to runs.
    sealed: Option<Arc<MemTable>>,
    /// The oldest ones.
    runs: PrivateRuns,
    /// The newest seqno that counts.
    limit: Seqno,
}

impl OwnWrites {
    /// The newest seqno that counts.
    pub(crate) fn limit(&self) -> Seqno {
        self.limit
    }

    /// The layers in memory, newest first.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.table).chain(&self.sealed)
    }

    /// The layers below them, newest first.
    pub(crate) fn runs(&self, keyspace: u32) -> &[Arc<Run>] {
        self.runs.of(keyspace)
    }

    /// How blocks of `prefix` that are in memory were last wished to be stored.
    pub(crate) fn compression(&self, keyspace: u32, prefix: &[u8]) -> Compression {
        let wishes = self.tables().map(|table| table.compression(keyspace, prefix));
        wishes.fold(Compression::None, Compression::or)
    }

    /// Takes a point read through all layers.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(crate) fn lookup(&self, keyspace: u32, lookup: &mut Lookup<'_>) -> Result<()> {
        for table in self.tables() {
            table.lookup(keyspace, lookup);
            if lookup.is_decided() {
                return Ok(());
            }
        }
        for run in self.runs(keyspace) {
            run.lookup(lookup)?;
            if lookup.is_decided() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes a read of blocks through all layers, with what `take` does with each piece.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(crate) fn fill(&self, keyspace: u32, fill: &mut BlockFill<'_>, take: TakePiece<'_>) -> Result<()> {
        for table in self.tables() {
            table.fill(keyspace, fill);
            if fill.is_complete() {
                return Ok(());
            }
        }
        for run in self.runs(keyspace) {
            run.fill_by(fill, take)?;
            if fill.is_complete() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes a walk over changes through all layers.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(crate) fn walk_changes(
        &self,
        keyspace: u32,
        walk: &mut ChangeWalk<impl ChangeVisitor>,
    ) -> Result<()> {
        self.tables().for_each(|table| table.walk_changes(keyspace, walk));
        self.runs(keyspace).iter().try_for_each(|run| run.walk_changes(walk))
    }

    /// Takes a search for the next block through all layers.
    ///
    /// # Errors
    /// I/O errors and corruption of an index.
    pub(crate) fn search(&self, keyspace: u32, search: &mut BlockSearch<'_>) -> Result<()> {
        self.tables().for_each(|table| table.search(keyspace, search));
        self.runs(keyspace).iter().try_for_each(|run| run.search(search))
    }
}

/// The most operations, and the most payload (bytes), of a plain batch.
const PLAIN_OPS_MAX: usize = 8;
const PLAIN_BYTES_MAX: usize = 4 << 10;

/// The private writes of one transaction.
pub(crate) struct PrivateWrites {
    accountant: Arc<Accountant>,
    table: Arc<MemTable>,
    /// Full, and on its way to runs; a spill that failed leaves it here.
    sealed: Option<Arc<MemTable>>,
    runs: PrivateRuns,
    /// Of the last batch.
    last: Seqno,
    /// First block and data of each operation in `table` that wrote blocks.
    block_writes: BlockWrites,
    /// The only batch so far, if it is small and plain: then it is what the set comes to.
    sole: Option<Batch>,
    /// What `table` and `sealed` take on the device (bytes).
    bytes_space: (u64, u64),
    stats: TxnStats,
    /// As it was when `sealed`, or else the newest run, took in its last batch.
    stats_spilled: TxnStats,
}

/// Whether `batch` is a few small puts and deletes. What it shares with the table is little enough to keep
/// twice.
fn is_plain(batch: &Batch) -> bool {
    let is_plain = |op: &Op| matches!(op, Op::Put { .. } | Op::Delete { .. });
    batch.len() <= PLAIN_OPS_MAX
        && batch.payload_bytes() <= PLAIN_BYTES_MAX
        && batch.ops().iter().all(is_plain)
}

/// First block and data by the seqno that they have in the private table.
pub(super) type BlockWrites = BTreeMap<Seqno, (u64, Bytes)>;

impl PrivateWrites {
    /// An empty set, whose memory is charged to `accountant`.
    pub(crate) fn new(accountant: Arc<Accountant>) -> Self {
        Self {
            table: Arc::new(MemTable::new(&accountant)),
            accountant,
            sealed: None,
            runs: PrivateRuns::default(),
            last: PRIVATE,
            block_writes: BTreeMap::new(),
            sole: None,
            bytes_space: (0, 0),
            stats: TxnStats::default(),
            stats_spilled: TxnStats::default(),
        }
    }

    /// The set of a checkpoint, which is all in `runs`.
    pub(crate) fn restored(accountant: Arc<Accountant>, runs: PrivateRuns, stats: TxnStats) -> Self {
        Self { last: runs.last(), runs, stats, stats_spilled: stats, ..Self::new(accountant) }
    }

    /// Adds a batch that has passed all checks. Can't fail.
    pub(crate) fn apply(&mut self, batch: &Batch, kind_of: impl Fn(Keyspace) -> KeyspaceKind) {
        for (op, seqno) in batch.ops().iter().zip(self.last + 1..) {
            if let Op::PutBlocks { first, data, .. } = op {
                self.block_writes.insert(seqno, (*first, data.clone()));
            }
        }
        self.sole = (self.stats.batches == 0 && is_plain(batch)).then(|| batch.clone());
        self.table.apply(batch, self.last + 1, kind_of);
        self.last += batch.len() as u64;
        self.bytes_space.0 += space_of(batch);
        self.stats.batches += 1;
        self.stats.operations += batch.len() as u64;
        self.stats.bytes_written += batch.payload_bytes() as u64;
    }

    /// The set as it is now; `None` while it is empty.
    pub(crate) fn own(&self) -> Option<OwnWrites> {
        self.own_at(self.last)
    }

    /// The set as it was at `limit`, which was the last seqno of a checkpoint, or is that of all.
    pub(crate) fn own_at(&self, limit: Seqno) -> Option<OwnWrites> {
        (limit > PRIVATE).then(|| OwnWrites { limit, ..self.view() })
    }

    fn view(&self) -> OwnWrites {
        let (table, sealed) = (Arc::clone(&self.table), self.sealed.clone());
        OwnWrites { table, sealed, runs: self.runs.clone(), limit: self.last }
    }

    /// The seqno of the newest record, or [`PRIVATE`].
    pub(crate) fn last(&self) -> Seqno {
        self.last
    }

    /// Sizes.
    pub(crate) fn stats(&self) -> TxnStats {
        TxnStats { bytes_memory: self.bytes_memory(), ..self.stats }
    }

    /// Memory of the tables (bytes).
    pub(crate) fn bytes_memory(&self) -> u64 {
        self.table.bytes() + self.sealed.as_ref().map_or(0, |sealed| sealed.bytes())
    }

    /// What is in memory and still needs space on the device (bytes).
    pub(crate) fn bytes_space(&self) -> u64 {
        self.bytes_space.0 + self.bytes_space.1
    }

    /// Whether the set is no longer wholly in one table, and is committed by its runs.
    pub(crate) fn is_spilled(&self) -> bool {
        self.sealed.is_some() || !self.runs.is_empty()
    }

    /// Sets what is in memory aside, to be written; `None` when there is nothing. Batches
    /// that come later are newer. The caller takes turns with other spills.
    pub(crate) fn seal(&mut self) -> Option<Arc<MemTable>> {
        if self.sealed.is_none() {
            // Operations that left no record are in the runs, too.
            self.stats_spilled = self.stats;
            if !self.table.is_empty() {
                let fresh = Arc::new(MemTable::new(&self.accountant));
                self.sealed = Some(std::mem::replace(&mut self.table, fresh));
                self.bytes_space = (0, self.bytes_space.0);
                self.block_writes.clear();
            }
        }
        self.sealed.clone()
    }

    /// What [`Self::seal`] gave has been written.
    pub(crate) fn spilled(&mut self, spill: Spill) {
        self.stats.bytes_spilled += spill.bytes();
        self.stats_spilled.bytes_spilled = self.stats.bytes_spilled;
        self.runs.add(spill);
        self.sealed = None;
        self.bytes_space.1 = 0;
    }

    /// Numbers for so many operations that will be in a run, while all others are; returns the last one.
    pub(crate) fn reserve(&mut self, operations: u64) -> Option<Seqno> {
        if self.sealed.is_some() || !self.table.is_empty() {
            return None;
        }
        self.last += operations;
        self.stats.batches += 1;
        self.stats.operations += operations;
        self.stats_spilled = self.stats;
        Some(self.last)
    }

    /// A run of operations that [`Self::reserve`] has given numbers.
    pub(crate) fn add_clones(&mut self, spill: Spill) {
        self.runs.add(spill);
    }

    /// The private runs.
    pub(crate) fn runs(&self) -> &PrivateRuns {
        &self.runs
    }

    /// The runs are these now, of the same content.
    pub(crate) fn replace_runs(&mut self, runs: PrivateRuns) {
        self.runs = runs;
    }

    /// The private runs, for good.
    pub(crate) fn take_runs(&mut self) -> PrivateRuns {
        std::mem::take(&mut self.runs)
    }

    /// The edits by which the manifest learns of runs that it does not know yet.
    pub(crate) fn unprepared(&self) -> &[Edit] {
        self.runs.unprepared()
    }

    /// The manifest knows what [`Self::unprepared`] gave, maybe as a checkpoint with that snapshot; nothing
    /// was spilled since.
    pub(crate) fn note_prepared(&mut self, checkpoint: Option<SnapshotPin>) {
        self.runs.note_prepared(checkpoint);
    }

    /// Whether an earlier spill failed, and left what it was to write.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Sizes of what is in runs. While nothing is sealed.
    pub(crate) fn stats_spilled(&self) -> TxnStats {
        self.stats_spilled
    }

    /// The net changes of one keyspace above `since`, as they are now.
    pub(crate) fn changes_after(
        &self,
        since: Seqno,
        keyspace: u32,
        kind: KeyspaceKind,
        merger: Merger,
    ) -> NetChanges {
        NetChanges::new(&NetSource { since, ..self.source(keyspace, kind, merger) })
    }

    fn source(&self, keyspace: u32, kind: KeyspaceKind, merger: Merger) -> NetSource {
        NetSource { own: self.view(), since: PRIVATE, keyspace, kind, merger }
    }

    /// The net changes of all keyspaces as one batch. `meta` knows the layout and the merge function of each.
    /// The set is not spilled.
    ///
    /// # Errors
    /// Those of `meta`, and of merge functions.
    pub(crate) fn batch(&self, meta: impl Fn(u32) -> Result<(KeyspaceKind, Merger)>) -> Result<Batch> {
        debug_assert!(!self.is_spilled(), "the data of blocks is not at hand any more");
        if let Some(sole) = &self.sole {
            return Ok(sole.clone());
        }
        let mut batch = Batch::new();
        for keyspace in self.table.keyspaces() {
            let (kind, merger) = meta(keyspace)?;
            net_batch(&self.source(keyspace, kind, merger), &self.block_writes, &mut batch)?;
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests;
