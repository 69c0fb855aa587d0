//! Transactions: private write sets over a store, committed at one point of its order.
//!
//! Purpose: what file system and key-value front ends need of an engine to run any mix of operations as
//! one. Isolation is shared work: *locks* on logical names are above this seam (crate `txn`); below it the
//! engine keeps the private writes, reads through them, and finds out whether another writer changed a record
//! since the snapshot ("first updater wins").
//!
//! Thread safety: any number of threads, also of several processes' requests, work in one transaction.
//! Batches of one transaction are applied in some order, each wholly or not at all.
//!
//! Invariants:
//! * no other reader sees a private write before the commit, and every reader sees all of them after it;
//! * a transaction ends once: `commit` or `abort`, or by being dropped, which aborts, or, when it was
//!   checkpointed, takes it back to the checkpoint;
//! * the commit takes its place in the store's one order: its writes have consecutive seqnos.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::blocks::block_key;
use crate::{
    BLOCK_BYTES, Batch, Compression, Durability, ExtentKind, KeyRange, Keyspace, Op, Position, Read, Result,
    Seqno, Snapshot, StoreError,
};

/// Names a transaction of a store. Small numbers in order of `begin`; never given twice, also not after a
/// crash. 0 is no transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxnId(pub u64);

impl fmt::Display for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a transaction's reads see besides its own writes, and so what may go wrong between transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// The state at `begin`. A write fails if its record changed since. Write skew is possible.
    #[default]
    Snapshot,
    /// The newest committed state; the caller that begins such a transaction must hold locks on all that it
    /// reads and writes until the end, so it is as if transactions ran one after the other.
    Serializable,
}

/// What one operation touches of a record's value, as two sets of fields that the keyspace's merge function
/// defines (one bit each). Increments commute with each other and with nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Touch {
    /// Fields that are set.
    pub exclusive: u64,
    /// Fields that are only added to, or raised to a maximum.
    pub increment: u64,
}

impl Touch {
    /// The whole record: what a put or a delete touches.
    pub const ALL: Self = Self { exclusive: u64::MAX, increment: 0 };

    /// Whether the order of two such changes matters.
    pub const fn conflicts_with(self, other: Self) -> bool {
        let all = other.exclusive | other.increment;
        self.exclusive & all != 0 || self.increment & other.exclusive != 0
    }

    /// Whether everything that conflicts with `other` conflicts with this.
    pub const fn covers(self, other: Self) -> bool {
        other.exclusive & !self.exclusive == 0 && other.increment & !(self.exclusive | self.increment) == 0
    }

    /// Fields of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self { exclusive: self.exclusive | other.exclusive, increment: self.increment | other.increment }
    }
}

/// Records of a keyspace, for [`Txn::changed_since_snapshot`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Records {
    /// One key of either kind of keyspace, and what of it is of interest.
    Key {
        /// Whole key.
        key: Bytes,
        /// Which fields.
        touch: Touch,
    },
    /// Every key in the range, wholly.
    Range(KeyRange),
    /// `count` blocks of `prefix` from `first` on.
    Blocks {
        /// Key without the block number.
        prefix: Bytes,
        /// First block.
        first: u64,
        /// Number of blocks; it may reach beyond the last one.
        count: u64,
    },
}

impl Records {
    /// What an operation changes. `touch` says what the merge of a key with an operand does, and is asked for
    /// nothing else.
    ///
    /// # Errors
    /// Those of `touch`.
    pub fn of(op: &Op, touch: impl FnOnce(&[u8], &[u8]) -> Result<Touch>) -> Result<Self> {
        Ok(match op {
            Op::Put { key, .. } | Op::Delete { key, .. } => Self::Key { key: key.clone(), touch: Touch::ALL },
            Op::Merge { key, operand, .. } => Self::Key { key: key.clone(), touch: touch(key, operand)? },
            Op::DeleteRange { start, end, .. } => Self::Range(KeyRange::new(start.clone(), end.clone())),
            Op::PutBlocks { prefix, first, data, .. } => Self::Blocks {
                prefix: prefix.clone(),
                first: *first,
                count: (data.len() / BLOCK_BYTES) as u64,
            },
            Op::PatchBlock { prefix, block, .. } => {
                Self::Blocks { prefix: prefix.clone(), first: *block, count: 1 }
            }
        })
    }
}

