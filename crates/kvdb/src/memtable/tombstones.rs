//! Range tombstones, cut into fragments that do not overlap.
//!
//! Each fragment knows the seqnos of all tombstones over it. Neighbouring fragments differ by few
//! seqnos, so they share their sets: a set is the root of a persistent search tree ([`SeqnoTree`]).
//! So n tombstones take O(n log n) memory and time however they nest, and a question takes O(log n).
//!
//! Thread safety: immutable after construction.
//! Invariants: fragments are sorted, not empty, do not overlap; touching ones differ in their sets.

mod seqno_tree;

use std::collections::BTreeMap;

use bytes::Bytes;
use kvfs_store::Seqno;

use self::seqno_tree::{EMPTY, Root, SeqnoTree};

/// Hides every record with a key in `[start, end)` and a smaller seqno.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeTombstone {
    /// Inclusive.
    pub start: Bytes,
    /// Exclusive.
    pub end: Bytes,
    /// Commit number.
    pub seqno: Seqno,
}

impl RangeTombstone {
    /// Whether `key` lies in `[start, end)`.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.start[..] <= *key && *key < self.end[..]
    }
}

#[derive(Debug)]
struct Cut {
    start: Bytes,
    end: Bytes,
    root: Root,
}

/// An immutable set of range tombstones that answers "which is the newest over this key".
#[derive(Debug, Default)]
pub struct TombstoneSet {
    /// Sorted by (start, seqno descending), without duplicates and empty ranges.
    list: Vec<RangeTombstone>,
    cuts: Vec<Cut>,
    seqnos: SeqnoTree,
}

/// A stretch of keys over which the same range tombstones lie.
#[derive(Debug, Clone, Copy)]
pub struct Fragment<'a> {
    /// Inclusive.
    pub start: &'a Bytes,
    /// Exclusive.
    pub end: &'a Bytes,
    root: Root,
    seqnos: &'a SeqnoTree,
}

impl<'a> Fragment<'a> {
    /// The newest covering seqno at or below `snapshot`. O(log n).
    pub fn newest_at(&self, snapshot: Seqno) -> Option<Seqno> {
        self.seqnos.newest_at(self.root, snapshot)
    }

    /// The covering seqnos, newest first; at least one.
    pub fn seqnos(&self) -> impl Iterator<Item = Seqno> + use<'a> {
        self.seqnos.iter(self.root)
    }
}

impl TombstoneSet {
    /// Builds the set from tombstones in any order; empty ranges are dropped. O(n log n).
    pub fn new(tombstones: impl IntoIterator<Item = RangeTombstone>) -> Self {
        let mut list: Vec<_> =
            tombstones.into_iter().filter(|tombstone| tombstone.start < tombstone.end).collect();
        // Concatenated sorted lists are the common input, and cheap for the stable sort.
        list.sort_by(|a, b| (&a.start, b.seqno, &a.end).cmp(&(&b.start, a.seqno, &b.end)));
        list.dedup();
        let (cuts, seqnos) = fragment(&list);
        Self { list, cuts, seqnos }
    }

