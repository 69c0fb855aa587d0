//! How much of the zones is used.
//!
//! Thread safety: plain values.

use kvfs_kvdb::{ZoneKind, ZoneMap};
use std::fmt::Write;

/// The thesis calls zones with less live data *under-utilized* (figure 4.9).
const PARTLY_PERCENT: u64 = 75;

/// Zones that hold data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZoneUse {
    pub(crate) zone_bytes: u64,
    /// All of them.
    pub(crate) used: u64,
    /// Those that are under-utilized.
    pub(crate) partly: u64,
    /// What is live in these (bytes).
    partly_bytes_live: u64,
    /// How many are live to 0 to 10 %, 10 to 20 %, …
    tenths: [u64; 10],
}

impl ZoneUse {
    pub(crate) fn of(map: &ZoneMap) -> Self {
        let mut found = Self { zone_bytes: map.zone_bytes, ..Self::default() };
        for zone in &map.zones {
            if !matches!(zone.kind, ZoneKind::Data | ZoneKind::Writing) || zone.bytes_live == 0 {
                continue;
            }
            found.used += 1;
            if zone.bytes_live * 100 < PARTLY_PERCENT * map.zone_bytes {
                found.partly += 1;
                found.partly_bytes_live += zone.bytes_live;
            }
            found.tenths[(zone.bytes_live * 10 / map.zone_bytes).min(9) as usize] += 1;
        }
        found
    }

    /// Zones that so many bytes need.
    pub(crate) fn needed(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.zone_bytes)
    }

    /// The part of the used zones that so many bytes need.
    pub(crate) fn share_needed(&self, bytes: u64) -> f64 {
        self.needed(bytes) as f64 / self.used as f64
    }

    /// The part of the zones that is under-utilized.
    pub(crate) fn share_partly(&self) -> f64 {
        self.partly as f64 / self.used as f64
    }

    /// What is live in these, of what they could hold.
    pub(crate) fn live_of_partly(&self) -> f64 {
        self.partly_bytes_live as f64 / (self.partly * self.zone_bytes) as f64
    }

    /// As figure 4.10: the zones by how much of them is live.
    pub(crate) fn distribution(&self) -> String {
        let mut text = String::from("zones by use, in tenths from 0-10 % to 90-100 %:");
        for zones in self.tenths {
            let percent = (zones * 100) as f64 / self.used as f64;
            // Writing to a string cannot fail.
            let _ = write!(text, " {percent:.0}");
        }
        text + " % of them"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvfs_kvdb::ZoneInfo;

    #[test]
    fn zones_with_less_than_three_quarters_are_under_utilized() {
        let zone = |kind, bytes_live| ZoneInfo { kind, bytes_live, bytes_filled: 100, stretches: 1 };
        let zones = vec![
            zone(ZoneKind::Superblocks, 0),
            zone(ZoneKind::Data, 10),
            zone(ZoneKind::Data, 74),
            zone(ZoneKind::Free, 0),
            zone(ZoneKind::Writing, 75),
            zone(ZoneKind::Data, 100),
        ];
        let found = ZoneUse::of(&ZoneMap { zone_bytes: 100, zones_total: 9, zones_reserved: 1, zones });
        assert_eq!((found.used, found.partly, found.needed(201)), (4, 2, 3));
        assert!((found.share_needed(201) - 0.75).abs() < 1e-9);
        assert!((found.live_of_partly() - 0.42).abs() < 1e-9 && (found.share_partly() - 0.5).abs() < 1e-9);
        assert!(found.distribution().ends_with(" 0 25 0 0 0 0 0 50 0 25 % of them"), "{found:?}");
    }
}
