//! The block half of a piece writer: blocks into regions, regions into chunks, chunks to the device.

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Compression, Result};

use super::held::HeldExtents;
use super::unit_buffer::UnitBuffer;
use super::writer::Target;
use crate::format::{Codec, Extent, Layer, Region, SeqnoSpan, Unit, crc32c};
use crate::space::Destination;

/// A region on its way into the layer, in order.
struct Pending {
    prefix: Bytes,
    first: u64,
    spans: Vec<SeqnoSpan>,
    crcs: Vec<u32>,
    wish: Compression,
    unit: Option<Unit>,
    /// Where it is; `None`: next in the chunk.
    addr: Option<u64>,
}

impl Pending {
    fn of(prefix: Bytes, region: &Region<'_>, addr: Option<u64>) -> Self {
        Self {
            prefix,
            first: region.first,
            spans: region.seqnos.to_vec(),
            crcs: region.crcs.to_vec(),
            wish: region.wish,
            unit: region.unit,
            addr,
        }
    }

    fn count(&self) -> u32 {
        self.spans.iter().map(|span| span.count).sum()
    }

    fn end(&self) -> u64 {
        self.first + u64::from(self.count())
    }

    /// All of it, at `addr`.
    fn region(&self, addr: u64) -> Region<'_> {
        Region {
            prefix: &self.prefix,
            first: self.first,
            count: self.count(),
            addr,
            seqnos: &self.spans,
            crcs: &self.crcs,
            wish: self.wish,
            unit: self.unit,
        }
    }

    /// Bytes in the chunk.
    fn chunk_len(&self) -> u32 {
        if self.addr.is_some() { 0 } else { self.region(0).extent().len }
    }
}

/// One layer of a block piece under construction.
#[derive(Default)]
pub(super) struct LayerOutput {
    layer: Layer,
    queue: Vec<Pending>,
    chunk: Option<AlignedBuf>,
    chunk_len: usize,
    /// Where the chunk goes.
    to: Option<Destination>,
    /// Blocks that are to be packed together; they come behind the queue.
    unit: UnitBuffer,
}

impl LayerOutput {
    /// Appends consecutive blocks of a prefix, from a first one on; the counts of the spans add up to the
    /// blocks in `data`.
    pub(super) fn add(
        &mut self,
        (target, held): (&Target, &mut HeldExtents),
        (prefix, first, spans): (&[u8], u64, &[SeqnoSpan]),
        data: &[&[u8]],
        wish: Compression,
    ) -> Result<()> {
        let mut spans = spans.iter().copied();
        let mut span = SeqnoSpan { count: 0, seqno: 0 };
        let blocks = data.iter().flat_map(|part| part.chunks_exact(BLOCK_BYTES));
        for (block, bytes) in (first..=u64::MAX).zip(blocks) {
            if span.count == 0 {
                span = spans.next().unwrap_or(span);
            }
            span.count = span.count.saturating_sub(1);
            if !self.unit.takes(prefix, block, wish) {
                self.end_unit(target, held)?;
            }
            if wish == Compression::None {
                self.add_plain((target, held), (prefix, block), span.seqno, bytes, wish)?;
            } else {
                self.unit.push(prefix, block, span.seqno, wish, bytes, target.unit_blocks());
            }
        }
        Ok(())
    }

    fn add_plain(
        &mut self,
        (target, held): (&Target, &mut HeldExtents),
        (prefix, block): (&[u8], u64),
        seqno: u64,
        bytes: &[u8],
        wish: Compression,
    ) -> Result<()> {
        self.append(target, held, bytes)?;
        let (span, crc) = (SeqnoSpan { count: 1, seqno }, crc32c(bytes));
        match self.queue.last_mut() {
            Some(last)
                if last.addr.is_none()
                    && last.unit.is_none()
                    && last.wish == wish
                    && last.first + last.crcs.len() as u64 == block
                    && last.prefix[..] == *prefix =>
            {
                last.crcs.push(crc);
                match last.spans.last_mut() {
                    Some(tail) if tail.seqno == span.seqno => tail.count += 1,
                    _ => last.spans.push(span),
                }
            }
            _ => {
                let prefix = self.own_prefix(prefix);
                let (spans, crcs) = (vec![span], vec![crc]);
                let pending = Pending { prefix, first: block, spans, crcs, wish, unit: None, addr: None };
                self.queue.push(pending);
            }
        }
        Ok(())
    }

