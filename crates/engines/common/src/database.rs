//! What a database has to be able to do.
//!
//! Thread safety: a database is shared by all threads; of entries one thread at a time walks over them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_store::{KeyRange, Keyspace, KeyspaceKind, Result};

use crate::changes::Changes;
use crate::space::Space;

/// A database of keys and values. Reads without a snapshot are of the newest state.
pub trait Database: Sized + Send + Sync + 'static {
    /// As `kvfs_store::Store::engine_name`; statistics begin with it.
    const NAME: &'static str;

    /// Its own name, in messages.
    const TITLE: &'static str;

    /// Whether [`Changes`] may hold ranges. Without it their keys are deleted in pages.
    const DELETES_RANGES: bool;

    /// A range of at most so many keys is deleted key by key, as a part of its batch.
    const KEYS_DELETED_MAX: usize;

    /// Whether what deleted keys hold is given back by [`Database::compact`], piece by piece, when a write
    /// finds no room.
    const COMPACTS_IN_PIECES: bool;

    /// What finds a keyspace in the database.
    type Handle: Send + Sync;

    /// A state that stays as it is. It keeps the database open.
    type Snapshot: Send + Sync;

    /// See [`Entries`]. They keep database and snapshot.
    type Entries: Entries;

    /// Makes an empty database in the directory `path`, which exists and is empty.
    ///
    /// # Errors
    /// I/O errors.
    fn create(path: &Path, options: &DatabaseOptions) -> Result<Self>;

    /// Opens the database in the directory `path`. It keeps the anchor until it has gone.
    ///
    /// # Errors
    /// There is none; another process has it open; damage; I/O errors.
    fn open(path: &Path, options: DatabaseOptions) -> Result<Self>;

    /// What [`crate::DatabaseStore`] leaves free for it in the file system of `path`.
    ///
    /// # Errors
    /// I/O errors.
    fn reserve(path: &Path, options: &DatabaseOptions) -> Result<Reserve>;

    /// Name and kind of each keyspace, in the order of their numbers.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn spaces(&self) -> Result<Vec<(String, KeyspaceKind)>>;

    /// Of a keyspace, there or not.
    fn handle(keyspace: Keyspace, name: &str, kind: KeyspaceKind) -> Self::Handle;

    /// Makes a keyspace. Durable when this returns.
    ///
    /// # Errors
    /// I/O errors.
    fn make_space(&self, space: &Space<Self::Handle>) -> Result<()>;

    /// A value that is of no keyspace.
    ///
    /// # Errors
    /// I/O errors and corruption, here and below.
    fn meta(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The value of a key.
    ///
    /// # Errors
    /// As [`Database::meta`].
    fn get(
        self: &Arc<Self>,
        at: Option<&Arc<Self::Snapshot>>,
        space: &Space<Self::Handle>,
        key: &[u8],
    ) -> Result<Option<Bytes>>;

    /// The values of several keys, in one state.
    ///
    /// # Errors
    /// As [`Database::meta`].
    fn multi_get(
        self: &Arc<Self>,
        at: Option<&Arc<Self::Snapshot>>,
        space: &Space<Self::Handle>,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Bytes>>> {
        let now = if at.is_none() && keys.len() > 1 { Some(Arc::new(self.snapshot()?)) } else { None };
        keys.iter().map(|key| self.get(at.or(now.as_ref()), space, key)).collect()
    }

    /// The entries of a range that is not empty, in one state; they stand nowhere yet.
    ///
    /// # Errors
    /// As [`Database::meta`].
    fn entries(
        self: &Arc<Self>,
        at: Option<&Arc<Self::Snapshot>>,
        space: &Space<Self::Handle>,
        range: &KeyRange,
    ) -> Result<Self::Entries>;

    /// The newest state.
    ///
    /// # Errors
    /// As [`Database::meta`].
    fn snapshot(self: &Arc<Self>) -> Result<Self::Snapshot>;

    /// Applies all changes in their order, or none.
    ///
    /// # Errors
    /// As [`Database::meta`]. Then it is asked for no more.
    fn write(&self, changes: &Changes<Self::Handle>) -> Result<()>;

    /// What was written before is durable when this returns. Called by one thread at a time.
    ///
    /// # Errors
    /// As [`Database::write`].
    fn sync(&self) -> Result<()>;

    /// Gives back what deleted keys of a range hold, as far as it can.
    ///
    /// # Errors
    /// As [`Database::write`].
    fn compact(&self, _space: &Space<Self::Handle>, _range: &KeyRange) -> Result<()> {
        Ok(())
    }

    /// Writes out what it has in memory, so that the next opening has little to replay, and ends its work in
    /// the background. Reads go on.
    ///
    /// # Errors
    /// As [`Database::write`].
    fn close(&self, spaces: &[Arc<Space<Self::Handle>>]) -> Result<()>;

    /// Caches may take so much of it from now on (bytes), if that can be changed.
    fn set_memory_bytes(&self, bytes: u64);

    /// What keys and values take (bytes).
    fn used_bytes(&self, spaces: &[Arc<Space<Self::Handle>>]) -> u64;

    /// Counters and gauges, without the name of the engine.
    fn stats(&self, spaces: &[Arc<Space<Self::Handle>>]) -> Vec<(String, u64)>;
}

/// Keys and values of a range of one keyspace, in one state, both ways.
pub trait Entries: Send {
    /// To the first one.
    fn first(&mut self);

    /// To the last one.
    fn last(&mut self);

    /// From an entry to the next one.
    fn next(&mut self);

    /// From an entry to the one before.
    fn prev(&mut self);

    /// To the first one at or after `key`, which lies in the range.
    fn seek(&mut self, key: &[u8]);

    /// To the last one at or before `key`, which lies in the range.
    fn seek_back(&mut self, key: &[u8]);

    /// Where they stand; `None`: beyond an end, or after an error.
    fn entry(&self) -> Option<(&[u8], &[u8])>;

    /// Where there is no entry: whether that is an end.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn check(&self) -> Result<()>;
}

/// How a database is opened.
#[derive(Debug)]
pub struct DatabaseOptions {
    /// What it may take (bytes).
    pub memory_bytes: u64,
    /// Nothing is written.
    pub read_only: bool,
    /// How long a batch may wait until it is durable where nothing syncs it.
    pub commit_interval: Duration,
    /// What compactions and flushes may write each second (bytes); `None`: no limit.
    pub io_limit: Option<u64>,
    /// Stays open for as long as the database: the path leads through it.
    pub anchor: Option<OwnedFd>,
}

impl DatabaseOptions {
    /// With so much memory; everything else as it is by default.
    pub fn with_memory(memory_bytes: u64) -> Self {
        let commit_interval = Duration::from_secs(1);
        Self { memory_bytes, read_only: false, commit_interval, io_limit: None, anchor: None }
    }
}

/// What stays free in the file system around a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    /// For memtables that come to files, and compactions, which write before they remove (bytes).
    pub bytes: u64,
    /// At most the file system divided by this.
    pub divisor: u64,
}
