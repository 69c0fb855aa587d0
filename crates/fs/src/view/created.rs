//! Inode numbers that a transaction gave out: no other party can know what they name.
//!
//! Thread safety: one short lock. Invariant: ranges are disjoint and never shrink.

use std::collections::BTreeMap;
use std::ops::Range;

use kvfs_locks::{RwLock, class};

/// Ranges of inode numbers, joined where they touch: inode groups are handed out nearly in order, so a
/// transaction that makes a million files needs a handful of them.
#[derive(Debug, Default)]
pub(crate) struct Created(RwLock<BTreeMap<u64, u64>, class::FsViewCreated>);

impl Created {
    /// Adds the numbers `group`.
    pub(crate) fn insert(&self, group: &Range<u64>) {
        let mut ranges = self.0.write();
        let mut joined = group.clone();
        if let Some((&start, &end)) = ranges.range(..=group.start).next_back()
            && end >= group.start
        {
            ranges.remove(&start);
            joined = start..end.max(joined.end);
        }
        if let Some(end) = ranges.remove(&joined.end) {
            joined.end = end;
        }
        ranges.insert(joined.start, joined.end);
    }

    /// Whether the transaction gave out this number.
    pub(crate) fn contains(&self, inode: u64) -> bool {
        self.0.read().range(..=inode).next_back().is_some_and(|(_, &end)| inode < end)
    }
}

#[cfg(test)]
mod tests {
    use super::Created;

    #[test]
    fn neighbours_join_and_gaps_stay() {
        let created = Created::default();
        for group in [64..96, 0..32, 32..64, 128..160] {
            created.insert(&group);
        }
        assert_eq!(created.0.read().iter().map(|(&a, &b)| (a, b)).collect::<Vec<_>>(), [(0, 96), (128, 160)]);
        assert!(created.contains(0) && created.contains(95) && created.contains(128));
        assert!(!created.contains(96) && !created.contains(127) && !created.contains(160));
    }
}
