//! Inode numbers that a transaction gave out: no other party can know what they name.
//!
//! Thread safety: one short lock. Invariant: they only become more.

use std::ops::Range;

use kvfs_locks::{RwLock, class};

use crate::inode_ranges::InodeRanges;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Created(RwLock<InodeRanges, class::FsViewCreated>);

impl Created {
    /// Adds the numbers `group`.
    pub(crate) fn insert(&self, group: &Range<u64>) {
        self.0.write().insert(group);
    }

    /// Whether the transaction gave out this number.
    pub(crate) fn contains(&self, inode: u64) -> bool {
        self.0.read().contains(inode)
    }
}
