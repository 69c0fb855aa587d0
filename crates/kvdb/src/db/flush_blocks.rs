//! The blocks of a memtable become layers of regions: what is bound is taken over where it lies, the rest is written.
//!
//! A *stretch* takes consecutive blocks of one bound operation that lie together on the device to one layer. It is taken
//! over as it is when it is long enough; else its blocks are copied from memory, so that what little of them was not
//! overwritten keeps no space in use, and reads find it beside its neighbours.
//!
//! Thread safety: one thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Compression, Result, Seqno};

use super::patches::WINDOW_RECORDS;
use crate::compaction::{Output, Totals};
use crate::format::{Region, SeqnoSpan};
use crate::iter::{CompactionIter, Kept};
use crate::memtable::{BoundOp, MemTable, split_block_key};
use crate::zone::Bound;

/// A stretch is cut there, so that what is under way stays small.
const STRETCH_BLOCKS_MAX: usize = 1024;

/// Writes `records`, which come from `table`. The k-th newest version of a block goes to layer k.
pub(super) fn write_blocks<'a>(
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
    while take_window(records, &mut window)? {
        resolve(&mut window)?;
        for record in window.drain(..) {
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
            writer.add(layer, (prefix, block), record, wish)?;
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

/// Consecutive blocks of one bound operation in one extent.
struct Stretch {
    bound: Arc<Bound>,
    seqno: Seqno,
    first: u64,
    /// The first one's number in the operation.
    at: u64,
    /// The number of the extent, and the device address of the first one.
    place: (usize, u64),
    blocks: Vec<Bytes>,
    wish: Compression,
}

impl Stretch {
    fn bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK_BYTES) as u64
    }

    /// Whether `block`, which lies there, is the next one. (The seqno is that of the operation.)
    fn goes_on(&self, seqno: Seqno, block: u64, (extent, _): (usize, u64)) -> bool {
        self.seqno == seqno
            && self.first + self.blocks.len() as u64 == block
            && self.place.0 == extent
            && self.blocks.len() < STRETCH_BLOCKS_MAX
    }
}

/// Puts blocks together to stretches.
struct Writer<'a> {
    table: &'a MemTable,
    output: Output<'a>,
    /// Of the block before.
    prefix: Option<Bytes>,
    /// What is not in the output yet, by layer; all of `prefix`.
    stretches: BTreeMap<usize, Stretch>,
    /// How the operation of the block before is bound: the next one is mostly of the same.
    last: Option<(Seqno, Option<BoundOp>)>,
}

impl<'a> Writer<'a> {
    fn new(table: &'a MemTable, output: Output<'a>) -> Self {
        Self { table, output, prefix: None, stretches: BTreeMap::new(), last: None }
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
        wish: Compression,
    ) -> Result<()> {
        if !self.is_under(prefix) {
            self.end_all()?;
            self.prefix = Some(Bytes::copy_from_slice(prefix));
        }
        let is_plain = wish.or(self.output.compression()) == Compression::None;
        let place = if is_plain { self.place_of(record.seqno, block) } else { None };
        let Some((bound, at, place)) = place else {
            self.end(layer)?;
            let span = SeqnoSpan { count: 1, seqno: record.seqno };
            return self.output.writer().add_blocks(layer, prefix, block, &[span], &[&record.value], wish);
        };
        if let Some(stretch) = self.stretches.get_mut(&layer)
            && stretch.goes_on(record.seqno, block, place)
        {
            stretch.blocks.push(record.value);
            return Ok(());
        }
        self.end(layer)?;
        let stretch =
            Stretch { bound, seqno: record.seqno, first: block, at, place, blocks: vec![record.value], wish };
        self.stretches.insert(layer, stretch);
        Ok(())
    }

    /// The operation of `seqno`, the number of `block` in it, and where that lies; `None`: it is not bound.
    fn place_of(&mut self, seqno: Seqno, block: u64) -> Option<(Arc<Bound>, u64, (usize, u64))> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != seqno) {
            self.last = Some((seqno, self.table.bound(seqno)));
        }
        let (_, Some(op)) = self.last.as_ref()? else { return None };
        let at = block.checked_sub(op.first)?;
        Some((Arc::clone(&op.bound), at, op.bound.find(at)?))
    }

    /// Brings the stretch of a layer into the output.
    fn end(&mut self, layer: usize) -> Result<()> {
        let (Some(stretch), Some(prefix)) = (self.stretches.remove(&layer), &self.prefix) else {
            return Ok(());
        };
        let Stretch { bound, seqno, first, at, place: (_, addr), blocks, wish } = &stretch;
        let spans = [SeqnoSpan { count: blocks.len() as u32, seqno: *seqno }];
        let stitch_bytes_min = self.output.stitch_bytes_min();
        if stitch_bytes_min == u64::MAX || stretch.bytes() < stitch_bytes_min {
            let data: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
            return self.output.writer().add_blocks(layer, prefix, *first, &spans, &data, *wish);
        }
        let crcs = &bound.place().crcs[*at as usize..][..blocks.len()];
        let (first, addr, count) = (*first, *addr, spans[0].count);
        let region = Region { prefix, first, count, addr, seqnos: &spans, crcs, wish: *wish, unit: None };
        self.output.writer().take_over(layer, region)
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
