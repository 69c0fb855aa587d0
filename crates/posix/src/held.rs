//! Nodes that are in use: each keeps one lookup of the file system, so an unlinked file lives as long as it is open.
//!
//! Thread safety: as [`FileSystem`]. Invariant: each lookup is taken back once.

use std::sync::Arc;

use kvfs_fs::{Attr, Caller, Entry, FileSystem, FsError, NodeId};

use crate::error::Result;

/// A node that was looked up; forgotten when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    fs: Arc<FileSystem>,
    node: NodeId,
}

impl Held {
    pub(crate) fn root(fs: &Arc<FileSystem>) -> Arc<Self> {
        Arc::new(Self { fs: Arc::clone(fs), node: NodeId::ROOT })
    }

    /// Takes over the lookup that `entry` counts.
    pub(crate) fn of(fs: &Arc<FileSystem>, entry: &Entry) -> Arc<Self> {
        Arc::new(Self { fs: Arc::clone(fs), node: entry.node })
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn is_of(&self, fs: &Arc<FileSystem>) -> bool {
        Arc::ptr_eq(&self.fs, fs)
    }

    pub(crate) fn attr(&self, caller: &Caller) -> Result<Attr> {
        settled(caller, |caller| self.fs.getattr(caller, self.node))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.node != NodeId::ROOT {
            self.fs.forget(self.node, 1);
        }
    }
}

/// Tries `operation` until no other holds what it needs. Blocks meanwhile.
pub(crate) fn settled<T>(
    caller: &Caller,
    mut operation: impl FnMut(&Caller) -> kvfs_fs::Result<T>,
) -> Result<T> {
    let mut ticket = None;
    loop {
        let outcome = match ticket.take() {
            None => operation(caller),
            Some(ticket) => operation(&Caller { ticket: Some(ticket), ..caller.clone() }),
        };
        match outcome {
            Err(FsError::Parked(parked)) => {
                parked.wait();
                ticket = Some(parked);
            }
            done => return Ok(done?),
        }
    }
}

/// As [`settled`], for what takes space: again while space that it lacks is made.
pub(crate) fn with_space<T>(
    fs: &FileSystem,
    caller: &Caller,
    operation: impl Fn(&Caller) -> kvfs_fs::Result<T>,
) -> Result<T> {
    settled(caller, |caller| fs.with_space(caller, || operation(caller)))
}
