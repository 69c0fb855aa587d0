//! Each operation is one batch, so whatever prefix of the history a crash leaves is a sound file system.

use std::sync::Arc;
use std::sync::Mutex;

use bytes::Bytes;
use kvfs_fs::{FileSystem, MountOptions, check};
use kvfs_store::clock::ManualClock;
use kvfs_store::model::ModelStore;
use kvfs_store::{
    Batch, Capabilities, Cursor, Durability, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceInfo,
    KeyspaceKind, MergeFunction, Position, Read, Result, Snapshot, SpaceStats, Store,
};

use crate::driver::Driver;
use crate::setup::Setup;

/// Remembers every batch.
struct Recorder {
    inner: ModelStore,
    history: Mutex<Vec<Batch>>,
}

impl Read for Recorder {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.inner.get(keyspace, key)
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.inner.multi_get(keyspace, keys)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        self.inner.cursor(keyspace, range)
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_blocks(keyspace, prefix, first, buf)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.inner.next_extent(keyspace, prefix, from, kind)
    }
}

impl Store for Recorder {
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        self.inner.open_keyspace(name, kind, merge)
    }

    fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        self.inner.keyspaces()
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        self.inner.snapshot()
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.history.lock().unwrap().push(batch.clone());
        self.inner.apply(batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.inner.sync(position)
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn space(&self) -> SpaceStats {
        self.inner.space()
    }

    fn stats(&self) -> Vec<(String, u64)> {
        self.inner.stats()
    }
}

#[test]
fn every_prefix_of_the_history_is_a_sound_file_system() {
    for seed in 1..=3 {
        let recorder = Arc::new(Recorder { inner: ModelStore::new(), history: Mutex::default() });
        let setup = Setup::with(Arc::clone(&recorder) as Arc<dyn Store>, 100, MountOptions::default());
        Driver::new(setup, seed, 20_000).run(400);
        let history = recorder.history.lock().unwrap().clone();
        assert!(history.len() > 100, "seed {seed}");

        let replayed: Arc<dyn Store> = Arc::new(ModelStore::new());
        // The same keyspaces in the same order have the same handles.
        check::check(&replayed).unwrap();
        for (length, batch) in history.into_iter().enumerate() {
            replayed.apply(batch, Durability::Buffered).unwrap();
            let report = check::check(&replayed).unwrap();
            assert!(report.problems.is_empty(), "seed {seed}, prefix {length}: {:#?}", report.problems);
        }
        // Opening after the crash reaps what it left.
        FileSystem::open(Arc::clone(&replayed), Arc::new(ManualClock::default()), MountOptions::default())
            .unwrap();
        assert_eq!(check::check(&replayed).unwrap().orphans, 0);
    }
}
