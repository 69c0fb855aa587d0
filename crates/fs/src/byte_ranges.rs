//! Which bytes of a file were changed.
//!
//! Thread safety: plain data. Invariant: ranges are ascending, and none touches the next one.

use std::ops::Range;

/// As many ranges are told apart.
const RANGES_MAX: usize = 64;

/// Bytes of a file; of too many ranges the nearest are one.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ByteRanges(Vec<Range<u64>>);

impl ByteRanges {
    /// Adds these bytes.
    pub fn add(&mut self, mut added: Range<u64>) {
        self.0.retain(|range| {
            let touches = range.start <= added.end && added.start <= range.end;
            if touches {
                added = range.start.min(added.start)..range.end.max(added.end);
            }
            !touches
        });
        let place = self.0.partition_point(|range| range.start < added.start);
        self.0.insert(place, added);
        let gap_before = |index: &usize| self.0[*index].start - self.0[index - 1].end;
        if self.0.len() > RANGES_MAX
            && let Some(index) = (1..self.0.len()).min_by_key(gap_before)
        {
            let range = self.0.remove(index);
            self.0[index - 1].end = range.end;
        }
    }

    /// Adds all of `other`.
    pub fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|range| self.add(range.clone()));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Those of the ranges that meet `bytes`.
    pub fn among(&self, bytes: &Range<u64>) -> Vec<Range<u64>> {
        let meets = |range: &&Range<u64>| range.start < bytes.end && bytes.start < range.end;
        self.0.iter().filter(meets).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one_and_of_too_many_the_nearest_are() {
        let mut all = ByteRanges::default();
        for range in [10..20, 30..40, 20..25, 26..27, 24..31] {
            all.add(range);
        }
        assert_eq!(all.0, std::slice::from_ref(&(10..40)));
        (0..RANGES_MAX as u64 - 2).for_each(|n| all.add(1000 * n + 100..1000 * n + 200));
        all.add(50..60);
        assert_eq!((all.0.len(), &all.0[..2]), (RANGES_MAX, &[10..40, 50..60][..]));
        all.add(u64::MAX - 1..u64::MAX);
        assert_eq!((all.0.len(), &all.0[..2]), (RANGES_MAX, &[10..60, 100..200][..]));
        assert_eq!(all.among(&(59..100)), std::slice::from_ref(&(10..60)));
        assert!(all.among(&(60..100)).is_empty());
    }
}
