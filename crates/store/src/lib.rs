//! What kvfs needs of a storage engine, and nothing of one engine in particular.
//!
//! Purpose: [`Store`] is the seam between the file system (and every other front end) and the
//! engines. The traits are small enough that a `BTreeMap` satisfies them: see [`model`], which is
//! the reference in tests and the floor in benchmarks.
//!
//! Thread safety: every trait object here is `Send + Sync` (cursors are `Send`); a store is shared
//! by `Arc` between all threads of a process.
//!
//! Invariants:
//! * one total order over all keyspaces: a [`Batch`] of n operations takes n consecutive seqnos and
//!   becomes visible at once;
//! * a read through a [`Snapshot`] never changes its answer;
//! * after a crash the surviving batches are a prefix of the order, and contain every batch at or
//!   below a [`Position`] for which [`Store::sync`] returned `Ok`.

mod batch;
pub mod clock;
mod compression;
mod difference;
mod error;
pub mod model;
mod named;
pub mod progress;
mod txn;
mod types;
mod undo;

pub use batch::{Batch, Op, check_key};
pub use compression::{Compression, UnknownCompression};
pub use difference::{ChangedRanges, Differences, KeyDifference};
pub use error::{Result, StoreError};
pub use named::{SNAPSHOT_NAME_LEN_MAX, SnapshotInfo, check_snapshot_name};
pub use txn::{
    CHECKPOINT_OWNER_LEN_MAX, Change, ChangeCursor, Changed, CheckpointInfo, Isolation, Records, Touch, Txn,
    TxnId, TxnOptions, TxnOutcome, TxnStats, check_owner,
};
pub use types::{
    Capabilities, Durability, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceInfo, KeyspaceKind,
    MergeFunction, Position, Seqno, SpaceStats,
};
pub use undo::{NOTE_LEN_MAX, UndoPoint, UndoViews};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

/// Size of a value in a block keyspace (bytes).
pub const BLOCK_BYTES: usize = 4096;

/// Longest key (bytes). In a block keyspace it includes the eight bytes of the block number.
pub const KEY_LEN_MAX: usize = 4096;

/// Longest value or merge operand in a tuple keyspace (bytes).
pub const VALUE_LEN_MAX: usize = 1 << 20;

/// Most payload bytes (keys and values, of a patch the whole block) that one batch may carry.
pub const BATCH_BYTES_MAX: usize = 32 << 20;

/// Point and range reads at one position of the order.
///
/// Implemented by stores (the newest committed state, a fresh position at each call) and by
/// snapshots (a fixed position).
pub trait Read: Send + Sync {
    /// The value under `key`, or `None`. In a block keyspace the key ends in a big-endian `u64`
    /// block number and the value has [`BLOCK_BYTES`] bytes.
    ///
    /// # Errors
    /// I/O errors and corruption; unknown keyspace.
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>>;

    /// The values under `keys`, in their order, all at one position.
    ///
    /// # Errors
    /// As [`Read::get`].
    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;

    /// A cursor over the keys in `range`, at one position; it starts before the first entry.
    ///
    /// # Errors
    /// As [`Read::get`].
    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>>;

    /// Fills `buf` (a multiple of [`BLOCK_BYTES`]) with the consecutive blocks of `prefix` from
    /// block `first` on; absent blocks read as zeros. All blocks are read at one position.
    ///
    /// # Errors
    /// As [`Read::get`].
    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()>;

    /// The first maximal-or-shorter stretch of present (`Data`) or absent (`Hole`) blocks of
    /// `prefix` that starts at or after block `from`. `None`: no data (or, for holes, no block
    /// number) is left. A hole reaches to the next data or to `u64::MAX`.
    ///
    /// # Errors
    /// As [`Read::get`].
    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>>;
}

/// An ordered walk over `(key, value)` at one position, both ways.
///
/// Not shared between threads. A cursor may hold resources of the engine: drop it soon.
pub trait Cursor: Send {
    /// Moves to the first entry with a key at or after `key` (clamped to the range).
    ///
    /// # Errors
    /// I/O errors and corruption; the cursor is then nowhere.
    fn seek(&mut self, key: &[u8]) -> Result<()>;

