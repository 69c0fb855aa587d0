//! Keyspaces.
//!
//! Thread safety: immutable but for the merge function, which has a short lock, and a flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_locks::{RwLock, class};
use kvfs_store::{Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction, Result, StoreError};

/// One keyspace.
pub struct Space<H> {
    pub(crate) keyspace: Keyspace,
    pub(crate) name: String,
    pub(crate) kind: KeyspaceKind,
    handle: H,
    merge: RwLock<Option<Arc<dyn MergeFunction>>, class::EngineSpaceMerge>,
    /// Whether keys were deleted since the last call of [`Space::take_deleted`].
    has_deleted: AtomicBool,
}

impl<H> Space<H> {
    /// Of that number, whether it is in a database or not.
    pub fn new(keyspace: Keyspace, name: &str, kind: KeyspaceKind, handle: H) -> Self {
        let (name, merge) = (name.to_owned(), RwLock::default());
        Self { keyspace, name, kind, handle, merge, has_deleted: AtomicBool::new(true) }
    }

    /// Its number.
    pub fn keyspace(&self) -> Keyspace {
        self.keyspace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it holds.
    pub fn kind(&self) -> KeyspaceKind {
        self.kind
    }

    /// What finds it in the database.
    pub fn handle(&self) -> &H {
        &self.handle
    }

    pub(crate) fn info(&self) -> KeyspaceInfo {
        KeyspaceInfo { keyspace: self.keyspace, name: self.name.clone(), kind: self.kind }
    }

    pub(crate) fn merge_by(&self, merge: Arc<dyn MergeFunction>) {
        *self.merge.write() = Some(merge);
    }

    pub(crate) fn merge_function(&self) -> Result<Arc<dyn MergeFunction>> {
        self.merge.read().clone().ok_or_else(|| StoreError::NoMergeFunction(self.name.clone()))
    }

    /// Fails with `WrongKind` unless the keyspace holds `kind`.
    pub(crate) fn expect_kind(&self, kind: KeyspaceKind, operation: &'static str) -> Result<()> {
        if self.kind == kind { Ok(()) } else { Err(StoreError::wrong_kind(operation, &self.name, self.kind)) }
    }

    pub(crate) fn note_deleted(&self) {
        if !self.has_deleted.load(Ordering::Relaxed) {
            self.has_deleted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether anything was deleted since the last call.
    pub(crate) fn take_deleted(&self) -> bool {
        self.has_deleted.swap(false, Ordering::Relaxed)
    }
}
