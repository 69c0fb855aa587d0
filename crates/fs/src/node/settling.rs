//! Which nodes are behind the store, while a commit is brought in.
//!
//! Purpose: a read of content takes a file's attributes from its node and the rest from the store, so both
//! must be from the same side of every commit. A commit appears in the store at once; bringing the nodes up
//! to date takes as long as what it has changed is long. Meanwhile only those wait who read a node that may
//! be behind: one that the commit touches, or one that came into the table after the look for those.
//!
//! Thread safety: any number of threads. Invariants: a reader holds [`Settling::read`] for one read; while it
//! does, no commit appears, and its node is not behind. Commits are brought in one after the other.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_locks::{Condvar, Mutex, MutexGuard, RwLockWriteGuard, class};

use super::Pin;
use super::table::InodeHasher;
use crate::fair_lock::{FairLock, ReadGuard};

/// The known nodes that a commit is about to change.
#[derive(Debug)]
pub(crate) struct Touched {
    inodes: HashSet<u64, BuildHasherDefault<InodeHasher>>,
    /// What came into the table at this epoch or later was not looked for.
    since: u64,
}

impl Touched {
    /// None yet, of those that are in the table before `since`.
    pub(super) fn new(since: u64) -> Self {
        Self { inodes: HashSet::default(), since }
    }

    /// The commit changes this one.
    pub(crate) fn insert(&mut self, inode: u64) {
        self.inodes.insert(inode);
    }

    fn may_change(&self, node: &Pin<'_>) -> bool {
        !node.is_older_than(self.since) || self.inodes.contains(&node.inode)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Settling {
    /// Held exclusively while a commit appears.
    appearing: FairLock<(), class::FsNodeSettlingAppearing>,
    /// What the commit touches that is being brought in.
    behind: Mutex<Option<Touched>, class::FsNodeSettlingBehind>,
    /// Whether there is one, to be looked at without the lock.
    is_behind: AtomicBool,
    caught_up: Condvar,
    bringing_in: Mutex<(), class::FsNodeSettlingBringingIn>,
}

/// A commit that has appeared is being brought in: when this is dropped, it was.
#[must_use = "readers wait until it is dropped"]
pub(crate) struct Behind<'s> {
    settling: &'s Settling,
    _alone: MutexGuard<'s, (), class::FsNodeSettlingBringingIn>,
}

impl Settling {
    pub(super) fn new() -> Self {
        Self {
            appearing: FairLock::new(()),
            behind: Mutex::default(),
            is_behind: AtomicBool::new(false),
            caught_up: Condvar::new(),
            bringing_in: Mutex::new(()),
        }
    }

    /// While this is held, what `node` says and what the store holds of it is from the same side of every
    /// commit. Nested calls are fine. A commit waits for those that hold it.
    pub(super) fn read(&self, node: &Pin<'_>) -> ReadGuard<'_, (), class::FsNodeSettlingAppearing> {
        loop {
            let guard = self.appearing.read();
            if !self.is_behind.load(Ordering::Acquire) {
                return guard;
            }
            let is_concerned = |behind: &mut Option<Touched>| {
                behind.as_ref().is_some_and(|touched| touched.may_change(node))
            };
            let mut behind = self.behind.lock();
            if !is_concerned(&mut behind) {
                return guard;
            }
            drop(guard);
            self.caught_up.wait_while(&mut behind, is_concerned);
        }
    }

    /// What appears in the store while this is held needs no bringing in. Waits for reads that are under way.
    #[track_caller]
    pub(super) fn appear(&self) -> RwLockWriteGuard<'_, (), class::FsNodeSettlingAppearing> {
        self.appearing.write()
    }

    /// Makes a commit appear that changes what is `touched`. Waits until the last one was brought in, and for
    /// reads that are under way.
    pub(super) fn appear_behind<T, E>(
        &self,
        touched: Touched,
        commit: impl FnOnce() -> Result<T, E>,
    ) -> Result<(T, Behind<'_>), E> {
        let alone = self.bringing_in.lock();
        let _appearing = self.appearing.write();
        let committed = commit()?;
        *self.behind.lock() = Some(touched);
        self.is_behind.store(true, Ordering::Release);
        Ok((committed, Behind { settling: self, _alone: alone }))
    }
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        // Not under the lock of what appears: a reader that waits may hold that, for another node.
        let touched = self.settling.behind.lock().take();
        self.settling.is_behind.store(false, Ordering::Release);
        self.settling.caught_up.notify_all();
        drop(touched);
    }
}
