//! What becomes of an inode that loses a name.
//!
//! Thread safety: as [`Orphans`]. Invariant: the inode has a row somewhere after the batch, or nothing of it
//! is stored.

use bytes::Bytes;
use kvfs_store::{Batch, Position};

use super::Orphans;
use crate::node::{Location, Pin};
use crate::quota::Gate;
use crate::schema::{Header, RowFlags, RowPatch, encode_row, inode_key};
use crate::view::Names;
use crate::{FileType, FsError, Result, dir};

/// What the removal of a name does to the inode.
pub(crate) enum Removal {
    /// It was the last one: what the node becomes.
    Orphaned(Header, Location),
    /// There are others.
    Unlinked(RowPatch),
}

impl Removal {
    /// Tells the node what the batch did.
    pub(crate) fn tell(self, victim: &Pin<'_>, position: Position) {
        match self {
            Self::Orphaned(header, location) => {
                {
                    let mut state = victim.state();
                    state.header = header;
                    state.touched(position);
                }
                victim.relocate(location);
            }
            Self::Unlinked(patch) => victim.update(&patch, position),
        }
    }
}

impl Orphans<'_> {
    /// Adds to the batch what happens to an inode that loses a name, save the deletion of the dentry row.
    /// The latches of `removal_wants` are held.
    pub(crate) fn stage_removal(
        &self,
        gate: &Gate<'_>,
        batch: &mut Batch,
        victim: &Pin<'_>,
        names: &mut Names<'_>,
    ) -> Result<Removal> {
        let mut header = victim.header();
        let (keyspace, key) = victim.row_address(&self.keyspaces);
        let is_directory = victim.kind == FileType::Directory;
        if is_directory
            && (header.size != 0 || !dir::is_empty(self.origin.read(), self.keyspaces.meta, victim)?)
        {
            return Err(FsError::NotEmpty);
        }
        if !is_directory && header.nlink > 1 {
            let patch = RowPatch { nlink_add: Some(-1), ..names.changed(victim)? };
            batch.merge(keyspace, key, patch.encode(victim.inode));
            return Ok(Removal::Unlinked(patch));
        }
        let content = self.contents.inline_content(victim)?;
        header.nlink = 0;
        names.changed(victim)?.apply(&mut header);
        header.flags = RowFlags(header.flags.0 & !RowFlags::LINKABLE.0);
        if is_directory || matches!(victim.state().location, Location::Own) {
            batch.delete(keyspace, key);
        }
        if self.needs_row(gate, &header, &content) {
            batch.put(self.keyspaces.orphans, inode_key(victim.inode), encode_row(&header, &content));
            return Ok(Removal::Orphaned(header, Location::Orphan));
        }
        // A copy: the content may be a part of something larger.
        let content = Bytes::copy_from_slice(&content);
        Ok(Removal::Orphaned(header, Location::Rowless { content }))
    }
}
