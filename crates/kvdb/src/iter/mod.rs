//! Walks over the layers of one keyspace together.
//!
//! Purpose: [`MergingIter`] puts the records of several sources into one order, [`VisibleCursor`]
//! shows what a reader at a snapshot sees, [`CompactionIter`] yields what a merge must keep,
//! [`ConcatIter`] strings the pieces of a run together.
//!
//! Thread safety: every iterator belongs to one thread at a time.
//! Invariants: sources are given newest first, and their seqno ranges are disjoint and descending.

mod compaction;
mod concat;
mod layers;
mod merging;
mod run;
mod visible;

pub(crate) use compaction::{CompactionIter, KeepRules, Kept, surviving_tombstones};
pub(crate) use concat::{ConcatIter, Parts};
pub(crate) use merging::MergingIter;
pub(crate) use run::{run_records, run_records_but};
pub(crate) use visible::{OwnLayers, Source, VisibleCursor};

#[cfg(test)]
mod testing;
