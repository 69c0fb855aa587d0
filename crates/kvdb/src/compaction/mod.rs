//! Merging of runs: which ones (`picker`), and how (`tuples`, `blocks`).
//!
//! Purpose: keep the number of runs per size class below K (thesis 2.1), reclaim what is hidden, and
//! copy as little as possible: regions that meet nothing in the other inputs are *stitched* into
//! the output (thesis 3.2).
//!
//! Thread safety: a merge runs on one thread; several may run at once, on disjoint sets of runs
//! (`merge/registry` sees to that).
//!
//! Invariants: only runs that are neighbours in age are merged; output is installed piece by piece,
//! in key order, together with the trimmed lower bounds of the inputs, so that at every moment each
//! key is answered by exactly one of them.

mod blocks;
mod copies;
mod copy;
mod job;
mod output;
mod pace;
pub(crate) mod picker;
mod pruning;
mod rest;
mod sweep;
mod tuples;

pub(crate) use copies::{Copies, Sharing};
pub(crate) use job::{MergeJob, Rescue, Victims, end_of_step};
pub(crate) use output::{CopyBound, Finished, Output, OutputSpec, Sink, Totals};
pub(crate) use pace::Pace;
pub(crate) use rest::Rest;

/// How runs are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeOptions {
    /// A contiguous stretch of at least this many bytes is stitched, a shorter one copied. 0: always
    /// stitch, like a log; `u64::MAX`: never, a plain LSM-tree (thesis 3.2).
    pub stitch_bytes_min: u64,
    /// Runs of one size class before they are merged, at least 2 (the thesis's K).
    pub class_runs: usize,
    /// Output is cut into pieces that refer to about this much (bytes); also the unit of
    /// incremental install, so it bounds the extra space of a merge.
    pub piece_bytes: u64,
    /// Runs below this share the smallest class (bytes).
    pub class_bytes_min: u64,
    /// Most runs that are merged at once, at least 2: all of them are looked at for each stretch of keys.
    pub inputs_max: usize,
    /// A step takes about so many range tombstones of its inputs, which it has in memory together: there may
    /// be more of them than records, since each one above a snapshot stays.
    pub tombstones_max: usize,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            stitch_bytes_min: 32 << 10,
            class_runs: 4,
            piece_bytes: 64 << 20,
            class_bytes_min: 4 << 20,
            inputs_max: 64,
            tombstones_max: 1 << 14,
        }
    }
}