    /// Packs the blocks that were collected, or leaves them as they are if that wins nothing.
    pub(super) fn end_unit(&mut self, target: &Target, held: &mut HeldExtents) -> Result<()> {
        if self.unit.bytes().is_empty() {
            return Ok(());
        }
        let mut unit = std::mem::take(&mut self.unit);
        if let Some(codec) = unit.pack() {
            let stored = unit.packed();
            let packed = unit_of(codec, stored.len(), unit.bytes().len());
            self.append_padded(target, held, stored, packed.stored_len())?;
            self.queue.push(Pending {
                prefix: self.own_prefix(unit.prefix()),
                first: unit.first(),
                spans: unit.spans().to_vec(),
                crcs: vec![crc32c(stored)],
                wish: unit.wish(),
                unit: Some(packed),
                addr: None,
            });
        } else {
            let mut block = unit.first();
            let mut data = unit.bytes().chunks_exact(BLOCK_BYTES);
            for span in unit.spans() {
                for bytes in data.by_ref().take(span.count as usize) {
                    self.add_plain((target, held), (unit.prefix(), block), span.seqno, bytes, unit.wish())?;
                    block += 1;
                }
            }
        }
        unit.clear();
        self.unit = unit;
        Ok(())
    }

    /// Takes over a region, or a part of one, that other pieces hold; returns the bytes that it adds.
    pub(super) fn stitch(
        &mut self,
        (target, held): (&Target, &mut HeldExtents),
        region: Region<'_>,
    ) -> Result<u64> {
        self.end_unit(target, held)?;
        let extent = region.extent();
        let bytes = match region.unit {
            Some(_) if !held.retain_unit(extent, region.prefix) => 0,
            Some(_) => u64::from(extent.len),
            None => {
                held.retain(extent);
                u64::from(extent.len)
            }
        };
        let prefix = self.own_prefix(region.prefix);
        if self.queue.is_empty() {
            push(&mut self.layer, target, Region { prefix: &prefix, ..region });
        } else {
            self.queue.push(Pending::of(prefix, &region, Some(region.addr)));
        }
        Ok(bytes)
    }

    /// Copies a packed unit as it is.
    pub(super) fn add_unit(
        &mut self,
        (target, held): (&Target, &mut HeldExtents),
        region: Region<'_>,
        stored: &[u8],
    ) -> Result<()> {
        self.end_unit(target, held)?;
        self.append_padded(target, held, stored, stored.len() as u32)?;
        let prefix = self.own_prefix(region.prefix);
        self.queue.push(Pending::of(prefix, &region, None));
        Ok(())
    }

    /// The finished layer; everything is written.
    pub(super) fn finish(&mut self, target: &Target, held: &mut HeldExtents) -> Result<Layer> {
        self.end_unit(target, held)?;
        self.write_chunk(target, held)?;
        let mut layer = std::mem::take(&mut self.layer);
        layer.shrink_to_fit();
        Ok(layer)
    }

    fn append(&mut self, target: &Target, held: &mut HeldExtents, bytes: &[u8]) -> Result<()> {
        self.append_padded(target, held, bytes, bytes.len() as u32)
    }

    /// Appends to the chunk; the caller must enqueue what it is.
    fn append_padded(
        &mut self,
        target: &Target,
        held: &mut HeldExtents,
        bytes: &[u8],
        len: u32,
    ) -> Result<()> {
        let is_elsewhere = self.to != Some(target.data);
        if is_elsewhere || self.chunk_len + len as usize > target.chunk_bytes() {
            self.write_chunk(target, held)?;
            self.to = Some(target.data);
        }
        let chunk_bytes = target.chunk_bytes().max(len as usize);
        let chunk = self.chunk.get_or_insert_with(|| AlignedBuf::zeroed(chunk_bytes));
        if chunk.len() < len as usize {
            *chunk = AlignedBuf::zeroed(len as usize);
        }
        let place = &mut chunk.as_mut()[self.chunk_len..self.chunk_len + len as usize];
        place[..bytes.len()].copy_from_slice(bytes);
        place[bytes.len()..].fill(0);
        self.chunk_len += len as usize;
        Ok(())
    }

