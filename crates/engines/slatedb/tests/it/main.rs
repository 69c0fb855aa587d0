//! The contract of a store, judged on `SlateDB` over a directory, and what survives a process.
#![cfg(feature = "client")]
#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

#[path = "../../../../fs/tests/it/driver.rs"]
mod driver;
#[path = "../../../../store/tests/it/contract/fixture.rs"]
mod fixture;
#[path = "../../../../fs/tests/it/reference.rs"]
mod reference;
#[path = "../../../../fs/tests/it/setup.rs"]
#[expect(dead_code, reason = "some of it is for other tests of the file system")]
mod setup;
mod slatedb;
#[path = "../../../../fs/tests/it/threads.rs"]
mod threads;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvfs_engine_slatedb::{Claimant, ObjectPlace, SegmentOptions, SlateOptions, SlateStore};
use kvfs_engine_transactions::Transacted;
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{Batch, Durability, KeyRange, Keyspace, KeyspaceKind, Read, Result, Store};
use tempfile::TempDir;

use fixture::{Append, Engine, Fixture, listing, text};

const MEMORY_BYTES: u64 = 64 << 20;

/// Objects in a directory.
fn place(path: &Path) -> ObjectPlace {
    ObjectPlace::new(path.to_str().unwrap(), None).unwrap()
}

/// To be written to; those that are alive are found so within a moment. Short files have segments, too, small
/// ones, and nothing that is in no use is kept.
fn options() -> SlateOptions {
    let claimant = Claimant { lease: Duration::from_millis(400), ..Claimant::default() };
    let segments = SegmentOptions { run_blocks_min: 2, blocks_max: 16 };
    SlateOptions { claimant, segments, kept: Duration::ZERO, ..SlateOptions::with_memory(MEMORY_BYTES) }
}

fn create(path: &Path) {
    SlateStore::claim(&place(path), [7; 16]).unwrap();
    SlateStore::create(&place(path), &options(), [7; 16]).unwrap();
}

fn open(path: &Path) -> SlateStore {
    SlateStore::open(&place(path), &options()).unwrap()
}

/// Whatever has it open.
fn take_over(path: &Path) -> (Fixture<Slate>, Arc<SlateStore>) {
    let claimant = Claimant { takes_over: true, ..options().claimant };
    let store = SlateStore::open(&place(path), &SlateOptions { claimant, ..options() }).unwrap();
    let store = Arc::new(store);
    (Fixture::over(Arc::clone(&store) as Arc<dyn Store>), store)
}

fn fixture(path: &Path) -> (Fixture<Slate>, Arc<SlateStore>) {
    let store = Arc::new(open(path));
    (Fixture::over(Arc::clone(&store) as Arc<dyn Store>), store)
}

/// In a directory of its own, which goes last.
fn new_store() -> (TempDir, Fixture<Slate>, Arc<SlateStore>) {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let (f, store) = fixture(dir.path());
    (dir, f, store)
}

/// All of a keyspace, as a cursor shows it.
fn entries(read: &dyn Read, keyspace: Keyspace) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut cursor = read.cursor(keyspace, KeyRange::all()).unwrap();
    let mut found = BTreeMap::new();
    cursor.first().unwrap();
    while let Some((key, value)) = cursor.entry() {
        found.insert(key.to_vec(), value.to_vec());
        cursor.next().unwrap();
    }
    found
}

/// Waits until `is_met`, for two minutes at most.
fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let end = clock.monotonic() + Duration::from_mins(2);
    while !is_met() {
        assert!(clock.monotonic() < end, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// A store in a directory of its own, which goes with it.
struct Temporary {
    store: Transacted<SlateStore>,
    _dir: TempDir,
}

impl Deref for Temporary {
    type Target = SlateStore;

    fn deref(&self) -> &SlateStore {
        self.store.base()
    }
}

impl Read for Temporary {
    kvfs_store::pass_on!(store: get, multi_get, cursor, read_blocks, next_extent);
}

impl Store for Temporary {
    kvfs_store::pass_on!(
        store: open_keyspace, keyspaces, snapshot, apply, sync, position, capabilities, space, stats, snapshots, changes, transactions
    );
}

struct Slate;

impl Engine for Slate {
    fn keeping(_undo_count: usize) -> Arc<dyn Store> {
        let dir = TempDir::new().unwrap();
        create(dir.path());
        Arc::new(Temporary { store: Transacted::new(open(dir.path()), MEMORY_BYTES), _dir: dir })
    }
}
