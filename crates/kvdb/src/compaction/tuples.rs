//! Merging tuple runs: the indexes decide which blocks are stitched, everything else is copied.
//!
//! A tuple block is *isolated* when no other input, no neighbour and no range tombstone shares a key
//! of its range, and it holds nothing that the merge could drop. Isolated blocks that lie one behind
//! the other on the device and together reach the stitching threshold move without being read
//! (thesis 3.2).

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::Result;

use super::job::MergeJob;
use super::output::{Output, Sink, Totals};
use super::pace::PacedRecords;
use crate::format::{RecordIter, TupleEntry};
use crate::iter::{CompactionIter, MergingIter, run_records, surviving_tombstones};
use crate::memtable::TombstoneSet;
use crate::run::{Access, Piece};
use crate::version::Run;

/// One tuple block of one input.
struct Block<'a> {
    piece: &'a Arc<Piece>,
    /// Number in the piece's index.
    number: usize,
    entry: &'a TupleEntry,
    isolated: bool,
}

/// Consecutive blocks of one piece that are stitched.
struct Stretch {
    blocks: std::ops::Range<usize>,
}

pub(super) fn merge(job: &MergeJob, sink: &mut dyn Sink) -> Result<Totals> {
    let tombstones = job.tombstones();
    let blocks = isolated_blocks(job, &tombstones);
    let stretches = stretches(job, &blocks);
    let survivors = surviving_tombstones(&tombstones, &job.rules);
    let mut output = Output::new(job.spec.clone(), survivors, sink);
    let mut copier = Copier::new(job, tombstones);
    for stretch in &stretches {
        let first = &blocks[stretch.blocks.start];
        copier.copy_until(Some(&first.entry.first_key), &mut output)?;
        for block in &blocks[stretch.blocks.clone()] {
            let writer = output.writer_at(&block.entry.first_key)?;
            writer.stitch_tuples(block.piece, block.number..block.number + 1)?;
        }
        copier.skip_to_after(&blocks[stretch.blocks.end - 1].entry.last_key);
    }
    copier.copy_until(None, &mut output)?;
    output.finish()
}

/// All blocks of the inputs by first key, each marked isolated or not.
fn isolated_blocks<'a>(job: &'a MergeJob, tombstones: &TombstoneSet) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    for run in &job.inputs {
        for piece in &run.pieces {
            for (number, entry) in piece.tuple_entries().iter().enumerate() {
                if entry.last_key >= run.lower_bound {
                    let isolated = entry.first_key >= run.lower_bound && may_stitch(job, entry, tombstones);
                    blocks.push(Block { piece, number, entry, isolated });
                }
            }
        }
    }
    blocks.sort_by(|a, b| a.entry.first_key.cmp(&b.entry.first_key));
    let mut greatest: Option<&[u8]> = None;
    for i in 0..blocks.len() {
        let (first, last) = (&blocks[i].entry.first_key, &blocks[i].entry.last_key);
        let meets_before = greatest.is_some_and(|greatest| greatest >= &first[..]);
        let meets_after = blocks.get(i + 1).is_some_and(|next| next.entry.first_key <= last);
        greatest = greatest.max(Some(&last[..]));
        blocks[i].isolated &= !meets_before && !meets_after;
    }
    blocks
}

/// Whether nothing in the block itself speaks against stitching.
fn may_stitch(job: &MergeJob, entry: &TupleEntry, tombstones: &TombstoneSet) -> bool {
    let mut reasons = TupleEntry::HAS_VERSIONS;
    if job.rules.bottom {
        reasons |= TupleEntry::HAS_DELETES | TupleEntry::HAS_MERGES;
    }
    let droppable = entry.flags & reasons != 0;
    // The exclusive upper end of the question is the key's successor.
    let after = [&entry.last_key[..], b"\0"].concat();
    !droppable && !job.victims.contain(entry.extent) && !tombstones.overlaps(&entry.first_key, Some(&after))
}

/// The stretches of isolated blocks that are long enough.
fn stretches(job: &MergeJob, blocks: &[Block<'_>]) -> Vec<Stretch> {
    if job.options.stitch_bytes_min == u64::MAX {
        return Vec::new();
    }
    let mut stretches = Vec::new();
    let mut start = 0;
    while start < blocks.len() {
        let mut end = start;
        let mut bytes = 0;
        while end < blocks.len()
            && blocks[end].isolated
            && (end == start || follows(&blocks[end - 1], &blocks[end]))
        {
            bytes += u64::from(blocks[end].entry.extent.len);
            end += 1;
        }
        if end > start && bytes >= job.options.stitch_bytes_min {
            stretches.push(Stretch { blocks: start..end });
        }
        start = end.max(start + 1);
    }
    stretches
}

/// Whether `b` lies directly behind `a` on the device.
fn follows(a: &Block<'_>, b: &Block<'_>) -> bool {
    a.entry.extent.addr + u64::from(a.entry.extent.len) == b.entry.extent.addr
}

/// Copies what is not stitched, from stretch to stretch.
struct Copier {
    records: CompactionIter,
    /// Where the next copy begins; `None`: at the first record.
    resume: Option<Vec<u8>>,
    started: bool,
}

impl Copier {
    fn new(job: &MergeJob, tombstones: TombstoneSet) -> Self {
        let access = Access::Crowded { walks: job.inputs.len() };
        let paced = |run: &Arc<Run>| -> Box<dyn RecordIter> {
            Box::new(PacedRecords::new(run, run_records(run, access), job.spec.pace.clone()))
        };
        let sources = job.inputs.iter().map(paced).collect();
        let merging = Box::new(MergingIter::new(sources));
        let records = CompactionIter::new(merging, [Arc::new(tombstones)], job.rules.clone());
        Self { records, resume: None, started: false }
    }

    /// Copies the records before `end` (`None`: all).
    fn copy_until(&mut self, end: Option<&[u8]>, output: &mut Output<'_>) -> Result<()> {
        if let Some(from) = self.resume.take() {
            self.records.seek(&from)?;
        } else if !self.started {
            self.records.first()?;
        }
        self.started = true;
        let mut last_key = Bytes::new();
        while self.records.peek_key().is_some_and(|key| end.is_none_or(|end| key < end)) {
            let Some(record) = self.records.next_kept()? else { break };
            if end.is_some_and(|end| record.key[..] >= *end) {
                // The keys before were all dropped; this one is stitched.
                break;
            }
            let writer =
                if record.key == last_key { output.writer() } else { output.writer_at(&record.key)? };
            writer.add(&record.key, record.seqno, record.kind, &record.value)?;
            output.give_way();
            last_key = record.key;
        }
        Ok(())
    }

    /// The next copy begins behind `key`.
    fn skip_to_after(&mut self, key: &[u8]) {
        self.resume = Some([key, b"\0"].concat());
    }
}
