//! Runs that belong together.

use std::ops::Range;
use std::sync::Arc;

use super::{MergeState, Run};

/// Neighbours of one keyspace that are merged together or not at all.
pub(crate) struct Unit<'a> {
    /// Newest first.
    pub runs: &'a [Arc<Run>],
    /// The merge of them that has begun, if there is one.
    pub merge: Option<&'a MergeState>,
}

/// The units of a keyspace, newest first: each run by itself, but for the output and the inputs of a merge
/// that has begun, and for runs of one age. Those are the output and the rest of the newest input of a merge
/// that nothing records, as stores of before version 5 have them: a merge that began behind the output and
/// took older runs along would come to lie before it, with older data for its keys. O(runs x merges).
pub(crate) fn units_of<'a>(runs: &'a [Arc<Run>], merges: &'a [MergeState]) -> Vec<Unit<'a>> {
    let mut units = Vec::new();
    let mut rest = runs;
    while let Some(first) = rest.first() {
        let merge = merges.iter().find(|merge| merge.involves(first.id));
        let last = merge.and_then(|merge| rest.iter().rposition(|run| merge.involves(run.id))).unwrap_or(0);
        let same = rest[last..].windows(2).take_while(|pair| pair[0].age == pair[1].age).count();
        let (unit, behind) = rest.split_at(last + same + 1);
        units.push(Unit { runs: unit, merge });
        rest = behind;
    }
    units
}

/// The runs of these of the `units`, which are all of `runs`.
pub(crate) fn runs_within<'a>(
    runs: &'a [Arc<Run>],
    units: &[Unit<'_>],
    range: Range<usize>,
) -> &'a [Arc<Run>] {
    let runs_in = |units: &[Unit<'_>]| units.iter().map(|unit| unit.runs.len()).sum::<usize>();
    &runs[runs_in(&units[..range.start])..runs_in(&units[..range.end])]
}

/// Runs of one age, which count as one run where sizes are compared.
pub(crate) fn of_one_age(runs: &[Arc<Run>]) -> impl Iterator<Item = &[Arc<Run>]> {
    runs.chunk_by(|run, next| run.age == next.age)
}

/// The data of these runs (bytes).
pub(crate) fn bytes_of(runs: &[Arc<Run>]) -> u64 {
    runs.iter().map(|run| run.data_bytes()).sum()
}
