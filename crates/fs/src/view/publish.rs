//! Bringing the main line's nodes up to date with a commit.
//!
//! Nodes that came into the table before the commit hold the state before it, later ones the state after it
//! (see [`NodeTable::publish`]); so a walk over the write set, after the commit, brings in each change
//! exactly once. Records that the transaction holds alone are taken as they are; what commutes is brought in
//! as the same change that the store merged, because others may be changing the same node.
//!
//! [`NodeTable::publish`]: crate::node::NodeTable::publish

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvfs_store::progress;
use kvfs_store::{Change, ChangeCursor, Position};

use super::commit::{ManyNames, Name, name_of};
use super::{CommitPlan, Invalidations, TxnView};
use crate::file::ChangedContent;
use crate::namespace::Resolver;
use crate::node::{Dead, Location, NodeTable, Pin, Touched};
use crate::schema::{Header, Placement, Row, RowPatch, parse_inode_key};
use crate::{FileSystem, FsError, NodeId, Result};

/// Names of a commit that are held in memory. Of more the kernel is told by another walk.
const NAMES_HELD_MAX: usize = 1 << 14;

/// The parts of a transaction's net write set that nodes are made of.
pub(super) struct WriteSet {
    rows: Box<dyn ChangeCursor>,
    /// The same once more, for [`ManyNames`].
    names: Box<dyn ChangeCursor>,
    orphans: Box<dyn ChangeCursor>,
    blocks: Box<dyn ChangeCursor>,
    /// `None`: it was begun by another view, and not all is known.
    bytes: Option<Arc<ChangedContent>>,
}

/// What the walk has found so far.
struct Walk<'m> {
    nodes: &'m NodeTable,
    resolver: Resolver<'m>,
    position: Position,
    epoch: u64,
    /// Known nodes that changed: whether their content did.
    changed: BTreeMap<u64, bool>,
    entries: Vec<Name>,
    /// Those in which names changed, once there are too many names.
    directories: BTreeSet<NodeId>,
    /// Where directories that have moved were.
    left: BTreeSet<Name>,
    dead: Dead,
}

impl TxnView {
    /// Files with changed content, but for those that are new, and the nodes of the main line that the commit
    /// touches: it knows none of what is new.
    pub(super) fn plan_changes(&self) -> Result<(CommitPlan, Touched)> {
        let (nodes, mut contents) = (&self.main.nodes, Vec::new());
        let mut touched = nodes.begin_walk();
        let mut add = |inode: u64, content: bool| {
            if self.created.contains(inode) {
                return;
            }
            if content && contents.last() != Some(&NodeId(inode)) {
                contents.push(NodeId(inode));
            }
            if nodes.get(inode).is_some() {
                touched.insert(inode);
            }
        };
        let mut last = None;
        each_changed_file(self.txn.changes(self.keyspaces.data)?, |inode| {
            if last.replace(inode) != Some(inode) {
                add(inode, true);
            }
        })?;
        each_change(self.txn.changes(self.keyspaces.meta)?, |change| {
            each_inode_of_row(&change, &mut add);
            Ok(())
        })?;
        each_change(self.txn.changes(self.keyspaces.orphans)?, |change| {
            if let Change::Put { key, .. } = change {
                add(parse_inode_key(&key)?, false);
            }
            Ok(())
        })?;
        contents.sort_unstable();
        contents.dedup();
        Ok((CommitPlan { contents }, touched))
    }

    /// The changes that a commit brings to nodes. Asked for before it, walked after it.
    pub(super) fn write_set(&self) -> Result<WriteSet> {
        Ok(WriteSet {
            rows: self.txn.changes(self.keyspaces.meta)?,
            names: self.txn.changes(self.keyspaces.meta)?,
            orphans: self.txn.changes(self.keyspaces.orphans)?,
            blocks: self.txn.changes(self.keyspaces.data)?,
            bytes: self.branch.get().is_none().then(|| Arc::clone(&self.changed_content)),
        })
    }
}

/// Brings the nodes of the main line up to date with what was committed at `position`, and says what the
/// kernel must forget. `epoch`: of the node table, right after the commit.
pub(super) fn bring_in(
    main: &Arc<FileSystem>,
    set: WriteSet,
    position: Position,
    epoch: u64,
) -> Result<Invalidations> {
    let (nodes, resolver) = (&main.nodes, main.resolver());
    let mut walk = Walk {
        nodes,
        resolver,
        position,
        epoch,
        changed: BTreeMap::new(),
        entries: Vec::new(),
        directories: BTreeSet::new(),
        left: BTreeSet::new(),
        dead: Dead::default(),
    };
    // Rows first: a file that was moved and removed is in `orphans`, which has the last word.
    each_change(set.rows, |change| walk.row(change))?;
    each_change(set.orphans, |change| walk.orphan(change))?;
    each_changed_file(set.blocks, |inode| drop(walk.known(inode, true)))?;
    for (&inode, _) in walk.changed.iter().filter(|(_, content)| **content) {
        nodes.watches.tell_committed(inode, set.bytes.as_ref().and_then(|bytes| bytes.of(inode)).as_ref());
    }
    let changed = walk.changed.into_iter().map(|(inode, content)| (NodeId(inode), content)).collect();
    nodes.dead().push(&walk.dead);
    let (directories, left) = (walk.directories, walk.left);
    let (moved, entries) = walk.entries.into_iter().partition(|entry| left.contains(entry));
    let many = (!directories.is_empty()).then(|| ManyNames::new(main, set.names, directories, left));
    Ok(Invalidations { nodes: changed, entries, moved, many })
}

