//! The positions that are read in this process, so that nothing goes that a reader may still find a reference
//! to.
//!
//! Thread safety: shared; one lock, held for moments. Invariant: a position is known from before its reader
//! takes its snapshot, and is at most the one that the snapshot has.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};

/// See the module.
#[derive(Default)]
pub(crate) struct Positions {
    /// Readers by sequence number.
    readers: Mutex<BTreeMap<u64, usize>, class::EngineSlatedbSegmentsPositions>,
}

/// A position that is read.
pub(crate) struct Held {
    of: Arc<Positions>,
    sequence: u64,
}

impl Positions {
    /// Holds the position that `newest` tells while no one asks for the oldest.
    pub(crate) fn hold(self: &Arc<Self>, newest: impl FnOnce() -> u64) -> Held {
        let mut readers = self.readers.lock();
        let sequence = newest();
        *readers.entry(sequence).or_default() += 1;
        Held { of: Arc::clone(self), sequence }
    }

    /// No reader is older; `u64::MAX`: there is none.
    pub(crate) fn oldest(&self) -> u64 {
        self.readers.lock().first_key_value().map_or(u64::MAX, |(oldest, _)| *oldest)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut readers = self.of.readers.lock();
        if let Some(count) = readers.get_mut(&self.sequence) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_position_counts_until_its_last_reader_goes() {
        let positions = Arc::new(Positions::default());
        assert_eq!(positions.oldest(), u64::MAX);
        let (first, same, later) = (positions.hold(|| 5), positions.hold(|| 5), positions.hold(|| 9));
        assert_eq!(positions.oldest(), 5);
        drop(first);
        assert_eq!(positions.oldest(), 5);
        drop(same);
        assert_eq!(positions.oldest(), 9);
        drop(later);
        assert_eq!(positions.oldest(), u64::MAX);
    }
}
