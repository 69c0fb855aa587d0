//! What was changed of a file since its memory was last brought up to date.
//!
//! Thread safety: one leaf lock.

use std::ops::Range;

use kvfs_fs::{ByteRanges, ContentWatcher};
use kvfs_locks::{Mutex, class};

/// Changes of a file.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Bytes that operations have changed.
    pub(super) bytes: ByteRanges,
    /// A commit of which it is not known has changed others, too.
    pub(super) are_unknown: bool,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.are_unknown
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Stale(Mutex<Changes, class::ServeImagesStale>);

impl Stale {
    /// Everything: the caller brings the memory up to date.
    pub(super) fn take(&self) -> Changes {
        std::mem::take(&mut self.0.lock())
    }

    /// The memory is not up to date with these.
    pub(super) fn give_back(&self, changes: &Changes) {
        let mut now = self.0.lock();
        now.bytes.add_all(&changes.bytes);
        now.are_unknown |= changes.are_unknown;
    }

    /// Which of these bytes the memory may have as they were before: ascending, and none touches the next.
    pub(super) fn among(&self, bytes: &Range<u64>) -> Vec<Range<u64>> {
        let now = self.0.lock();
        if now.are_unknown { vec![bytes.clone()] } else { now.bytes.among(bytes) }
    }
}

impl ContentWatcher for Stale {
    fn bytes_changed(&self, bytes: Range<u64>) {
        self.0.lock().bytes.add(bytes);
    }

    fn file_changed(&self) {
        self.0.lock().are_unknown = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_taken_once_and_those_that_are_unknown_may_be_of_any_byte() {
        let stale = Stale::default();
        stale.bytes_changed(0..10);
        stale.bytes_changed(20..30);
        assert_eq!(stale.among(&(5..25)), [0..10, 20..30]);
        assert!(stale.among(&(10..20)).is_empty());
        let taken = stale.take();
        assert!(stale.take().is_empty());
        stale.file_changed();
        stale.give_back(&taken);
        assert_eq!(stale.among(&(10..20)), std::slice::from_ref(&(10..20)));
        let again = stale.take();
        assert!(again.are_unknown && again.bytes == taken.bytes);
    }
}