/// A record that another writer changed after a transaction's snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Where.
    pub keyspace: Keyspace,
    /// The key, or the start of the range tombstone that covers it.
    pub key: Bytes,
    /// Seqno of a change.
    pub seqno: Seqno,
}

/// One element of a transaction's net write set.
#[expect(missing_docs, reason = "the variants' docs name their fields")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key has this value, whatever was there.
    Put { key: Bytes, value: Bytes },
    /// The key is gone.
    Delete { key: Bytes },
    /// The keys in `[start, end)` are gone, save those with a change of their own that follows.
    DeleteRange { start: Bytes, end: Bytes },
    /// The operands (oldest first) are merged into what is there at the commit.
    Merge { key: Bytes, operands: Vec<Bytes> },
    /// These blocks have new content.
    Blocks { prefix: Bytes, first: u64, count: u64 },
}

/// A walk over a net write set in key order; range deletes come before the changes inside of them.
pub trait ChangeCursor: Send {
    /// The next element.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn next(&mut self) -> Result<Option<Change>>;

    /// The key of the next change, in a keyspace of blocks, or where a range that is deleted begins. After a
    /// block, others of the same prefix are passed over where that is cheaper than to tell them.
    ///
    /// # Errors
    /// As [`ChangeCursor::next`].
    fn next_place(&mut self) -> Result<Option<Bytes>> {
        Ok(self.next()?.map(|change| match change {
            Change::Put { key, .. } | Change::Delete { key } | Change::Merge { key, .. } => key,
            Change::DeleteRange { start, .. } => start,
            Change::Blocks { prefix, first, .. } => block_key(&prefix, first),
        }))
    }
}

/// How to begin a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxnOptions {
    /// See there.
    pub isolation: Isolation,
}

/// Sizes of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxnStats {
    /// Batches that were applied.
    pub batches: u64,
    /// Operations in them.
    pub operations: u64,
    /// Keys and values in them (bytes).
    pub bytes_written: u64,
    /// Held in memory (bytes).
    pub bytes_memory: u64,
    /// Written to the device before the commit (bytes).
    pub bytes_spilled: u64,
}

/// An open transaction. Reads see its own writes, then what its [`Isolation`] says.
pub trait Txn: Read {
    /// Its name.
    fn id(&self) -> TxnId;

    /// As begun.
    fn isolation(&self) -> Isolation;

    /// The newest seqno at `begin`: what [`Isolation::Snapshot`] reads, and since when changes of others
    /// count as conflicts.
    fn snapshot_seqno(&self) -> Seqno;

    /// The state at its snapshot, without what it has written.
    ///
    /// # Errors
    /// The transaction has ended.
    fn base(&self) -> Result<Arc<dyn Snapshot>>;

    /// What is to be remembered of it together with its commit ([`crate::UndoPoint::note`]); at most
    /// [`crate::NOTE_LEN_MAX`] bytes count. Without effect by an engine that keeps no pre-images.
    fn describe(&self, note: Bytes) {
        let _ = note;
    }

    /// Applies `batch` privately, wholly or not at all.
    ///
    /// Under [`Isolation::Snapshot`] it first makes sure that no record of the batch was changed by others
    /// after the snapshot (a merge: no field that it touches, see [`crate::MergeFunction::touch`]). The
    /// caller holds locks that keep others from changing them until the end.
    ///
    /// # Errors
    /// [`crate::StoreError::Conflict`]; limits exceeded, store full, the transaction has ended: then nothing
    /// was applied.
    fn apply(&self, batch: Batch) -> Result<()>;

