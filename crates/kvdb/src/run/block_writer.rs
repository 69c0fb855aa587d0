//! The block half of a piece writer: blocks into regions, regions into chunks, chunks to the device.

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result};

use super::held::Held;
use super::writer::Target;
use crate::format::{Extent, Layer, Region, SeqnoSpan, crc32c};

/// A region on its way into the layer, in order.
struct Pending {
    prefix: Bytes,
    first: u64,
    spans: Vec<SeqnoSpan>,
    crcs: Vec<u32>,
    /// Where it is; `None`: next in the chunk.
    addr: Option<u64>,
}

impl Pending {
    fn end(&self) -> u64 {
        self.first + self.crcs.len() as u64
    }

    /// The blocks `from .. from + count`, counted from the first one, at `addr`.
    fn part<'a>(&'a self, from: usize, count: usize, addr: u64, spans: &'a [SeqnoSpan]) -> Region<'a> {
        Region {
            prefix: &self.prefix,
            first: self.first + from as u64,
            count: count as u32,
            addr,
            seqnos: spans,
            crcs: &self.crcs[from..from + count],
        }
    }

    /// The seqnos of the blocks `from .. from + count`, counted from the first one.
    fn part_spans(&self, from: usize, count: usize) -> Vec<SeqnoSpan> {
        let whole = self.part(0, self.crcs.len(), 0, &self.spans);
        let first = self.first + from as u64;
        whole.spans(first, first + count as u64).map(|(_, span)| span).collect()
    }
}

/// One layer of a block piece under construction.
#[derive(Default)]
pub(super) struct LayerOutput {
    layer: Layer,
    queue: Vec<Pending>,
    chunk: Option<AlignedBuf>,
    chunk_len: usize,
}

impl LayerOutput {
    /// Bytes that are not written yet.
    pub(super) fn bytes_buffered(&self) -> usize {
        self.chunk_len
    }

    /// Appends consecutive blocks; the counts of `spans` add up to the blocks in `data`.
    pub(super) fn add(
        &mut self,
        (target, held): (&Target, &mut Held),
        prefix: &[u8],
        first: u64,
        spans: &[SeqnoSpan],
        data: &[&[u8]],
    ) -> Result<()> {
        let mut spans = spans.iter().copied();
        let mut span = SeqnoSpan { count: 0, seqno: 0 };
        let mut chunk = self.take_chunk(target);
        let blocks = data.iter().flat_map(|part| part.chunks_exact(BLOCK_BYTES));
        for (block, bytes) in (first..=u64::MAX).zip(blocks) {
            if self.chunk_len == chunk.len() {
                self.write_chunk(target, held, &chunk)?;
            }
            if span.count == 0 {
                span = spans.next().unwrap_or(span);
            }
            span.count = span.count.saturating_sub(1);
            chunk.as_mut()[self.chunk_len..self.chunk_len + BLOCK_BYTES].copy_from_slice(bytes);
            self.chunk_len += BLOCK_BYTES;
            self.enqueue(prefix, block, SeqnoSpan { count: 1, seqno: span.seqno }, crc32c(bytes));
        }
        self.chunk = Some(chunk);
        Ok(())
    }

    /// Takes over a region, or a part of one, that other pieces hold.
    pub(super) fn stitch(&mut self, target: &Target, held: &mut Held, region: Region<'_>) {
        held.retain(Extent { addr: region.addr, len: region.count * BLOCK_BYTES as u32 });
        if self.queue.is_empty() {
            let prefix = self.own_prefix(region.prefix);
            push(&mut self.layer, target, Region { prefix: &prefix, ..region });
        } else {
            self.queue.push(Pending {
                prefix: self.own_prefix(region.prefix),
                first: region.first,
                spans: region.seqnos.to_vec(),
                crcs: region.crcs.to_vec(),
                addr: Some(region.addr),
            });
        }
    }

    /// The finished layer; everything is written.
    pub(super) fn finish(&mut self, target: &Target, held: &mut Held) -> Result<Layer> {
        if self.chunk_len > 0 {
            let chunk = self.take_chunk(target);
            self.write_chunk(target, held, &chunk)?;
        }
        let mut layer = std::mem::take(&mut self.layer);
        layer.shrink_to_fit();
        Ok(layer)
    }

    fn take_chunk(&mut self, target: &Target) -> AlignedBuf {
        self.chunk.take().unwrap_or_else(|| AlignedBuf::zeroed(target.chunk_bytes()))
    }

    /// A prefix that does not keep the memory of another piece alive.
    fn own_prefix(&self, prefix: &[u8]) -> Bytes {
        match self.queue.last() {
            Some(last) if last.prefix[..] == *prefix => last.prefix.clone(),
            _ => Bytes::copy_from_slice(prefix),
        }
    }

    /// Notes one block of the chunk: part of the last region if it continues it.
    fn enqueue(&mut self, prefix: &[u8], block: u64, span: SeqnoSpan, crc: u32) {
        match self.queue.last_mut() {
            Some(last) if last.addr.is_none() && last.end() == block && last.prefix[..] == *prefix => {
                last.crcs.push(crc);
                match last.spans.last_mut() {
                    Some(tail) if tail.seqno == span.seqno => tail.count += 1,
                    _ => last.spans.push(span),
                }
            }
            _ => {
                let prefix = self.own_prefix(prefix);
                let pending =
                    Pending { prefix, first: block, spans: vec![span], crcs: vec![crc], addr: None };
                self.queue.push(pending);
            }
        }
    }

    /// Writes the chunk and moves the queue into the layer. A region that the end of a zone cuts
    /// becomes two.
    fn write_chunk(&mut self, target: &Target, held: &mut Held, chunk: &AlignedBuf) -> Result<()> {
        let mut extents = Vec::new();
        let mut at = 0;
        while at < self.chunk_len {
            let len_max = ((self.chunk_len - at) as u32).min(target.ctx.zones.zone_bytes());
            let extent = held.allocate_fitting(target.stream, len_max, target.budget, 0, |len| len)?;
            target.write(&chunk.as_ref()[at..at + extent.len as usize], extent.addr)?;
            at += extent.len as usize;
            extents.push(extent);
        }
        self.chunk_len = 0;
        let mut extents = extents.into_iter();
        let mut here = Extent { addr: 0, len: 0 };
        for pending in self.queue.drain(..) {
            if let Some(addr) = pending.addr {
                push(&mut self.layer, target, pending.part(0, pending.crcs.len(), addr, &pending.spans));
                continue;
            }
            let mut from = 0;
            while from < pending.crcs.len() {
                if here.len == 0 {
                    here = extents.next().expect("the extents hold the whole chunk");
                }
                let count = (pending.crcs.len() - from).min(here.len as usize / BLOCK_BYTES);
                let spans = pending.part_spans(from, count);
                push(&mut self.layer, target, pending.part(from, count, here.addr, &spans));
                here.addr += (count * BLOCK_BYTES) as u64;
                here.len -= (count * BLOCK_BYTES) as u32;
                from += count;
            }
        }
        Ok(())
    }
}

/// Appends to the layer; continues the last region where both lie in one zone.
fn push(layer: &mut Layer, target: &Target, region: Region<'_>) {
    let zones = &target.ctx.zones;
    let blocks_max = u64::from(target.ctx.options.region_blocks_max);
    layer.push(region, |addr, count| {
        let last = addr + (count - 1) * BLOCK_BYTES as u64;
        count <= blocks_max && zones.zone_of(addr) == zones.zone_of(last)
    });
}
