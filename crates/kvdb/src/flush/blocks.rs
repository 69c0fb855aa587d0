//! The blocks of a memtable become layers of regions: what is bound is taken over where it lies, the rest is
//! written.
//!
//! A *stretch* takes consecutive blocks of one place that lie together on the device to one layer. It is
//! taken over as it is when it is long enough; else its blocks are copied from memory, so that what little of
//! them was not overwritten keeps no space in use, and reads find it beside its neighbours. Where space is
//! short all are taken over: what is bound has its space already, and no flush must fail for want of more.
//!
//! Thread safety: one thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Compression, Result, Seqno, Tier};

use crate::compaction::{Output, Totals};
use crate::flush::patches::WINDOW_RECORDS;
use crate::format::{Region, SeqnoSpan};
use crate::iter::{CompactionIter, Kept};
use crate::memtable::{MemTable, split_block_key};
use crate::space::{BoundOp, NewBlocks};

/// A stretch is cut there, so that what is under way stays small.
const STRETCH_BLOCKS_MAX: usize = 1024;

/// Writes `records`, which come from `table`. The k-th newest version of a block goes to layer k.
pub(crate) fn write_blocks<'a>(
    table: &'a MemTable,
    records: &mut CompactionIter,
    output: Output<'a>,
    wish_of: impl Fn(&[u8]) -> Compression,
    mut resolve: impl FnMut(&mut Vec<Kept>) -> Result<()>,
) -> Result<Totals> {
    let mut last_key = Bytes::new();
    let mut wish = Compression::None;
    let mut layer = 0;
    let mut window = Vec::new();
    let mut writer = Writer::new(table, output);
    records.first()?;
    let mut in_row = Row::default();
    while take_window(records, &mut window)? {
        resolve(&mut window)?;
        let mut rows = rows_of(&mut in_row, &window).into_iter();
        for record in window.drain(..) {
            let bytes_in_row = rows.next().unwrap_or(0) * BLOCK_BYTES as u64;
            let again = record.key == last_key;
            layer = if again { layer + 1 } else { 0 };
            if !again {
                writer.begin_key(&record.key)?;
            }
            last_key = record.key.clone();
            let Some((prefix, block)) = split_block_key(&last_key) else { continue };
            if !writer.is_under(prefix) {
                wish = wish_of(prefix);
            }
            writer.add(layer, (prefix, block), record, (wish, bytes_in_row))?;
        }
    }
    writer.finish()
}

/// Takes some records, and all of each of their keys; false at the end.
fn take_window(records: &mut CompactionIter, window: &mut Vec<Kept>) -> Result<bool> {
    while window.len() < WINDOW_RECORDS || window.last().map(|last| &last.key[..]) == records.peek_key() {
        let Some(record) = records.next_kept()? else { break };
        window.push(record);
    }
    Ok(!window.is_empty())
}

/// Consecutive blocks of one file, as far as they were met: the last one, and how many they are.
#[derive(Default)]
struct Row {
    last_key: Bytes,
    blocks: u64,
}

impl Row {
    /// Whether `key` is the block behind the last one, or another version of it.
    fn goes_on(&self, key: &[u8]) -> bool {
        match (split_block_key(&self.last_key), split_block_key(key)) {
            (Some((before, last)), Some((prefix, block))) => {
                before == prefix && (block == last || last.checked_add(1) == Some(block))
            }
            _ => false,
        }
    }
}

/// How many blocks each record of a window is in a row with: those before it, and those behind it in the
/// window. `row` leads from one window to the next.
fn rows_of(row: &mut Row, window: &[Kept]) -> Vec<u64> {
    let mut rows = vec![0; window.len()];
    let mut begin = 0;
    for (at, record) in window.iter().enumerate() {
        if !row.goes_on(&record.key) {
            rows[begin..at].fill(row.blocks);
            (begin, row.blocks) = (at, 0);
        }
        row.blocks += u64::from(record.key != row.last_key);
        row.last_key = record.key.clone();
    }
    rows[begin..].fill(row.blocks);
    rows
}

/// Consecutive blocks of one place in one extent.
struct Stretch {
    op: BoundOp,
    seqnos: Vec<SeqnoSpan>,
    first: u64,
    /// The number of the extent.
    extent: usize,
    blocks: Vec<Bytes>,
    wish: Compression,
    /// Length of the row that it is a part of (bytes).
    bytes_in_row: u64,
}