    /// Has blocks twice, without keeping them twice where the engine can refer to them in two places. What
    /// the transaction sees of each source comes to its target; absent blocks leave the target as it is. No
    /// target may be a source of the same call, or of another target's blocks. Conflicts are found as by
    /// [`Txn::apply`].
    ///
    /// # Errors
    /// As [`Txn::apply`], and as reads; some blocks may have been cloned then, so the caller must abort the
    /// transaction.
    fn clone_blocks(&self, keyspace: Keyspace, clones: &[BlockClone]) -> Result<()> {
        clones.iter().try_for_each(|clone| copy_blocks(self, self, keyspace, clone))
    }

    /// As [`Txn::clone_blocks`], of what `from`, a snapshot of the same store or of a transaction of it
    /// ([`Txn::as_of`]), sees of each source: sources and targets may be the same then.
    ///
    /// # Errors
    /// As [`Txn::clone_blocks`].
    fn clone_blocks_of(&self, from: &dyn Snapshot, keyspace: Keyspace, clones: &[BlockClone]) -> Result<()> {
        clones.iter().try_for_each(|clone| copy_blocks(self, from, keyspace, clone))
    }

    /// A change by others after the snapshot that concerns `records`, if there is one. O(records · log n)
    /// over what is newer than the snapshot; older data is not looked at.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn changed_since_snapshot(&self, keyspace: Keyspace, records: &[Records]) -> Result<Option<Changed>>;

    /// The net write set of one keyspace. The walk can go on after the commit.
    ///
    /// # Errors
    /// As reads.
    fn changes(&self, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>>;

    /// What it saw after the first `operations` of its operations ([`TxnStats::operations`]), as long as it
    /// is open: all of them, or those up to where it was forked, or is a fork itself, while the other side
    /// of that fork has not ended.
    ///
    /// # Errors
    /// The transaction has ended; [`crate::StoreError::Unsupported`] by an engine without checkpoints.
    fn as_of(&self, operations: u64) -> Result<Arc<dyn Snapshot>> {
        let _ = operations;
        no_checkpoints()
    }

    /// As [`Txn::changes`], of what was written after the first `operations`, as there.
    ///
    /// # Errors
    /// As [`Txn::as_of`], and as reads.
    fn changes_after(&self, operations: u64, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        let _ = (operations, keyspace);
        no_checkpoints()
    }

    /// A change that the transaction itself has made after the first `operations`, as there, and that
    /// concerns `records`; its seqno means nothing.
    ///
    /// # Errors
    /// As [`Txn::changes_after`].
    fn changed_after(
        &self,
        operations: u64,
        keyspace: Keyspace,
        records: &[Records],
    ) -> Result<Option<Changed>> {
        let _ = (operations, keyspace, records);
        no_checkpoints()
    }

    /// Sizes.
    fn stats(&self) -> TxnStats;

    /// Does as much of a commit as can be done beforehand (spilled data is synced), so that the commit itself
    /// is short. Writes may follow. Of a checkpointed transaction that is its next checkpoint.
    ///
    /// # Errors
    /// As [`Txn::apply`].
    fn prepare(&self) -> Result<()>;

    /// Makes everything that was written so far survive the process and a power cut, with the snapshot, and
    /// with everything that was committed before the call; the transaction stays open. `owner` means
    /// something to the caller alone. From then on a dropped transaction is not aborted but *suspended*: it
    /// goes back to its last checkpoint, from which [`crate::Checkpoints::resume`] opens it again. Fails with
    /// nothing done, or leaves the former checkpoint.
    ///
    /// # Errors
    /// [`crate::StoreError::ValueTooLong`] for an owner above [`CHECKPOINT_OWNER_LEN_MAX`]; as
    /// [`Txn::apply`]; [`crate::StoreError::Unsupported`] by an engine without them ([`crate::Checkpoints`]).
    fn checkpoint(&self, owner: &[u8]) -> Result<()> {
        let _ = owner;
        no_checkpoints()
    }

    /// Makes everything visible at once; with [`Durability::Synced`] it survives a power cut when this
    /// returns. Ends the transaction, unless it fails with nothing done. Where a crash takes the commit back,
    /// a checkpointed transaction waits to be resumed again, with all that was to be committed.
    ///
    /// # Errors
    /// [`crate::StoreError::Full`] and the like: nothing was committed, it can be tried again or aborted.
    /// [`crate::StoreError::Failed`]: the store stopped; whether it was committed shows at the next open
    /// ([`crate::Transactions::txn_outcome`]).
    fn commit(&self, durability: Durability) -> Result<Position>;

    /// Drops the private writes and frees their space, its checkpoint included. Without effect when it ended
    /// already.
    fn abort(&self);

    /// Ends this handle as if it were dropped, while it is held: the transaction goes back to its last
    /// checkpoint, from which it can be resumed at once; one without a checkpoint is aborted. Without effect
    /// when it ended already.
    fn suspend(&self) {
        self.abort();
    }
}

/// What a transaction says of which there is none.
fn no_checkpoints<T>() -> Result<T> {
    Err(StoreError::Unsupported { engine: "a model", what: "checkpoints of transactions" })
}

/// Blocks that are to be in a second place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockClone {
    /// Key of the source without the block number.
    pub source: Bytes,
    /// First block there.
    pub first: u64,
    /// Number of blocks, present or not.
    pub count: u64,
    /// Key of the target without the block number.
    pub target: Bytes,
    /// First block there.
    pub target_first: u64,
    /// How what has to be written is wished to be stored.
    pub compression: Compression,
}

