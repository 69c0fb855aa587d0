//! Sets of inode numbers that come in order, nearly.
//!
//! Thread safety: plain data. Invariant: ranges are disjoint and do not touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// Inode numbers as ranges, joined where they touch: numbers are handed out nearly in order, so those of a
/// million files are a handful of ranges.
#[derive(Debug, Default)]
pub(crate) struct InodeRanges {
    ranges: BTreeMap<u64, u64>,
    len: u64,
}

impl InodeRanges {
    /// Adds the numbers `added`.
    pub(crate) fn insert(&mut self, added: &Range<u64>) {
        let mut joined = added.clone();
        while let Some((&start, &end)) = self.ranges.range(..=joined.end).next_back()
            && end >= joined.start
        {
            self.ranges.remove(&start);
            self.len -= end - start;
            joined = start.min(joined.start)..end.max(joined.end);
        }
        self.len += joined.end - joined.start;
        self.ranges.insert(joined.start, joined.end);
    }

    /// Whether the number is there.
    pub(crate) fn contains(&self, inode: u64) -> bool {
        self.ranges.range(..=inode).next_back().is_some_and(|(_, &end)| inode < end)
    }

    /// The ranges, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// How many numbers there are.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Takes out the first range, no more than `len_max` numbers of it.
    pub(crate) fn take_first(&mut self, len_max: u64) -> Option<Range<u64>> {
        let (start, end) = if len_max == 0 { None } else { self.ranges.pop_first() }?;
        let taken = start..end.min(start.saturating_add(len_max));
        if taken.end < end {
            self.ranges.insert(taken.end, end);
        }
        self.len -= taken.end - taken.start;
        Some(taken)
    }

    /// Adds those of another set.
    pub(crate) fn extend(&mut self, other: &Self) {
        other.ranges().for_each(|range| self.insert(&range));
    }
}

#[cfg(test)]
mod tests {
    use super::InodeRanges;

    #[test]
    fn neighbours_join_and_gaps_stay() {
        let mut all = InodeRanges::default();
        for group in [64..96, 0..32, 32..64, 128..160] {
            all.insert(&group);
        }
        assert_eq!(all.ranges().collect::<Vec<_>>(), [0..96, 128..160]);
        assert!(all.contains(0) && all.contains(95) && all.contains(128));
        assert!(!all.contains(96) && !all.contains(127) && !all.contains(160));
        assert_eq!(all.len(), 128);
        all.insert(&(20..140));
        assert_eq!((all.len(), all.ranges.len()), (160, 1), "also what overlaps");
    }

    #[test]
    fn what_is_taken_out_is_gone() {
        let (mut all, mut more) = (InodeRanges::default(), InodeRanges::default());
        (10..20_u64).for_each(|inode| all.insert(&(inode..inode + 1)));
        more.insert(&(20..22));
        more.insert(&(30..31));
        all.extend(&more);
        assert_eq!(all.len(), 13);
        assert_eq!(all.take_first(8), Some(10..18));
        assert!(!all.contains(17) && all.contains(18));
        assert_eq!(
            (all.take_first(8), all.take_first(8), all.take_first(8)),
            (Some(18..22), Some(30..31), None)
        );
        assert_eq!(all.len(), 0);
    }
}
