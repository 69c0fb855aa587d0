//! Reads of blocks: fills of consecutive ones, single ones, presence.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result, Seqno};

use super::layer_fill::{LayerFill, Stretch};
use super::piece::{Piece, is_intact};
use super::unit_read::unit_offset;
use crate::format::{Extent, Layer, RecordKind, Region, cmp_block_key};
use crate::memtable::{BlockFill, Lookup, split_block_key};

/// Where consecutive blocks of one region are.
pub(crate) struct Location {
    pub(crate) piece: Arc<Piece>,
    pub(crate) layer: usize,
    pub(crate) region: usize,
    /// Number of the first block.
    pub(crate) first: u64,
    pub(crate) count: u32,
}

/// Is told a layer, by number, and what it has of a fill.
type VisitLayer<'v, 'f> = &'v mut dyn FnMut(&mut BlockFill<'f>, (usize, &Layer), &[Stretch]) -> Result<()>;

impl Piece {
    /// Fills what `fill` has not decided yet from this piece, as far as its key is at or after `lower_bound`,
    /// which is what a trimmed run still has: reads neighbouring blocks in one request, straight into the
    /// caller's buffer, and verifies each. Small reads go through the cache.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(crate) fn fill_from(&self, fill: &mut BlockFill<'_>, lower_bound: &[u8]) -> Result<()> {
        self.visit_undecided(fill, lower_bound, &mut |fill, (_, layer), found| {
            if fill.wants_data() {
                return LayerFill::new(self, layer, fill).read_stretches(found);
            }
            for stretch in found {
                fill.mark_data(stretch.positions());
            }
            Ok(())
        })
    }

    /// As [`Self::fill_from`], but what the piece has of the blocks is not read: `locations` gets to know
    /// where it is, in no order.
    ///
    /// # Errors
    /// I/O errors and corruption of the index.
    pub(crate) fn locate_from(
        self: &Arc<Self>,
        fill: &mut BlockFill<'_>,
        lower_bound: &[u8],
        locations: &mut Vec<Location>,
    ) -> Result<()> {
        self.visit_undecided(fill, lower_bound, &mut |fill, (layer, _), found| {
            for stretch in found {
                let first = fill_block(fill, stretch.position);
                let (region, count) = (stretch.region, stretch.count as u32);
                locations.push(Location { piece: Arc::clone(self), layer, region, first, count });
                fill.mark_data(stretch.positions());
            }
            Ok(())
        })
    }

    /// Tells `visit` what each layer has of the blocks that are not decided yet, and are visible; it must
    /// decide them.
    fn visit_undecided<'f>(
        &self,
        fill: &mut BlockFill<'f>,
        lower_bound: &[u8],
        visit: VisitLayer<'_, 'f>,
    ) -> Result<()> {
        let start = position_at_or_after(fill, lower_bound);
        if start == fill.count() {
            return Ok(());
        }
        let mut covered = fill.covered(self.tombstones());
        for (range, _) in &mut covered {
            range.start = range.start.max(start).min(range.end);
        }
        let index = self.metadata().glance()?;
        for (number, layer) in index.layers().iter().enumerate() {
            let mut found = Vec::new();
            let mut at = start;
            while let Some(range) = fill.next_undecided(at) {
                at = range.end;
                find_stretches(layer, fill, range, &mut found);
            }
            if !covered.is_empty() {
                found = hide_covered(layer, fill, &covered, &found);
            }
            visit(fill, (number, layer), &found)?;
            if fill.is_complete() {
                return Ok(());
            }
        }
        fill.end_layer(&covered);
        Ok(())
    }

    /// The smallest of some blocks of `prefix` that has a version at or below `snapshot`. Ignores range
    /// tombstones. O(log regions), more only past regions that are too new.
    ///
    /// # Errors
    /// I/O errors and corruption of the index.
    pub(crate) fn next_block(
        &self,
        prefix: &[u8],
        blocks: Range<u64>,
        snapshot: Seqno,
    ) -> Result<Option<u64>> {
        let in_layer = |layer: &Layer| {
            (layer.find(prefix, blocks.start)..layer.len())
                .map(|index| layer.region(index))
                // Keys of a longer prefix may lie between two blocks of this one.
                .take_while(|region| cmp_block_key(prefix, blocks.end, &first_key(region)).is_gt())
                .filter(|region| region.prefix[..] == *prefix)
                .find_map(|region| {
                    let mut spans = region.spans(blocks.start, blocks.end);
                    spans.find(|(_, span)| span.seqno <= snapshot).map(|(block, _)| block)
                })
        };
        Ok(self.metadata().glance()?.layers().iter().filter_map(in_layer).min())
    }

    /// Reads and verifies the blocks `first .. first + count` of a region, whatever hides them, into
    /// the start of `buf`, which grows as needed: for merges that copy.
    ///
    /// # Errors
    /// I/O errors and corruption.
    ///
    /// # Panics
    /// When the blocks do not all lie in the region.
    #[cfg(test)]
    pub(crate) fn read_region_blocks(
        &self,
        layer: usize,
        region: usize,
        first: u64,
        count: u32,
        buf: &mut AlignedBuf,
    ) -> Result<()> {
        let bytes = count as usize * BLOCK_BYTES;
        if buf.len() < bytes {
            *buf = AlignedBuf::zeroed(bytes);
        }
        let index = self.index()?;
        let region = index.layers()[layer].region(region);
        self.read_verified(&region, first, &mut buf.as_mut()[..bytes])
    }

    pub(super) fn lookup_block(&self, layers: &[Layer], lookup: &mut Lookup<'_>) -> Result<()> {
        let snapshot = lookup.snapshot();
        let tombstone = self.tombstones().covering(lookup.key(), snapshot);
        if let Some((prefix, block)) = split_block_key(lookup.key()) {
            for layer in layers {
                let index = layer.find(prefix, block);
                if index == layer.len() {
                    continue;
                }
                let region = layer.region(index);
                if region.prefix[..] != *prefix || region.first > block {
                    continue;
                }
                let seqno = region.seqno_of(block);
                if seqno > snapshot {
                    continue;
                }
                let is_hidden = tombstone.is_some_and(|tombstone| tombstone > seqno);
                let data = if is_hidden { Bytes::new() } else { self.data_block(&region, block)? };
                if !lookup.visit(seqno, RecordKind::Put, || data, tombstone) {
                    break;
                }
            }
        }
        lookup.end_layer(tombstone);
        Ok(())
    }

    /// One verified block, from the cache or the device.
    pub(super) fn data_block(&self, region: &Region<'_>, block: u64) -> Result<Bytes> {
        if let Some(unit) = &region.unit {
            let at = unit_offset(region, unit, block);
            return Ok(self.unit(region)?.slice(at..at + BLOCK_BYTES));
        }
        let addr = region.addr_of(block);
        if let Some(cached) = self.storage().cached(addr, BLOCK_BYTES) {
            return Ok(cached.bytes().clone());
        }
        let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
        self.read_verified(region, block, buf.as_mut())?;
        Ok(self.storage().cache_copy(addr, buf.as_ref()))
    }

    /// As [`Self::data_block`], for a walk over many: out of what was read ahead where blocks follow one
    /// another on the device, and the cache is left alone then.
    pub(super) fn walked_block(&self, region: &Region<'_>, block: u64) -> Result<Bytes> {
        let addr = region.addr_of(block);
        if region.unit.is_none() && self.storage().cached(addr, BLOCK_BYTES).is_none() {
            let window = self.storage().blocks_ahead(addr, BLOCK_BYTES);
            if let Some((window, bytes)) = window.as_ref().and_then(|window| Some((window, window.bytes()?)))
            {
                let data = bytes.at(addr, BLOCK_BYTES);
                if is_intact(data, region.crc_of(block)) {
                    return Ok(Bytes::copy_from_slice(data));
                }
                self.storage().discard_window(window);
            }
        }
        self.data_block(region, block)
    }

    /// Fills `buf` with the blocks of `region` from `first` on.
    pub(super) fn read_verified(&self, region: &Region<'_>, first: u64, buf: &mut [u8]) -> Result<()> {
        let end = first + (buf.len() / BLOCK_BYTES) as u64;
        assert!(region.first <= first && end <= region.end(), "the blocks lie in the region");
        if let Some(unit) = &region.unit {
            let at = unit_offset(region, unit, first);
            buf.copy_from_slice(&self.read_unit(region)?[at..at + buf.len()]);
            return Ok(());
        }
        self.storage().read(buf, region.addr_of(first))?;
        self.verify_data(region, first, buf)
    }

    pub(super) fn verify_data(&self, region: &Region<'_>, first: u64, bytes: &[u8]) -> Result<()> {
        for (block, data) in (first..=u64::MAX).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            if !is_intact(data, region.crc_of(block)) {
                let detail = format!("checksum of block {block} does not match");
                return Err(self.storage().corrupt("data block", region.addr_of(block), &detail));
            }
        }
        Ok(())
    }

    pub(super) fn verify_blocks(self: &Arc<Self>, layers: &[Layer]) -> Result<u64> {
        let mut buf = AlignedBuf::zeroed(self.ctx().options.read_ahead_bytes);
        let blocks_max = buf.len() / BLOCK_BYTES;
        let mut together: Vec<Region<'_>> = Vec::new();
        let mut len = 0;
        for region in layers.iter().flat_map(Layer::regions).flat_map(|region| parts(region, blocks_max)) {
            let bytes = region.extent().len as usize;
            let follows = together.last().is_some_and(|last| self.is_followed_by(last, &region));
            if !follows || len + bytes > buf.len() {
                self.verify_together(&together, len, &mut buf)?;
                together.clear();
                len = 0;
            }
            together.push(region);
            len += bytes;
        }
        self.verify_together(&together, len, &mut buf)?;
        Ok(self.desc().data_bytes)
    }

    /// Whether `next` lies right behind `region`, in its zone.
    fn is_followed_by(&self, region: &Region<'_>, next: &Region<'_>) -> bool {
        let zone = |region: &Region<'_>| self.ctx().zone_offset(region.addr).0;
        let Extent { addr, len } = region.extent();
        addr + u64::from(len) == next.addr && zone(region) == zone(next)
    }

    /// Reads `regions`, which lie one behind the other and take `len` bytes, by one request, and verifies
    /// each.
    fn verify_together(&self, regions: &[Region<'_>], len: usize, buf: &mut AlignedBuf) -> Result<()> {
        let Some(first) = regions.first() else { return Ok(()) };
        if buf.len() < len {
            *buf = AlignedBuf::zeroed(len);
        }
        let mut rest = &mut buf.as_mut()[..len];
        self.storage().read(rest, first.addr)?;
        for region in regions {
            let stored;
            (stored, rest) = rest.split_at_mut(region.extent().len as usize);
            match region.unit {
                Some(_) => drop(self.unpack_unit(region, stored)?),
                None => self.verify_data(region, region.first, stored)?,
            }
        }
        Ok(())
    }
}

