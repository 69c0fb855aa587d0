//! Free zones, of which it is known how many lie in a range without a look at each: the room of a tier is
//! asked for at each part that may move, and a large device has millions of them.
//!
//! Thread safety: plain data. Invariant: each group's count is that of the zones of it that are here.

use std::collections::BTreeSet;
use std::ops::Range;

/// Zones of a group that are counted together.
const GROUP_LEN: u32 = 1 << 12;

/// See the module.
#[derive(Default)]
pub(super) struct FreeZones {
    zones: BTreeSet<u32>,
    counts: Vec<u32>,
}

impl FreeZones {
    /// Those that are in none yet come in. O(log n) each.
    pub(super) fn extend(&mut self, zones: impl IntoIterator<Item = u32>) {
        for zone in zones {
            let group = (zone / GROUP_LEN) as usize;
            if self.counts.len() <= group {
                self.counts.resize(group + 1, 0);
            }
            self.counts[group] += u32::from(self.zones.insert(zone));
        }
    }

    pub(super) fn insert(&mut self, zone: u32) {
        self.extend([zone]);
    }

    pub(super) fn remove(&mut self, zone: u32) {
        if self.zones.remove(&zone) {
            self.counts[(zone / GROUP_LEN) as usize] -= 1;
        }
    }

    /// None of the range stays. O(those in it).
    pub(super) fn remove_all(&mut self, range: Range<u32>) {
        let gone: Vec<u32> = self.range(range).collect();
        for zone in gone {
            self.remove(zone);
        }
    }

    /// Those in the range, in order.
    pub(super) fn range(&self, range: Range<u32>) -> impl Iterator<Item = u32> {
        self.zones.range(range).copied()
    }

    /// How many are in the range. O(groups of it, zones of two groups).
    pub(super) fn count(&self, range: Range<u32>) -> usize {
        let whole = range.start.div_ceil(GROUP_LEN)..range.end / GROUP_LEN;
        if whole.is_empty() {
            return self.range(range).count();
        }
        let groups = self.counts.iter().take(whole.end as usize).skip(whole.start as usize);
        let before = self.range(range.start..whole.start * GROUP_LEN).count();
        let behind = self.range(whole.end * GROUP_LEN..range.end).count();
        before + groups.map(|&count| count as usize).sum::<usize>() + behind
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.zones.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_zones_of_a_range_are_counted_as_a_look_at_each_would() {
        let (mut free, end) = (FreeZones::default(), 5 * GROUP_LEN + 7);
        free.extend(0..end);
        free.extend(10..20);
        let mut number = 1_u32;
        for _ in 0..10_000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match number >> 30 {
                0 => free.insert(number % end),
                1 if number.is_multiple_of(97) => free.remove_all(number % end..number % end + 50),
                _ => free.remove(number % end),
            }
        }
        let points =
            [0, 1, 20, GROUP_LEN - 1, GROUP_LEN, GROUP_LEN + 1, 3 * GROUP_LEN, end - 1, end, u32::MAX];
        for (at, &start) in points.iter().enumerate() {
            for &end in &points[at..] {
                assert_eq!(free.count(start..end), free.range(start..end).count(), "{start}..{end}");
            }
        }
        assert_eq!(free.len(), free.count(0..end));
    }
}
