//! Reads of blocks: fills of consecutive ones, single ones, presence.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result, Seqno};

use super::piece::{Piece, is_intact};
use super::read_ahead::Direction;
use super::unit_read::unit_offset;
use super::windows::Window;
use crate::format::{Layer, RecordKind, Region, cmp_block_key};
use crate::memtable::{BlockFill, Lookup, split_block_key};

/// Blocks of a fill that one region has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    /// Position in the fill.
    pub(super) position: usize,
    pub(super) count: usize,
    pub(super) region: usize,
}

impl Stretch {
    pub(super) fn positions(&self) -> Range<usize> {
        self.position..self.position + self.count
    }
}

impl Piece {
    /// Fills what `fill` has not decided yet from this piece, as far as its key is at or after `lower_bound`, which is what a
    /// trimmed run still has: reads neighbouring blocks in one request, straight into the caller's buffer, and verifies
    /// each. Small reads go through the cache.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(crate) fn fill_from(&self, fill: &mut BlockFill<'_>, lower_bound: &[u8]) -> Result<()> {
        let start = position_at_or_after(fill, lower_bound);
        if start == fill.count() {
            return Ok(());
        }
        let mut covered = fill.covered(self.tombstones());
        for (range, _) in &mut covered {
            range.start = range.start.max(start).min(range.end);
        }
        let index = self.glance()?;
        for layer in index.layers() {
            let mut found = Vec::new();
            let mut at = start;
            while let Some(range) = fill.next_undecided(at) {
                at = range.end;
                find_stretches(layer, fill, range, &mut found);
            }
            if !covered.is_empty() {
                found = hide_covered(layer, fill, &covered, &found);
            }
            if fill.wants_data() {
                self.read_stretches(layer, fill, &found)?;
            } else {
                for stretch in found {
                    fill.mark_data(stretch.positions());
                }
            }
            if fill.is_complete() {
                return Ok(());
            }
        }
        fill.end_layer(&covered);
        Ok(())
    }

    /// The smallest block at or after `from` of `prefix` that has a version at or below `snapshot`.
    /// Ignores range tombstones. O(log regions), more only past regions that are too new.
    ///
    /// # Errors
    /// I/O errors and corruption of the index.
    pub(crate) fn next_block(&self, prefix: &[u8], from: u64, snapshot: Seqno) -> Result<Option<u64>> {
        let in_layer = |layer: &Layer| {
            (layer.find(prefix, from)..layer.len())
                .map(|index| layer.region(index))
                // Keys of a longer prefix may lie between two blocks of this one.
                .take_while(|region| cmp_block_key(prefix, u64::MAX, &first_key(region)).is_ge())
                .filter(|region| region.prefix[..] == *prefix)
                .find_map(|region| {
                    let mut spans = region.spans(from, u64::MAX);
                    spans.find(|(_, span)| span.seqno <= snapshot).map(|(block, _)| block)
                })
        };
        Ok(self.glance()?.layers().iter().filter_map(in_layer).min())
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
        if let Some(cached) = self.ctx().cache.get(self.cache_key(addr)) {
            return Ok(cached.bytes().clone());
        }
        let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
        self.read_verified(region, block, buf.as_mut())?;
        Ok(self.cache_copy(addr, buf.as_ref()))
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
        self.read(buf, region.addr_of(first))?;
        self.verify_data(region, first, buf)
    }

    fn verify_data(&self, region: &Region<'_>, first: u64, bytes: &[u8]) -> Result<()> {
        for (block, data) in (first..=u64::MAX).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            if !is_intact(data, region.crc_of(block)) {
                let detail = format!("checksum of block {block} does not match");
                return Err(self.corrupt("data block", region.addr_of(block), &detail));
            }
        }
        Ok(())
    }

    /// Reads what was found, neighbours in one request.
    fn read_stretches(&self, layer: &Layer, fill: &mut BlockFill<'_>, found: &[Stretch]) -> Result<()> {
        let is_packed = |stretch: &Stretch| layer.region(stretch.region).unit.is_some();
        let (packed, found): (Vec<Stretch>, Vec<Stretch>) = found.iter().copied().partition(is_packed);
        if !packed.is_empty() {
            self.read_packed(layer, fill, &packed)?;
        }
        let addr_of = |stretch: &Stretch| {
            let region = layer.region(stretch.region);
            region.addr_of(fill_block(fill, stretch.position))
        };
        let continues = |left: &Stretch, right: &Stretch| {
            left.position + left.count == right.position
                && addr_of(left) + (left.count * BLOCK_BYTES) as u64 == addr_of(right)
        };
        let mut requests = Vec::new();
        for request in found.chunk_by(continues) {
            requests.push((addr_of(&request[0]), request));
        }
        for (addr, request) in requests {
            if blocks_of(request) * BLOCK_BYTES >= self.ctx().options.bypass_bytes {
                self.read_large(layer, fill, addr, request)?;
            } else {
                self.read_cached(layer, fill, request)?;
            }
        }
        Ok(())
    }

    /// Stretches that lie one behind the other from `addr` on, past the cache: what was read ahead of them, and the rest straight
    /// into the caller's buffer. What will be asked for next is read meanwhile, where such reads follow one another.
    fn read_large(
        &self,
        layer: &Layer,
        fill: &mut BlockFill<'_>,
        addr: u64,
        stretches: &[Stretch],
    ) -> Result<()> {
        let (mut addr, mut rest) = (addr, stretches.to_vec());
        while let Some(first) = rest.first() {
            let start = first.position;
            let count = blocks_of(&rest);
            let len = count * BLOCK_BYTES;
            if let Some(window) = self.window_at(addr, BLOCK_BYTES) {
                let held = (window.bytes_from(addr) / BLOCK_BYTES).min(count);
                let next = window.range().end;
                if window.note_use(addr, held * BLOCK_BYTES, Direction::Forward)
                    && goes_on(layer, &rest, next)
                {
                    window.follow(|| self.plan_large(&window.range(), len));
                }
                let (head, tail) = split_stretches(&rest, held);
                if self.copy_window(&window, layer, fill, addr, &head)? {
                    addr += (held * BLOCK_BYTES) as u64;
                    rest = tail;
                    continue;
                }
            }
            let end = addr + len as u64;
            if self.passed(addr, len) && goes_on(layer, &rest, end) {
                self.plan_large(&(addr..end), len);
            }
            self.read_request(layer, fill, addr, start..start + count, &rest)?;
            fill.mark_data(start..start + count);
            return Ok(());
        }
        Ok(())
    }

    /// One request straight into the caller's buffer.
    fn read_request(
        &self,
        layer: &Layer,
        fill: &mut BlockFill<'_>,
        addr: u64,
        positions: Range<usize>,
        stretches: &[Stretch],
    ) -> Result<()> {
        let first = fill.first();
        let Some(buf) = fill.buffer(positions.clone()) else { return Ok(()) };
        self.read(buf, addr)?;
        for stretch in stretches {
            let at = (stretch.position - positions.start) * BLOCK_BYTES;
            let block = first + stretch.position as u64;
            let data = &buf[at..at + stretch.count * BLOCK_BYTES];
            self.verify_data(&layer.region(stretch.region), block, data)?;
        }
        Ok(())
    }

    /// Takes stretches that lie one behind the other from `addr` on out of a window, verifies and decides
    /// them. False: the window could not be read.
    fn copy_window(
        &self,
        window: &Window,
        layer: &Layer,
        fill: &mut BlockFill<'_>,
        addr: u64,
        stretches: &[Stretch],
    ) -> Result<bool> {
        let Some(bytes) = window.bytes() else { return Ok(false) };
        let mut addr = addr;
        for stretch in stretches {
            let (range, len) = (stretch.positions(), stretch.count * BLOCK_BYTES);
            let first = fill_block(fill, stretch.position);
            let Some(buf) = fill.buffer(range.clone()) else { return Ok(false) };
            buf.copy_from_slice(bytes.at(addr, len));
            self.verify_data(&layer.region(stretch.region), first, buf)?;
            fill.mark_data(range);
            addr += len as u64;
        }
        Ok(true)
    }

    /// Block by block from the cache or from what was read ahead; what they lack is read, neighbours in one
    /// request, and cached.
    fn read_cached(&self, layer: &Layer, fill: &mut BlockFill<'_>, request: &[Stretch]) -> Result<()> {
        for stretch in request {
            let region = layer.region(stretch.region);
            let end = stretch.position + stretch.count;
            let mut position = stretch.position;
            while position < end {
                let addr = region.addr_of(fill_block(fill, position));
                if let Some(block) = self.ctx().cache.get(self.cache_key(addr)) {
                    fill.set_data(position, block.bytes());
                    position += 1;
                    continue;
                }
                let len = (end - position) * BLOCK_BYTES;
                if let Some(window) = self.blocks_ahead(addr, len) {
                    let count = (window.bytes_from(addr) / BLOCK_BYTES).min(end - position);
                    let part = Stretch { position, count, region: stretch.region };
                    if self.copy_window(&window, layer, fill, addr, &[part])? {
                        position += count;
                        continue;
                    }
                }
                let mut missing = position + 1;
                let mut hit = None;
                while missing < end && hit.is_none() {
                    let addr = region.addr_of(fill_block(fill, missing));
                    hit = self.ctx().cache.get(self.cache_key(addr));
                    missing += usize::from(hit.is_none());
                }
                let part = Stretch { position, count: missing - position, region: stretch.region };
                self.read_request(layer, fill, addr, position..missing, &[part])?;
                if let Some(buf) = fill.buffer(position..missing) {
                    for (index, data) in buf.chunks_exact(BLOCK_BYTES).enumerate() {
                        self.cache_copy(addr + (index * BLOCK_BYTES) as u64, data);
                    }
                }
                fill.mark_data(position..missing);
                position = missing;
                if let Some(block) = hit {
                    fill.set_data(position, block.bytes());
                    position += 1;
                }
            }
        }
        Ok(())
    }

    /// As [`Piece::ahead`], forward; plans what lies behind it in the same zone.
    fn blocks_ahead(&self, addr: u64, len: usize) -> Option<Arc<Window>> {
        let window = self.ahead(addr, (BLOCK_BYTES, len), || None, Direction::Forward)?;
        let next = window.range().end;
        if window.note_use(addr, len, Direction::Forward)
            && self.can_plan()
            && self.zone_extent(addr).is_some_and(|own| own.end > next)
        {
            self.plan(&window, next..next + BLOCK_BYTES as u64, None, Direction::Forward);
        }
        Some(window)
    }

    pub(super) fn verify_blocks(self: &Arc<Self>, layers: &[Layer]) -> Result<u64> {
        let mut buf = AlignedBuf::zeroed(self.ctx().options.read_ahead_bytes);
        let blocks_max = (buf.len() / BLOCK_BYTES) as u64;
        for region in layers.iter().flat_map(Layer::regions) {
            let mut first = region.first;
            while first < region.end() {
                let count = blocks_max.min(region.end() - first);
                self.read_verified(&region, first, &mut buf.as_mut()[..count as usize * BLOCK_BYTES])?;
                first += count;
            }
        }
        Ok(self.desc().data_bytes)
    }
}