    /// Moves to the last entry with a key at or before `key` (clamped to the range).
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    fn seek_back(&mut self, key: &[u8]) -> Result<()>;

    /// Moves to the first entry of the range.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    fn first(&mut self) -> Result<()>;

    /// Moves to the last entry of the range.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    fn last(&mut self) -> Result<()>;

    /// Moves one entry forward; from nowhere (fresh) and from before the first entry to the first
    /// entry. Beyond the last entry it stays there.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    fn next(&mut self) -> Result<()>;

    /// Moves one entry back; from nowhere (fresh) and from beyond the last entry to the last entry.
    /// Before the first entry it stays there.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    fn prev(&mut self) -> Result<()>;

    /// The entry under the cursor, or `None` before the first move and beyond either end.
    fn entry(&self) -> Option<(&[u8], &Bytes)>;
}

/// A pin on one position of the order. Dropping it releases the pin.
pub trait Snapshot: Read {
    /// The newest seqno that the snapshot sees.
    fn seqno(&self) -> Seqno;
}

/// A transactional, ordered, multi-keyspace store.
pub trait Store: Read {
    /// Opens the keyspace `name`, creating it when it is missing. `merge` resolves its merge
    /// records; give the same function at every open. Creation is durable when this returns.
    ///
    /// # Errors
    /// The keyspace exists with another kind; the store is read-only or full.
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace>;

    /// The keyspaces that exist, ordered by name.
    fn keyspaces(&self) -> Vec<KeyspaceInfo>;

    /// How values of `keyspace` are to be stored from now on, durably when this returns. What was written
    /// before stays as it is until a merge rewrites it. Blocks that were put with a wish of their own
    /// ([`Op::PutBlocks`]) keep to that one.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] by an engine that does not compress; the store is read-only or failed.
    fn set_compression(&self, keyspace: Keyspace, compression: Compression) -> Result<()> {
        let _ = (keyspace, compression);
        Err(StoreError::Unsupported("compression"))
    }

    /// Announces that data may be compressed, durably when this returns: programs that can't read it refuse the
    /// store from then on. Nothing is compressed before.
    ///
    /// # Errors
    /// As [`Store::set_compression`].
    fn allow_compression(&self) -> Result<()> {
        Err(StoreError::Unsupported("compression"))
    }

    /// How values of `keyspace` are to be stored.
    fn compression(&self, keyspace: Keyspace) -> Compression {
        let _ = keyspace;
        Compression::None
    }

    /// Pins the newest committed position.
    ///
    /// # Errors
    /// The store was closed.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>>;

