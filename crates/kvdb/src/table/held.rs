//! Space that a writer holds until its piece takes it over.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_store::Result;

use crate::format::{Extent, ZoneId, ZoneUse};
use crate::space::{Budget, Destination, Zones};

/// Bytes of the device, however often they were named.
pub(super) struct ExtentSet {
    zones: Arc<Zones>,
    /// By the address of the first byte; neighbours in one zone are one extent, none overlaps another.
    extents: BTreeMap<u64, u32>,
}

impl ExtentSet {
    /// Of nothing.
    pub(super) fn new(zones: &Arc<Zones>) -> Self {
        Self { zones: Arc::clone(zones), extents: BTreeMap::new() }
    }

    /// Adds what is not in it yet of an extent that lies in one zone; says what that is.
    pub(super) fn add(&mut self, extent: Extent) -> Vec<Extent> {
        let missing = self.missing_of(extent);
        for &part in &missing {
            self.add_missing(part);
        }
        missing
    }

    fn missing_of(&self, extent: Extent) -> Vec<Extent> {
        let end = extent.addr + u64::from(extent.len);
        let before = self.extents.range(..=extent.addr).next_back();
        let known = before.into_iter().chain(self.extents.range(extent.addr + 1..end));
        let (mut missing, mut at) = (Vec::new(), extent.addr);
        for (&addr, &len) in known {
            if addr > at {
                missing.push(Extent { addr: at, len: (addr - at) as u32 });
            }
            at = at.max(addr + u64::from(len));
        }
        if at < end {
            missing.push(Extent { addr: at, len: (end - at) as u32 });
        }
        missing
    }

    fn add_missing(&mut self, extent: Extent) {
        let zone = self.zones.zone_of(extent.addr);
        let is_beside = |addr: u64| self.zones.zone_of(addr) == zone;
        let (mut addr, mut len) = (extent.addr, extent.len);
        let end = addr + u64::from(len);
        if is_beside(end)
            && let Some(more) = self.extents.remove(&end)
        {
            len += more;
        }
        if let Some((&before, &less)) = self.extents.range(..addr).next_back()
            && before + u64::from(less) == addr
            && is_beside(before)
        {
            (addr, len) = (before, less + len);
        }
        self.extents.insert(addr, len);
    }

    fn iter(&self) -> impl Iterator<Item = Extent> {
        self.extents.iter().map(|(&addr, &len)| Extent { addr, len })
    }

    /// Sums by zone; bytes that lie side by side are one piece.
    pub(super) fn uses(&self) -> Vec<ZoneUse> {
        let zone_bytes = u64::from(self.zones.zone_bytes());
        let mut uses: BTreeMap<ZoneId, ZoneUse> = BTreeMap::new();
        for extent in self.iter() {
            let zone = self.zones.zone_of(extent.addr);
            let entry = uses.entry(zone).or_insert(ZoneUse { zone, bytes: 0, pieces: 0, end: 0 });
            entry.pieces += 1;
            entry.bytes += u64::from(extent.len);
            entry.end = entry.end.max((extent.addr % zone_bytes) as u32 + extent.len);
        }
        uses.into_values().collect()
    }
}

/// References on extents, one on each byte however often the piece refers to it (parts of packed units, blocks of cloned files);
/// released on drop unless a piece takes them over.
pub(super) struct HeldExtents {
    held: ExtentSet,
}

impl HeldExtents {
    pub(super) fn new(zones: &Arc<Zones>) -> Self {
        Self { held: ExtentSet::new(zones) }
    }

    /// A contiguous extent of `len` bytes.
    pub(super) fn allocate(&mut self, to: Destination, len: u32, budget: Budget) -> Result<Extent> {
        let extent = self.held.zones.allocate(to, len, budget)?;
        self.held.add(extent);
        Ok(extent)
    }

    /// The next extent of at most `len_max` bytes, cut down to what `fit` says of its length. If
    /// that is nothing, one of `len_whole` bytes.
    pub(super) fn allocate_fitting(
        &mut self,
        to: Destination,
        len_max: u32,
        budget: Budget,
        len_whole: u32,
        fit: impl FnOnce(u32) -> u32,
    ) -> Result<Extent> {
        let extent = self.held.zones.allocate_up_to(to, len_max, budget)?;
        let len = fit(extent.len);
        if len < extent.len {
            let addr = extent.addr + u64::from(len);
            self.held.zones.release(Extent { addr, len: extent.len - len });
        }
        if len == 0 {
            return self.allocate(to, len_whole, budget);
        }
        let extent = Extent { addr: extent.addr, len };
        self.held.add(extent);
        Ok(extent)
    }

    /// References to bytes that another piece holds, unless they are held already. Says to how many bytes.
    pub(super) fn retain(&mut self, extent: Extent) -> u64 {
        let missing = self.held.add(extent);
        let mut bytes = 0;
        for part in missing {
            self.held.zones.retain(part);
            bytes += u64::from(part.len);
        }
        bytes
    }

    /// Sums up by zone, and leaves the references to the caller.
    pub(super) fn into_uses(mut self) -> Vec<ZoneUse> {
        let uses = self.held.uses();
        self.held.extents.clear();
        uses
    }
}

impl Drop for HeldExtents {
    fn drop(&mut self) {
        self.held.iter().for_each(|extent| self.held.zones.release(extent));
    }
}
