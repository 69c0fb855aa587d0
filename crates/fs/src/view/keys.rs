//! Users' keys in a view: what [`kvfs_kv`] needs of one.

use std::sync::Arc;

use kvfs_kv::{Keys, KeyspaceTable, Records, View, ViewKind};
use kvfs_store::{Batch, Position, Read, Store};
use kvfs_txn::Want;

use super::Origin;
use crate::provenance::CLONE_KEYSPACE;
use crate::quota::QUOTA_KEYSPACE;
use crate::schema::{KEYSPACES, Keyspaces, keyspace_records};
use crate::tiers::TIER_KEYSPACE;
use crate::{Caller, FileSystem, FsError, Result};

/// Keyspaces that are the file system's own.
pub(crate) const RESERVED: [&str; 7] =
    [KEYSPACES[0], KEYSPACES[1], KEYSPACES[2], KEYSPACES[3], QUOTA_KEYSPACE, TIER_KEYSPACE, CLONE_KEYSPACE];

/// The users' keyspaces beside a file system: the records of their owners lie in `meta`, see `schema`.
pub(crate) fn keyspace_table(store: &Arc<dyn Store>, keyspaces: &Keyspaces) -> KeyspaceTable {
    let records = Records { keyspace: keyspaces.meta, prefix: keyspace_records(), reserved: &RESERVED };
    KeyspaceTable::new(Arc::clone(store), records)
}

impl FileSystem {
    /// The users' keyspaces and their keys, as this view sees them.
    pub fn keys(&self) -> Keys<'_, Self> {
        Keys::new(self)
    }
}

impl View for FileSystem {
    type Error = FsError;
    type Caller = Caller;

    fn keyspace_table(&self) -> &KeyspaceTable {
        &self.shared.keyspaces
    }

    fn kind(&self) -> ViewKind {
        match self.origin {
            Origin::Main(_) => ViewKind::Main,
            Origin::Txn(_) => ViewKind::Txn,
            Origin::Snapshot(_) => ViewKind::Snapshot,
        }
    }

    fn reads(&self) -> &dyn Read {
        self.origin.read()
    }

    fn locks_reads(&self) -> bool {
        self.origin.locks_reads()
    }

    fn check_writable(&self) -> Result<()> {
        self.locker().check_writable()
    }

    fn read_locked<T>(
        &self,
        caller: &Caller,
        wants: &[Want<'_>],
        read: impl FnOnce(&dyn Read) -> Result<T>,
    ) -> Result<T> {
        self.locker().lock_read(caller, wants)?;
        self.origin.check_alive()?;
        let value = read(self.origin.read())?;
        self.origin.confirm_read()?;
        Ok(value)
    }

    fn write_locked<T>(
        &self,
        caller: &Caller,
        wants: &[Want<'_>],
        stage: impl Fn(&dyn Read, &mut Batch) -> Result<T>,
    ) -> Result<(Position, T)> {
        self.locker().check_writable()?;
        self.with_space(caller, || {
            let _held = self.locker().latch(caller, wants)?;
            let mut batch = Batch::new();
            let staged = stage(self.origin.read(), &mut batch)?;
            Ok((self.origin.apply(batch)?, staged))
        })
    }
}
