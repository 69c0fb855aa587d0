//! The positions that are read in this process, so that nothing goes that a reader may still find a reference
//! to.
//!
//! Thread safety: shared; one lock, held for moments. Invariants: a position is known from before its reader
//! takes its snapshot; that of the newest state is at most the one that the snapshot has, that of a named
//! snapshot is its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};

/// See the module.
#[derive(Default)]
pub(crate) struct Positions {
    readers: Mutex<Readers, class::EngineSlatedbSegmentsPositions>,
}

/// Numbers of readers by sequence number.
#[derive(Clone, Default)]
pub(crate) struct Readers {
    /// Each reads this state or a later one.
    from: BTreeMap<u64, usize>,
    /// Each reads this state.
    at: BTreeMap<u64, usize>,
}

/// What is read, by one reader.
#[derive(Clone, Copy)]
enum Position {
    From(u64),
    At(u64),
}

/// A position that is read.
pub(crate) struct Held {
    of: Arc<Positions>,
    position: Position,
}

impl Readers {
    /// Whether one may find what came at the first sequence number and was deleted at the other one.
    pub(crate) fn need(&self, lived: Range<u64>) -> bool {
        let is_before = self.from.first_key_value().is_some_and(|(oldest, _)| *oldest < lived.end);
        is_before || self.at.keys().any(|sequence| lived.contains(sequence))
    }

    fn of(&mut self, position: Position) -> (&mut BTreeMap<u64, usize>, u64) {
        match position {
            Position::From(sequence) => (&mut self.from, sequence),
            Position::At(sequence) => (&mut self.at, sequence),
        }
    }
}

impl Positions {
    /// Holds the position that `newest` tells, and what comes behind it, while no one asks who reads.
    pub(crate) fn hold_from(self: &Arc<Self>, newest: impl FnOnce() -> u64) -> Held {
        let mut readers = self.readers.lock();
        let sequence = newest();
        self.hold(&mut readers, Position::From(sequence))
    }

    /// Holds one position alone.
    pub(crate) fn hold_at(self: &Arc<Self>, sequence: u64) -> Held {
        self.hold(&mut self.readers.lock(), Position::At(sequence))
    }

    /// All that read.
    pub(crate) fn readers(&self) -> Readers {
        self.readers.lock().clone()
    }

    fn hold(self: &Arc<Self>, readers: &mut Readers, position: Position) -> Held {
        let (counts, sequence) = readers.of(position);
        *counts.entry(sequence).or_default() += 1;
        Held { of: Arc::clone(self), position }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut readers = self.of.readers.lock();
        let (counts, sequence) = readers.of(self.position);
        if let Some(count) = counts.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_may_find_is_needed_until_its_last_reader_goes() {
        let positions = Arc::new(Positions::default());
        let need = |lived| positions.readers().need(lived);
        let (first, same, later) =
            (positions.hold_from(|| 5), positions.hold_from(|| 5), positions.hold_from(|| 9));
        assert!(!need(1..5) && need(1..6) && need(7..8));
        drop(first);
        assert!(need(1..6));
        drop(same);
        assert!(!need(1..9) && need(1..10));
        drop(later);
        assert!(!need(0..u64::MAX));
    }

    #[test]
    fn named_snapshot_that_is_read_needs_what_was_there_then_alone() {
        let positions = Arc::new(Positions::default());
        let need = |lived| positions.readers().need(lived);
        let held = [positions.hold_at(5), positions.hold_at(5)];
        assert!(need(5..6) && need(1..9) && !need(1..5) && !need(6..9));
        drop(held);
        assert!(!need(1..9));
    }
}
