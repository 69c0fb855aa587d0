//! Reads of packed units: one request for neighbours, each unit verified, then unpacked as a whole.
//!
//! A unit that is wanted wholly by a large read is unpacked straight into the caller's buffer; else it goes
//! through the block cache, unpacked, under its address.

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result, StoreError};

use super::block_read::{Stretch, blocks_of};
use super::piece::Piece;
use super::read_ahead::Direction;
use crate::format::{DecodeError, Layer, Region, Unit};
use crate::memtable::BlockFill;

/// Most bytes of neighbouring units that one request reads.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Where `block` of `region` begins in the unpacked unit.
pub(super) fn unit_offset(region: &Region<'_>, unit: &Unit, block: u64) -> usize {
    (u64::from(unit.skip) + (block - region.first)) as usize * BLOCK_BYTES
}

fn raw_len(region: &Region<'_>) -> usize {
    region.unit.map_or(0, |unit| unit.blocks as usize * BLOCK_BYTES)
}

impl Piece {
    /// The unpacked unit of `region`, from the cache or the device.
    pub(super) fn unit(&self, region: &Region<'_>) -> Result<Bytes> {
        if let Some(cached) = self.ctx().cache.get(self.cache_key(region.addr)) {
            return Ok(cached.bytes().clone());
        }
        let raw = self.read_unit(region)?;
        Ok(self.cache_own(region.addr, raw.into()))
    }

    /// The unpacked unit of `region`, from the device.
    pub(super) fn read_unit(&self, region: &Region<'_>) -> Result<Vec<u8>> {
        let mut stored = AlignedBuf::zeroed(region.extent().len as usize);
        self.read(stored.as_mut(), region.addr)?;
        self.unpack_unit(region, stored.as_ref())
    }

    /// Verifies and unpacks what was read of a unit.
    pub(crate) fn unpack_unit(&self, region: &Region<'_>, stored: &[u8]) -> Result<Vec<u8>> {
        let mut raw = vec![0; raw_len(region)];
        self.unpack_into(region, stored, &mut raw)?;
        Ok(raw)
    }

    fn unpack_into(&self, region: &Region<'_>, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        region.unpack(stored, raw).map_err(|error| self.corrupt_unit(region, error))
    }

    /// Verifies what was read of a unit, without unpacking it.
    ///
    /// # Errors
    /// Corruption.
    pub(crate) fn verify_unit(&self, region: &Region<'_>, stored: &[u8]) -> Result<()> {
        region.verify_unit(stored).map(drop).map_err(|error| self.corrupt_unit(region, error))
    }

    fn corrupt_unit(&self, region: &Region<'_>, error: DecodeError) -> StoreError {
        let detail = format!("{error} (blocks {} to {})", region.first, region.end() - 1);
        self.corrupt("packed data blocks", region.addr, &detail)
    }

    /// Reads the stretches, all of which lie in packed units.
    pub(super) fn read_packed(
        &self,
        layer: &Layer,
        fill: &mut BlockFill<'_>,
        stretches: &[Stretch],
    ) -> Result<()> {
        let mut rest = stretches;
        while let Some(stretch) = rest.first() {
            let region = layer.region(stretch.region);
            if let Some(cached) = self.ctx().cache.get(self.cache_key(region.addr)) {
                take_from_unit(fill, &region, stretch, cached.bytes());
                rest = &rest[1..];
                continue;
            }
            let group = neighbours(layer, rest);
            self.read_group(layer, fill, &rest[..group])?;
            rest = &rest[group..];
        }
        Ok(())
    }

    /// Reads stretches whose units lie one behind the other.
    fn read_group(&self, layer: &Layer, fill: &mut BlockFill<'_>, group: &[Stretch]) -> Result<()> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let (first, last) = (layer.region(first.region).extent(), layer.region(last.region).extent());
        let len = (last.addr + u64::from(last.len) - first.addr) as usize;
        let window = match self.window_at(first.addr, len) {
            Some(window) => Some(window),
            None if len >= self.ctx().options.bypass_bytes => None,
            None => self.ahead(first.addr, (len, len), || None, Direction::Forward),
        };
        // A window may end before the last unit does: at the end of what the piece has in the zone.
        if let Some(window) = window.filter(|window| window.bytes_from(first.addr) >= len)
            && let Some(bytes) = window.bytes()
        {
            window.note_use(first.addr, len, Direction::Forward);
            return self.take_group(layer, fill, group, bytes.at(first.addr, len));
        }
        let mut stored = AlignedBuf::zeroed(len);
        self.read(stored.as_mut(), first.addr)?;
        if len >= self.ctx().options.bypass_bytes {
            self.passed(first.addr, len);
        }
        self.take_group(layer, fill, group, stored.as_ref())
    }

    /// Unpacks the units of `group`, whose bytes on the device are `stored`.
    fn take_group(
        &self,
        layer: &Layer,
        fill: &mut BlockFill<'_>,
        group: &[Stretch],
        stored: &[u8],
    ) -> Result<()> {
        let Some(start) = group.first().map(|stretch| layer.region(stretch.region).addr) else {
            return Ok(());
        };
        let is_large = blocks_of(group) * BLOCK_BYTES >= self.ctx().options.bypass_bytes;
        let mut unpacked: Option<(u64, Bytes)> = None;
        for stretch in group {
            let region = layer.region(stretch.region);
            let own = &stored[(region.addr - start) as usize..][..region.extent().len as usize];
            if is_large
                && region.is_whole_unit()
                && stretch.count == region.count as usize
                && let Some(buf) = fill.buffer(stretch.positions())
            {
                self.unpack_into(&region, own, buf)?;
                fill.mark_data(stretch.positions());
                continue;
            }
            let unit = match unpacked.take() {
                Some((addr, unit)) if addr == region.addr => unit,
                _ => self.cache_own(region.addr, self.unpack_unit(&region, own)?.into()),
            };
            take_from_unit(fill, &region, stretch, &unit);
            unpacked = Some((region.addr, unit));
        }
        Ok(())
    }
}

/// How many of the stretches from the first one on lie in units that are neighbours on the device.
fn neighbours(layer: &Layer, stretches: &[Stretch]) -> usize {
    let extent = |stretch: &Stretch| layer.region(stretch.region).extent();
    let start = extent(&stretches[0]).addr;
    let goes_on = |pair: &&[Stretch]| {
        let (left, right) = (extent(&pair[0]), extent(&pair[1]));
        let is_next = left.addr == right.addr || left.addr + u64::from(left.len) == right.addr;
        is_next && (right.addr + u64::from(right.len) - start) as usize <= REQUEST_BYTES_MAX
    };
    1 + stretches.windows(2).take_while(goes_on).count()
}

/// Hands the blocks of `stretch` to `fill`.
fn take_from_unit(fill: &mut BlockFill<'_>, region: &Region<'_>, stretch: &Stretch, raw: &Bytes) {
    let Some(unit) = &region.unit else { return };
    let at = unit_offset(region, unit, fill.first() + stretch.position as u64);
    if let Some(buf) = fill.buffer(stretch.positions()) {
        buf.copy_from_slice(&raw[at..at + stretch.count * BLOCK_BYTES]);
    }
    fill.mark_data(stretch.positions());
}
