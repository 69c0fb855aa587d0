//! Which blocks a merge of block runs keeps: a sweep over the regions of its inputs.
//!
//! Works on indexes alone, so no data is read to decide. The inputs are cut into *intervals* in
//! which every input has one seqno or nothing and the same range tombstones hold; for each interval
//! the newest version per snapshot stripe survives, unless a tombstone of the same stripe hides it.
//! Everything is in the order of the keys as bytes: blocks of a longer prefix may lie between two
//! blocks of a shorter one, so an interval also ends where another prefix comes in between.
//!
//! Cost: O(sources) per interval; the number of intervals is at most twice the number of spans and
//! tombstone ends.

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use crate::format::cmp_block_keys;
use crate::memtable::{block_key, first_block_at_or_after};

/// Consecutive blocks of one prefix with one seqno. `source` says where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span<S> {
    pub(crate) prefix: Bytes,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) seqno: Seqno,
    pub(crate) source: S,
}

/// Blocks of one prefix, and the versions of them that must be kept, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interval<S> {
    pub(crate) prefix: Bytes,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) kept: Vec<(Seqno, S)>,
}

/// Range tombstones over blocks.
pub(crate) trait Hiding {
    /// The newest tombstone at or below `at` that covers `block` of `prefix`.
    fn covering(&self, prefix: &[u8], block: u64, at: Seqno) -> Option<Seqno>;

    /// The first block after `block` at which another set of tombstones holds; `u64::MAX` if none.
    fn next_change(&self, prefix: &[u8], block: u64) -> u64;
}

/// Snapshot stripes: two versions of a key in one stripe look the same to every snapshot, so only
/// the newer one counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stripes<'a> {
    /// Seqnos of the live snapshots, ascending.
    pub(crate) boundaries: &'a [Seqno],
}

impl Stripes<'_> {
    /// Number of the stripe that holds `seqno`; 0 is the oldest.
    pub(crate) fn stripe(&self, seqno: Seqno) -> usize {
        self.boundaries.partition_point(|&boundary| boundary < seqno)
    }

    /// The newest seqno of the stripe that holds `seqno`.
    pub(crate) fn newest(&self, seqno: Seqno) -> Seqno {
        self.boundaries.get(self.stripe(seqno)).copied().unwrap_or(Seqno::MAX)
    }
}

/// The sweep. Each source is ordered by key and does not overlap itself. After the first error of a source
/// nothing that comes counts.
pub(crate) struct Sweep<'a, S, I> {
    sources: Vec<I>,
    heads: Vec<Option<Span<S>>>,
    hiding: &'a dyn Hiding,
    stripes: Stripes<'a>,
}

impl<'a, S: Clone, I: Iterator<Item = Result<Span<S>>>> Sweep<'a, S, I> {
    pub(crate) fn new(mut sources: Vec<I>, hiding: &'a dyn Hiding, stripes: Stripes<'a>) -> Result<Self> {
        let heads = sources.iter_mut().map(|source| source.next().transpose()).collect::<Result<_>>()?;
        Ok(Self { sources, heads, hiding, stripes })
    }

    /// The smallest position that any source still has.
    fn least(&self) -> Option<(Bytes, u64)> {
        let least = self
            .heads
            .iter()
            .flatten()
            .min_by(|a, b| cmp_block_keys((&a.prefix, a.first), (&b.prefix, b.first)))?;
        Some((least.prefix.clone(), least.first))
    }

    /// Where the interval that begins at `(prefix, first)` ends.
    fn interval_end(&self, prefix: &Bytes, first: u64) -> u64 {
        let ends = self.heads.iter().flatten().filter_map(|span| {
            if span.prefix == *prefix {
                return Some(if span.first == first { span.first + span.count } else { span.first });
            }
            let may_interleave = span.prefix.len() != prefix.len();
            may_interleave.then(|| first_block_at_or_after(prefix, &block_key(&span.prefix, span.first)))?
        });
        let end = ends.min().unwrap_or(u64::MAX);
        end.min(self.hiding.next_change(prefix, first))
    }

    /// Takes the blocks before `end` off the sources that have some; returns what they held.
    fn take_until(&mut self, prefix: &Bytes, first: u64, end: u64) -> Result<Vec<(Seqno, S)>> {
        let mut versions = Vec::new();
        for (head, source) in self.heads.iter_mut().zip(&mut self.sources) {
            let Some(span) = head.as_mut().filter(|span| span.prefix == *prefix && span.first == first)
            else {
                continue;
            };
            versions.push((span.seqno, span.source.clone()));
            let taken = end - first;
            if span.count == taken {
                *head = source.next().transpose()?;
            } else {
                span.first += taken;
                span.count -= taken;
            }
        }
        versions.sort_by_key(|&(seqno, _)| std::cmp::Reverse(seqno));
        Ok(versions)
    }

