//! The contract of a store, judged on `RocksDB`, and what survives a process.
#![cfg(feature = "librocksdb")]
#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

#[path = "../../../../fs/tests/it/driver.rs"]
mod driver;
mod failing;
mod files;
#[path = "../../../../store/tests/it/contract/fixture.rs"]
#[expect(dead_code, reason = "some of it is for engines with transactions")]
mod fixture;
mod lasting;
mod on_rocksdb;
#[path = "../../../../fs/tests/it/reference.rs"]
mod reference;
#[path = "../../../../fs/tests/it/setup.rs"]
#[expect(dead_code, reason = "some of it is for other tests of the file system")]
mod setup;
#[path = "../../../../fs/tests/it/threads.rs"]
mod threads;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use kvfs_engine_rocksdb::{RocksOptions, RocksStore};
use kvfs_store::{Batch, Durability, KeyspaceKind, Position, Read, Result, Store};
use tempfile::TempDir;

use fixture::{Append, Engine, Fixture, listing, text};

const MEMORY_BYTES: u64 = 64 << 20;

fn create(path: &Path) {
    RocksStore::create(path, &RocksOptions::with_memory(MEMORY_BYTES), [7; 16]).unwrap();
}

fn open(path: &Path) -> RocksStore {
    RocksStore::open(path, RocksOptions::with_memory(MEMORY_BYTES)).unwrap()
}

/// A store in a directory of its own, which goes with it.
struct Temporary {
    store: RocksStore,
    _dir: TempDir,
}

impl Deref for Temporary {
    type Target = RocksStore;

    fn deref(&self) -> &RocksStore {
        &self.store
    }
}

impl Read for Temporary {
    kvfs_store::pass_on!(store: get, multi_get, cursor, read_blocks, next_extent);
}

impl Store for Temporary {
    kvfs_store::pass_on!(
        store: open_keyspace, keyspaces, snapshot, sync, position, capabilities, space, stats
    );

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.store.apply(batch, durability)
    }
}

struct Rocks;

impl Engine for Rocks {
    fn keeping(_undo_count: usize) -> Arc<dyn Store> {
        let dir = TempDir::new().unwrap();
        create(dir.path());
        Arc::new(Temporary { store: open(dir.path()), _dir: dir })
    }
}
