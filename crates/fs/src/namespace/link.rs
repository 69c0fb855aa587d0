//! Further names of a file.

use kvfs_store::{Batch, Position};
use kvfs_txn::{LockName, Want};

use super::lookup::answer;
use super::{entry_wants, row_wants};
use crate::file::Contents;
use crate::node::{Location, Pin};
use crate::quota::expect_same_project;
use crate::schema::{
    Keyspaces, Placement, RowFlags, RowPatch, check_name, encode_inode_link, encode_row, inode_key,
};
use crate::view::Names;
use crate::{Caller, Entry, FileSystem, FileType, FsError, LINK_MAX, NodeId, Result};

/// What the node becomes when the batch is applied.
enum Linked {
    /// Row moved under the inode's own subtree.
    Moved(RowPatch),
    /// Row was there already.
    Counted(RowPatch),
    /// An orphan got a name.
    Named(RowPatch),
}

impl FileSystem {
    /// Gives `node` another name. Raises its lookup count. The second name moves the row under the inode's
    /// own subtree, where it stays. One batch.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for directories, `NotFound` for orphans that can't be linked, `OtherProject`,
    /// `TooManyLinks`, …
    pub fn link(&self, caller: &Caller, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Entry> {
        check_name(new_name)?;
        self.locker().check_writable()?;
        let node = self.locker().pin(node)?;
        if node.kind == FileType::Directory {
            return Err(FsError::NotPermitted("directories have one name"));
        }
        let (parent, directory) = self.locker().pin_directory(new_parent)?;
        let mut wants = entry_wants(parent.inode, new_name).to_vec();
        wants.extend(row_wants(node.inode));
        let mut guard = self.locker().latch(caller, &wants)?;
        self.resolver().expect_there(&self.origin, caller, &parent)?;
        let new_key = directory.placement.key(new_name);
        if self.origin.read().get(self.keyspaces.meta, &new_key)?.is_some() {
            return Err(FsError::Exists);
        }
        if node.header().nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        if !self.origin.restores() {
            expect_same_project(&parent.header(), &node.header())?;
        }
        let mut batch = Batch::new();
        let linked =
            stage_link(&Contents::new(self), &self.keyspaces, &mut batch, &mut guard, &node, &new_key)?;
        let counted = guard.counted(&parent, 1, 0)?;
        batch.merge(self.keyspaces.meta, directory.placement.own_key(), counted.encode(parent.inode));
        let position = self.origin.apply(batch)?;
        finish_link(&node, &parent, new_name, &linked, position);
        parent.update(&counted, position);
        Ok(answer(&node))
    }
}

/// Adds the name to the batch.
fn stage_link(
    contents: &Contents<'_>,
    keyspaces: &Keyspaces,
    batch: &mut Batch,
    guard: &mut Names<'_>,
    node: &Pin<'_>,
    new_key: &[u8],
) -> Result<Linked> {
    let meta = keyspaces.meta;
    let (_, old_key) = node.row_address(keyspaces);
    let mut header = node.header();
    let mut patch = RowPatch { nlink_add: Some(1), ..guard.changed(node)? };
    let is_own = matches!(node.state().location, Location::Own);
    if is_own {
        batch.merge(meta, old_key, patch.encode(node.inode));
        batch.put(meta, new_key.to_vec(), encode_inode_link(node.inode, node.kind));
        return Ok(Linked::Counted(patch));
    }
    let Some((parent, name)) = node.link() else {
        if !header.flags.has(RowFlags::LINKABLE) {
            return Err(FsError::NotFound);
        }
        patch = patch.with_flags(RowFlags::default(), RowFlags::LINKABLE);
        patch.apply(&mut header);
        let content = contents.inline_content(node)?;
        batch.delete(keyspaces.orphans, inode_key(node.inode));
        batch.put(meta, new_key.to_vec(), encode_row(&header, &content));
        return Ok(Linked::Named(patch));
    };
    // The dentry row changes from the row itself to a link.
    guard.try_extend(&[
        Want::exclusive(LockName::Entry { directory: parent.inode, name: &name }),
        Want::shared(LockName::Placement { directory: parent.inode }),
    ])?;
    let content = contents.inline_content(node)?;
    patch.apply(&mut header);
    batch.put(meta, old_key, encode_inode_link(node.inode, node.kind));
    batch.put(meta, Placement::own_subtree(node.inode).own_key(), encode_row(&header, &content));
    batch.put(meta, new_key.to_vec(), encode_inode_link(node.inode, node.kind));
    Ok(Linked::Moved(patch))
}

fn finish_link(node: &Pin<'_>, parent: &Pin<'_>, name: &[u8], linked: &Linked, position: Position) {
    match linked {
        Linked::Counted(patch) => node.update(patch, position),
        Linked::Moved(patch) => {
            node.update(patch, position);
            node.relocate(Location::Own);
        }
        Linked::Named(patch) => {
            node.update(patch, position);
            node.relocate(parent.entry(name));
        }
    }
}
