//! Removing names. What loses its last name becomes an orphan, in the same batch.

use kvfs_store::Batch;

use super::{check_name, counters, directory_removal_wants, entry_wants, row_wants};
use crate::node::Node;
use crate::{Caller, FileSystem, FileType, FsError, NodeId, Result};

impl FileSystem {
    /// Removes the name of something that is no directory. One batch.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, …
    pub fn unlink(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        self.remove(caller, parent, name, false)
    }

    /// Removes an empty directory. One batch.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, …
    pub fn rmdir(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        self.remove(caller, parent, name, true)
    }

    fn remove(&self, caller: &Caller, parent: NodeId, name: &[u8], directory: bool) -> Result<()> {
        check_name(name).map_err(|error| if name == b".." { FsError::NotEmpty } else { error })?;
        self.locker().check_writable()?;
        let (parent, part) = self.locker().pin_directory(parent)?;
        let gate = self.gate();
        let mut guard = self.locker().latch(caller, &entry_wants(parent.inode, name))?;
        let victim = self.resolver().resolve(&parent, name)?;
        match (victim.kind == FileType::Directory, directory) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            _ => {}
        }
        guard.try_extend(&removal_wants(&victim))?;
        let now = self.time();
        let mut batch = Batch::new();
        batch.delete(self.keyspaces.meta, part.placement.key(name));
        let removal = self.orphans().stage_removal(&gate, &mut batch, &victim, now)?;
        let patch = counters(now, -1, -i32::from(directory));
        batch.merge(self.keyspaces.meta, part.placement.own_key(), patch.encode(parent.inode));
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
