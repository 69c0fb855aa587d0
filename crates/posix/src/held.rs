//! Nodes that are in use: each keeps one lookup of the file system, so an unlinked file lives as long as it is open.
//!
//! Thread safety: as [`FileSystem`]. Invariant: each lookup is taken back once.

use std::collections::VecDeque;
use std::sync::Arc;

use kvfs_fs::{Attr, Caller, Entry, FileSystem, FsError, NodeId};
use parking_lot::Mutex;

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

/// Most directories that are kept.
const RECENT_MAX: usize = 64;

/// Directories that walks came by last, as the kernel keeps those of a mount: what the file system knows of one it forgets with the
/// last lookup, and would read it anew, with all that was changed in it since it was flushed.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The last one behind the others.
    directories: Mutex<VecDeque<Arc<Held>>>,
}

impl Recent {
    /// One was come by. O(directories kept).
    pub(crate) fn keep(&self, directory: &Arc<Held>) {
        let mut kept = self.directories.lock();
        let at = kept.iter().rposition(|one| one.node() == directory.node());
        let known = at.and_then(|at| kept.remove(at));
        kept.push_back(known.unwrap_or_else(|| Arc::clone(directory)));
        let given_up = if kept.len() > RECENT_MAX { kept.pop_front() } else { None };
        // What is given up may be reaped, which takes long.
        drop(kept);
        drop(given_up);
    }

    /// One was removed.
    pub(crate) fn lose(&self, node: NodeId) {
        let mut kept = self.directories.lock();
        let at = kept.iter().position(|one| one.node() == node);
        let lost = at.and_then(|at| kept.remove(at));
        drop(kept);
        drop(lost);
    }

    /// Gives up all.
    pub(crate) fn clear(&self) {
        let kept = std::mem::take(&mut *self.directories.lock());
        drop(kept);
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
