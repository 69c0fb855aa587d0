//! The part of a fill that lies in packed units: one request for neighbours.
//!
//! A unit that is wanted wholly by a large read is unpacked straight into the caller's buffer; else it goes
//! through the block cache.

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result};

use super::{LayerFill, Stretch, blocks_of};
use crate::format::{Layer, Region};
use crate::memtable::{BlockFill, BlockState};
use crate::table::read_ahead::Direction;
use crate::table::unit_read::{raw_len, unit_offset};

/// Most bytes of neighbouring units that one request reads.
const REQUEST_BYTES_MAX: usize = 1 << 20;

impl LayerFill<'_, '_> {
    /// Reads the stretches, all of which lie in packed units.
    pub(super) fn read_packed(&mut self, stretches: &[Stretch]) -> Result<()> {
        let mut rest = stretches;
        while let Some(stretch) = rest.first() {
            let region = self.layer.region(stretch.region);
            if let Some(cached) = self.storage.cached(region.addr, raw_len(&region)) {
                take_from_unit(self.fill, &region, stretch, cached.bytes());
                rest = &rest[1..];
                continue;
            }
            let group = neighbours(self.layer, rest);
            self.read_group(&rest[..group])?;
            rest = &rest[group..];
        }
        Ok(())
    }

    /// Reads stretches whose units lie one behind the other.
    fn read_group(&mut self, group: &[Stretch]) -> Result<()> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let (first, last) =
            (self.layer.region(first.region).extent(), self.layer.region(last.region).extent());
        let len = (last.addr + u64::from(last.len) - first.addr) as usize;
        let window = match self.storage.window_at(first.addr, len) {
            Some(window) => Some(window),
            None if len >= self.storage.ctx().options.bypass_bytes => None,
            None => self.storage.ahead(first.addr, (len, len), || None, Direction::Forward),
        };
        // A window may end before the last unit does: at the end of what the piece has in the zone.
        if let Some(window) = window.filter(|window| window.bytes_from(first.addr) >= len)
            && let Some(bytes) = window.bytes()
        {
            window.note_use(first.addr, len, Direction::Forward);
            if self.take_group(group, bytes.at(first.addr, len)).is_ok() {
                return Ok(());
            }
            self.storage.discard_window(&window);
        }
        let mut stored = AlignedBuf::zeroed(len);
        self.storage.read(stored.as_mut(), first.addr)?;
        if len >= self.storage.ctx().options.bypass_bytes {
            self.storage.passed(first.addr, len);
        }
        self.take_group(group, stored.as_ref())
    }

    /// Unpacks the units of `group`, whose bytes on the device are `stored`; goes on where it ended by an
    /// error.
    fn take_group(&mut self, group: &[Stretch], stored: &[u8]) -> Result<()> {
        let Some(start) = group.first().map(|stretch| self.layer.region(stretch.region).addr) else {
            return Ok(());
        };
        let is_large = blocks_of(group) * BLOCK_BYTES >= self.storage.ctx().options.bypass_bytes;
        let mut unpacked: Option<(u64, Bytes)> = None;
        for stretch in group {
            if self.fill.state(stretch.position) != BlockState::Unknown {
                continue;
            }
            let region = self.layer.region(stretch.region);
            let own = &stored[(region.addr - start) as usize..][..region.extent().len as usize];
            if is_large
                && region.is_whole_unit()
                && stretch.count == region.count as usize
                && let Some(buf) = self.fill.buffer(stretch.positions())
            {
                self.piece.unpack_into(&region, own, buf)?;
                self.fill.mark_data(stretch.positions());
                continue;
            }
            let unit = match unpacked.take() {
                Some((addr, unit)) if addr == region.addr && unit.len() == raw_len(&region) => unit,
                _ => self.storage.cache_own(region.addr, self.piece.unpack_unit(&region, own)?.into()),
            };
            take_from_unit(self.fill, &region, stretch, &unit);
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
        let is_next = left == right || left.addr + u64::from(left.len) == right.addr;
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