    /// Drops what no snapshot can see.
    fn keep_visible(&self, prefix: &[u8], block: u64, versions: Vec<(Seqno, S)>) -> Vec<(Seqno, S)> {
        let mut last_stripe = None;
        let mut kept = Vec::with_capacity(versions.len().min(1));
        for (seqno, source) in versions {
            let stripe = self.stripes.stripe(seqno);
            if last_stripe.replace(stripe) == Some(stripe) {
                continue;
            }
            let hider = self.hiding.covering(prefix, block, self.stripes.newest(seqno));
            if hider.is_none_or(|tombstone| tombstone < seqno) {
                kept.push((seqno, source));
            }
        }
        kept
    }
}

impl<S: Clone, I: Iterator<Item = Result<Span<S>>>> Iterator for Sweep<'_, S, I> {
    type Item = Result<Interval<S>>;

    fn next(&mut self) -> Option<Result<Interval<S>>> {
        loop {
            let (prefix, first) = self.least()?;
            let end = self.interval_end(&prefix, first);
            let versions = match self.take_until(&prefix, first, end) {
                Ok(versions) => versions,
                Err(error) => return Some(Err(error)),
            };
            let kept = self.keep_visible(&prefix, first, versions);
            if !kept.is_empty() {
                return Some(Ok(Interval { prefix, first, count: end - first, kept }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tombstones on one prefix: `(first, end, seqno)`.
    struct Ranges(Vec<(u64, u64, Seqno)>);

    impl Hiding for Ranges {
        fn covering(&self, _: &[u8], block: u64, at: Seqno) -> Option<Seqno> {
            let hit = self.0.iter().filter(|r| (r.0..r.1).contains(&block) && r.2 <= at);
            hit.map(|r| r.2).max()
        }

        fn next_change(&self, _: &[u8], block: u64) -> u64 {
            self.0.iter().flat_map(|r| [r.0, r.1]).filter(|&b| b > block).min().unwrap_or(u64::MAX)
        }
    }

    fn span(first: u64, count: u64, seqno: Seqno, source: char) -> Span<char> {
        Span { prefix: Bytes::from_static(b"p"), first, count, seqno, source }
    }

    fn run(
        sources: Vec<Vec<Span<char>>>,
        tombstones: Vec<(u64, u64, Seqno)>,
        boundaries: &[Seqno],
    ) -> String {
        let sources = sources.into_iter().map(|spans| spans.into_iter().map(Ok)).collect();
        let hiding = Ranges(tombstones);
        let sweep = Sweep::new(sources, &hiding, Stripes { boundaries }).expect("nothing fails");
        let show = |i: Interval<char>| {
            let kept: Vec<String> = i.kept.iter().map(|(seqno, source)| format!("{source}{seqno}")).collect();
            let kept = kept.concat();
            format!("{}+{}:{kept}", i.first, i.count)
        };
        sweep.map(|interval| show(interval.expect("nothing fails"))).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn newer_blocks_cut_older_regions() {
        let old = vec![span(0, 100, 1, 'a')];
        let new = vec![span(10, 5, 2, 'b'), span(99, 3, 2, 'b')];
        assert_eq!(run(vec![new, old], vec![], &[]), "0+10:a1 10+5:b2 15+84:a1 99+1:b2 100+2:b2");
    }

    #[test]
    fn a_longer_prefix_comes_between_the_blocks_of_a_shorter_one() {
        let short =
            |first: u64, count: u64| Span { prefix: Bytes::new(), first, count, seqno: 1, source: 's' };
        let long = Span {
            prefix: Bytes::copy_from_slice(&3_u64.to_be_bytes()),
            first: 7,
            count: 2,
            seqno: 2,
            source: 'l',
        };
        let sources = vec![vec![Ok(short(0, 10))].into_iter(), vec![Ok(long)].into_iter()];
        let hiding = Ranges(Vec::new());
        let sweep = Sweep::new(sources, &hiding, Stripes { boundaries: &[] }).expect("nothing fails");
        let order: Vec<_> =
            sweep.map(|i| i.expect("nothing fails")).map(|i| (i.prefix.len(), i.first, i.count)).collect();
        assert_eq!(order, [(0, 0, 4), (8, 7, 2), (0, 4, 6)]);
    }

    #[test]
    fn a_snapshot_keeps_the_version_that_it_sees() {
        let sources = vec![vec![span(0, 2, 9, 'c')], vec![span(0, 2, 5, 'b')], vec![span(0, 2, 3, 'a')]];
        assert_eq!(run(sources.clone(), vec![], &[]), "0+2:c9");
        assert_eq!(run(sources.clone(), vec![], &[5]), "0+2:c9b5");
        assert_eq!(run(sources, vec![], &[3, 5]), "0+2:c9b5a3");
    }

    #[test]
    fn tombstones_hide_within_their_stripe_only() {
        let sources = || vec![vec![span(0, 10, 4, 'a')]];
        assert_eq!(run(sources(), vec![(2, 5, 6)], &[]), "0+2:a4 5+5:a4");
        assert_eq!(run(sources(), vec![(2, 5, 6)], &[5]), "0+2:a4 2+3:a4 5+5:a4");
        assert_eq!(
            run(sources(), vec![(2, 5, 3)], &[]),
            "0+2:a4 2+3:a4 5+5:a4",
            "an older tombstone hides nothing"
        );
        assert_eq!(run(sources(), vec![(0, 10, 6)], &[]), "");
    }
}
