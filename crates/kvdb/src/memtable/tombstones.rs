//! Range tombstones, cut into fragments that do not overlap.
//!
//! Each fragment knows the seqnos of all tombstones over it. Neighbouring fragments differ by few
//! seqnos, so they share their sets: a set is the root of a persistent search tree ([`SeqnoTree`]).
//! So n tombstones take O(n log n) memory and time however they nest, and a question takes O(log n).
//!
//! Thread safety: immutable after construction.
//! Invariants: fragments are sorted, not empty, do not overlap; touching ones differ in their sets.

mod key_heads;
mod seqno_tree;

use std::collections::BTreeMap;

use bytes::Bytes;
use kvfs_store::Seqno;

use self::{
    key_heads::{KeyHeads, common_len, head},
    seqno_tree::{EMPTY, Root, SeqnoTree},
};

/// Hides every record with a key in `[start, end)` and a smaller seqno.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeTombstone {
    /// Inclusive.
    pub start: Bytes,
    /// Exclusive.
    pub end: Bytes,
    /// Commit number.
    pub seqno: Seqno,
}

impl RangeTombstone {
    /// Whether `key` lies in `[start, end)`.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        self.start[..] <= *key && *key < self.end[..]
    }
}

/// A key of the list: twice the index of its tombstone, plus one for the end.
#[derive(Debug, Clone, Copy)]
struct KeyAt(u32);

#[derive(Debug, Clone)]
struct Cut {
    start: KeyAt,
    end: KeyAt,
    root: Root,
}

impl KeyAt {
    fn start(tombstone: usize) -> Self {
        Self(2 * tombstone as u32)
    }

    fn end(tombstone: usize) -> Self {
        Self(2 * tombstone as u32 + 1)
    }

    fn key(self, list: &[RangeTombstone]) -> &Bytes {
        let tombstone = &list[self.0 as usize / 2];
        if self.0.is_multiple_of(2) { &tombstone.start } else { &tombstone.end }
    }
}

/// An immutable set of range tombstones that answers "which is the newest over this key".
#[derive(Debug, Clone, Default)]
pub(crate) struct TombstoneSet {
    /// Sorted by (start, seqno descending), without duplicates and empty ranges.
    list: Vec<RangeTombstone>,
    /// For each of them the one that reaches furthest of it and those before it.
    furthest: Vec<u32>,
    cuts: Vec<Cut>,
    /// The ends of the cuts, for the search.
    ends: KeyHeads,
    /// Their starts, for most answers to "is it in the cut that the search found".
    starts: KeyHeads,
    seqnos: SeqnoTree,
    seqno_max: Seqno,
}

/// A stretch of keys over which the same range tombstones lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fragment<'a> {
    /// Inclusive.
    pub start: &'a Bytes,
    /// Exclusive.
    pub end: &'a Bytes,
    root: Root,
    seqnos: &'a SeqnoTree,
}

impl Fragment<'_> {
    /// The newest covering seqno at or below `snapshot`. O(log n).
    pub(crate) fn newest_at(&self, snapshot: Seqno) -> Option<Seqno> {
        self.seqnos.newest_at(self.root, snapshot)
    }

    /// The covering seqnos, newest first; at least one.
    #[cfg(test)]
    pub(crate) fn seqnos(&self) -> impl Iterator<Item = Seqno> {
        self.seqnos.iter(self.root)
    }
}

