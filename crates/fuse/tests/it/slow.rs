//! A store whose syncs and batches wait for the test.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_store::model::ModelStore;
use kvfs_store::{
    Batch, Capabilities, Cursor, Durability, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceInfo,
    KeyspaceKind, MergeFunction, Position, Read, Result, Snapshot, SpaceStats, Store,
};
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

    /// Waits until somebody waits here.
    pub(crate) fn wait_for_waiter(&self) {
        let mut state = self.state.lock();
        while state.1 == 0 {
            assert!(!self.changed.wait_for(&mut state, PATIENCE).timed_out(), "nobody came");
        }
    }

    fn pass(&self) {
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
}

impl Read for SlowStore {
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

impl Store for SlowStore {
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
        self.batches.pass();
        self.inner.apply(batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.syncs.pass();
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
