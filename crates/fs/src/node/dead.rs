//! Orphans that have no node in the table, to be reaped.
//!
//! Thread safety: one short lock. Invariant: none is there twice, or with a node in the table.

use std::sync::atomic::{AtomicUsize, Ordering};

use kvfs_locks::{Mutex, class};

use crate::inode_ranges::InodeRanges;
use crate::schema::Header;

/// Such orphans: the more of a kind there may be, the less is kept of each.
#[derive(Debug, Default)]
pub(crate) struct Dead {
    /// Those whose node has left the table.
    pub(crate) orphans: Vec<Header>,
    /// Those that never had one. Their rows say what they are.
    pub(crate) unread: InodeRanges,
}

impl Dead {
    fn len(&self) -> usize {
        self.orphans.len() + self.unread.len() as usize
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DeadQueue {
    all: Mutex<Dead, class::FsNodeDeadAll>,
    /// Their number, to be looked at without the lock.
    len: AtomicUsize,
}

impl DeadQueue {
    /// Puts them (back) into the queue.
    pub(crate) fn push(&self, more: &Dead) {
        let mut all = self.all.lock();
        all.orphans.extend(&more.orphans);
        all.unread.extend(&more.unread);
        self.len.store(all.len(), Ordering::Release);
    }

    /// Takes out `count_max` at most.
    pub(crate) fn take(&self, count_max: usize) -> Dead {
        let mut all = self.all.lock();
        let mut taken = Dead::default();
        let keep = all.orphans.len().saturating_sub(count_max);
        taken.orphans = all.orphans.split_off(keep);
        while let Some(range) = all.unread.take_first((count_max - taken.len()) as u64) {
            taken.unread.insert(&range);
        }
        self.len.store(all.len(), Ordering::Release);
        taken
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }
}
