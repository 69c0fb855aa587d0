//! What forks of a transaction are compared by: its state at an operation, and its changes after it.
//!
//! Thread safety: as the transaction. Invariant: while both sides of a fork have not ended, everything up to
//! it is in runs of each, and what came later is in other pieces or in memory (`merge`). So a limit on
//! seqnos shows the state of then, and pieces tell by their seqnos on which side they are.

use std::sync::Arc;

use kvfs_store::{ChangeCursor, Changed, Isolation, Keyspace, Records, Result, Seqno, Snapshot, StoreError};

use super::{DbTxn, Live};
use crate::commit::PRIVATE;
use crate::memtable::ChangeWalk;
use crate::read::DbSnapshot;

impl DbTxn {
    /// The seqno of the last of the first `operations`.
    fn seqno_after(&self, live: &Live, operations: u64) -> Result<Seqno> {
        let seqno = PRIVATE.checked_add(operations).filter(|&seqno| seqno <= live.writes.last());
        seqno.ok_or(StoreError::NoCheckpoint(self.id))
    }

    /// As [`kvfs_store::Txn::as_of`].
    pub(super) fn seen_after(&self, operations: u64) -> Result<Arc<dyn Snapshot>> {
        let (own, pin) = self.with(|live| {
            let own = live.writes.own_at(self.seqno_after(live, operations)?);
            Ok((own, live.pin.clone()))
        })?;
        let pin = match self.isolation {
            Isolation::Snapshot => pin,
            Isolation::Serializable => self.engine.history.pin_newest(),
        };
        Ok(Arc::new(DbSnapshot::through(Arc::clone(&self.engine.reader), pin, own)))
    }

    /// As [`kvfs_store::Txn::changes_after`].
    pub(super) fn net_changes(&self, operations: u64, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        let meta = self.engine.keyspaces.get(keyspace.0)?;
        self.with(|live| {
            let since = self.seqno_after(live, operations)?;
            Ok(Box::new(live.writes.changes_after(since, keyspace.0, meta.kind, meta.merger)) as _)
        })
    }

    /// As [`kvfs_store::Txn::changed_after`].
    pub(super) fn own_changed(
        &self,
        operations: u64,
        keyspace: Keyspace,
        records: &[Records],
    ) -> Result<Option<Changed>> {
        let merger = self.engine.keyspaces.get(keyspace.0)?.merger;
        let (own, since) = self.with(|live| Ok((live.writes.own(), self.seqno_after(live, operations)?)))?;
        // Nothing at all was written since then.
        let Some(own) = own.filter(|own| own.limit() > since) else { return Ok(None) };
        for records in records {
            let mut walk = ChangeWalk::conflict(records, since, &merger);
            own.walk_changes(keyspace.0, &mut walk)?;
            if let Some((key, seqno)) = walk.into_found() {
                return Ok(Some(Changed { keyspace, key, seqno }));
            }
        }
        Ok(None)
    }
}