impl BlockClone {
    /// The blocks `first .. first + count` of the source, which are among those of this clone, to where it
    /// has them.
    #[must_use]
    pub fn part(&self, first: u64, count: u64) -> Self {
        let target_first = self.target_first + (first - self.first);
        Self { first, count, target_first, ..self.clone() }
    }

    /// What it changes.
    ///
    /// # Errors
    /// [`StoreError::BlockShape`] where it reaches beyond the last block of either side.
    pub fn changed_records(&self) -> Result<Records> {
        let (first, count) = (self.target_first, self.count);
        if self.first.checked_add(count).is_none() || first.checked_add(count).is_none() {
            return Err(StoreError::BlockShape { first: self.first.max(first), len: 0 });
        }
        Ok(Records::Blocks { prefix: self.target.clone(), first, count })
    }
}

/// Blocks that are read into one batch.
const COPIED_BLOCKS_MAX: u64 = 256;

/// Writes once more what is to be cloned of what `from` sees, as an engine does that has each block in one
/// place.
///
/// # Errors
/// As [`Txn::clone_blocks`].
pub fn copy_blocks<T: Txn + ?Sized, R: Read + ?Sized>(
    txn: &T,
    from: &R,
    keyspace: Keyspace,
    clone: &BlockClone,
) -> Result<()> {
    clone.changed_records()?;
    let (mut at, end) = (clone.first, clone.first + clone.count);
    while let Some(extent) = from.next_extent(keyspace, &clone.source, at..end, ExtentKind::Data)? {
        let count = extent.count.min(COPIED_BLOCKS_MAX);
        let mut data = vec![0; count as usize * BLOCK_BYTES];
        from.read_blocks(keyspace, &clone.source, extent.first, &mut data)?;
        let BlockClone { target, target_first, compression, .. } = clone.part(extent.first, count);
        let mut batch = Batch::new();
        batch.put_blocks_packed(keyspace, target, target_first, data, compression);
        txn.apply(batch)?;
        at = extent.first + count;
    }
    Ok(())
}

/// Longest owner of a checkpoint (bytes).
pub const CHECKPOINT_OWNER_LEN_MAX: usize = 4096;

/// Whether a checkpoint may have this owner.
///
/// # Errors
/// [`StoreError::ValueTooLong`].
pub fn check_owner(owner: &[u8]) -> Result<()> {
    let (len, len_max) = (owner.len(), CHECKPOINT_OWNER_LEN_MAX);
    if len > len_max { Err(StoreError::ValueTooLong { len, len_max }) } else { Ok(()) }
}

