//! From names to nodes.

use std::sync::Arc;

use kvfs_txn::{Fields, LockName, Want};

use crate::node::{Node, Pin};
use crate::schema::DETACHED_INODE;
use crate::{Caller, Entry, FileSystem, FsError, NAME_LEN_MAX, NodeId, Result};

/// Counts a lookup and describes the node.
pub(super) fn answer(node: &Pin<'_>) -> Entry {
    node.count_lookup();
    Entry { node: NodeId(node.inode), generation: 0, attr: node.attr() }
}

/// What an answer with attributes needs in a view that locks what it reads.
pub(crate) fn attribute_wants<'a>(inode: u64) -> [Want<'a>; 1] {
    [Want::shared(LockName::Attributes { inode, fields: Fields::ALL })]
}

/// The node under `name`; see [`FileSystem::lookup`]. The caller keeps `parent` in the table.
pub(crate) fn find<'f>(
    fs: &'f FileSystem,
    caller: &Caller,
    parent: &Arc<Node>,
    name: &[u8],
) -> Result<Pin<'f>> {
    if name.len() > NAME_LEN_MAX {
        return Err(FsError::NameTooLong { len: name.len(), len_max: NAME_LEN_MAX });
    }
    if parent.directory.is_none() {
        return Err(FsError::NotDirectory);
    }
    let node = match name {
        b"." => fs.nodes.pin(parent),
        b".." if parent.inode == fs.nodes.root().0 => fs.nodes.pin(parent),
        b".." => match parent.header().parent {
            DETACHED_INODE => return Err(FsError::NotFound),
            above => fs.resolver().by_own_row(above)?,
        },
        _ => {
            let want = Want::shared(LockName::Entry { directory: parent.inode, name });
            fs.locker().lock_read(caller, &[want])?;
            fs.resolver().kept_or_resolve(parent, name)?
        }
    };
    fs.locker().lock_read(caller, &attribute_wants(node.inode))?;
    fs.origin.confirm_read()?;
    Ok(node)
}

impl FileSystem {
    /// The entry `name` of directory `parent`. Raises the node's lookup count. Never parks. One `get`; two
    /// for directories and files with several names, unless their nodes are known; none for a name that is
    /// kept ([`crate::NodeTable::keep_names`]).
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`, `Stale`, store errors.
    pub fn lookup(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<Entry> {
        let untold = &self.shared.untold;
        let next = untold.begin_lookup().filter(|_| caller.goes_by_names && self.origin.is_main());
        let pin = self.locker().pin(parent)?;
        let found = find(self, caller, &pin, name);
        if let (Some(next), Ok(_) | Err(FsError::NotFound)) = (next, &found) {
            untold.end_lookup(next, parent, name);
        }
        let (parent, node) = (pin, found?);
        if node.directory.is_none()
            && let Some(pid) = parent.directory.as_ref().and_then(|listed| listed.take_withheld())
        {
            self.habits.note_seen(pid);
        }
        let entry = answer(&node);
        Ok(Entry { attr: self.shows.attr(entry.attr), ..entry })
    }

    /// Lowers the lookup count of `node` by `count`. At zero the node is forgotten, and an orphan dies.
    pub fn forget(&self, node: NodeId, count: u64) {
        self.orphans().reap_with(|| self.nodes.forget(node.0, count));
    }
}