    /// All tombstones of several sets.
    pub fn union<'a>(sets: impl IntoIterator<Item = &'a Self>) -> Self {
        Self::new(sets.into_iter().flat_map(|set| set.list.iter().cloned()))
    }

    /// Whether there is no tombstone.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of tombstones (not fragments).
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The tombstones, ordered by (start, seqno descending, end): the form that is stored.
    pub fn list(&self) -> &[RangeTombstone] {
        &self.list
    }

    /// Smallest and greatest seqno.
    pub fn seqno_range(&self) -> Option<(Seqno, Seqno)> {
        let seqnos = || self.list.iter().map(|tombstone| tombstone.seqno);
        Some((seqnos().min()?, seqnos().max()?))
    }

    /// The smallest start and the greatest end.
    pub fn bounds(&self) -> Option<(&Bytes, &Bytes)> {
        Some((&self.cuts.first()?.start, &self.cuts.last()?.end))
    }

    /// Memory that the set takes, keys counted once (bytes).
    pub fn bytes(&self) -> usize {
        let keys: usize = self.list.iter().map(|t| t.start.len() + t.end.len()).sum();
        keys + self.list.len() * size_of::<RangeTombstone>()
            + self.cuts.len() * size_of::<Cut>()
            + self.seqnos.bytes()
    }

    /// The newest seqno at or below `snapshot` of a tombstone over `key`. O(log n).
    pub fn covering(&self, key: &[u8], snapshot: Seqno) -> Option<Seqno> {
        self.fragment_at(key)?.newest_at(snapshot)
    }

    /// The fragment that `key` lies in. O(log n).
    pub fn fragment_at(&self, key: &[u8]) -> Option<Fragment<'_>> {
        let cut = self.cuts.get(self.first_ending_after(key))?;
        (cut.start[..] <= *key).then(|| self.view(cut))
    }

    /// The fragment at an index of [`TombstoneSet::fragments`].
    pub fn fragment(&self, at: usize) -> Option<Fragment<'_>> {
        self.cuts.get(at).map(|cut| self.view(cut))
    }

    /// All fragments, ascending.
    pub fn fragments(&self) -> impl DoubleEndedIterator<Item = Fragment<'_>> + ExactSizeIterator {
        self.cuts.iter().map(|cut| self.view(cut))
    }

    /// The fragments that end after `key`, ascending: the first one may contain `key`.
    pub fn fragments_from(
        &self,
        key: &[u8],
    ) -> impl DoubleEndedIterator<Item = Fragment<'_>> + ExactSizeIterator {
        self.cuts[self.first_ending_after(key)..].iter().map(|cut| self.view(cut))
    }

    /// The fragments that start before `key`, ascending; the last one may contain keys from `key` on.
    pub fn fragments_before(
        &self,
        key: &[u8],
    ) -> impl DoubleEndedIterator<Item = Fragment<'_>> + ExactSizeIterator {
        let count = self.cuts.partition_point(|cut| cut.start[..] < *key);
        self.cuts[..count].iter().map(|cut| self.view(cut))
    }

    /// Whether any tombstone meets `[start, end)`; `end = None` is unbounded. O(log n).
    pub fn overlaps(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        self.cuts
            .get(self.first_ending_after(start))
            .is_some_and(|cut| end.is_none_or(|end| cut.start[..] < *end))
    }

    /// The part of the set inside `[start, end)`; `end = None` is unbounded. O(n log n).
    #[must_use]
    pub fn clip(&self, start: &[u8], end: Option<&[u8]>) -> Self {
        Self::new(self.list.iter().map(|tombstone| RangeTombstone {
            start: if tombstone.start[..] < *start {
                Bytes::copy_from_slice(start)
            } else {
                tombstone.start.clone()
            },
            end: match end {
                Some(end) if tombstone.end[..] > *end => Bytes::copy_from_slice(end),
                _ => tombstone.end.clone(),
            },
            seqno: tombstone.seqno,
        }))
    }

    /// Index of the first fragment that ends after `key`; their number when there is none. O(log n).
    pub fn first_ending_after(&self, key: &[u8]) -> usize {
        self.cuts.partition_point(|cut| cut.end[..] <= *key)
    }

    fn view<'a>(&'a self, cut: &'a Cut) -> Fragment<'a> {
        Fragment { start: &cut.start, end: &cut.end, root: cut.root, seqnos: &self.seqnos }
    }
}

/// Sweeps over starts and ends. `list` is sorted by start.
fn fragment(list: &[RangeTombstone]) -> (Vec<Cut>, SeqnoTree) {
    let mut ends: Vec<(&Bytes, Seqno)> = list.iter().map(|t| (&t.end, t.seqno)).collect();
    ends.sort_unstable();
    let mut cuts: Vec<Cut> = Vec::with_capacity(list.len());
    let mut tree = SeqnoTree::default();
    // Pieces of one tombstone carry the same seqno and may touch or overlap, hence the counts.
    let mut active: BTreeMap<Seqno, usize> = BTreeMap::new();
    let mut root = EMPTY;
    let (mut starts, mut ends) = (list.iter().peekable(), ends.into_iter().peekable());
    let mut at: Option<&Bytes> = None;
    while let Some(&(end, _)) = ends.peek() {
        let point = starts.peek().map_or(end, |next| end.min(&next.start));
        if let Some(from) = at.filter(|_| root != EMPTY) {
            push_cut(&mut cuts, from, point, root);
        }
        // Starts first: a seqno that ends and starts again here never leaves the set.
        while let Some(next) = starts.next_if(|next| next.start == *point) {
            let count = active.entry(next.seqno).or_insert(0);
            *count += 1;
            if *count == 1 {
                root = tree.insert(root, next.seqno);
            }
        }
        while let Some((_, seqno)) = ends.next_if(|(end, _)| *end == point) {
            if let Some(count) = active.get_mut(&seqno) {
                *count -= 1;
                if *count == 0 {
                    active.remove(&seqno);
                    root = tree.remove(root, seqno);
                }
            }
        }
        at = Some(point);
    }
    (cuts, tree)
}

fn push_cut(cuts: &mut Vec<Cut>, start: &Bytes, end: &Bytes, root: Root) {
    match cuts.last_mut() {
        Some(last) if last.end == *start && last.root == root => last.end = end.clone(),
        _ => cuts.push(Cut { start: start.clone(), end: end.clone(), root }),
    }
}

#[cfg(test)]
mod tests;
