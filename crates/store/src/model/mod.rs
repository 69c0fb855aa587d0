//! The reference model: a store in `BTreeMap`s.
//!
//! Purpose: the answer that every engine is compared with, and the floor that benchmarks subtract.
//! It keeps everything in memory, so nothing survives the process; apart from that it keeps every
//! promise of the seam.
//!
//! Thread safety: writers take their turn on one commit lock, which also orders snapshots. Readers take only
//! the lock of the keyspace that they read. A writer locks all keyspaces of its batch before it changes the
//! first and unlocks them after the last change, so that no reader sees a part. Lock order: transaction,
//! commit, list of keyspaces, keyspaces by handle. Merge functions run under the commit lock and must not
//! call the store.
//!
//! Invariants:
//! * the versions of a key are ordered by seqno, and an old one is kept only while some snapshot
//!   sees it;
//! * a key whose only version is a tombstone is not in the map;
//! * `bytes_used` is the sum of key and value lengths over all versions, and of what [`ModelOptions`] says
//!   that each takes beside; `bytes_private` that of the entries of open transactions and of checkpoints.

mod apply;
mod cursor;
mod named;
mod recent;
mod snapshot;
mod table;
mod txn;
mod undo;
mod versions;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use self::recent::RecentChanges;
use self::snapshot::Pin;
use self::table::{NEWEST, Table};
use self::txn::{ModelTxn, Transactions};
use crate::{
    Batch, Capabilities, ChangedRanges, CheckpointInfo, Cursor, Durability, Extent, ExtentKind, KeyRange,
    Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction, Position, Read, Result, Seqno, Snapshot,
    SnapshotInfo, SpaceStats, Store, StoreError, Txn, TxnId, TxnOptions, TxnOutcome, UndoPoint, UndoViews,
};

/// Capacity that a store without a limit reports (bytes): sums of a few of them still fit `u64`.
pub const CAPACITY_BYTES_UNLIMITED: u64 = 1 << 60;

/// What may differ between stores in memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelOptions {
    /// Most that it holds (bytes); `None`: any number. One hundredth is a reserve: only batches that are
    /// deleting ([`Batch::is_deleting`]) and commits may use it.
    pub capacity_bytes: Option<u64>,
    /// What a version of a key counts for beside key and value (bytes).
    pub entry_bytes: u64,
    /// Keys and values get memory of their own, so that a small part does not keep a large buffer.
    pub copies: bool,
    /// See [`Store::uuid`].
    pub uuid: [u8; 16],
}

/// A store in memory; see the module.
pub struct ModelStore {
    shared: Arc<Shared>,
}

/// What the store, its snapshots and its cursors have in common.
struct Shared {
    commit: Mutex<Commit>,
    tables: RwLock<Vec<Arc<Table>>>,
    /// Newest seqno given; written under the commit lock while the batch's keyspaces are locked.
    newest: AtomicU64,
    bytes_used: AtomicU64,
    bytes_private: Arc<AtomicU64>,
    options: ModelOptions,
}

/// Which checkpoints find no space.
type Refuses = Box<dyn Fn(TxnId) -> bool + Send>;

/// State that only the holder of the commit lock touches.
#[derive(Default)]
struct Commit {
    batches: u64,
    /// Pinned seqnos and how many pins each has.
    pins: BTreeMap<Seqno, usize>,
    named: named::Named,
    undo: undo::Undo,
    /// Keys that kept old versions, by the seqno that made them old (ascending).
    outdated: VecDeque<(Seqno, Keyspace, Bytes)>,
    transactions: Transactions,
    refuses_checkpoints: Option<Refuses>,
    /// Since the oldest open transaction began.
    recent: RecentChanges,
}

impl Default for ModelStore {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelStore {
    /// An empty store bounded by memory only.
    pub fn new() -> Self {
        Self::with(ModelOptions::default())
    }

    /// As [`Self::new`], with an identity of its own.
    pub fn with_uuid(uuid: [u8; 16]) -> Self {
        Self::with(ModelOptions { uuid, ..ModelOptions::default() })
    }