impl TombstoneSet {
    /// Builds the set from tombstones in any order; empty ranges are dropped. O(n log n); sorted
    /// lists one behind the other are the cheap case.
    pub(crate) fn new(tombstones: impl IntoIterator<Item = RangeTombstone>) -> Self {
        let mut list: Vec<_> =
            tombstones.into_iter().filter(|tombstone| tombstone.start < tombstone.end).collect();
        assert!(list.len() < 1 << 31, "a tombstone is numbered in 31 bits");
        let common = common_len(list.iter().flat_map(|tombstone| [&tombstone.start, &tombstone.end]));
        sort(&mut list, common);
        list.dedup();
        let (cuts, seqnos) = Sweep::new(&list, common).run();
        let ends = KeyHeads::new(cuts.iter().map(|cut| &cut.end.key(&list)[..]));
        let starts = KeyHeads::new(cuts.iter().map(|cut| &cut.start.key(&list)[..]));
        let seqno_max = list.iter().map(|tombstone| tombstone.seqno).max().unwrap_or(0);
        let mut furthest: Vec<u32> = Vec::with_capacity(list.len());
        for (at, tombstone) in list.iter().enumerate() {
            let before = furthest.last().copied().filter(|&at| list[at as usize].end >= tombstone.end);
            furthest.push(before.unwrap_or(at as u32));
        }
        Self { list, furthest, cuts, ends, starts, seqnos, seqno_max }
    }

