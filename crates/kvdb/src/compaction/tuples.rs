//! Merging tuple runs: the indexes decide which blocks are stitched, everything else is copied.
//!
//! A tuple block is *isolated* when no other input, no neighbour and no range tombstone shares a key
//! of its range, and it holds nothing that the merge could drop. Isolated blocks that lie one behind
//! the other on the device and together reach the stitching threshold move without being read
//! (thesis 3.2).
//!
//! A block of which [`Pruning`] says that nothing is kept takes no part in this: it is passed over, and not
//! read.
//!
//! The indexes are walked side by side, so that one of each input is in memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::Result;

use super::job::MergeJob;
use super::output::{Output, Sink, Totals};
use super::pace::PacedRecords;
use super::pruning::Pruning;
use crate::format::{RecordIter, TupleEntry};
use crate::iter::{CompactionIter, MergingIter, run_records_but};
use crate::memtable::TombstoneSet;
use crate::table::{Access, Index, Piece};
use crate::version::Run;

/// One tuple block of one input, and the index that it is in.
struct Block {
    piece: Arc<Piece>,
    index: Index,
    /// Number in the index.
    number: usize,
    isolated: bool,
}

impl Block {
    fn entry(&self) -> &TupleEntry {
        &self.index.tuple_entries()[self.number]
    }
}

pub(super) fn merge(job: &MergeJob, sink: &mut dyn Sink) -> Result<Totals> {
    let (tombstones, survivors, _charge) = job.tombstones();
    let tombstones = Arc::new(tombstones);
    let mut output = Output::new(job.spec.clone(), survivors, sink);
    let pruning = Pruning::new(&tombstones, &job.rules);
    let mut copier = Copier::new(job, Arc::clone(&tombstones), &pruning);
    if job.options.stitch_bytes_min < u64::MAX {
        let blocks = Blocks::new(job, &tombstones, &pruning);
        let bytes_min = job.options.stitch_bytes_min;
        let mut stretches = Stretches { blocks, bytes_min, open: None, leaves_blocks: false };
        while let Some((stretch, is_behind_others)) = stretches.next()? {
            if is_behind_others {
                copier.copy_until(Some(&stretch.first_key), &mut output)?;
            }
            stretch.stitch(&mut output)?;
            copier.skip_to_after(&stretch.last_key);
        }
        if !stretches.leaves_blocks {
            return output.finish_at(job.end.as_ref());
        }
    }
    copier.copy_until(job.end.as_deref(), &mut output)?;
    output.finish_at(job.end.as_ref())
}

/// The blocks of one input that count, in key order. Has the index of one piece in memory.
struct Walk<'a> {
    run: &'a Run,
    pruning: &'a Pruning,
    piece: usize,
    index: Option<Index>,
    /// The block that comes next.
    number: usize,
}

impl<'a> Walk<'a> {
    fn new(run: &'a Run, pruning: &'a Pruning) -> Self {
        Self { run, pruning, piece: run.piece_at(&run.lower_bound), index: None, number: 0 }
    }

    /// The next block, and its index.
    fn peek(&mut self) -> Result<Option<(&Index, &TupleEntry)>> {
        while let Some(piece) = self.run.pieces.get(self.piece) {
            let index = match self.index.take() {
                Some(index) => index,
                None => piece.index()?,
            };
            let rest = index.tuple_entries().get(self.number..).unwrap_or_default();
            let counts =
                |entry: &TupleEntry| entry.last_key >= self.run.lower_bound && !self.pruning.drops(entry);
            if let Some(skipped) = rest.iter().position(counts) {
                self.number += skipped;
                let index = &*self.index.insert(index);
                return Ok(Some((index, &index.tuple_entries()[self.number])));
            }
            self.piece += 1;
            self.number = 0;
        }
        Ok(None)
    }
}

/// All blocks of the inputs by first key, each found isolated or not.
struct Blocks<'a> {
    job: &'a MergeJob,
    tombstones: &'a TombstoneSet,
    walks: Vec<Walk<'a>>,
    /// The greatest key of those that were given.
    greatest: Option<Vec<u8>>,
}

impl<'a> Blocks<'a> {
    fn new(job: &'a MergeJob, tombstones: &'a TombstoneSet, pruning: &'a Pruning) -> Self {
        let walks = job.inputs.iter().map(|run| Walk::new(run, pruning)).collect();
        Self { job, tombstones, walks, greatest: None }
    }

    /// The walk whose next block has the smallest first key, the first of those.
    fn least(&mut self) -> Result<Option<usize>> {
        let mut least: Option<(usize, &TupleEntry)> = None;
        for (at, walk) in self.walks.iter_mut().enumerate() {
            let Some((_, entry)) = walk.peek()? else { continue };
            if least.is_none_or(|(_, other)| entry.first_key < other.first_key) {
                least = Some((at, entry));
            }
        }
        Ok(least.map(|(at, _)| at))
    }