impl<'m> Walk<'m> {
    /// The node of a changed inode, if it is known: then the kernel may have cached something of it, too.
    fn known(&mut self, inode: u64, content: bool) -> Option<Pin<'m>> {
        let pin = self.nodes.get(inode)?;
        *self.changed.entry(inode).or_default() |= content;
        Some(pin)
    }

    /// As [`Self::known`], if the node holds the state before the commit.
    fn outdated(&mut self, inode: u64, content: bool) -> Option<Pin<'m>> {
        let epoch = self.epoch;
        self.known(inode, content).filter(|pin| pin.is_older_than(epoch))
    }

    fn row(&mut self, change: Change) -> Result<()> {
        if let Some((directory, name)) = name_of(&change) {
            self.entry(directory, name);
        }
        match change {
            Change::Put { key, value } => {
                let Some((directory, name)) = Placement::parse_key(&key) else { return Ok(()) };
                self.put(directory, name, &Row::decode(&key, &value)?)
            }
            Change::Merge { key, operands } => {
                for operand in operands {
                    let (inode, patch) = RowPatch::decode(&operand).ok_or_else(|| {
                        FsError::corrupt(format!("row {}", key.escape_ascii()), "a change that is none")
                    })?;
                    self.patch(inode, &patch);
                }
                Ok(())
            }
            Change::Delete { .. } | Change::DeleteRange { .. } | Change::Blocks { .. } => Ok(()),
        }
    }

    /// A name of a directory that the kernel may know: it may also know that the name did not exist.
    fn entry(&mut self, directory: u64, name: &[u8]) {
        if self.nodes.get(directory).is_none() {
            return;
        }
        if self.directories.is_empty() && self.entries.len() < NAMES_HELD_MAX {
            self.entries.push((NodeId(directory), name.into()));
            return;
        }
        self.directories
            .extend(std::mem::take(&mut self.entries).into_iter().map(|(directory, _)| directory));
        self.directories.insert(NodeId(directory));
    }

    fn put(&mut self, directory: u64, name: &[u8], row: &Row<'_>) -> Result<()> {
        let Some(node) = self.outdated(row.inode(), true) else { return Ok(()) };
        match row {
            Row::Inode(header, _) => {
                self.replace(&node, header);
                if node.directory.is_none() {
                    let location = if name.is_empty() { Location::Own } else { self.place(directory, name)? };
                    node.relocate(location);
                }
            }
            Row::Directory { .. } => {
                let left = node.link().map(|(parent, name)| (NodeId(parent.inode), name));
                self.left.extend(left.filter(|(parent, old)| (parent.0, &**old) != (directory, name)));
                node.relocate(self.place(directory, name)?);
            }
            Row::Link { .. } => {}
        }
        Ok(())
    }

    fn place(&self, directory: u64, name: &[u8]) -> Result<Location> {
        Ok(self.resolver.by_own_row(directory)?.entry(name))
    }

    fn replace(&self, node: &Pin<'_>, header: &Header) {
        let mut state = node.state();
        let atime = state.header.atime.max(header.atime);
        state.is_end_moved |= state.header.size != header.size;
        state.is_given_away |= state.header.uid != header.uid;
        state.header = Header { atime, ..*header };
        state.absence.forget();
        state.touched(self.position);
        state.xattr_usage = None;
        self.nodes.drop_content_locked(&mut state);
    }

    fn patch(&mut self, inode: u64, patch: &RowPatch) {
        let content = patch.content.is_some() || patch.size.is_some();
        let Some(node) = self.outdated(inode, content) else { return };
        let mut state = node.state();
        let (end, owner) = (state.header.size, state.header.uid);
        state.update(patch, self.position);
        state.xattr_usage = None;
        state.is_end_moved |= state.header.size != end;
        state.is_given_away |= state.header.uid != owner;
        if patch.content.is_some() {
            self.nodes.drop_content_locked(&mut state);
        }
    }

    fn orphan(&mut self, change: Change) -> Result<()> {
        let Change::Put { key, value } = change else { return Ok(()) };
        let inode = parse_inode_key(&key)?;
        let (header, _) = Row::decode_own(inode, &value)?;
        match self.known(inode, false) {
            Some(node) => {
                if node.is_older_than(self.epoch) {
                    self.replace(&node, &header);
                    node.relocate(Location::Orphan);
                }
            }
            // The main line has no node of it, and no name leads to it any more.
            None => self.dead.unread.insert(&(inode..inode + 1)),
        }
        Ok(())
    }
}

pub(crate) fn each_change(
    mut changes: Box<dyn ChangeCursor>,
    mut each: impl FnMut(Change) -> Result<()>,
) -> Result<()> {
    while let Some(change) = changes.next()? {
        progress::advance(1);
        progress::check_wanted()?;
        each(change)?;
    }
    Ok(())
}

/// Tells `each` the inodes of files with changed blocks, some of them more than once.
fn each_changed_file(mut changes: Box<dyn ChangeCursor>, mut each: impl FnMut(u64)) -> Result<()> {
    while let Some(key) = changes.next_place()? {
        progress::advance(1);
        if let Some(inode) = key.first_chunk() {
            each(u64::from_be_bytes(*inode));
        }
    }
    Ok(())
}

/// Tells `each` the inodes that a change of a row is about, and whether content changes with it.
fn each_inode_of_row(change: &Change, mut each: impl FnMut(u64, bool)) {
    match change {
        Change::Put { value, .. } => {
            if let Some(row) = Row::parse(value) {
                each(row.inode(), matches!(row, Row::Inode(..)));
            }
        }
        Change::Merge { operands, .. } => {
            for (inode, patch) in operands.iter().filter_map(|operand| RowPatch::decode(operand)) {
                each(inode, patch.content.is_some() || patch.size.is_some());
            }
        }
        _ => {}
    }
}