    /// Gives the newest committed position a name, under which it stays readable until the name is deleted.
    /// Durable when this returns, with everything up to the position. Costs the same on a store of any size.
    ///
    /// # Errors
    /// [`StoreError::SnapshotName`], [`StoreError::SnapshotExists`]; the store is read-only or failed;
    /// [`StoreError::Unsupported`] by an engine without them ([`Capabilities::named_snapshots`]).
    fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        let _ = name;
        Err(StoreError::Unsupported("named snapshots"))
    }

    /// As [`Store::create_snapshot`], for a state that was made elsewhere: `created` is when, there.
    ///
    /// # Errors
    /// As [`Store::create_snapshot`].
    fn adopt_snapshot(&self, name: &str, created: Duration) -> Result<SnapshotInfo> {
        let _ = (name, created);
        Err(StoreError::Unsupported("named snapshots"))
    }

    /// The named snapshots, oldest first.
    fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        Vec::new()
    }

    /// Reads at the position of a named snapshot. Who holds the reader keeps the position, also when the name
    /// is deleted.
    ///
    /// # Errors
    /// [`StoreError::NoSnapshot`]; the store was closed.
    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>> {
        Err(StoreError::NoSnapshot(name.to_owned()))
    }

    /// Where `keyspace` may differ, within `range`, between the positions `older` and `newer`, both of which the
    /// caller has pinned (by a snapshot or transaction). Outside of the ranges that come, every key has the
    /// same value at both. Inside, it may have: what was written counts, whatever was there before, and a key
    /// that was written in between and is there at the newer position always does. Cost and memory go by what
    /// was written in between; older data is not read.
    ///
    /// # Errors
    /// I/O errors and corruption; [`StoreError::Unsupported`] by an engine without named snapshots.
    fn changed_ranges(
        &self,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Result<Box<dyn ChangedRanges>> {
        let _ = (keyspace, range, older, newer);
        Err(StoreError::Unsupported("comparing snapshots"))
    }

    /// Takes the name away; durable when this returns. What only this snapshot saw is garbage from then on,
    /// whose space comes back as merges go by. Works on a full store.
    ///
    /// # Errors
    /// [`StoreError::NoSnapshot`]; the store is read-only or failed.
    fn delete_snapshot(&self, name: &str) -> Result<()> {
        Err(StoreError::NoSnapshot(name.to_owned()))
    }

    /// Applies `batch` wholly or not at all. It is visible to every later read; with
    /// [`Durability::Synced`] it also survives a power cut when this returns.
    ///
    /// # Errors
    /// Limits exceeded, store full, read-only after a failure: then nothing was applied. A failed
    /// sync is sticky and reported as [`StoreError::Failed`].
    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position>;

    /// Returns when every batch at or below `position` survives a power cut.
    ///
    /// # Errors
    /// A failed sync is sticky: this and every later write fail with [`StoreError::Failed`].
    fn sync(&self, position: Position) -> Result<()>;

    /// The position of the newest applied batch.
    fn position(&self) -> Position;

    /// Begins a transaction at the newest committed position.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] by an engine without transactions ([`Capabilities::transactions`]); the
    /// store is read-only or failed.
    fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Txn>> {
        let _ = options;
        Err(StoreError::Unsupported("transactions"))
    }

    /// The checkpointed transactions that have not ended, oldest first.
    fn checkpointed(&self) -> Vec<CheckpointInfo> {
        Vec::new()
    }

    /// Opens a checkpointed transaction as its last checkpoint holds it, also one of an earlier run. Its batches
    /// are *not* compared with what others have committed meanwhile, since nobody's locks protect it: the caller
    /// asks [`Txn::changed_since_snapshot`] for the whole write set before the commit.
    ///
    /// # Errors
    /// [`StoreError::NoCheckpoint`], [`StoreError::CheckpointOpen`]; the store is read-only or failed.
    fn resume(&self, id: TxnId) -> Result<Arc<dyn Txn>> {
        Err(StoreError::NoCheckpoint(id))
    }

    /// What became of a transaction of this store, also one of an earlier run: a store remembers the last
    /// few thousand commits.
    fn txn_outcome(&self, id: TxnId) -> TxnOutcome {
        let _ = id;
        TxnOutcome::Unknown
    }

    /// The committed transactions that can still be taken back, oldest first. None by an engine that keeps none.
    fn undo_points(&self) -> Vec<UndoPoint> {
        Vec::new()
    }

    /// The states before and after a committed transaction.
    ///
    /// # Errors
    /// [`StoreError::NotKept`]; the store was closed.
    fn open_undo(&self, id: TxnId) -> Result<UndoViews> {
        Err(StoreError::NotKept(id))
    }

    /// What the state before a committed transaction has where the transaction wrote (bytes): what keeping it
    /// costs at most. O(what was overwritten or deleted) the first time, then known.
    ///
    /// # Errors
    /// [`StoreError::NotKept`]; I/O errors and corruption.
    fn undo_bytes(&self, id: TxnId) -> Result<u64> {
        Err(StoreError::NotKept(id))
    }

    /// What tells this store from others, given at its creation; a copy of its device has the same.
    fn uuid(&self) -> [u8; 16] {
        [0; 16]
    }

    /// What this engine can do beyond the required.
    fn capabilities(&self) -> Capabilities;

    /// Capacity and use, in bytes.
    fn space(&self) -> SpaceStats;

    /// Counters and gauges by dotted name, for people and monitors, in a stable order.
    fn stats(&self) -> Vec<(String, u64)>;
}
