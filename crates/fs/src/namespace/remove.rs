//! Removing names. What loses its last name becomes an orphan, in the same batch.

use kvfs_store::{Batch, Keyspace};

use super::{Resolver, check_name, counters, directory_removal_wants, entry_wants, row_wants};
use crate::node::Node;
use crate::orphan::Orphans;
use crate::quota::Gate;
use crate::view::{Locker, Origin, Shared};
use crate::{Caller, FileSystem, FileType, FsError, NodeId, Result};

impl FileSystem {
    /// Removes the name of something that is no directory. One batch.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, …
    pub fn unlink(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        Remover::new(self).remove(&self.gate(), caller, (parent, name), false)
    }

    /// Removes an empty directory. One batch.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, …
    pub fn rmdir(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        Remover::new(self).remove(&self.gate(), caller, (parent, name), true)
    }
}

/// Removes names of a view.
struct Remover<'v> {
    origin: &'v Origin,
    meta: Keyspace,
    shared: &'v Shared,
    locker: Locker<'v>,
    resolver: Resolver<'v>,
    orphans: Orphans<'v>,
}

impl<'v> Remover<'v> {
    fn new(fs: &'v FileSystem) -> Self {
        Self {
            origin: &fs.origin,
            meta: fs.keyspaces.meta,
            shared: &fs.shared,
            locker: fs.locker(),
            resolver: fs.resolver(),
            orphans: fs.orphans(),
        }
    }

    fn remove(
        &self,
        gate: &Gate<'_>,
        caller: &Caller,
        (parent, name): (NodeId, &[u8]),
        directory: bool,
    ) -> Result<()> {
        check_name(name).map_err(|error| if name == b".." { FsError::NotEmpty } else { error })?;
        self.locker.check_writable()?;
        let (parent, part) = self.locker.pin_directory(parent)?;
        let mut guard = self.locker.latch(caller, &entry_wants(parent.inode, name))?;
        let victim = self.resolver.resolve(&parent, name)?;
        match (victim.kind == FileType::Directory, directory) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            _ => {}
        }
        guard.try_extend(&removal_wants(&victim))?;
        let now = self.shared.time();
        let mut batch = Batch::new();
        batch.delete(self.meta, part.placement.key(name));
        let removal = self.orphans.stage_removal(gate, &mut batch, &victim, now)?;
        let patch = counters(now, -1, -i32::from(directory));
        batch.merge(self.meta, part.placement.own_key(), patch.encode(parent.inode));
        let position = self.origin.apply(batch)?;
        removal.tell(&victim, position);
        parent.update(&patch, position);
        Ok(())
    }
}

/// What removing (one name of) an inode needs.
pub(crate) fn removal_wants(victim: &Node) -> Vec<kvfs_txn::Want<'static>> {
    if victim.kind == FileType::Directory {
        directory_removal_wants(victim.inode).to_vec()
    } else {
        row_wants(victim.inode).to_vec()
    }
}
