//! What a store, its snapshots and its cursors have in common.
//!
//! Thread safety: see the crate. Invariant: a state is held exactly while ranges are deleted in pages; it is
//! the one before that batch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::{Keyspace, Position, Result, Seqno, StoreError};

use crate::database::Database;
use crate::held::Held;
use crate::space::Space;

/// See the module.
pub(crate) struct Shared<D: Database> {
    pub(crate) db: Arc<D>,
    pub(crate) spaces: RwLock<Vec<Arc<Space<D::Handle>>>, class::EngineSpaces>,
    /// Batches and new keyspaces take their turn on it.
    pub(crate) order: Mutex<(), class::EngineOrder>,
    /// What is read instead of the newest state.
    pub(crate) held: Held<D::Snapshot>,
    /// Held across a sync; the newest seqno that is durable.
    syncing: Mutex<Seqno, class::EngineSyncing>,
    /// Written under the order lock, when the batch is visible.
    newest: AtomicU64,
    pub(crate) batches: AtomicU64,
    syncs: AtomicU64,
    /// The first failure.
    failed: OnceLock<Arc<str>>,
    is_closed: AtomicBool,
    pub(crate) is_read_only: bool,
}

impl<D: Database> Shared<D> {
    pub(crate) fn new(
        db: Arc<D>,
        spaces: Vec<Arc<Space<D::Handle>>>,
        newest: Seqno,
        is_read_only: bool,
    ) -> Self {
        Self {
            db,
            spaces: RwLock::new(spaces),
            order: Mutex::default(),
            held: Held::new(),
            // What was read from files is durable only behind a sync of the log that it was replayed from.
            syncing: Mutex::new(0),
            newest: AtomicU64::new(newest),
            batches: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            failed: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            is_read_only,
        }
    }

    pub(crate) fn newest(&self) -> Seqno {
        self.newest.load(Ordering::Acquire)
    }

    /// The caller holds the order lock, and has applied everything up to `newest`.
    pub(crate) fn publish(&self, newest: Seqno) {
        self.newest.store(newest, Ordering::Release);
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    pub(crate) fn space(&self, keyspace: Keyspace) -> Result<Arc<Space<D::Handle>>> {
        let spaces = self.spaces.read();
        let space = spaces.get(keyspace.0 as usize);
        space.cloned().ok_or_else(|| StoreError::NoKeyspace(format!("#{}", keyspace.0)))
    }

    pub(crate) fn space_by_name(&self, name: &str) -> Option<Arc<Space<D::Handle>>> {
        self.spaces.read().iter().find(|space| space.name == name).cloned()
    }

    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.failed.get().cloned()
    }

    /// No more writes from now on. What they are refused with.
    pub(crate) fn fail(&self, error: &StoreError) -> StoreError {
        let reason = self.failed.get_or_init(|| error.to_string().into());
        StoreError::Failed { reason: Arc::clone(reason) }
    }

    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Refuses writes to what was closed, has failed, or is only to be read.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if let Some(reason) = self.failure() {
            return Err(StoreError::Failed { reason });
        }
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Failed { reason: "it was closed".into() });
        }
        if self.is_read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }

    /// See `Store::sync`.
    pub(crate) fn sync(&self, position: Position) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        let mut synced = self.syncing.lock();
        if let Some(reason) = self.failure() {
            return Err(StoreError::Failed { reason });
        }
        if *synced >= position.0 && self.syncs() > 0 {
            return Ok(());
        }
        let newest = self.newest();
        if let Err(error) = self.db.sync() {
            return Err(self.fail(&error));
        }
        *synced = newest;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// As [`Shared::sync`], of everything; nothing where it is durable, also not the log of an earlier
    /// process.
    pub(crate) fn sync_rest(&self) -> Result<()> {
        let newest = self.newest();
        let is_synced = *self.syncing.lock() >= newest;
        if is_synced { Ok(()) } else { self.sync(Position(newest)) }
    }
}
