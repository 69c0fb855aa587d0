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
//!
//! What every engine has is on this page: [`Read`], [`Cursor`], [`Snapshot`], [`Store`]. What one may lack is
//! asked for, and is `None` where it is lacking: [`Transactions`], [`NamedSnapshots`], [`TrackChanges`],
//! [`Checkpoints`], [`UndoHistory`], [`Compress`].
//!
//! ```
//! use kvfs_store::model::ModelStore;
//! use kvfs_store::{Batch, Durability, KeyspaceKind, Read, Store, StoreError, TxnOptions};
//!
//! # fn main() -> Result<(), StoreError> {
//! // As good as any other, but for a power cut.
//! let store = ModelStore::new();
//! let words = store.open_keyspace("words", KeyspaceKind::Tuple, None)?;
//! let mut batch = Batch::new();
//! batch.put(words, "one", "1");
//! store.apply(batch, Durability::Buffered)?;
//!
//! // Refused where the engine has no transactions.
//! let txn = (&store as &dyn Store).begin(TxnOptions::default())?;
//! let mut batch = Batch::new();
//! batch.put(words, "two", "2");
//! txn.apply(batch)?;
//! assert!(store.get(words, b"two")?.is_none() && txn.get(words, b"one")?.is_some());
//! txn.commit(Durability::Buffered)?;
//! assert!(store.get(words, b"two")?.is_some());
//! # Ok(())
//! # }
//! ```

mod batch;
pub mod blocks;
pub mod clock;
mod compression;
mod difference;
mod engine;
mod error;
mod extensions;
mod follow;
pub mod model;
mod named;
mod pass_on;
mod place;
pub mod progress;
mod tier;
mod txn;
mod types;
mod undo;
pub mod write_set;

pub use batch::{Batch, Op, check_key};
pub use compression::{Compress, Compression, UnknownCompression};
pub use difference::{ChangedRanges, Differences, KeyDifference, TrackChanges};
pub use engine::{EngineStore, Verified};
pub use error::{Result, StoreError};
pub use follow::Follow;
pub use named::{NamedSnapshots, SNAPSHOT_NAME_LEN_MAX, SnapshotInfo, check_snapshot_name};
pub use place::Place;
pub use tier::{Tier, TierBytes, UnknownTier};
pub use txn::{
    BlockClone, CHECKPOINT_OWNER_LEN_MAX, Change, ChangeCursor, Changed, CheckpointInfo, Checkpoints,
    Isolation, Records, Touch, Transactions, Txn, TxnId, TxnOptions, TxnOutcome, TxnStats, check_owner,
    copy_blocks,
};
pub use types::{
    BlockRange, Capabilities, Durability, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceInfo, KeyspaceKind,
    MergeFunction, Position, Seqno, SpaceStats,
};
pub use undo::{NOTE_LEN_MAX, UndoHistory, UndoPoint, UndoViews};

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// Size of a value in a block keyspace (bytes).
pub const BLOCK_BYTES: usize = 4096;

/// Longest key (bytes). In a block keyspace it includes the eight bytes of the block number.
pub const KEY_LEN_MAX: usize = 4096;

/// Longest value or merge operand in a tuple keyspace (bytes).
pub const VALUE_LEN_MAX: usize = 1 << 20;

/// Most payload bytes (keys and values, of a patch the whole block) that one batch may carry.
pub const BATCH_BYTES_MAX: usize = 32 << 20;

/// Most payload bytes of a batch that counts as deleting ([`Batch::is_deleting`]). A removal may bring more
/// than keys: a file system moves rows with the content of files. The space of what a full store lets in
/// must be there until it is flushed, whatever it deletes, so it is no more than that.
pub const DELETING_BYTES_MAX: usize = 192 << 10;

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
    /// `prefix` within `blocks`, beyond which nothing is looked for. `None`: there is none. A hole
    /// reaches to the next data or to the end of `blocks`.
    ///
    /// # Errors
    /// As [`Read::get`].
    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>>;

    /// Takes note that the blocks of these ranges are about to be read, in this order or nearly: an engine
    /// may read them meanwhile, all in the order of its medium. Advice only: returns at once, changes no
    /// answer, and reports no error. The default heeds none.
    fn will_need(&self, keyspace: Keyspace, ranges: Vec<BlockRange>) {
        let _ = (keyspace, ranges);
    }
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

/// Is told a number of blocks, and the prefixes that refer to all of them.
pub type EachShared<'e> = &'e mut dyn FnMut(u64, &[&[u8]]) -> Result<()>;

/// A pin on one position of the order. Dropping it releases the pin.
pub trait Snapshot: Read {
    /// The newest seqno that the snapshot sees.
    fn seqno(&self) -> Seqno;

    /// What its engine knows it by; `None`: nothing but what it reads.
    fn as_any(&self) -> Option<&dyn std::any::Any> {
        None
    }

    /// Tells `each` which blocks of a block keyspace, as the snapshot sees it, the engine has once and refers
    /// to several times: how many they are, and the prefixes that refer to them, two or more, each as often
    /// as it does. So clones are told, until they are overwritten, or the engine copies them apart. Reads no
    /// content; [`progress::check_wanted`] may end it. The default, of an engine that has everything once for
    /// each reference, tells none.
    ///
    /// # Errors
    /// As [`Read::get`]; those of `each`; [`StoreError::GivenUp`].
    fn each_shared(&self, keyspace: Keyspace, each: EachShared<'_>) -> Result<()> {
        let _ = (keyspace, each);
        Ok(())
    }
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

    /// Pins the newest committed position.
    ///
    /// # Errors
    /// The store was closed.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>>;

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

    /// What tells this store from others, given at its creation; a copy of its device has the same.
    fn uuid(&self) -> [u8; 16] {
        [0; 16]
    }

    /// What users call the engine, in messages. The default is for stores of tests.
    fn engine_name(&self) -> &'static str {
        "a model"
    }

    /// What this engine can do beyond the required.
    fn capabilities(&self) -> Capabilities;

    /// Capacity and use, in bytes.
    fn space(&self) -> SpaceStats;

    /// Counters and gauges by dotted name, for people and monitors, in a stable order.
    fn stats(&self) -> Vec<(String, u64)>;

    /// [`Place`], if the engine has it.
    fn place(&self) -> Option<&dyn Place> {
        None
    }

    /// [`Follow`], of a store that was opened so.
    fn follow(&self) -> Option<&dyn Follow> {
        None
    }

    /// [`Compress`], if the engine has it.
    fn compress(&self) -> Option<&dyn Compress> {
        None
    }

    /// [`NamedSnapshots`], if the engine has it.
    fn snapshots(&self) -> Option<&dyn NamedSnapshots> {
        None
    }

    /// [`TrackChanges`], if the engine has it.
    fn changes(&self) -> Option<&dyn TrackChanges> {
        None
    }

    /// [`Transactions`], if the engine has it.
    fn transactions(&self) -> Option<&dyn Transactions> {
        None
    }

    /// [`Checkpoints`], if the engine has it.
    fn checkpoints(&self) -> Option<&dyn Checkpoints> {
        None
    }

    /// [`UndoHistory`], if the engine has it.
    fn undo(&self) -> Option<&dyn UndoHistory> {
        None
    }
}
