//! What is live in zones to which clones refer several times: counted once, as it takes space.
//!
//! Purpose: zones count a reference for each prefix and piece, which is what it takes to copy them one by
//! one. Where half of a zone is dead and the rest is referred to twice, it counts as full; when space is
//! short, it is worth a look at the indexes.
//!
//! Thread safety: pure functions over a version.

use std::collections::{HashMap, HashSet};

use crate::format::{Extent, Layer, ZoneId};
use crate::space::ZoneRow;
use crate::version::Version;

/// What a zone holds.
#[derive(Default)]
struct Held {
    /// Data, as often as it is referred to.
    extents: Vec<Extent>,
    /// What is no data (bytes).
    bytes_other: u64,
}

/// Counts what is live in `zones` once, however often the pieces of `version` refer to it. Reads the indexes
/// of those that have anything there.
pub(super) fn count_once(version: &Version, zones: &mut [ZoneRow], zone_bytes: u64) {
    let mut held: HashMap<ZoneId, Held> = zones.iter().map(|zone| (zone.zone, Held::default())).collect();
    let pieces = version.keyspaces().flat_map(|(_, runs)| runs).flat_map(|run| &run.pieces);
    for piece in pieces {
        let mut bytes: HashMap<ZoneId, u64> =
            piece.desc().zones.iter().map(|zone_use| (zone_use.zone, zone_use.bytes)).collect();
        bytes.retain(|zone, _| held.contains_key(zone));
        if bytes.is_empty() {
            continue;
        }
        // Of a piece whose index can't be read all counts.
        let index = piece.index().ok();
        let mut units = HashSet::new();
        for region in index.iter().flat_map(|index| index.layers()).flat_map(Layer::regions) {
            let extent = region.extent();
            let zone = ZoneId((extent.addr / zone_bytes) as u32);
            let (Some(held), Some(bytes)) = (held.get_mut(&zone), bytes.get_mut(&zone)) else { continue };
            held.extents.push(extent);
            // A piece has a unit once for each prefix.
            if region.unit.is_none() || units.insert((extent.addr, region.prefix.clone())) {
                *bytes = bytes.saturating_sub(extent.len.into());
            }
        }
        for (zone, bytes) in bytes {
            held.entry(zone).or_default().bytes_other += bytes;
        }
    }
    for zone in zones {
        let Held { extents, bytes_other } = held.remove(&zone.zone).unwrap_or_default();
        zone.bytes_live = bytes_other + bytes_of_union(extents);
    }
}

/// Bytes that lie in any of these.
fn bytes_of_union(mut extents: Vec<Extent>) -> u64 {
    extents.sort_unstable();
    let (mut bytes, mut end) = (0, 0);
    for Extent { addr, len } in extents {
        let behind = addr + u64::from(len);
        bytes += behind.saturating_sub(end.max(addr));
        end = end.max(behind);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_counted_once() {
        let extents = [(0, 8), (4, 8), (4, 2), (20, 4), (24, 4), (20, 8)];
        let extents = extents.map(|(addr, len)| Extent { addr, len });
        assert_eq!(bytes_of_union(extents.into()), 20);
    }
}
