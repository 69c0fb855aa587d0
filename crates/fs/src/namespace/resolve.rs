//! Rows become nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs_store::Read;

use crate::dir::Ascent;
use crate::node::{DirectoryPart, Intern, Location, Node, NodeTable, Pin};
use crate::schema::{DETACHED_INODE, Header, Keyspaces, Placement, ROOT_INODE, Row};
use crate::view::{Origin, Renewal};
use crate::{Caller, FileSystem, FileType, FsError, Result};

/// How often a reference to a row that isn't there is read again before it counts as damage; the other
/// explanation is that another operation removed both meanwhile.
const DANGLING_TRIES: u32 = 16;

/// Finds the nodes of a view by their rows, and enters those that the table lacks. Takes no names.
pub(crate) struct Resolver<'v> {
    origin: &'v Origin,
    read: &'v dyn Read,
    keyspaces: Keyspaces,
    nodes: &'v NodeTable,
    follows: bool,
}

impl FileSystem {
    /// What finds this view's nodes.
    pub(crate) fn resolver(&self) -> Resolver<'_> {
        Resolver {
            origin: &self.origin,
            read: self.origin.read(),
            keyspaces: self.keyspaces,
            nodes: &self.nodes,
            follows: self.follows,
        }
    }
}

impl<'v> Resolver<'v> {
    /// What brings known nodes up to date, where the store goes on to newer states.
    fn renewal(&self) -> Renewal<'v> {
        Renewal { origin: self.origin, nodes: self.nodes, keyspaces: self.keyspaces }
    }

    /// A node that has a row of its own (a directory, a file with several names) by its number alone. What is
    /// above a directory stands in that row.
    pub(crate) fn by_own_row(&self, inode: u64) -> Result<Pin<'v>> {
        let placement = Placement::own_subtree(inode);
        let key = placement.own_key();
        loop {
            if let Some(known) = self.nodes.get(inode) {
                if self.follows {
                    self.renewal().renew(&known)?;
                }
                return Ok(known);
            }
            let epoch = self.nodes.epoch();
            let bytes = self.read.get(self.keyspaces.meta, &key)?.ok_or(FsError::NotFound)?;
            let (header, content) = Row::decode_own(inode, &bytes)?;
            let changed_at = self.origin.position();
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

    /// The directory and its ancestors, up to the root; or an error that ends the walk, with those that it
    /// has seen. That they are a circle may come of moves while it went on: then hold them, and look again.
    pub(crate) fn ancestors(&self, directory: &Pin<'_>) -> Result<(Vec<u64>, Result<()>)> {
        let (mut path, mut header) = (vec![directory.inode], directory.header());
        if directory.is_orphan() {
            return Err(FsError::NotFound);
        }
        let mut ascent = Ascent::default();
        // Beside the root of a branch of one directory there are detached trees, below that of the store.
        while ![self.nodes.root().0, ROOT_INODE].contains(&header.inode) {
            if let Err(circle) = ascent.step(header.inode) {
                return Ok((path, Err(circle)));
            }
            let above = self.by_own_row(header.parent)?;
            if above.is_orphan() {
                return Err(FsError::NotFound);
            }
            path.push(above.inode);
            header = above.header();
        }
        Ok((path, Ok(())))
    }

    /// Refuses a directory that has gone, where a name is about to be made. An operation that has waited
    /// comes behind what it waited for, which may have taken a tree with the directory off the main line.
    pub(super) fn expect_there(&self, origin: &Origin, caller: &Caller, directory: &Pin<'_>) -> Result<()> {
        let may_have_gone = caller.ticket.is_some() && origin.is_main() && directory.inode != DETACHED_INODE;
        let has_gone =
            directory.is_orphan() || may_have_gone && self.ancestors(directory)?.0.contains(&DETACHED_INODE);
        if has_gone { Err(FsError::NotFound) } else { Ok(()) }
    }

    /// The node under `name`, which is kept where names are.
    pub(super) fn kept_or_resolve(&self, parent: &Arc<Node>, name: &[u8]) -> Result<Pin<'v>> {
        let found = self.nodes.named(parent.inode, name);
        if !matches!(found, Err(None))
            && let Some(directory) = &parent.directory
        {
            directory.lookups.fetch_add(1, Ordering::Relaxed);
        }
        let unkept = match found {
            Ok(node) => return Ok(node),
            Err(unkept) => unkept,
        };
        let node = self.resolve(parent, name)?;
        if let Some(unkept) = unkept {
            self.nodes.keep_name(unkept, parent.inode, name, &node);
        }
        Ok(node)
    }

    /// The node under `name`.
    pub(crate) fn resolve(&self, parent: &Arc<Node>, name: &[u8]) -> Result<Pin<'v>> {
        self.resolve_row(parent, name).map(|(node, _)| node)
    }

    /// The node under `name`, and the dentry row that led to it.
    pub(crate) fn resolve_row(&self, parent: &Arc<Node>, name: &[u8]) -> Result<(Pin<'v>, Bytes)> {
        let Some(directory) = &parent.directory else { return Err(FsError::NotDirectory) };
        let key = directory.placement.key(name);
        loop {
            let epoch = self.nodes.epoch();
            let Some(bytes) = self.read.get(self.keyspaces.meta, &key)? else {
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
        parent: &Arc<Node>,
        name: &[u8],
        row: Row<'_>,
        epoch: u64,
    ) -> Result<Option<Pin<'v>>> {
        if let Some(known) = self.nodes.get(row.inode()) {
            if self.follows {
                if self.nodes.epoch() != epoch {
                    return Ok(None);
                }
                self.renewal().meet(&known, parent, name, &row)?;
            } else if known.is_unnamed() {
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
                    changed_at: self.origin.position(),
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
        parent: &Arc<Node>,
        name: &[u8],
        inode: u64,
        placement: Placement,
        epoch: u64,
    ) -> Result<Option<Pin<'v>>> {
        let Some(bytes) = self.own_row(parent, name, inode, &placement)? else { return Ok(None) };
        let (header, _) = Row::decode_own(inode, &bytes)?;
        let intern = Intern {
            header,
            location: &|| parent.entry(name),
            directory: Some(Box::new(DirectoryPart::new(placement))),
            content: &[],
            changed_at: self.origin.position(),
        };
        Ok(self.nodes.intern(intern, Some(epoch)))
    }

    fn intern_linked(
        &self,
        parent: &Arc<Node>,
        name: &[u8],
        inode: u64,
        epoch: u64,
    ) -> Result<Option<Pin<'v>>> {
        let placement = Placement::own_subtree(inode);
        let Some(bytes) = self.own_row(parent, name, inode, &placement)? else { return Ok(None) };
        let (header, content) = Row::decode_own(inode, &bytes)?;
        let location = || Location::Own;
        let intern = Intern {
            header,
            location: &location,
            directory: None,
            content,
            changed_at: self.origin.position(),
        };
        Ok(self.nodes.intern(intern, Some(epoch)))
    }

    /// The own row that a dentry row refers to; `None` when the dentry was changed meanwhile.
    fn own_row(
        &self,
        parent: &Arc<Node>,
        name: &[u8],
        inode: u64,
        placement: &Placement,
    ) -> Result<Option<Bytes>> {
        let Some(directory) = &parent.directory else { return Err(FsError::NotDirectory) };
        let (dentry_key, own_key) = (directory.placement.key(name), placement.own_key());
        for _ in 0..DANGLING_TRIES {
            if let Some(bytes) = self.read.get(self.keyspaces.meta, &own_key)? {
                return Ok(Some(bytes));
            }
            let dentry = self.read.get(self.keyspaces.meta, &dentry_key)?;
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

    /// Puts the node of a new inode into the table.
    pub(super) fn intern_new(
        &self,
        header: Header,
        location: &dyn Fn() -> Location,
        directory: Option<Box<DirectoryPart>>,
    ) -> Pin<'v> {
        let changed_at = self.origin.position();
        let intern = Intern { header, location, directory, content: &[], changed_at };
        match self.nodes.intern(intern, None) {
            Some(node) => node,
            None => unreachable!("only rows that were read can be out of date"),
        }
    }

    /// Puts the root into the node table, for good.
    pub(crate) fn install_root(&self) -> Result<()> {
        let root = self.nodes.root().0;
        let placement = Placement::own_subtree(root);
        let bytes = self
            .read
            .get(self.keyspaces.meta, &placement.own_key())?
            .ok_or_else(|| FsError::corrupt("root directory", "it has no row"))?;
        let (header, _) = Row::decode_own(root, &bytes)?;
        if header.kind != FileType::Directory {
            return Err(FsError::corrupt("root directory", format!("it is a {:?}", header.kind)));
        }
        let intern = Intern {
            header,
            location: &|| Location::Root,
            directory: Some(Box::new(DirectoryPart::new(placement))),
            content: &[],
            changed_at: self.origin.position(),
        };
        if let Some(root) = self.nodes.intern(intern, None) {
            root.keep();
        }
        Ok(())
    }
}
