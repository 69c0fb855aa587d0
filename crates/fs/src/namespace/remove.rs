//! Removing names. What loses its last name becomes an orphan, in the same batch.

use bytes::Bytes;
use kvfs_store::{Batch, Position};

use super::{check_name, counters, directory_removal_wants, entry_wants, row_wants};
use crate::node::{Location, Node, Pin};
use crate::quota::Gate;
use crate::schema::{Header, RowFlags, RowPatch, encode_row, inode_key};
use crate::{Caller, FileSystem, FileType, FsError, NodeId, Result, Timestamp};

/// What the removal of a name does to the inode.
pub(super) enum Removal {
    /// It was the last one: what the node becomes.
    Orphaned(Header, Location),
    /// There are others.
    Unlinked(RowPatch),
}

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
        self.check_writable()?;
        let (parent, part) = self.pin_directory(parent)?;
        let gate = self.gate();
        let mut guard = self.locker().latch(caller, &entry_wants(parent.inode, name))?;
        let victim = self.resolver().resolve(&parent, name)?;
        match (victim.kind == FileType::Directory, directory) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            _ => {}
        }
        guard.try_extend(&removal_wants(&victim))?;
        let now = self.now();
        let mut batch = Batch::new();
        batch.delete(self.keyspaces.meta, part.placement.key(name));
        let removal = self.stage_removal(&gate, &mut batch, &victim, now)?;
        let patch = counters(now, -1, -i32::from(directory));
        batch.merge(self.keyspaces.meta, part.placement.own_key(), patch.encode(parent.inode));
        let position = self.origin.apply(batch)?;
        finish_removal(&victim, removal, position);
        parent.update(&patch, position);
        Ok(())
    }

    /// Adds to the batch what happens to an inode that loses a name, save the deletion of the dentry row.
    /// The latches of [`removal_wants`] are held.
    pub(super) fn stage_removal(
        &self,
        gate: &Gate<'_>,
        batch: &mut Batch,
        victim: &Pin<'_>,
        now: Timestamp,
    ) -> Result<Removal> {
        let mut header = victim.header();
        let (keyspace, key) = victim.row_address(&self.keyspaces);
        let is_directory = victim.kind == FileType::Directory;
        if is_directory && (header.size != 0 || !self.is_empty_directory(victim)?) {
            return Err(FsError::NotEmpty);
        }
        if !is_directory && header.nlink > 1 {
            let patch = RowPatch { nlink_add: Some(-1), ..RowPatch::changed(now) };
            batch.merge(keyspace, key, patch.encode(victim.inode));
            return Ok(Removal::Unlinked(patch));
        }
        let content = self.contents().inline_content(victim)?;
        header.nlink = 0;
        header.ctime = now.max(header.ctime);
        header.flags = RowFlags(header.flags.0 & !RowFlags::LINKABLE.0);
        if is_directory || matches!(victim.state().location, Location::Own) {
            batch.delete(keyspace, key);
        }
        if self.orphans().needs_row(gate, &header, &content) {
            batch.put(self.keyspaces.orphans, inode_key(victim.inode), encode_row(&header, &content));
            return Ok(Removal::Orphaned(header, Location::Orphan));
        }
        // A copy: the content may be a part of something larger.
        let content = Bytes::copy_from_slice(&content);
        Ok(Removal::Orphaned(header, Location::Rowless { content }))
    }
}

/// Tells the node what the batch did.
pub(super) fn finish_removal(victim: &Pin<'_>, removal: Removal, position: Position) {
    match removal {
        Removal::Orphaned(header, location) => {
            {
                let mut state = victim.state();
                state.header = header;
                state.touched(position);
            }
            victim.relocate(location);
        }
        Removal::Unlinked(patch) => victim.update(&patch, position),
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
