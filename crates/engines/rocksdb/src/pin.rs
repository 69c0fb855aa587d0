//! Snapshots: those of `RocksDB`, with the seqno that they see.
//!
//! Thread safety: immutable. Invariant: a snapshot of the database goes before the database.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Cursor, Extent, ExtentKind, KeyRange, Keyspace, Read, Result, Seqno, Snapshot};
use self_cell::self_cell;

use crate::cursor::RocksCursor;
use crate::shared::Shared;
use crate::view::{DbSnapshot, View};

self_cell!(
    /// A snapshot with the database that it is of.
    struct Pinned {
        owner: Arc<Shared>,
        #[covariant]
        dependent: DbSnapshot,
    }
);

/// See the module.
#[derive(Clone)]
pub(crate) struct Pin {
    pinned: Arc<Pinned>,
    seqno: Seqno,
}

impl Pin {
    /// Of the newest position.
    pub(crate) fn newest(shared: &Arc<Shared>) -> Self {
        // No batch is between its visibility and its seqno.
        let _order = shared.order.lock();
        let pinned = Pinned::new(Arc::clone(shared), |shared| shared.db.snapshot());
        Self { pinned: Arc::new(pinned), seqno: shared.newest() }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { shared: self.pinned.borrow_owner(), at: Some(self.pinned.borrow_dependent()) }
    }
}

impl Read for Pin {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        let view = self.view();
        view.get(&*view.shared.space(keyspace)?, key)
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.view().multi_get(keyspace, keys)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(RocksCursor::new(self.clone(), keyspace, range)?))
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.view().read_blocks(keyspace, prefix, first, buf)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.view().next_extent(keyspace, prefix, from, kind)
    }
}

impl Snapshot for Pin {
    fn seqno(&self) -> Seqno {
        self.seqno
    }
}