/// A checkpointed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Its name.
    pub id: TxnId,
    /// As begun.
    pub isolation: Isolation,
    /// See [`Txn::snapshot_seqno`].
    pub snapshot: Seqno,
    /// Of the first checkpoint (since 1970-01-01 UTC).
    pub created: Duration,
    /// Operations up to the checkpoint.
    pub operations: u64,
    /// Keys and values of the checkpoint (bytes).
    pub bytes: u64,
    /// A caller has it open, and may have written more than the checkpoint holds.
    pub is_open: bool,
    /// As given at the last checkpoint.
    pub owner: Bytes,
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TxnOutcome {
    /// It is open, or waits to be resumed.
    Open,
    /// Its writes took effect, up to this position.
    Committed(Position),
    /// It never happened, or it ended too long ago for the store to know.
    Unknown,
}

/// Private changes that are committed as one. An extension of a [`Store`](crate::Store), which an engine may
/// lack.
pub trait Transactions: Send + Sync {
    /// Begins a transaction at the newest committed position.
    ///
    /// # Errors
    /// The store is read-only or failed.
    fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Txn>>;

    /// Begins a transaction, at the snapshot level, at a named snapshot: what was committed since is a
    /// conflict where the two meet. The snapshot may be deleted then.
    ///
    /// # Errors
    /// [`StoreError::NoSnapshot`]; as [`Self::begin`].
    fn begin_at(&self, snapshot: &str) -> Result<Arc<dyn Txn>>;

    /// What became of a transaction of this store, also one of an earlier run: a store remembers the last
    /// few thousand commits.
    fn txn_outcome(&self, id: TxnId) -> TxnOutcome;

    /// Whether the engine can refer to blocks in two places, so that [`Transactions::apply_with_clones`] is
    /// cheaper than to write them.
    fn clones_blocks(&self) -> bool {
        false
    }

    /// As [`crate::Store::apply`], buffered, of `batch` and these clones together, which come before it; as a
    /// transaction of its own, that can't be taken back. The caller must hold what keeps others from changing
    /// sources and targets.
    ///
    /// # Errors
    /// As [`crate::Store::apply`]; [`StoreError::Unsupported`] where the engine does not clone blocks.
    fn apply_with_clones(&self, batch: Batch, data: Keyspace, clones: &[BlockClone]) -> Result<Position> {
        let _ = (batch, data, clones);
        Err(StoreError::Unsupported { engine: "", what: "clones of blocks" })
    }
}

/// Transactions that survive a restart ([`Txn::checkpoint`]). An extension of a [`Store`](crate::Store),
/// which an engine may lack.
pub trait Checkpoints: Send + Sync {
    /// The checkpointed transactions that have not ended, oldest first.
    fn checkpointed(&self) -> Vec<CheckpointInfo>;

    /// Opens a checkpointed transaction as its last checkpoint holds it, also one of an earlier run. Its
    /// batches are *not* compared with what others have committed meanwhile, since no locks protect it: the
    /// caller asks [`Txn::changed_since_snapshot`] for the whole write set before the commit.
    ///
    /// # Errors
    /// [`StoreError::NoCheckpoint`], [`StoreError::CheckpointOpen`]; the store is read-only or failed.
    fn resume(&self, id: TxnId) -> Result<Arc<dyn Txn>>;

    /// Makes another checkpointed transaction with the snapshot, the isolation and all writes of the last
    /// checkpoint of `id`, which may be open and goes on by itself. Its owner is what `owner`, which may ask
    /// the store, makes of that checkpoint. Durable when this returns. No value is read or written again.
    ///
    /// # Errors
    /// [`StoreError::NoCheckpoint`]; as [`Txn::checkpoint`].
    fn fork(&self, id: TxnId, owner: &dyn Fn(&CheckpointInfo) -> Bytes) -> Result<TxnId>;
}
