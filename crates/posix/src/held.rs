//! Nodes that are in use: each keeps one lookup of the file system, so an unlinked file lives as long as it
//! is open.
//!
//! Thread safety: as [`FileSystem`]. Invariant: each lookup is taken back once.

use std::sync::Arc;

use kvfs_fs::{Attr, Caller, DirEntry, Entry, FileSystem, Fill, HeldNode, NodeId};

use crate::error::Result;
use crate::open_file::FileIdentity;

/// A node in use; forgotten when it is dropped.
#[derive(Debug)]
pub(crate) struct Held(HeldNode);

impl Held {
    pub(crate) fn root(fs: &Arc<FileSystem>) -> Arc<Self> {
        Arc::new(Self(HeldNode::root(fs)))
    }

    /// Takes over the lookup that `entry` counts.
    pub(crate) fn of(fs: &Arc<FileSystem>, entry: &Entry) -> Arc<Self> {
        Arc::new(Self(HeldNode::of(fs, entry)))
    }

    pub(crate) fn node(&self) -> NodeId {
        self.0.node()
    }

    /// Whether it is a node of that file system.
    pub(crate) fn is_of(&self, fs: &Arc<FileSystem>) -> bool {
        self.0.is_of(fs)
    }

    pub(crate) fn identity(&self) -> FileIdentity {
        let (view, inode) = self.0.identity();
        FileIdentity { view, inode }
    }

    pub(crate) fn attr(&self, caller: &Caller) -> Result<Attr> {
        settled(caller, |caller| self.0.attr(caller))
    }

    /// What is under `name` in this directory.
    pub(crate) fn lookup(&self, caller: &Caller, name: &[u8]) -> Result<(Arc<Self>, Attr)> {
        let (found, attr) = settled(caller, |caller| self.0.lookup(caller, name))?;
        Ok((Arc::new(Self(found)), attr))
    }

    /// Lists this directory, and keeps what is listed for lookups that follow; see [`HeldNode::list`].
    pub(crate) fn list(
        &self,
        caller: &Caller,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> Fill,
    ) -> kvfs_fs::Result<()> {
        self.0.list(caller, offset, sink)
    }
}

/// Tries `operation` until no other holds what it needs. Blocks meanwhile, until the process ends.
pub(crate) fn settled<T>(caller: &Caller, operation: impl FnMut(&Caller) -> kvfs_fs::Result<T>) -> Result<T> {
    Ok(kvfs_fs::settled_for(caller, operation)?)
}

/// As [`settled`], for what takes space: again while space that it lacks is made.
pub(crate) fn with_space<T>(
    fs: &FileSystem,
    caller: &Caller,
    operation: impl Fn(&Caller) -> kvfs_fs::Result<T>,
) -> Result<T> {
    settled(caller, |caller| fs.with_space(caller, || operation(caller)))
}
