//! Whether the content of small files is kept with their nodes.
//!
//! Purpose: a row that a lookup or a listing reads has the content of a small file, and is kept for the read
//! that follows. Programs that go by names alone, as `find`, `du` and `rm -r` do, read none: copies for them
//! cost more than all else of a listing. So none is kept once many were and no content was read; the first
//! read, which takes its row from the block cache then, begins anew.
//!
//! Thread safety: any thread, no lock. Invariant: what is kept never changes an answer.

use std::sync::atomic::{AtomicU32, Ordering};

/// So many contents are kept since the last time that one was read: as many as the files of a listing that a
/// scan remembers.
const UNREAD_MAX: u32 = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct KeptContents {
    /// Of all nodes together.
    pub(super) bytes_max: u64,
    /// Contents that were kept since one was read.
    unread: AtomicU32,
}

impl KeptContents {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, unread: AtomicU32::new(0) }
    }

    /// Whether content of this length is to be kept. Then it counts.
    pub(super) fn admits(&self, len: usize) -> bool {
        len > 0
            && len as u64 <= self.bytes_max
            && self.unread.load(Ordering::Relaxed) < UNREAD_MAX
            && self.unread.fetch_add(1, Ordering::Relaxed) < UNREAD_MAX
    }

    /// Content is read, be it kept or not.
    pub(super) fn note_read(&self) {
        if self.unread.load(Ordering::Relaxed) > 0 {
            self.unread.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeptContents, UNREAD_MAX};

    #[test]
    fn nothing_is_kept_for_programs_that_read_nothing() {
        let kept = KeptContents::new(100);
        assert!(!kept.admits(0) && !kept.admits(101));
        let admitted = |count: u32| (0..count).filter(|_| kept.admits(100)).count() as u32;
        assert_eq!(admitted(2 * UNREAD_MAX), UNREAD_MAX);
        kept.note_read();
        assert_eq!(admitted(UNREAD_MAX - 1), UNREAD_MAX - 1, "a program reads");
        kept.note_read();
        assert_eq!(admitted(2 * UNREAD_MAX), UNREAD_MAX);
    }
}
