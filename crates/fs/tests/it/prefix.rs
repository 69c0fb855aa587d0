//! Each operation is one batch, so whatever prefix of the history a crash leaves is a sound file system.

use std::sync::Arc;
use std::sync::Mutex;

use kvfs_fs::{FileSystem, MountOptions, check};
use kvfs_store::clock::ManualClock;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, Position, Read, Result, Store};

use crate::driver::Driver;
use crate::setup::Setup;

/// Remembers every batch.
pub(crate) struct Recorder {
    pub(crate) inner: ModelStore,
    pub(crate) history: Mutex<Vec<Batch>>,
}

impl Read for Recorder {
    kvfs_store::pass_on!(inner: get, multi_get, cursor, read_blocks, next_extent);
}

impl Store for Recorder {
    kvfs_store::pass_on!(inner: open_keyspace, keyspaces, snapshot, sync, position, capabilities, space, stats);

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.history.lock().unwrap().push(batch.clone());
        self.inner.apply(batch, durability)
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