/// The region in parts of at most `blocks_max` blocks; a packed unit stays whole.
fn parts(region: Region<'_>, blocks_max: usize) -> impl Iterator<Item = Region<'_>> {
    let step = if region.unit.is_some() { region.count as usize } else { blocks_max };
    (region.first..region.end()).step_by(step.max(1)).map(move |first| {
        let count = (region.end() - first).min(step as u64) as u32;
        region.part(first, count, region.seqnos)
    })
}

fn first_key(region: &Region<'_>) -> Vec<u8> {
    crate::memtable::block_key(region.prefix, region.first)
}

pub(super) fn fill_block(fill: &BlockFill<'_>, position: usize) -> u64 {
    fill.first() + position as u64
}

/// The first position of `fill` whose key is at or after `bound`. O(log count).
fn position_at_or_after(fill: &BlockFill<'_>, bound: &[u8]) -> usize {
    let (mut low, mut high) = (0, fill.count());
    while low < high {
        let middle = low + (high - low) / 2;
        if cmp_block_key(fill.prefix(), fill_block(fill, middle), bound).is_lt() {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The blocks at the positions `range` that `layer` has at the snapshot, ascending.
fn find_stretches(layer: &Layer, fill: &BlockFill<'_>, range: Range<usize>, found: &mut Vec<Stretch>) {
    let (from, to) = (fill_block(fill, range.start), fill_block(fill, range.end - 1));
    for index in layer.find(fill.prefix(), from)..layer.len() {
        let region = layer.region(index);
        if region.prefix[..] != *fill.prefix() {
            // Keys of a longer prefix may lie between two blocks of this one.
            if cmp_block_key(fill.prefix(), to, &first_key(&region)).is_lt() {
                break;
            }
            continue;
        }
        if region.first > to {
            break;
        }
        for (block, span) in region.spans(from, to + 1) {
            if span.seqno <= fill.snapshot() {
                let position = (block - fill.first()) as usize;
                found.push(Stretch { position, count: span.count as usize, region: index });
            }
        }
    }
}

/// Decides the found blocks that a newer range tombstone covers; returns the others.
fn hide_covered(
    layer: &Layer,
    fill: &mut BlockFill<'_>,
    covered: &[(Range<usize>, Seqno)],
    found: &[Stretch],
) -> Vec<Stretch> {
    let mut visible = Vec::with_capacity(found.len());
    for stretch in found {
        let end = stretch.position + stretch.count;
        // All blocks of a stretch have one seqno.
        let seqno = layer.region(stretch.region).seqno_of(fill_block(fill, stretch.position));
        let mut at = stretch.position;
        let first = covered.partition_point(|(range, _)| range.end <= at);
        for (range, tombstone) in &covered[first..] {
            if range.start >= end {
                break;
            }
            if *tombstone <= seqno {
                continue;
            }
            let (low, high) = (range.start.max(at), range.end.min(end));
            if at < low {
                visible.push(Stretch { position: at, count: low - at, region: stretch.region });
            }
            fill.mark_absent(low..high);
            at = at.max(high);
        }
        if at < end {
            visible.push(Stretch { position: at, count: end - at, region: stretch.region });
        }
    }
    visible
}
