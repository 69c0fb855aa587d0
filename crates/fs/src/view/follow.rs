//! File systems whose store is written to elsewhere, and that go on to newer states of it
//! ([`kvfs_store::Follow`]).
//!
//! Purpose: a newer state comes as a commit does: between operations that hold the state ([`hold_state`]),
//! and no row that was read before becomes a node afterwards. What is new in it is not known. So each node is
//! brought up to date when it is used next: its row is read again if it was read at another position. A
//! lookup or a listing that meets a row brings its node to the place where the row is.
//!
//! What a front end may have cached is told by [`take_renewed`]; the rest it must ask for again within its
//! own bound.
//!
//! Thread safety: as [`FileSystem`]. Invariants: nothing is written; the position of a node (`changed_at`) is
//! the one that its row was read at; a file that has no row any more, or whose new name was not met yet, is
//! `Stale`.

use std::sync::Arc;

use kvfs_store::{Follow, KeyRange};

use super::{Invalidations, Origin};
use crate::node::{Location, Node, NodeTable, Pin};
use crate::quota;
use crate::schema::{Header, Keyspaces, Placement, Row, inode_key};
use crate::{FileSystem, FileType, FsError, NodeId, Result};

/// Names of a directory that are looked through for a file that has no longer the one that it had.
const NAMES_MAX: usize = 1024;

/// Whether the file system goes on to newer states of its store.
pub fn follows(fs: &FileSystem) -> bool {
    fs.follows
}

/// While this is held no newer state is shown, where there may be one. Each operation of a file system that
/// follows must hold it. Nested calls are fine.
pub fn hold_state(fs: &FileSystem) -> impl Sized + '_ {
    fs.follows.then(|| fs.shared.shown.read())
}

/// Looks for a newer state of the store, and shows it. Returns whether there was one, now or at a call that
/// failed behind it. Blocks.
///
/// # Errors
/// Store errors: the state that was shown stays, or what quotas and snapshots say, until the next call.
pub fn show_newer(fs: &FileSystem) -> Result<bool> {
    let Some(follow) = fs.store.follow().filter(|_| fs.follows) else { return Ok(false) };
    if follow.find_newer()? {
        fs.shared.snapshots.expect_others();
        publish(fs, follow);
    } else if !fs.shared.snapshots.are_renewing() {
        return Ok(false);
    }
    // What other parts of the file system remember of rows; snapshots last, which say that it is done.
    if let Some(keyspace) = quota::find_keyspace(&*fs.store)? {
        fs.shared.quotas.renew(keyspace)?;
    }
    fs.shared.snapshots.renew()?;
    Ok(true)
}

/// Shows the state that was found.
fn publish(fs: &FileSystem, follow: &dyn Follow) {
    {
        let _shown = fs.shared.shown.write();
        let _settled = fs.nodes.settle();
        fs.nodes.publish(|| Follow::show_newer(follow));
        fs.shared.keyspaces.renew();
    }
    // Another process reaps what had no name.
    drop(fs.nodes.dead().take(usize::MAX));
}

/// Looks which files have changed of those that a front end may have content of, as `is_cached` says. O(files
/// that are known).
pub fn renew_cached(fs: &FileSystem, is_cached: impl Fn(NodeId) -> bool) {
    for file in fs.nodes.cached_files().into_iter().filter(|file| is_cached(*file)) {
        let _held = hold_state(fs);
        // One that is gone, or can't be read, keeps what the front end has.
        if let Err(error) = fs.locker().pin(file) {
            tracing::trace!(inode = file.0, %error, "not brought up to date");
        }
    }
}

/// What was found to have changed since the last call, by operations or by [`renew_cached`]: what a front end
/// must drop that it may have of it.
pub fn take_renewed(fs: &FileSystem) -> Invalidations {
    let nodes = fs.nodes.take_renewed().into_iter().map(|inode| (NodeId(inode), true)).collect();
    Invalidations { nodes, ..Invalidations::default() }
}

/// Brings nodes up to date with the state that is shown.
pub(crate) struct Renewal<'v> {
    pub(crate) origin: &'v Origin,
    pub(crate) nodes: &'v NodeTable,
    pub(crate) keyspaces: Keyspaces,
}

