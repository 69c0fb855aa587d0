//! Names that commits have changed, and of which the kernel behind the main line has yet to be told.
//!
//! Purpose: a kernel decides by the names that it knows: whose file a name leads to, whether it may be
//! removed or replaced, and which of its inodes is moved. A request that was on its way while a commit
//! appeared, or waited for it, would be carried out on what is there now. So a change of such a name is
//! refused ([`FsError::NameChanged`]), and the kernel looks the name up again: from then on it knows.
//!
//! Thread safety: any number of threads. Invariants: a name is here before an operation of the main line can
//! hold it after the commit; it goes when the kernel has been told, or has looked it up since.
//!
//! [`FsError::NameChanged`]: crate::FsError::NameChanged

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvfs_locks::{Mutex, class};

use super::Invalidations;
use crate::{FileSystem, NodeId};

/// See the module. Names are kept as hashes: one that is taken for another is looked up in vain.
#[derive(Default)]
pub(crate) struct UntoldNames {
    hasher: RandomState,
    commits: Mutex<Commits, class::FsViewUntoldCommits>,
    /// Their number, to be looked at without the lock.
    len: AtomicUsize,
}

#[derive(Default)]
struct Commits {
    untold: Vec<Commit>,
    /// Number of the next one.
    next: u64,
}

struct Commit {
    number: u64,
    names: HashSet<u64>,
}

/// What a commit has changed, and of which the kernel is being told until this is dropped.
#[must_use = "the kernel is taken to have been told when it is dropped"]
pub struct Telling {
    untold: Arc<UntoldNames>,
    number: u64,
}

/// What another front end than the kernel has changed on the main line: `changes` are untold until what is
/// returned is dropped.
pub fn begin_telling(fs: &FileSystem, changes: &Invalidations) -> Telling {
    fs.shared.untold.begin(changes)
}

impl UntoldNames {
    fn hash(&self, directory: u64, name: &[u8]) -> u64 {
        self.hasher.hash_one((directory, name))
    }

    /// From now on the names in `changes` are untold. Before the locks of the commit go.
    pub(crate) fn begin(self: &Arc<Self>, changes: &Invalidations) -> Telling {
        let names = changes.entries.iter().chain(&changes.moved);
        let names = names.map(|(directory, name)| self.hash(directory.0, name)).collect();
        let mut commits = self.commits.lock();
        let number = commits.next;
        commits.next += 1;
        commits.untold.push(Commit { number, names });
        self.len.store(commits.untold.len(), Ordering::SeqCst);
        Telling { untold: Arc::clone(self), number }
    }

    /// Whether the kernel may know of this name what was before.
    pub(crate) fn has(&self, directory: u64, name: &[u8]) -> bool {
        if self.len.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let hash = self.hash(directory, name);
        self.commits.lock().untold.iter().any(|commit| commit.names.contains(&hash))
    }

    /// Before the kernel's look for a name begins. What it finds is to be told to [`Self::end_lookup`].
    pub(crate) fn begin_lookup(&self) -> Option<u64> {
        if self.len.load(Ordering::SeqCst) == 0 {
            return None;
        }
        Some(self.commits.lock().next)
    }

    /// The kernel is answered what a name is, by a look that began before the commit `next` and those behind
    /// it.
    pub(crate) fn end_lookup(&self, next: u64, directory: NodeId, name: &[u8]) {
        let hash = self.hash(directory.0, name);
        let mut commits = self.commits.lock();
        for commit in commits.untold.iter_mut().filter(|commit| commit.number < next) {
            commit.names.remove(&hash);
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let mut commits = self.untold.commits.lock();
        commits.untold.retain(|commit| commit.number != self.number);
        self.untold.len.store(commits.untold.len(), Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Telling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telling").field("number", &self.number).finish_non_exhaustive()
    }
}
