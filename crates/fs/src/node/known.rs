//! Nodes that were looked up by something other than a kernel, which tells when it has forgotten them.
//!
//! Thread safety: as [`FileSystem`]. Invariant: each lookup is taken back once.

use crate::{Attr, Caller, Entry, FileSystem, NodeId, Result};

/// A node that was looked up; forgotten when it is dropped.
#[derive(Debug)]
pub struct KnownNode<'f> {
    fs: &'f FileSystem,
    node: NodeId,
}

impl<'f> KnownNode<'f> {
    /// The root, which is never forgotten.
    pub fn root(fs: &'f FileSystem) -> Self {
        Self { fs, node: NodeId::ROOT }
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
        if self.node != NodeId::ROOT {
            self.fs.forget(self.node, 1);
        }
    }
}
