//! From names to nodes.

use bytes::Bytes;

use crate::node::{DirectoryPart, Intern, Location, Pin};
use kvfs_txn::{Fields, LockName, Want};

use crate::schema::{Placement, Row};
use crate::{Caller, Entry, FileSystem, FileType, FsError, NAME_LEN_MAX, NodeId, Result};

/// Counts a lookup and describes the node.
pub(super) fn answer(node: &Pin<'_>) -> Entry {
    node.count_lookup();
    Entry { node: NodeId(node.inode), generation: 0, attr: node.attr() }
}

/// How often a reference to a row that isn't there is read again before it counts as damage; the other
/// explanation is that somebody removed both meanwhile.
const DANGLING_TRIES: u32 = 16;

/// What an answer with attributes needs in a view that locks what it reads.
pub(crate) fn attribute_wants<'a>(inode: u64) -> [Want<'a>; 1] {
    [Want::shared(LockName::Attributes { inode, fields: Fields::ALL })]
}

impl FileSystem {
    /// The entry `name` of directory `parent`. Raises the node's lookup count. Never parks. One `get`; two
    /// for directories and files with several names, unless their nodes are known.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`, `Stale`, store errors.
    pub fn lookup(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<Entry> {
        if name.len() > NAME_LEN_MAX {
            return Err(FsError::NameTooLong { len: name.len(), len_max: NAME_LEN_MAX });
        }
        let (parent, _) = self.pin_directory(parent)?;
        let node = match name {
            b"." => parent,
            b".." => self.by_own_row(parent.header().parent)?,
            _ => {
                self.lock_read(caller, &[Want::shared(LockName::Entry { directory: parent.inode, name })])?;
                self.resolve(&parent, name)?
            }
        };
        self.lock_read(caller, &attribute_wants(node.inode))?;
        self.confirm_read()?;
        Ok(answer(&node))
    }

    /// Lowers the lookup count of `node` by `count`. At zero the node is forgotten, and an orphan dies.
    pub fn forget(&self, node: NodeId, count: u64) {
        self.nodes.forget(node.0, count);
        self.reap_when_many();
    }

    /// A node that has a row of its own (a directory, a file with several names) by its number alone. What is above a
    /// directory stands in that row.
    pub(crate) fn by_own_row(&self, inode: u64) -> Result<Pin<'_>> {
        let placement = Placement::own_subtree(inode);
        let key = placement.own_key();
        loop {
            if let Some(known) = self.nodes.get(inode) {
                return Ok(known);
            }
            let epoch = self.nodes.epoch();
            let bytes = self.read_view().get(self.keyspaces.meta, &key)?.ok_or(FsError::NotFound)?;
            let (header, content) = Row::decode_own(inode, &bytes)?;
            let changed_at = self.position();
            let intern = if header.kind == FileType::Directory {
                let directory = Some(Box::new(DirectoryPart::new(placement.clone())));
                Intern { header, location: &|| Location::Unnamed, directory, content: &[], changed_at }
            } else {
                Intern { header, location: &|| Location::Own, directory: None, content, changed_at }
            };
            if let Some(pin) = self.nodes.intern(intern, Some(epoch)) {
                return Ok(pin);
            }
        }
    }

    /// The node under `name`.
    pub(crate) fn resolve(&self, parent: &Pin<'_>, name: &[u8]) -> Result<Pin<'_>> {
        self.resolve_row(parent, name).map(|(node, _)| node)
    }

    /// The node under `name`, and the dentry row that led to it.
    pub(crate) fn resolve_row(&self, parent: &Pin<'_>, name: &[u8]) -> Result<(Pin<'_>, Bytes)> {
        let Some(directory) = &parent.directory else { return Err(FsError::NotDirectory) };
        let key = directory.placement.key(name);
        loop {
            let epoch = self.nodes.epoch();
            let Some(bytes) = self.read_view().get(self.keyspaces.meta, &key)? else {
                return Err(FsError::NotFound);
            };
            let row = Row::decode(&key, &bytes)?;
            let Some(node) = self.intern_row(parent, name, row, epoch)? else { continue };
            if !node.is_orphan() {
                return Ok((node, bytes));
            }
        }
    }

    /// The node of a dentry row that was read after `epoch`. `None`: the row may be out of date, read again.
    pub(crate) fn intern_row(
        &self,
        parent: &Pin<'_>,
        name: &[u8],
        row: Row<'_>,
        epoch: u64,
    ) -> Result<Option<Pin<'_>>> {
        if let Some(known) = self.nodes.get(row.inode()) {
            if known.is_unnamed() {
                known.name(parent.entry(name), epoch);
            }
            return Ok(Some(known));
        }
        match row {
            Row::Inode(header, content) => {
                let intern = Intern {
                    header,
                    location: &|| parent.entry(name),
                    directory: None,
                    content,
                    changed_at: self.position(),
                };
                Ok(self.nodes.intern(intern, Some(epoch)))
            }
            Row::Directory { inode, placement } => {
                self.intern_directory(parent, name, inode, placement, epoch)
            }
            Row::Link { inode, .. } => self.intern_linked(parent, name, inode, epoch),
        }
    }

    fn intern_directory(
        &self,
        parent: &Pin<'_>,
        name: &[u8],
        inode: u64,
        placement: Placement,
        epoch: u64,
    ) -> Result<Option<Pin<'_>>> {
        let Some(bytes) = self.own_row(parent, name, inode, &placement)? else { return Ok(None) };
        let (header, _) = Row::decode_own(inode, &bytes)?;
        let intern = Intern {
            header,
            location: &|| parent.entry(name),
            directory: Some(Box::new(DirectoryPart::new(placement))),
            content: &[],
            changed_at: self.position(),
        };
        Ok(self.nodes.intern(intern, Some(epoch)))
    }

    fn intern_linked(
        &self,
        parent: &Pin<'_>,
        name: &[u8],
        inode: u64,
        epoch: u64,
    ) -> Result<Option<Pin<'_>>> {
        let placement = Placement::own_subtree(inode);
        let Some(bytes) = self.own_row(parent, name, inode, &placement)? else { return Ok(None) };
        let (header, content) = Row::decode_own(inode, &bytes)?;
        let location = || Location::Own;
        let intern =
            Intern { header, location: &location, directory: None, content, changed_at: self.position() };
        Ok(self.nodes.intern(intern, Some(epoch)))
    }

    /// The own row that a dentry row refers to; `None` when the dentry was changed meanwhile.
    fn own_row(
        &self,
        parent: &Pin<'_>,
        name: &[u8],
        inode: u64,
        placement: &Placement,
    ) -> Result<Option<Bytes>> {
        let Some(directory) = &parent.directory else { return Err(FsError::NotDirectory) };
        let (dentry_key, own_key) = (directory.placement.key(name), placement.own_key());
        for _ in 0..DANGLING_TRIES {
            if let Some(bytes) = self.read_view().get(self.keyspaces.meta, &own_key)? {
                return Ok(Some(bytes));
            }
            let dentry = self.read_view().get(self.keyspaces.meta, &dentry_key)?;
            let still_refers = match &dentry {
                Some(bytes) => {
                    let row = Row::decode(&dentry_key, bytes)?;
                    row.inode() == inode && !matches!(row, Row::Inode(..))
                }
                None => false,
            };
            if !still_refers {
                return Ok(None);
            }
        }
        Err(FsError::corrupt(
            format!("entry {} of directory inode {}", name.escape_ascii(), parent.inode),
            format!("it refers to inode {inode}, which has no row"),
        ))
    }
}
