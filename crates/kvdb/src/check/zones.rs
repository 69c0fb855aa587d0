//! A picture of the device: what each zone is used for, and how scattered the data is.

use crate::space::{ZoneRow, ZoneState, Zones};

/// What a zone is used for, as people see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneKind {
    /// The superblocks.
    Superblocks,
    /// A part of the journal area.
    Journal,
    /// A part of the manifest.
    Manifest,
    /// Data that is being written here.
    Writing,
    /// Data.
    Data,
    /// Nothing.
    Free,
}

/// One zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneInfo {
    /// Use.
    pub kind: ZoneKind,
    /// Bytes that something refers to, at most those of the zone; 0 but for data.
    pub bytes_live: u64,
    /// Bytes that have been written since it was free, live or not; 0 but for data.
    pub bytes_filled: u64,
    /// Stretches in which the live bytes lie.
    pub stretches: u64,
}

/// All zones of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneMap {
    /// Size of a zone (bytes).
    pub zone_bytes: u64,
    /// Zones up to the capacity; the device may be shorter.
    pub zones_total: u64,
    /// Free zones that only deletes, merges and the manifest may take.
    pub zones_reserved: u64,
    /// Those that the device has.
    pub zones: Vec<ZoneInfo>,
}

impl ZoneMap {
    /// Figures of fragmentation, by name. O(zones).
    pub fn figures(&self) -> Vec<(String, u64)> {
        let is_data = |zone: &&ZoneInfo| matches!(zone.kind, ZoneKind::Data | ZoneKind::Writing);
        let data = || self.zones.iter().filter(is_data);
        let closed = || data().filter(|zone| zone.kind == ZoneKind::Data);
        let live: u64 = data().map(|zone| zone.bytes_live).sum();
        let stretches: u64 = data().map(|zone| zone.stretches).sum();
        let dead = closed().map(|zone| zone.bytes_filled.saturating_sub(zone.bytes_live)).sum();
        let half_empty = closed().filter(|zone| zone.bytes_live * 2 < self.zone_bytes).count() as u64;
        let is_free = |zone: &ZoneInfo| zone.kind == ZoneKind::Free;
        let free_runs = self.zones.chunk_by(|a, b| is_free(a) == is_free(b)).filter(|run| is_free(&run[0]));
        let free_run_max = free_runs.map(<[ZoneInfo]>::len).max().unwrap_or(0) as u64;
        let free = self.zones.iter().filter(|zone| is_free(zone)).count() as u64;
        [
            ("zones.present", self.zones.len() as u64),
            ("zones.total", self.zones_total),
            ("zones.free", free),
            ("zones.reserved", self.zones_reserved.min(free)),
            ("zones.longest_free_run", free_run_max),
            ("zones.less_than_half_full", half_empty),
            ("data.live_bytes", live),
            ("data.dead_bytes", dead),
            ("data.stretches", stretches),
            ("data.stretch_mean_bytes", live.checked_div(stretches).unwrap_or(0)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// What every zone is used for. O(zones).
pub(crate) fn zone_map(zones: &Zones) -> ZoneMap {
    let totals = zones.space();
    let zone_bytes = u64::from(totals.zone_bytes);
    let info = |row: ZoneRow| {
        let kind = match row.state {
            ZoneState::Free => ZoneKind::Free,
            ZoneState::System if row.zone.0 == 0 => ZoneKind::Superblocks,
            ZoneState::System => ZoneKind::Journal,
            ZoneState::Manifest => ZoneKind::Manifest,
            ZoneState::Open(_) => ZoneKind::Writing,
            ZoneState::Closed => ZoneKind::Data,
        };
        let bytes_live = row.bytes_live.min(zone_bytes);
        ZoneInfo { kind, bytes_live, bytes_filled: row.bytes_filled, stretches: row.stretches }
    };
    ZoneMap {
        zone_bytes,
        zones_total: totals.zones_total.into(),
        zones_reserved: totals.zones_reserved.into(),
        zones: zones.rows().into_iter().map(info).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(kind: ZoneKind, bytes_live: u64, bytes_filled: u64, stretches: u64) -> ZoneInfo {
        ZoneInfo { kind, bytes_live, bytes_filled, stretches }
    }

    #[test]
    fn figures_tell_what_is_dead_and_how_scattered_the_rest_is() {
        let free = zone(ZoneKind::Free, 0, 0, 0);
        let zones = vec![
            zone(ZoneKind::Superblocks, 0, 0, 0),
            zone(ZoneKind::Data, 30, 100, 3),
            free,
            zone(ZoneKind::Data, 90, 90, 1),
            free,
            free,
            zone(ZoneKind::Writing, 20, 40, 1),
        ];
        let map = ZoneMap { zone_bytes: 100, zones_total: 50, zones_reserved: 4, zones };
        let figure = |name: &str| map.figures().into_iter().find(|(known, _)| known == name).map(|(_, n)| n);
        assert_eq!(figure("data.dead_bytes"), Some(70));
        assert_eq!(figure("data.live_bytes"), Some(140));
        assert_eq!(figure("data.stretch_mean_bytes"), Some(28));
        assert_eq!(figure("zones.less_than_half_full"), Some(1));
        assert_eq!((figure("zones.longest_free_run"), figure("zones.reserved")), (Some(2), Some(3)));
    }
}
