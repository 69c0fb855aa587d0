//! Nodes that were looked up by something other than a kernel, which tells when it has forgotten them.
//!
//! Thread safety: as [`FileSystem`]. Invariant: each lookup, and each reference, is taken back once.

use std::fmt;
use std::sync::Arc;

use super::{Node, Pin};
use crate::attr::attributes;
use crate::namespace::find;
use crate::{Attr, Caller, Entry, FileSystem, FileType, FsError, NodeId, Result};

/// A node that was looked up; forgotten when it is dropped.
#[derive(Debug)]
pub struct KnownNode<'f> {
    fs: &'f FileSystem,
    node: NodeId,
}

impl<'f> KnownNode<'f> {
    /// The root, which is never forgotten.
    pub fn root(fs: &'f FileSystem) -> Self {
        Self { fs, node: fs.nodes.root() }
    }

    /// A directory that a caller has open in another view, or here.
    ///
    /// # Errors
    /// `NotFound`: this view has none of that number; `NotDirectory`; store errors.
    pub fn of_directory(fs: &'f FileSystem, node: NodeId) -> Result<Self> {
        let pin = match fs.nodes.get(node.0) {
            Some(known) => known,
            // What has no row of its own is a file with one name.
            None => fs.resolver().by_own_row(node.0)?,
        };
        match pin.kind {
            FileType::Directory if pin.is_orphan() => return Err(FsError::NotFound),
            FileType::Directory => {}
            _ => return Err(FsError::NotDirectory),
        }
        if node != fs.nodes.root() {
            pin.count_lookup();
        }
        Ok(Self { fs, node })
    }

    /// The number by which the file system is asked about it, while this is kept.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Its attributes.
    ///
    /// # Errors
    /// As [`FileSystem::getattr`].
    pub fn attr(&self, caller: &Caller) -> Result<Attr> {
        self.fs.getattr(caller, self.node)
    }

    /// What is under `name` in this directory.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`].
    pub fn lookup(&self, caller: &Caller, name: &[u8]) -> Result<Self> {
        let Entry { node, .. } = self.fs.lookup(caller, self.node, name)?;
        Ok(Self { fs: self.fs, node })
    }

    /// As [`FileSystem::check_access`].
    ///
    /// # Errors
    /// `AccessDenied`; store errors.
    pub fn check_access(&self, caller: &Caller, groups: &[u32], attr: &Attr, access: u32) -> Result<()> {
        self.fs.check_access(caller, groups, self.node, attr, access)
    }
}

impl Drop for KnownNode<'_> {
    fn drop(&mut self) {
        if self.node != self.fs.nodes.root() {
            self.fs.forget(self.node, 1);
        }
    }
}

/// A node in use by a front end that is inside of the process: no lookup is counted, and nothing is looked up
/// by number.
pub struct HeldNode {
    fs: Arc<FileSystem>,
    /// With one reference.
    node: Arc<Node>,
}

impl fmt::Debug for HeldNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldNode").field(&self.node).finish()
    }
}

impl HeldNode {
    fn new(fs: &Arc<FileSystem>, pin: Pin<'_>) -> Self {
        Self { fs: Arc::clone(fs), node: pin.into_held() }
    }

    /// The root.
    pub fn root(fs: &Arc<FileSystem>) -> Self {
        match fs.nodes.get(fs.nodes.root().0) {
            Some(root) => Self::new(fs, root),
            None => unreachable!("the root is in the table for good"),
        }
    }

    /// Takes over the lookup that `entry` counts.
    pub fn of(fs: &Arc<FileSystem>, entry: &Entry) -> Self {
        let Some(pin) = fs.nodes().get(entry.node.0) else {
            unreachable!("its lookup keeps it in the table")
        };
        let held = Self::new(fs, pin);
        fs.nodes().forget(entry.node.0, 1);
        held
    }

    pub(crate) fn fs(&self) -> &FileSystem {
        &self.fs
    }

    /// The number by which the file system is asked about it, while this is kept.
    pub fn node(&self) -> NodeId {
        NodeId(self.node.inode)
    }

    /// Tells it apart from the nodes of all views of all file systems, for as long as it is there.
    pub fn identity(&self) -> (usize, u64) {
        (Arc::as_ptr(&self.fs).addr(), self.node().0)
    }

    /// Whether it is a node of that view.
    pub fn is_of(&self, fs: &Arc<FileSystem>) -> bool {
        Arc::ptr_eq(&self.fs, fs)
    }

    /// Its attributes.
    ///
    /// # Errors
    /// As [`FileSystem::getattr`].
    pub fn attr(&self, caller: &Caller) -> Result<Attr> {
        self.fs.locker().check()?;
        attributes(&self.fs, caller, &self.node)
    }

    /// What is under `name` in this directory, with its attributes.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`].
    pub fn lookup(&self, caller: &Caller, name: &[u8]) -> Result<(Self, Attr)> {
        self.fs.locker().check()?;
        let found = find(&self.fs, caller, &self.node, name)?;
        let attr = self.fs.shows.attr(found.attr());
        Ok((Self::new(&self.fs, found), attr))
    }
}

impl Drop for HeldNode {
    fn drop(&mut self) {
        self.fs.orphans().reap_with(|| self.fs.nodes().release(&self.node, 1));
    }
}
