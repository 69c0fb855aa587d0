//! Snapshots: those of the database, with the seqno that they see.
//!
//! Thread safety: immutable.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Cursor, KeyRange, Keyspace, Read, Result, Seqno, Snapshot};

use crate::cursor::StoreCursor;
use crate::database::Database;
use crate::shared::Shared;
use crate::view::View;

/// See the module.
pub(crate) struct Pin<D: Database> {
    shared: Arc<Shared<D>>,
    snapshot: Arc<D::Snapshot>,
    seqno: Seqno,
}

impl<D: Database> Pin<D> {
    /// Of the newest position.
    pub(crate) fn newest(shared: &Arc<Shared<D>>) -> Result<Self> {
        let pin = |snapshot| Self { shared: Arc::clone(shared), snapshot, seqno: shared.newest() };
        if !D::DELETES_RANGES {
            // The position stays that of the state while the lock is held.
            if let Some(held) = shared.held.read(|held| Ok(held.map(|held| pin(Arc::clone(held)))))? {
                return Ok(held);
            }
        }
        // No batch is between its visibility and its seqno.
        let _order = shared.order.lock();
        shared.held.read(|held| match held {
            Some(held) => Ok(pin(Arc::clone(held))),
            None => Ok(pin(Arc::new(shared.db.snapshot()?))),
        })
    }

    pub(crate) fn view(&self) -> View<'_, D> {
        View { shared: &self.shared, at: Some(&self.snapshot) }
    }
}

impl<D: Database> Read for Pin<D> {
    kvfs_store::pass_on!(view(): multi_get, read_blocks, next_extent);

    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.view().get(&*self.shared.space(keyspace)?, key)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(StoreCursor::new(&self.view(), keyspace, range)?))
    }
}

impl<D: Database> Snapshot for Pin<D> {
    fn seqno(&self) -> Seqno {
        self.seqno
    }
}