    /// A prefix that does not keep the memory of another piece alive.
    fn own_prefix(&self, prefix: &[u8]) -> Bytes {
        match self.queue.last() {
            Some(last) if last.prefix[..] == *prefix => last.prefix.clone(),
            _ => Bytes::copy_from_slice(prefix),
        }
    }

    /// Writes the chunk and moves the queue into the layer. A plain region that the end of a zone cuts
    /// becomes two; a packed one goes to the next zone.
    fn write_chunk(&mut self, target: &Target, held: &mut HeldExtents) -> Result<()> {
        let mut extents = Vec::new();
        if self.chunk_len > 0
            && let Some(chunk) = &self.chunk
        {
            let atoms: Vec<(u32, bool)> =
                self.queue.iter().map(|pending| (pending.chunk_len(), pending.unit.is_some())).collect();
            let mut at = 0;
            while at < self.chunk_len {
                let len_max = ((self.chunk_len - at) as u32).min(target.ctx.zones.zone_bytes());
                let (whole, cut) = (first_whole(&atoms, at as u32), |len| fitting(&atoms, at as u32, len));
                let to = self.to.unwrap_or(target.data);
                let extent = held.allocate_fitting(to, len_max, target.budget, whole, cut)?;
                target.write(&chunk.as_ref()[at..at + extent.len as usize], extent.addr)?;
                at += extent.len as usize;
                extents.push(extent);
            }
        }
        self.chunk_len = 0;
        let mut extents = extents.into_iter();
        let mut here = Extent { addr: 0, len: 0 };
        for pending in self.queue.drain(..) {
            if let Some(addr) = pending.addr {
                push(&mut self.layer, target, pending.region(addr));
                continue;
            }
            let mut first = pending.first;
            while first < pending.end() {
                if here.len == 0 {
                    here = extents.next().expect("the extents hold the whole chunk");
                }
                let left = (pending.end() - first) as u32;
                let whole = pending.region(here.addr);
                let count = if whole.unit.is_some() { left } else { left.min(here.len / BLOCK_BYTES as u32) };
                let spans: Vec<SeqnoSpan> =
                    whole.spans(first, first + u64::from(count)).map(|(_, span)| span).collect();
                let part = Region { addr: here.addr, ..whole.part(first, count, &spans) };
                push(&mut self.layer, target, part);
                let len = part.extent().len;
                here.addr += u64::from(len);
                here.len -= len;
                first += u64::from(count);
            }
        }
        Ok(())
    }
}

/// A whole unit.
fn unit_of(codec: Codec, stored_bytes: usize, raw_bytes: usize) -> Unit {
    Unit { codec, bytes: stored_bytes as u32, blocks: (raw_bytes / BLOCK_BYTES) as u32, skip: 0 }
}

/// How much of the chunk from `at` on, at most `len`, can be written without cutting a packed unit. Atoms are
/// lengths, and whether it is one.
fn fitting(atoms: &[(u32, bool)], at: u32, len: u32) -> u32 {
    let (mut start, end) = (0, at + len);
    for &(atom, is_packed) in atoms {
        if is_packed && start < end && start + atom > end {
            return start.max(at) - at;
        }
        start += atom;
    }
    len
}

/// Length of the packed unit at `at`; of a plain region one block.
fn first_whole(atoms: &[(u32, bool)], at: u32) -> u32 {
    let mut start = 0;
    for &(atom, is_packed) in atoms {
        if is_packed && start == at && atom > 0 {
            return atom;
        }
        start += atom;
    }
    BLOCK_BYTES as u32
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