    fn next(&mut self) -> Result<Option<Block>> {
        let Some(at) = self.least()? else { return Ok(None) };
        let walk = &mut self.walks[at];
        let Some((index, entry)) = walk.peek()? else { return Ok(None) };
        if self.job.is_behind(&entry.first_key) {
            return Ok(None);
        }
        let index = index.clone();
        let piece = Arc::clone(&walk.run.pieces[walk.piece]);
        let (lower_bound, number) = (&walk.run.lower_bound, walk.number);
        walk.number += 1;
        let mut block = Block { piece, index, number, isolated: false };
        let (first, last) = (&block.entry().first_key, &block.entry().last_key);
        let greatest = self.greatest.as_deref();
        let meets_before = greatest.is_some_and(|greatest| *greatest >= first[..]);
        let may_move = first >= lower_bound && may_stitch(self.job, block.entry(), self.tombstones);
        if greatest < Some(&last[..]) {
            self.greatest = Some(last.to_vec());
        }
        block.isolated = may_move && !meets_before && !self.meets_next(&block)?;
        Ok(Some(block))
    }

    /// Whether the block that comes next begins within `block`.
    fn meets_next(&mut self, block: &Block) -> Result<bool> {
        let Some(at) = self.least()? else { return Ok(false) };
        let next = self.walks[at].peek()?;
        Ok(next.is_some_and(|(_, next)| next.first_key <= block.entry().last_key))
    }
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
    !droppable
        && !job.is_behind(&entry.last_key)
        && !job.empties(entry.extent)
        && !tombstones.overlaps(&entry.first_key, Some(&after))
}

/// Isolated blocks that lie one behind the other on the device.
struct Stretch {
    /// Blocks of one piece that are neighbours in its index.
    parts: Vec<(Arc<Piece>, Range<usize>)>,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    bytes: u64,
    /// Device address behind the last one.
    end: u64,
}

impl Stretch {
    fn of(block: &Block) -> Self {
        let entry = block.entry();
        Self {
            parts: vec![(Arc::clone(&block.piece), block.number..block.number + 1)],
            first_key: entry.first_key.to_vec(),
            last_key: entry.last_key.to_vec(),
            bytes: entry.extent.len.into(),
            end: entry.extent.addr + u64::from(entry.extent.len),
        }
    }

    /// Takes `block` in, if it lies directly behind.
    fn take(&mut self, block: &Block) -> bool {
        let entry = block.entry();
        if self.end != entry.extent.addr {
            return false;
        }
        match self.parts.last_mut() {
            Some((piece, blocks)) if Arc::ptr_eq(piece, &block.piece) && blocks.end == block.number => {
                blocks.end += 1;
            }
            _ => self.parts.push((Arc::clone(&block.piece), block.number..block.number + 1)),
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(&entry.last_key);
        self.bytes += u64::from(entry.extent.len);
        self.end += u64::from(entry.extent.len);
        true
    }

    fn stitch(&self, output: &mut Output<'_>) -> Result<()> {
        for (piece, blocks) in &self.parts {
            let index = piece.index()?;
            for number in blocks.clone() {
                let writer = output.writer_at(&index.tuple_entries()[number].first_key)?;
                writer.stitch_tuples(piece, number..number + 1)?;
            }
        }
        Ok(())
    }
}

/// The stretches that are long enough, in key order.
struct Stretches<'a> {
    blocks: Blocks<'a>,
    bytes_min: u64,
    open: Option<Stretch>,
    /// Blocks since the last long stretch are in none: they are to be copied.
    leaves_blocks: bool,
}

impl Stretches<'_> {
    /// The next one, and whether blocks before it are to be copied: where there are none, they are not looked
    /// for, since each look reads what is stitched next.
    fn next(&mut self) -> Result<Option<(Stretch, bool)>> {
        loop {
            let block = self.blocks.next()?;
            let is_left = block.as_ref().is_some_and(|block| !block.isolated);
            let ended = match block.as_ref().filter(|block| block.isolated) {
                Some(block) if self.open.as_mut().is_some_and(|open| open.take(block)) => None,
                Some(block) => self.open.replace(Stretch::of(block)),
                None => self.open.take(),
            };
            match ended {
                Some(long) if long.bytes >= self.bytes_min => {
                    return Ok(Some((long, std::mem::replace(&mut self.leaves_blocks, is_left))));
                }
                short => self.leaves_blocks |= is_left || short.is_some(),
            }
            if block.is_none() {
                return Ok(None);
            }
        }
    }
}

/// Copies what is not stitched, from stretch to stretch.
struct Copier {
    records: CompactionIter,
    /// Where the next copy begins; `None`: at the first record.
    resume: Option<Vec<u8>>,
    started: bool,
}

impl Copier {
    fn new(job: &MergeJob, tombstones: Arc<TombstoneSet>, pruning: &Arc<Pruning>) -> Self {
        let access = Access::Crowded { walks: job.inputs.len() };
        let paced = |run: &Arc<Run>| -> Box<dyn RecordIter> {
            let pruning = Arc::clone(pruning);
            let records = run_records_but(run, access, Some(Arc::new(move |entry| pruning.drops(entry))));
            Box::new(PacedRecords::new(run, records, job.spec.pace.clone()))
        };
        let sources = job.inputs.iter().map(paced).collect();
        let merging = Box::new(MergingIter::new(sources));
        let records = CompactionIter::new(merging, [tombstones], job.rules.clone());
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
