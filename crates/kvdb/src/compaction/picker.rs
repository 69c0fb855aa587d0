//! Which runs to merge next: pure decisions over sizes.
//!
//! Size classes grow by the factor K. Runs are given newest first; a pick is a range of neighbours,
//! because only then do the seqno ranges of the remaining runs stay apart. A run that is being merged is
//! *busy*: its size is `None`, and it separates its neighbours.

use std::ops::Range;

use kvfs_store::KeyspaceKind;

use super::MergeOptions;

/// The size class of a run: 0 for small ones, one more for each factor of K.
pub(crate) fn class_of(bytes: u64, options: &MergeOptions) -> u32 {
    let ratio = options.class_runs.max(2) as u64;
    let mut limit = options.class_bytes_min.max(1);
    let mut class = 0;
    while bytes >= limit {
        class += 1;
        limit = limit.saturating_mul(ratio);
        if limit == u64::MAX {
            break;
        }
    }
    class
}

/// The next merge of a keyspace whose runs have these sizes (bytes, newest first; `None`: busy), if one is
/// due.
///
/// The smallest class that holds K neighbouring runs is merged. For tuples the oldest run joins
/// when it is at most K times the rest, so that most rows sit in one run (lazy levelling); blocks
/// stay tiered, because their merges mostly stitch.
pub(crate) fn pick(
    run_bytes: &[Option<u64>],
    kind: KeyspaceKind,
    options: &MergeOptions,
) -> Option<Range<usize>> {
    let due = options.class_runs.max(2);
    let class_max = run_bytes.iter().flatten().map(|&bytes| class_of(bytes, options)).max()?;
    let range = (0..=class_max).find_map(|class| neighbours_up_to(run_bytes, class, due, options))?;
    if kind == KeyspaceKind::Tuple && range.end + 1 == run_bytes.len() {
        let sum: u64 = run_bytes[range.clone()].iter().flatten().sum();
        if run_bytes[range.end].is_some_and(|oldest| oldest <= sum.saturating_mul(due as u64)) {
            return Some(range.start..run_bytes.len());
        }
    }
    Some(range)
}

/// As [`pick`], for a merge that may take no more than `bytes_max`: K neighbours of the smallest class that
/// is due.
pub(crate) fn pick_small(
    run_bytes: &[Option<u64>],
    bytes_max: u64,
    options: &MergeOptions,
) -> Option<Range<usize>> {
    let due = options.class_runs.max(2);
    let class_max = run_bytes.iter().flatten().map(|&bytes| class_of(bytes, options)).max()?;
    let stretch = (0..=class_max).find_map(|class| neighbours_up_to(run_bytes, class, due, options))?;
    // The oldest ones first, so that the newest wait for their like.
    let mut starts = (stretch.start..=stretch.end - due).rev();
    let start =
        starts.find(|&start| run_bytes[start..start + due].iter().flatten().sum::<u64>() <= bytes_max)?;
    Some(start..start + due)
}

/// Of a merge of runs of these sizes, the neighbours that are merged first where no more than `inputs_max`
/// may be merged at once: so many that all merges behind it take as many as they may, and of these the ones
/// of the fewest bytes, the oldest of equals. So as little as possible is copied twice.
pub(crate) fn first_part(run_bytes: &[u64], inputs_max: usize) -> Range<usize> {
    let (count, max) = (run_bytes.len(), inputs_max.max(2));
    if count <= max {
        return 0..count;
    }
    let taken = (count - 2) % (max - 1) + 2;
    let bytes_from = |start: &usize| run_bytes[*start..start + taken].iter().sum::<u64>();
    let start = (0..=count - taken).rev().min_by_key(bytes_from).unwrap_or(0);
    start..start + taken
}

/// The newest stretch of at least `due` neighbours whose class is at most `class`.
fn neighbours_up_to(
    run_bytes: &[Option<u64>],
    class: u32,
    due: usize,
    options: &MergeOptions,
) -> Option<Range<usize>> {
    let mut start = 0;
    for end in 0..=run_bytes.len() {
        let goes_on = run_bytes.get(end).copied().flatten();
        if goes_on.is_none_or(|bytes| class_of(bytes, options) > class) {
            if end - start >= due {
                return Some(start..end);
            }
            start = end + 1;
        }
    }
    None
}