    /// An empty store that holds at most `bytes_max` of keys and values. One hundredth of that is a
    /// reserve: only batches that are deleting ([`Batch::is_deleting`]) and commits may use it.
    pub fn with_capacity_bytes(bytes_max: u64) -> Self {
        Self::with(ModelOptions { capacity_bytes: Some(bytes_max), ..ModelOptions::default() })
    }

    /// Keeps the pre-images of the last `count_max` transactions, none at first.
    pub fn keep_for_undo(&self, count_max: usize) {
        self.shared.commit.lock().keep_at_most(count_max);
    }

    /// From now on checkpoints of transactions find no space, or find it again.
    pub fn refuse_checkpoints(&self, refuses: bool) {
        self.refuse_checkpoints_of(move |_| refuses);
    }

    /// The same, of those of which `refuses` says so.
    pub fn refuse_checkpoints_of(&self, refuses: impl Fn(TxnId) -> bool + Send + 'static) {
        self.shared.commit.lock().refuses_checkpoints = Some(Box::new(refuses));
    }

    /// An empty store.
    pub fn with(options: ModelOptions) -> Self {
        let shared = Shared {
            commit: Mutex::default(),
            tables: RwLock::default(),
            newest: AtomicU64::new(0),
            bytes_used: AtomicU64::new(0),
            bytes_private: Arc::default(),
            options,
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Shared {
    fn table(&self, keyspace: Keyspace) -> Result<Arc<Table>> {
        let tables = self.tables.read();
        let table = tables.get(keyspace.0 as usize);
        table.cloned().ok_or_else(|| StoreError::NoKeyspace(format!("#{}", keyspace.0)))
    }

    fn newest(&self) -> Seqno {
        self.newest.load(Ordering::Acquire)
    }

    /// What only deleting batches may use (bytes).
    fn bytes_reserved(&self) -> u64 {
        self.options.capacity_bytes.unwrap_or(0) / 100
    }

    /// What all versions and private entries take (bytes).
    fn bytes_taken(&self) -> u64 {
        self.bytes_used.load(Ordering::Relaxed) + self.bytes_private.load(Ordering::Relaxed)
    }

    /// What a version of `key` takes beside its value (bytes).
    fn key_bytes(&self, key: &[u8]) -> usize {
        key.len() + self.options.entry_bytes as usize
    }

    /// As it is kept.
    fn kept(&self, bytes: Bytes) -> Bytes {
        if self.options.copies { Bytes::copy_from_slice(&bytes) } else { bytes }
    }
}

impl Read for ModelStore {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.shared.table(keyspace)?.get(key, NEWEST))
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        Ok(self.shared.table(keyspace)?.multi_get(keys, NEWEST))
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Pin::newest(&self.shared).cursor(keyspace, range)
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.shared.table(keyspace)?.read_blocks(prefix, first, buf, NEWEST)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.shared.table(keyspace)?.next_extent(prefix, blocks, kind, NEWEST)
    }
}

impl Store for ModelStore {
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        // The commit lock keeps batches from running between the check and the change.
        let _commit = self.shared.commit.lock();
        let mut tables = self.shared.tables.write();
        if let Some(table) = tables.iter().find(|table| table.name == name) {
            table.expect_kind(kind, "open_keyspace as another kind")?;
            if merge.is_some() {
                *table.merge.write() = merge;
            }
            return Ok(table.keyspace);
        }
        let keyspace = Keyspace(tables.len() as u32);
        tables.push(Arc::new(Table::new(keyspace, name, kind, merge)));
        Ok(keyspace)
    }

    fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let tables = self.shared.tables.read();
        let mut infos: Vec<_> = tables.iter().map(|table| table.info()).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(Pin::newest(&self.shared)))
    }

    fn apply(&self, batch: Batch, _durability: Durability) -> Result<Position> {
        apply::apply(&self.shared, batch)
    }

    fn sync(&self, _position: Position) -> Result<()> {
        Ok(())
    }

    fn position(&self) -> Position {
        Position(self.shared.newest())
    }

    fn uuid(&self) -> [u8; 16] {
        self.shared.options.uuid
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: false, range_delete_constant: false, blind_patches: true }
    }

    fn space(&self) -> SpaceStats {
        let used_bytes = self.shared.bytes_taken();
        let capacity_bytes = self.shared.options.capacity_bytes.unwrap_or(CAPACITY_BYTES_UNLIMITED);
        let writable_bytes = capacity_bytes - self.shared.bytes_reserved();
        SpaceStats { capacity_bytes, used_bytes, available_bytes: writable_bytes.saturating_sub(used_bytes) }
    }

    fn stats(&self) -> Vec<(String, u64)> {
        let commit = self.shared.commit.lock();
        let mut stats = vec![
            ("model.batches".to_owned(), commit.batches),
            ("model.keys_outdated".to_owned(), commit.outdated.len() as u64),
            ("model.pins".to_owned(), commit.pins.values().sum::<usize>() as u64),
            ("model.transactions".to_owned(), commit.transactions.count_open() as u64),
            ("model.bytes_used".to_owned(), self.shared.bytes_used.load(Ordering::Relaxed)),
        ];
        for table in self.shared.tables.read().iter() {
            stats.push((format!("model.keys.{}", table.name), table.key_count()));
        }
        stats
    }

    fn compress(&self) -> Option<&dyn crate::Compress> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn crate::NamedSnapshots> {
        Some(self)
    }

    fn changes(&self) -> Option<&dyn crate::TrackChanges> {
        Some(self)
    }

    fn transactions(&self) -> Option<&dyn crate::Transactions> {
        Some(self)
    }

    fn checkpoints(&self) -> Option<&dyn crate::Checkpoints> {
        Some(self)
    }

    fn undo(&self) -> Option<&dyn crate::UndoHistory> {
        Some(self)
    }
}

/// Announcing is all that the model does: values stay as they are.
impl crate::Compress for ModelStore {
    fn set_compression(&self, _keyspace: Keyspace, _compression: crate::Compression) -> Result<()> {
        Err(StoreError::Unsupported { engine: self.engine_name(), what: "compression" })
    }

    fn compression(&self, _keyspace: Keyspace) -> crate::Compression {
        crate::Compression::None
    }

    fn allow_compression(&self) -> Result<()> {
        Ok(())
    }
}

impl crate::NamedSnapshots for ModelStore {
    fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        named::create(&self.shared, name, Duration::ZERO)
    }

    fn adopt_snapshot(&self, name: &str, created: Duration) -> Result<SnapshotInfo> {
        named::create(&self.shared, name, created)
    }

    fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        self.shared.commit.lock().named.list()
    }

    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(named::open(&self.shared, name)?))
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        named::delete(&self.shared, name)
    }
}

impl crate::TrackChanges for ModelStore {
    fn changed_ranges(
        &self,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Result<Box<dyn ChangedRanges>> {
        Ok(Box::new(self.shared.table(keyspace)?.changed_ranges(&range, older, newer)))
    }
}

impl crate::Transactions for ModelStore {
    fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Txn>> {
        Ok(Arc::new(ModelTxn::begin(&self.shared, options)))
    }

    fn begin_at(&self, snapshot: &str) -> Result<Arc<dyn Txn>> {
        Ok(Arc::new(ModelTxn::begin_at(&self.shared, snapshot)?))
    }

    fn txn_outcome(&self, id: TxnId) -> TxnOutcome {
        self.shared.commit.lock().transactions.outcome(id)
    }
}

impl crate::Checkpoints for ModelStore {
    fn checkpointed(&self) -> Vec<CheckpointInfo> {
        self.shared.commit.lock().transactions.checkpointed()
    }

    fn resume(&self, id: TxnId) -> Result<Arc<dyn Txn>> {
        Ok(Arc::new(ModelTxn::resume(&self.shared, id)?))
    }

    fn fork(&self, id: TxnId, owner: &dyn Fn(&CheckpointInfo) -> Bytes) -> Result<TxnId> {
        ModelTxn::fork(&self.shared, id, owner)
    }
}

impl crate::UndoHistory for ModelStore {
    fn undo_points(&self) -> Vec<UndoPoint> {
        self.shared.commit.lock().undo.list()
    }

    fn open_undo(&self, id: TxnId) -> Result<UndoViews> {
        undo::open(&self.shared, id)
    }

    fn undo_bytes(&self, id: TxnId) -> Result<u64> {
        undo::bytes(&self.shared, id)
    }
}