    /// All tombstones of several sets.
    pub(crate) fn union<'a>(sets: impl IntoIterator<Item = &'a Self>) -> Self {
        Self::new(sets.into_iter().flat_map(|set| set.list.iter().cloned()))
    }

    /// Counts all seqnos from `base` on. O(n).
    pub(crate) fn rebase(&mut self, base: Seqno) {
        for tombstone in &mut self.list {
            tombstone.seqno = tombstone.seqno.wrapping_add(base);
        }
        self.seqnos.rebase(base);
        if !self.list.is_empty() {
            self.seqno_max = self.seqno_max.wrapping_add(base);
        }
    }

    /// Whether there is no tombstone.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of tombstones (not fragments).
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The tombstones, ordered by (start, seqno descending, end): the form that is stored.
    pub(crate) fn list(&self) -> &[RangeTombstone] {
        &self.list
    }

    /// The greatest seqno; 0 when empty.
    pub(crate) fn seqno_max(&self) -> Seqno {
        self.seqno_max
    }

    /// Smallest and greatest seqno.
    pub(crate) fn seqno_range(&self) -> Option<(Seqno, Seqno)> {
        Some((self.list.iter().map(|tombstone| tombstone.seqno).min()?, self.seqno_max))
    }

    /// The smallest start and the greatest end.
    pub(crate) fn bounds(&self) -> Option<(&Bytes, &Bytes)> {
        Some((self.cuts.first()?.start.key(&self.list), self.cuts.last()?.end.key(&self.list)))
    }

    /// Memory that the set takes, keys counted once (bytes).
    pub(crate) fn bytes(&self) -> usize {
        let keys: usize = self.list.iter().map(|t| t.start.len() + t.end.len()).sum();
        keys + self.overhead_bytes()
    }

    /// Memory that the set takes beyond keys (bytes). O(1).
    pub(crate) fn overhead_bytes(&self) -> usize {
        self.list.len() * (size_of::<RangeTombstone>() + size_of::<u32>())
            + self.cuts.len() * (size_of::<Cut>() + 2 * size_of::<u64>())
            + self.seqnos.bytes()
    }

    /// The newest seqno at or below `snapshot` of a tombstone over `key`. O(log n).
    pub(crate) fn covering(&self, key: &[u8], snapshot: Seqno) -> Option<Seqno> {
        self.fragment_at(key)?.newest_at(snapshot)
    }

    /// The fragment that `key` lies in. O(log n).
    pub(crate) fn fragment_at(&self, key: &[u8]) -> Option<Fragment<'_>> {
        let at = self.first_ending_after(key);
        if self.starts.is_surely_greater(at, key) {
            return None;
        }
        Some(self.view(self.cuts.get(at)?)).filter(|fragment| fragment.start[..] <= *key)
    }

    /// The end of a stretch from `key` on that is wholly covered at `snapshot`, at least up to `enough` if it
    /// goes so far. O(log n + fragments in it).
    pub(crate) fn covered_until(&self, key: &[u8], enough: &[u8], snapshot: Seqno) -> Option<&Bytes> {
        let mut until = None;
        for end in self.covered_ends(self.first_ending_after(key), key, snapshot) {
            until = Some(end);
            if end[..] >= *enough {
                break;
            }
        }
        until
    }

    /// The ends of the fragments that cover all keys from `key` on at `snapshot`, as far as there is no gap.
    /// `at` is the index of the first fragment that ends after `key`.
    pub(crate) fn covered_ends(
        &self,
        at: usize,
        key: &[u8],
        snapshot: Seqno,
    ) -> impl Iterator<Item = &Bytes> {
        let mut reached: Option<&Bytes> = None;
        let is_covered = move |fragment: &Fragment<'_>| fragment.newest_at(snapshot).is_some();
        let fragments = self.cuts[at..].iter().map(|cut| self.view(cut));
        fragments.map_while(move |fragment| {
            let follows = reached.map_or(fragment.start[..] <= *key, |reached| fragment.start == reached);
            reached = Some(fragment.end).filter(|_| follows && is_covered(&fragment));
            reached
        })
    }

    /// The fragment at an index of [`TombstoneSet::fragments`].
    pub(crate) fn fragment(&self, at: usize) -> Option<Fragment<'_>> {
        self.cuts.get(at).map(|cut| self.view(cut))
    }

    /// All fragments, ascending.
    pub(crate) fn fragments(&self) -> impl DoubleEndedIterator<Item = Fragment<'_>> + ExactSizeIterator {
        self.cuts.iter().map(|cut| self.view(cut))
    }

    /// The fragments that end after `key`, ascending: the first one may contain `key`.
    pub(crate) fn fragments_from(
        &self,
        key: &[u8],
    ) -> impl DoubleEndedIterator<Item = Fragment<'_>> + ExactSizeIterator {
        self.cuts[self.first_ending_after(key)..].iter().map(|cut| self.view(cut))
    }

    /// The fragments that start before `key`, ascending; the last one may contain keys from `key` on.
    #[cfg(test)]
    pub(crate) fn fragments_before(
        &self,
        key: &[u8],
    ) -> impl DoubleEndedIterator<Item = Fragment<'_>> + ExactSizeIterator {
        let count = self.cuts.partition_point(|cut| cut.start.key(&self.list)[..] < *key);
        self.cuts[..count].iter().map(|cut| self.view(cut))
    }

    /// Whether any tombstone meets `[start, end)`; `end = None` is unbounded. O(log n).
    pub(crate) fn overlaps(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        self.cuts
            .get(self.first_ending_after(start))
            .is_some_and(|cut| end.is_none_or(|end| cut.start.key(&self.list)[..] < *end))
    }

    /// Whether over every key from `first` to `last` lies a tombstone that is newer than `seqno` and not
    /// above `snapshot`. O(log n), and O(fragments in between).
    pub(crate) fn hides(&self, first: &[u8], last: &[u8], seqno: Seqno, snapshot: Seqno) -> bool {
        let mut hidden_to = first;
        for fragment in self.fragments_from(first) {
            let is_gapless = fragment.start[..] <= *hidden_to;
            if !is_gapless || fragment.newest_at(snapshot).is_none_or(|newest| newest <= seqno) {
                return false;
            }
            if fragment.end[..] > *last {
                return true;
            }
            hidden_to = &fragment.end[..];
        }
        false
    }

    /// The part of the set inside `[start, end)`; `end = None` is unbounded. O(log n + m log m) for the m
    /// tombstones from the first one that reaches beyond `start` on to the last one that begins before `end`.
    #[must_use]
    pub(crate) fn clip(&self, start: &[u8], end: Option<&[u8]>) -> Self {
        let first = self.furthest.partition_point(|&at| self.list[at as usize].end[..] <= *start);
        let begun = end.map_or(self.list.len(), |end| self.list.partition_point(|t| t.start[..] < *end));
        let near = self.list.get(first..begun).unwrap_or_default();
        let inside = near.iter().filter(|tombstone| tombstone.end[..] > *start);
        Self::new(inside.map(|tombstone| RangeTombstone {
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
    pub(crate) fn first_ending_after(&self, key: &[u8]) -> usize {
        let undecided = self.ends.equal_range(key);
        undecided.start + self.cuts[undecided].partition_point(|cut| cut.end.key(&self.list)[..] <= *key)
    }

    fn view<'a>(&'a self, cut: &'a Cut) -> Fragment<'a> {
        Fragment {
            start: cut.start.key(&self.list),
            end: cut.end.key(&self.list),
            root: cut.root,
            seqnos: &self.seqnos,
        }
    }
}

/// Orders by (start, seqno descending, end). Heads are taken once, so that the comparisons stay away
/// from the keys on the heap; the sort is stable and merges runs that are sorted already.
fn sort(list: &mut Vec<RangeTombstone>, common: usize) {
    let mut with_heads: Vec<(u64, RangeTombstone)> =
        list.drain(..).map(|tombstone| (head(&tombstone.start[common..]), tombstone)).collect();
    with_heads.sort_by(|(head_a, a), (head_b, b)| {
        let keys = || head_a.cmp(head_b).then_with(|| a.start.cmp(&b.start));
        keys().then_with(|| (b.seqno, &a.end).cmp(&(a.seqno, &b.end)))
    });
    list.extend(with_heads.into_iter().map(|(_, tombstone)| tombstone));
}

/// Walks over all starts and ends in key order, and cuts where the set of open tombstones changes.
struct Sweep<'a> {
    /// Sorted by start.
    list: &'a [RangeTombstone],
    /// Tombstones by end.
    by_end: Vec<(u64, usize)>,
    /// Pieces of one tombstone carry the same seqno and may touch or overlap, hence the counts.
    open: BTreeMap<Seqno, usize>,
    root: Root,
    tree: SeqnoTree,
    cuts: Vec<Cut>,
}

impl<'a> Sweep<'a> {
    fn new(list: &'a [RangeTombstone], common: usize) -> Self {
        let mut by_end: Vec<(u64, usize)> =
            list.iter().enumerate().map(|(at, tombstone)| (head(&tombstone.end[common..]), at)).collect();
        by_end.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| list[a.1].end.cmp(&list[b.1].end)));
        Self {
            list,
            by_end,
            open: BTreeMap::new(),
            root: EMPTY,
            tree: SeqnoTree::default(),
            cuts: Vec::with_capacity(list.len()),
        }
    }

    fn run(mut self) -> (Vec<Cut>, SeqnoTree) {
        let (mut starts, mut ends) = (0, 0);
        let mut from: Option<KeyAt> = None;
        while let Some(&(_, ending)) = self.by_end.get(ends) {
            let end = &self.list[ending].end;
            let (point, key) = match self.list.get(starts) {
                Some(next) if next.start < *end => (KeyAt::start(starts), &next.start),
                _ => (KeyAt::end(ending), end),
            };
            if let Some(from) = from.filter(|_| self.root != EMPTY) {
                self.cut(from, point);
            }
            // Starts first: a seqno that ends and starts again here never leaves the set.
            while self.list.get(starts).is_some_and(|next| next.start == *key) {
                self.open(self.list[starts].seqno);
                starts += 1;
            }
            while let Some(&(_, ending)) = self.by_end.get(ends)
                && self.list[ending].end == *key
            {
                self.close(self.list[ending].seqno);
                ends += 1;
            }
            from = Some(point);
        }
        self.tree.shrink();
        (self.cuts, self.tree)
    }

    fn open(&mut self, seqno: Seqno) {
        let count = self.open.entry(seqno).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.root = self.tree.insert(self.root, seqno);
        }
    }

    fn close(&mut self, seqno: Seqno) {
        if let Some(count) = self.open.get_mut(&seqno) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&seqno);
                self.root = self.tree.remove(self.root, seqno);
            }
        }
    }

    fn cut(&mut self, start: KeyAt, end: KeyAt) {
        match self.cuts.last_mut() {
            Some(last) if last.root == self.root && last.end.key(self.list) == start.key(self.list) => {
                last.end = end;
            }
            _ => self.cuts.push(Cut { start, end, root: self.root }),
        }
    }
}

#[cfg(test)]
mod tests;
