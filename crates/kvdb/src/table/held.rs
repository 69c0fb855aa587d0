//! Space that a writer holds until its piece takes it over.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::Result;

use crate::format::{Extent, ZoneId, ZoneUse};
use crate::space::{Budget, Destination, Zones};

/// References on extents; released on drop unless a piece takes them over.
pub(super) struct HeldExtents {
    zones: Arc<Zones>,
    /// Neighbours in one zone are one extent.
    extents: Vec<Extent>,
    /// Packed units of a prefix, each of which is held once, however many parts of it there are.
    units: HashSet<(u64, Bytes)>,
}

impl HeldExtents {
    pub(super) fn new(zones: Arc<Zones>) -> Self {
        Self { zones, extents: Vec::new(), units: HashSet::new() }
    }

    /// A contiguous extent of `len` bytes.
    pub(super) fn allocate(&mut self, to: Destination, len: u32, budget: Budget) -> Result<Extent> {
        let extent = self.zones.allocate(to, len, budget)?;
        self.push(extent);
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
        let extent = self.zones.allocate_up_to(to, len_max, budget)?;
        let len = fit(extent.len);
        if len < extent.len {
            let addr = extent.addr + u64::from(len);
            self.zones.release(Extent { addr, len: extent.len - len });
        }
        if len == 0 {
            return self.allocate(to, len_whole, budget);
        }
        let extent = Extent { addr: extent.addr, len };
        self.push(extent);
        Ok(extent)
    }

    /// As [`HeldExtents::retain`], of a packed unit; nothing if the prefix holds it already. Says whether it
    /// did not.
    pub(super) fn retain_unit(&mut self, extent: Extent, prefix: &Bytes) -> bool {
        let is_new = self.units.insert((extent.addr, prefix.clone()));
        if is_new {
            self.retain(extent);
        }
        is_new
    }

    /// One more reference to bytes that are live: another piece's, or, of cloned blocks, held here already.
    pub(super) fn retain(&mut self, extent: Extent) {
        self.zones.retain(extent);
        self.push(extent);
    }

    fn push(&mut self, extent: Extent) {
        if let Some(last) = self.extents.last_mut()
            && last.addr + u64::from(last.len) == extent.addr
            && self.zones.zone_of(last.addr) == self.zones.zone_of(extent.addr)
        {
            last.len += extent.len;
        } else {
            self.extents.push(extent);
        }
    }

    /// Sums up by zone, and leaves the references to the caller.
    pub(super) fn into_uses(mut self) -> Vec<ZoneUse> {
        zone_uses(&self.zones, std::mem::take(&mut self.extents))
    }
}

/// What the extents hold in each zone; those that lie side by side are one piece.
pub(super) fn zone_uses(zones: &Zones, mut extents: Vec<Extent>) -> Vec<ZoneUse> {
    extents.sort_unstable();
    let zone_bytes = u64::from(zones.zone_bytes());
    let mut uses: BTreeMap<ZoneId, ZoneUse> = BTreeMap::new();
    let mut previous_end = None;
    for extent in extents {
        let zone = zones.zone_of(extent.addr);
        let entry = uses.entry(zone).or_insert(ZoneUse { zone, bytes: 0, pieces: 0, end: 0 });
        if entry.pieces == 0 || previous_end != Some(extent.addr) {
            entry.pieces += 1;
        }
        entry.bytes += u64::from(extent.len);
        entry.end = entry.end.max((extent.addr % zone_bytes) as u32 + extent.len);
        previous_end = Some(extent.addr + u64::from(extent.len));
    }
    uses.into_values().collect()
}

impl Drop for HeldExtents {
    fn drop(&mut self) {
        for &extent in &self.extents {
            self.zones.release(extent);
        }
    }
}
