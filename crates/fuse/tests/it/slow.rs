//! A store whose syncs and batches wait for the test, and the answers to its reads of one key.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, Keyspace, Position, Read, Result, Store};
use parking_lot::{Condvar, Mutex};

const PATIENCE: Duration = Duration::from_secs(20);

/// A barrier that the test opens and closes.
#[derive(Default)]
pub(crate) struct Barrier {
    /// Closed; waiting now; arrived in all.
    state: Mutex<(bool, usize, usize)>,
    changed: Condvar,
}

impl Barrier {
    pub(crate) fn close(&self) {
        self.state.lock().0 = true;
    }

    pub(crate) fn open(&self) {
        self.state.lock().0 = false;
        self.changed.notify_all();
    }

    pub(crate) fn arrived_total(&self) -> usize {
        self.state.lock().2
    }

    /// Waits until a thread waits here.
    pub(crate) fn wait_for_waiter(&self) {
        let mut state = self.state.lock();
        while state.1 == 0 {
            assert!(!self.changed.wait_for(&mut state, PATIENCE).timed_out(), "no thread came");
        }
    }

    pub(crate) fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        state.2 += 1;
        self.changed.notify_all();
        while state.0 {
            self.changed.wait(&mut state);
        }
        state.1 -= 1;
    }
}

/// The model behind barriers.
#[derive(Default)]
pub(crate) struct SlowStore {
    inner: ModelStore,
    pub(crate) syncs: Arc<Barrier>,
    pub(crate) batches: Arc<Barrier>,
    pub(crate) answers: Arc<Barrier>,
}

impl Read for SlowStore {
    kvfs_store::pass_on!(inner: multi_get, cursor, read_blocks, next_extent);

    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.inner.get(keyspace, key);
        self.answers.pass();
        found
    }
}

impl Store for SlowStore {
    kvfs_store::pass_on!(inner: open_keyspace, keyspaces, snapshot, position, capabilities);
    kvfs_store::pass_on!(inner: transactions, space, stats);

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.batches.pass();
        self.inner.apply(batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.syncs.pass();
        self.inner.sync(position)
    }
}
