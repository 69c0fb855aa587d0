//! What processes of a server's clients may have of what has no end inside of a program: descriptors and
//! locks.
//!
//! Thread safety: as [`Shares`].

use kvfs_socket::{Share, Shares};

/// Of one user. What is taken is given back with the processes that have it.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// To whom it is counted.
    pub uid: u32,
    /// One for each descriptor.
    pub descriptors: Shares,
    /// One for each range or whole file that is locked.
    pub locks: Shares,
}

impl Bounds {
    pub(crate) fn descriptors(&self, count: usize) -> Option<Share> {
        self.descriptors.take(self.uid, count)
    }

    /// To be grown.
    pub(crate) fn locks(&self) -> Option<Share> {
        self.locks.take(self.uid, 0)
    }
}