impl Stretch {
    fn bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK_BYTES) as u64
    }

    /// Whether `block` of that extent is the next one.
    fn goes_on(&self, op: &BoundOp, block: u64, extent: usize) -> bool {
        Arc::ptr_eq(&self.op.bound, &op.bound)
            && self.first + self.blocks.len() as u64 == block
            && self.extent == extent
            && self.blocks.len() < STRETCH_BLOCKS_MAX
    }

    fn push(&mut self, record: Kept) {
        match self.seqnos.last_mut() {
            Some(span) if span.seqno == record.seqno => span.count += 1,
            _ => self.seqnos.push(SeqnoSpan { count: 1, seqno: record.seqno }),
        }
        self.blocks.push(record.value);
    }
}

/// Puts blocks together to stretches.
struct Writer<'a> {
    table: &'a MemTable,
    output: Output<'a>,
    /// Of the block before.
    prefix: Option<Bytes>,
    /// Where its blocks are wished to lie.
    tier: Option<Tier>,
    /// What is not in the output yet, by layer; all of `prefix`.
    stretches: BTreeMap<usize, Stretch>,
    /// How the operation of the block before is bound: the next one is mostly of the same.
    last: Option<(Seqno, Option<BoundOp>)>,
}

impl<'a> Writer<'a> {
    fn new(table: &'a MemTable, output: Output<'a>) -> Self {
        Self { table, output, prefix: None, tier: None, stretches: BTreeMap::new(), last: None }
    }

    /// Whether the block before this one was of the same prefix.
    fn is_under(&self, prefix: &[u8]) -> bool {
        self.prefix.as_deref() == Some(prefix)
    }

    /// What comes now is of `key`, of which nothing was added.
    fn begin_key(&mut self, key: &[u8]) -> Result<()> {
        if self.output.is_full() {
            self.end_all()?;
        }
        self.output.writer_at(key)?;
        Ok(())
    }

    fn add(
        &mut self,
        layer: usize,
        (prefix, block): (&[u8], u64),
        record: Kept,
        (wish, bytes_in_row): (Compression, u64),
    ) -> Result<()> {
        if !self.is_under(prefix) {
            self.end_all()?;
            self.prefix = Some(Bytes::copy_from_slice(prefix));
            self.tier = self.output.tier_wished(prefix);
        }
        let Some((op, extent)) = self.extent_of(record.seqno, block) else {
            self.end(layer)?;
            let span = SeqnoSpan { count: 1, seqno: record.seqno };
            let (blocks, writer) = (self.placed(bytes_in_row), self.output.writer());
            writer.place(blocks)?;
            return writer.add_blocks(layer, prefix, block, &[span], &[&record.value], wish);
        };
        if let Some(stretch) = self.stretches.get_mut(&layer)
            && stretch.goes_on(&op, block, extent)
        {
            stretch.push(record);
            return Ok(());
        }
        self.end(layer)?;
        let (seqnos, blocks) = (Vec::new(), Vec::new());
        let mut stretch = Stretch { op, seqnos, first: block, extent, blocks, wish, bytes_in_row };
        stretch.push(record);
        self.stretches.insert(layer, stretch);
        Ok(())
    }

    fn placed(&self, bytes_in_row: u64) -> NewBlocks {
        NewBlocks { wish: self.tier, bytes_in_row }
    }

    /// The operation of `seqno`, and the number of the extent in which its `block` lies; `None`: it is not
    /// bound.
    fn extent_of(&mut self, seqno: Seqno, block: u64) -> Option<(BoundOp, usize)> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != seqno) {
            self.last = Some((seqno, self.table.bound(seqno)));
        }
        let (_, Some(op)) = self.last.as_ref()? else { return None };
        let (extent, _) = op.find(block)?;
        Some((op.clone(), extent))
    }

    /// Brings the stretch of a layer into the output.
    fn end(&mut self, layer: usize) -> Result<()> {
        let (Some(stretch), Some(prefix)) = (self.stretches.remove(&layer), &self.prefix) else {
            return Ok(());
        };
        let Stretch { op, seqnos, first, blocks, wish, .. } = &stretch;
        let (first, wish, count) = (*first, *wish, blocks.len() as u32);
        let is_packed = wish.or(self.output.compression()) != Compression::None;
        if let Some((_, addr)) = op.find(first)
            && self.output.takes_over(stretch.bytes(), is_packed)
        {
            let crcs = op.crcs(first, blocks.len());
            let region = Region { prefix, first, count, addr, seqnos, crcs, wish, unit: None };
            return self.output.writer().take_over(layer, region);
        }
        let data: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
        let placed = self.placed(stretch.bytes_in_row);
        self.output.writer().place(placed)?;
        self.output.writer().add_blocks(layer, prefix, first, seqnos, &data, wish)
    }

    fn end_all(&mut self) -> Result<()> {
        let layers: Vec<usize> = self.stretches.keys().copied().collect();
        layers.into_iter().try_for_each(|layer| self.end(layer))
    }

    fn finish(mut self) -> Result<Totals> {
        self.end_all()?;
        self.output.finish()
    }
}