/// Bytes that wait for a merge: what every class holds beyond K runs. Writers are slowed in
/// proportion.
pub(crate) fn debt_bytes(run_bytes: &[u64], options: &MergeOptions) -> u64 {
    let due = options.class_runs.max(2);
    let class_max = run_bytes.iter().map(|&bytes| class_of(bytes, options)).max().unwrap_or(0);
    (0..=class_max)
        .map(|class| {
            let in_class = run_bytes.iter().filter(|&&bytes| class_of(bytes, options) == class);
            in_class.skip(due).sum::<u64>()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: MergeOptions = MergeOptions {
        stitch_bytes_min: 0,
        class_runs: 4,
        piece_bytes: 1,
        class_bytes_min: 10,
        inputs_max: 64,
        tombstones_max: 16,
    };

    fn pick(run_bytes: &[u64], kind: KeyspaceKind, options: &MergeOptions) -> Option<Range<usize>> {
        let run_bytes: Vec<_> = run_bytes.iter().map(|&bytes| Some(bytes)).collect();
        super::pick(&run_bytes, kind, options)
    }

    #[test]
    fn busy_runs_separate_their_neighbours() {
        let [small, busy] = [Some(1), None];
        let picked = |run_bytes: &[Option<u64>]| super::pick(run_bytes, KeyspaceKind::Tuple, &OPTIONS);
        assert_eq!(picked(&[small, small, busy, small, small]), None);
        assert_eq!(picked(&[busy, busy, small, small, small, small]), Some(2..6));
        assert_eq!(picked(&[small, small, small, small, busy]), Some(0..4), "the oldest can't join");
        assert_eq!(picked(&[busy, busy]), None);
    }

    #[test]
    fn what_piles_up_beside_a_large_merge_is_merged_in_small_steps() {
        let picked = |run_bytes: &[Option<u64>], bytes_max| pick_small(run_bytes, bytes_max, &OPTIONS);
        let [small, other, busy] = [Some(5), Some(6), None];
        let piled = [[small; 9].as_slice(), &[busy]].concat();
        assert_eq!(super::pick(&piled, KeyspaceKind::Block, &OPTIONS), Some(0..9));
        assert_eq!(picked(&piled, 20), Some(5..9), "K of them, the oldest first");
        assert_eq!(picked(&[small, small, small, small, other], 20), Some(0..4));
        assert_eq!(picked(&piled, 19), None, "even K are too much");
        assert_eq!(picked(&[small, small, small, busy], 20), None, "none is due");
    }

    /// How much all parts of a merge copy, and the most inputs of one.
    fn merge_in_parts(mut run_bytes: Vec<u64>, inputs_max: usize) -> (u64, usize) {
        let (mut copied, mut most) = (0, 0);
        while run_bytes.len() > 1 {
            let part = first_part(&run_bytes, inputs_max);
            let bytes: u64 = run_bytes[part.clone()].iter().sum();
            (copied, most) = (copied + bytes, most.max(part.len()));
            run_bytes.splice(part, [bytes]);
        }
        (copied, most)
    }

    #[test]
    fn too_many_runs_are_merged_in_parts_that_copy_little_twice() {
        for count in 2..300 {
            let (copied, most) = merge_in_parts((0..count).map(|_| 1).collect(), 8);
            assert!(most <= 8, "{count}: {most}");
            let passes = (1..9).find(|&passes| 8_u64.pow(passes) >= count).unwrap_or(0);
            assert!(copied <= count * u64::from(passes), "{count}: {copied}");
        }
        assert_eq!(merge_in_parts(vec![1; 8], 8), (8, 8), "as many as may be");
        assert_eq!(merge_in_parts(vec![1; 9], 8), (11, 8), "two, and then all");
        assert_eq!(
            merge_in_parts([[1; 14].as_slice(), &[1000]].concat(), 8),
            (1022, 8),
            "the large one once"
        );
        assert_eq!(first_part(&[5, 1, 1, 1], 3), 2..4, "the oldest of equals");
    }

    #[test]
    fn classes_grow_by_k() {
        let classes: Vec<u32> = [0, 9, 10, 39, 40, 159, 160].iter().map(|&b| class_of(b, &OPTIONS)).collect();
        assert_eq!(classes, [0, 0, 1, 1, 2, 2, 3]);
        assert!(class_of(u64::MAX, &OPTIONS) > 20, "terminates on the largest size");
    }

    #[test]
    fn merges_k_neighbours_of_the_smallest_class() {
        assert_eq!(pick(&[1, 2, 3], KeyspaceKind::Block, &OPTIONS), None);
        assert_eq!(pick(&[1, 2, 3, 4, 500], KeyspaceKind::Block, &OPTIONS), Some(0..4));
        assert_eq!(pick(&[500, 1, 2, 3, 4], KeyspaceKind::Block, &OPTIONS), Some(1..5));
    }

    #[test]
    fn a_larger_run_between_separates_until_its_class_is_due() {
        assert_eq!(pick(&[1, 1, 50, 1, 1], KeyspaceKind::Block, &OPTIONS), Some(0..5));
        assert_eq!(pick(&[1, 1, 50, 1], KeyspaceKind::Block, &OPTIONS), Some(0..4));
    }

    #[test]
    fn rows_take_the_oldest_run_along_when_it_is_not_much_larger() {
        assert_eq!(pick(&[9, 9, 9, 9, 100], KeyspaceKind::Tuple, &OPTIONS), Some(0..5));
        assert_eq!(pick(&[9, 9, 9, 9, 1000], KeyspaceKind::Tuple, &OPTIONS), Some(0..4));
    }

    #[test]
    fn debt_is_what_exceeds_k() {
        assert_eq!(debt_bytes(&[1, 1, 1, 1], &OPTIONS), 0);
        assert_eq!(debt_bytes(&[1, 1, 1, 1, 5, 6], &OPTIONS), 11);
    }
}
