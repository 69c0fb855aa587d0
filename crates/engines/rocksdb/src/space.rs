//! Keyspaces: column families by handle.
//!
//! Thread safety: immutable but for the merge function, which has a short lock. Invariant: the name of the column family has the kind
//! before the name, so a database tells its keyspaces by itself.

use std::sync::Arc;

use kvfs_locks::{RwLock, class};
use kvfs_store::{Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction, Result, StoreError};

/// Column families of other names are not ours.
const TUPLES: &str = "tuples:";
const BLOCKS: &str = "blocks:";

/// One keyspace.
pub(crate) struct Space {
    pub(crate) keyspace: Keyspace,
    pub(crate) name: String,
    pub(crate) kind: KeyspaceKind,
    /// The name of the column family.
    pub(crate) family: String,
    merge: RwLock<Option<Arc<dyn MergeFunction>>, class::EngineRocksdbSpaceMerge>,
}

impl Space {
    pub(crate) fn new(keyspace: Keyspace, name: &str, kind: KeyspaceKind) -> Self {
        let prefix = match kind {
            KeyspaceKind::Tuple => TUPLES,
            KeyspaceKind::Block => BLOCKS,
        };
        let family = format!("{prefix}{name}");
        Self { keyspace, name: name.to_owned(), kind, family, merge: RwLock::default() }
    }

    /// Name and kind of the keyspace in this column family; `None`: it is none.
    pub(crate) fn of_family(family: &str) -> Option<(&str, KeyspaceKind)> {
        let tuples = family.strip_prefix(TUPLES).map(|name| (name, KeyspaceKind::Tuple));
        tuples.or_else(|| family.strip_prefix(BLOCKS).map(|name| (name, KeyspaceKind::Block)))
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
}