fn first_key(region: &Region<'_>) -> Vec<u8> {
    crate::memtable::block_key(region.prefix, region.first)
}

fn fill_block(fill: &BlockFill<'_>, position: usize) -> u64 {
    fill.first() + position as u64
}

/// How many blocks all of these stretches have.
pub(super) fn blocks_of(stretches: &[Stretch]) -> usize {
    stretches.iter().map(|stretch| stretch.count).sum()
}

/// Whether the file of these stretches, which are one behind the other, has more at or behind the device address `next`: a
/// reader that reads it to its end seldom goes on with its neighbour.
fn goes_on(layer: &Layer, stretches: &[Stretch], next: u64) -> bool {
    let Some(last) = stretches.last() else { return false };
    let region = layer.region(last.region);
    let extent = region.extent();
    let is_followed = || {
        let behind = last.region + 1;
        behind < layer.len() && layer.region(behind).prefix[..] == region.prefix[..]
    };
    next < extent.addr + u64::from(extent.len) || is_followed()
}

/// The first `count` blocks of stretches, and the others.
fn split_stretches(stretches: &[Stretch], count: usize) -> (Vec<Stretch>, Vec<Stretch>) {
    let (mut head, mut tail, mut left) = (Vec::new(), Vec::new(), count);
    for &Stretch { position, count, region } in stretches {
        let taken = count.min(left);
        left -= taken;
        if taken > 0 {
            head.push(Stretch { position, count: taken, region });
        }
        if taken < count {
            tail.push(Stretch { position: position + taken, count: count - taken, region });
        }
    }
    (head, tail)
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