impl Renewal<'_> {
    /// A node that was found by its number.
    ///
    /// # Errors
    /// `Stale`: its row is not where it was.
    pub(crate) fn renew(&self, node: &Pin<'_>) -> Result<()> {
        if node.state().changed_at == self.origin.position() {
            return Ok(());
        }
        let Some((header, moved_to)) = self.find(node)? else { return Err(FsError::Stale(node.inode)) };
        self.take(node, &header);
        if let Some(place) = moved_to {
            node.relocate(place);
        }
        Ok(())
    }

    /// A node that the row `name` of `parent` is about, which is of the state that is shown.
    pub(crate) fn meet(&self, node: &Pin<'_>, parent: &Arc<Node>, name: &[u8], row: &Row<'_>) -> Result<()> {
        let is_link = matches!(row, Row::Link { .. });
        let is_there = match node.link() {
            Some((known, old)) => !is_link && known.inode == parent.inode && *old == *name,
            None => is_link && !node.is_orphan() && !node.is_unnamed(),
        };
        if !is_there {
            node.relocate(if is_link { Location::Own } else { parent.entry(name) });
        }
        match row {
            Row::Inode(header, _) => {
                if node.state().changed_at != self.origin.position() {
                    self.take(node, header);
                }
                Ok(())
            }
            Row::Directory { .. } | Row::Link { .. } => self.renew(node),
        }
    }

    /// What the row says, from now on.
    fn take(&self, node: &Node, header: &Header) {
        let position = self.origin.position();
        let is_changed = {
            let mut state = node.state();
            let is_changed = state.header.ctime != header.ctime || state.header.size != header.size;
            state.header = *header;
            state.changed_at = position;
            state.xattr_usage = None;
            state.absence.forget();
            self.nodes.drop_content_locked(&mut state);
            is_changed
        };
        if is_changed {
            self.nodes.note_renewed(node.inode);
        }
    }

    /// The row of a node, and where it is if that is elsewhere than it was.
    fn find(&self, node: &Pin<'_>) -> Result<Option<(Header, Option<Location>)>> {
        let read = self.origin.read();
        if node.kind != FileType::Directory
            && let Some((parent, name)) = node.link()
        {
            if let Some(header) = self.find_under(&parent, &name, node.inode)? {
                return Ok(Some((header, None)));
            }
            if let Some((header, name)) = self.find_in(&parent, node.inode)? {
                return Ok(Some((header, Some(parent.entry(&name)))));
            }
        }
        let own = read.get(self.keyspaces.meta, &Placement::own_subtree(node.inode).own_key())?;
        if let Some(row) = own {
            let (header, _) = Row::decode_own(node.inode, &row)?;
            let has_moved = node.is_orphan() || (node.kind != FileType::Directory && node.link().is_some());
            let place = if node.kind == FileType::Directory { Location::Unnamed } else { Location::Own };
            return Ok(Some((header, has_moved.then_some(place))));
        }
        let Some(row) = read.get(self.keyspaces.orphans, &inode_key(node.inode))? else { return Ok(None) };
        let (header, _) = Row::decode_own(node.inode, &row)?;
        Ok(Some((header, (!node.is_orphan()).then_some(Location::Orphan))))
    }

    /// The attributes of the file `inode`, if `name` is its one name.
    fn find_under(&self, parent: &Node, name: &[u8], inode: u64) -> Result<Option<Header>> {
        let Some(directory) = &parent.directory else { return Ok(None) };
        let key = directory.placement.key(name);
        let Some(bytes) = self.origin.read().get(self.keyspaces.meta, &key)? else { return Ok(None) };
        match Row::decode(&key, &bytes)? {
            Row::Inode(header, _) if header.inode == inode => Ok(Some(header)),
            _ => Ok(None),
        }
    }

    /// The same, under another name of the directory.
    fn find_in(&self, parent: &Node, inode: u64) -> Result<Option<(Header, Box<[u8]>)>> {
        let Some(directory) = &parent.directory else { return Ok(None) };
        let range: KeyRange = directory.placement.entries_after(b"");
        let mut cursor = self.origin.read().cursor(self.keyspaces.meta, range)?;
        for _ in 0..NAMES_MAX {
            cursor.next()?;
            let Some((key, bytes)) = cursor.entry() else { break };
            if let Row::Inode(header, _) = Row::decode(key, bytes)?
                && header.inode == inode
            {
                return Ok(Some((header, key[directory.placement.prefix_len()..].into())));
            }
        }
        Ok(None)
    }
}
