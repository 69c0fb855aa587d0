//! A store on the database that is tested, in a directory that goes with it.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use kvfs_engine_common::{DatabaseOptions, DatabaseStore};
use kvfs_engine_transactions::Transacted;
use kvfs_store::{Read, Store};
use tempfile::TempDir;

use crate::Tested;
use crate::fixture::Engine;

pub(crate) type TestStore = DatabaseStore<Tested>;

pub(crate) const MEMORY_BYTES: u64 = 64 << 20;

pub(crate) fn create(path: &Path) {
    TestStore::create(path, &DatabaseOptions::with_memory(MEMORY_BYTES), [7; 16]).unwrap();
}

pub(crate) fn open(path: &Path) -> TestStore {
    TestStore::open(path, DatabaseOptions::with_memory(MEMORY_BYTES)).unwrap()
}

struct Temporary {
    store: Transacted<TestStore>,
    _dir: TempDir,
}

impl Deref for Temporary {
    type Target = Transacted<TestStore>;

    fn deref(&self) -> &Self::Target {
        &self.store
    }
}

impl Read for Temporary {
    kvfs_store::pass_on!(store: get, multi_get, cursor, read_blocks, next_extent);
}

impl Store for Temporary {
    kvfs_store::pass_on!(
        store: open_keyspace, keyspaces, snapshot, apply, sync, position, capabilities, space, stats, transactions
    );
}

/// An engine with transactions, and no other extension.
pub(crate) struct Plain;

impl Engine for Plain {
    fn keeping(_undo_count: usize) -> Arc<dyn Store> {
        let dir = TempDir::new().unwrap();
        create(dir.path());
        Arc::new(Temporary { store: Transacted::new(open(dir.path()), MEMORY_BYTES), _dir: dir })
    }
}
