//! References on their way to the engine: a receiver has all of them cloned together, as far as it can.
//!
//! Thread safety: plain values. Invariant: no reference is to blocks that another one is to bring: what is
//! said of those is said of where they come from.

use std::collections::HashMap;

use super::references::{BlockReference, REFERENCES_MAX};

/// See the module.
#[derive(Default)]
pub(super) struct PendingReferences {
    /// In the order of their files and blocks.
    all: Vec<BlockReference>,
    /// Where those of each file begin.
    begins: HashMap<u64, usize>,
}

impl PendingReferences {
    /// Adds one, which comes behind all others. False: it is not added, since its source gets a part of these
    /// blocks from here, and has others; the ones before have to be cloned first.
    pub(super) fn add(&mut self, reference: BlockReference) -> bool {
        let Some(&begin) = self.begins.get(&reference.source) else {
            self.push(reference);
            return true;
        };
        let BlockReference { inode, first, source, source_first, count } = reference;
        let end = source_first + count;
        let mut next = source_first;
        let mut parts: Vec<BlockReference> = Vec::new();
        let is_before =
            |other: &BlockReference| other.inode == source && other.first + other.count <= source_first;
        let from = begin + self.all[begin..].partition_point(is_before);
        let of_source = self.all[from..].iter().take_while(|other| other.inode == source);
        for other in of_source.take_while(|other| other.first < end) {
            if other.first > next {
                return false;
            }
            let upto = end.min(other.first + other.count);
            let part = BlockReference {
                inode,
                first: first + (next - source_first),
                source: other.source,
                source_first: other.source_first + (next - other.first),
                count: upto - next,
            };
            match parts.last_mut().filter(|last| last.is_joined_by(&part)) {
                Some(last) => last.count += part.count,
                None => parts.push(part),
            }
            next = upto;
        }
        if next < end {
            return false;
        }
        for part in parts {
            self.push(part);
        }
        true
    }

    /// Whether that file gets any blocks by these.
    pub(super) fn brings(&self, inode: u64) -> bool {
        self.begins.contains_key(&inode)
    }

    fn push(&mut self, reference: BlockReference) {
        self.begins.entry(reference.inode).or_insert(self.all.len());
        self.all.push(reference);
    }

    /// Whether they are to be cloned before another one is added.
    pub(super) fn is_full(&self) -> bool {
        self.all.len() >= REFERENCES_MAX
    }

    /// All of them, of which none is left.
    pub(super) fn take(&mut self) -> Vec<BlockReference> {
        self.begins.clear();
        std::mem::take(&mut self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(inode: u64, first: u64, source: u64, source_first: u64, count: u64) -> BlockReference {
        BlockReference { inode, first, source, source_first, count }
    }

    #[test]
    fn chains_of_references_come_from_where_the_first_one_does() {
        let mut pending = PendingReferences::default();
        for inode in 10..1000 {
            assert!(pending.add(reference(inode, 5, inode - 1, 5, 100)));
        }
        assert!(pending.add(reference(1000, 30, 999, 10, 20)), "a part, moved");
        let all = pending.take();
        assert_eq!(all.len(), 991);
        assert!(all[..990].iter().all(|one| (one.source, one.source_first, one.count) == (9, 5, 100)));
        assert_eq!(all[990], reference(1000, 30, 9, 10, 20));
        assert!(pending.take().is_empty());
    }

    #[test]
    fn what_a_source_has_in_part_waits_for_it() {
        let mut pending = PendingReferences::default();
        assert!(pending.add(reference(10, 0, 9, 100, 4)));
        assert!(pending.add(reference(10, 4, 9, 104, 4)));
        assert!(pending.add(reference(10, 20, 9, 120, 4)));
        assert!(pending.add(reference(11, 1, 10, 1, 7)), "neighbours as one");
        assert_eq!(pending.all.last(), Some(&reference(11, 1, 9, 101, 7)));
        for (first, count) in [(6, 4), (8, 4), (8, 30), (18, 4), (22, 4), (24, 1)] {
            assert!(!pending.add(reference(12, 0, 10, first, count)), "{first}, {count}");
        }
        assert_eq!(pending.all.len(), 4);
    }
}
