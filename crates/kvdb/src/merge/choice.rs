//! Which of some zones are emptied: those of which the least is live.
//!
//! A zone is free when nothing in it is live any more. What is overwritten here and there leaves zones of
//! which much is live and none that is free; then the rest of some of them is copied together. A zone that is
//! four fifths live costs four times what it gains, so the fuller zones are, the shorter space has to be for
//! it (the greedy choice of log-structured file systems).
//!
//! Thread safety: pure functions.

use std::collections::{HashMap, HashSet};

use crate::compaction::Victims;
use crate::format::{ZoneId, ZoneUse};
use crate::space::{ZoneRow, ZoneState};

/// A zone with less live data than this share is emptied whenever one looks at it: at least three of them
/// become at most two.
pub(super) const POOR_PERCENT: u64 = 60;

/// One with so much is never: it would cost nine times what it gains.
pub(super) const LIVE_PERCENT_MAX: u64 = 90;

/// What is dead in zones with less counts as available. With more, a full store may lack the room to copy
/// enough of them.
const AVAILABLE_PERCENT: u64 = 80;

/// How far one goes.
pub(super) struct Limits {
    /// What zones that are not poor are emptied for (bytes).
    pub(super) gain_bytes: u64,
    /// What may be copied (bytes).
    pub(super) room_bytes: u64,
    /// Zones with so much live data stay.
    pub(super) live_percent_max: u64,
    /// Less is not worth it (bytes).
    pub(super) gain_bytes_min: u64,
}

/// What a step of a merge finds in zones.
pub(super) struct Step<'a> {
    /// Those that steps before it have begun to empty.
    pub(super) begun: &'a Victims,
    /// What the inputs have in each that they have not passed (bytes).
    pub(super) held: HashMap<ZoneId, u64>,
    /// Those in which the inputs have anything among the keys of the step.
    pub(super) near: HashSet<ZoneId>,
    /// What may be copied (bytes).
    pub(super) room_bytes: u64,
}

/// The dead bytes of a zone. Those behind its last live one are written again without it.
fn dead_bytes(zone: &ZoneRow) -> u64 {
    zone.bytes_filled.saturating_sub(zone.bytes_live)
}

/// The dead bytes of these zones, as far as one can count on them.
pub(super) fn available_bytes(zones: &[ZoneRow], zone_bytes: u64) -> u64 {
    let may_be = |zone: &&ZoneRow| is_below(zone, AVAILABLE_PERCENT, zone_bytes);
    zones.iter().filter(may_be).map(dead_bytes).sum()
}

/// The emptiest of these within `limits`, the emptiest first. O(zones log zones).
pub(super) fn emptiest(mut zones: Vec<ZoneRow>, zone_bytes: u64, limits: &Limits) -> Vec<ZoneRow> {
    zones.retain(|zone| is_below(zone, limits.live_percent_max, zone_bytes));
    zones.sort_unstable_by_key(|zone| zone.bytes_live);
    let (mut gained, mut copied) = (0, 0);
    let is_wanted = |zone: &ZoneRow| {
        copied += zone.bytes_live;
        let is_poor = is_below(zone, POOR_PERCENT, zone_bytes);
        let is_wanted = copied <= limits.room_bytes && (is_poor || gained < limits.gain_bytes);
        gained += dead_bytes(zone);
        is_wanted
    };
    let count = zones.iter().map(is_wanted).take_while(|is_wanted| *is_wanted).count();
    zones.truncate(count);
    let gained: u64 = zones.iter().map(dead_bytes).sum();
    if gained < limits.gain_bytes_min {
        zones.clear();
    }
    zones
}

fn is_below(zone: &ZoneRow, live_percent: u64, zone_bytes: u64) -> bool {
    zone.bytes_live * 100 < zone_bytes * live_percent
}

/// Those that may be taken again when all of these uses have gone: nothing else has anything there, and their
/// device is not drained. But for those with much room behind their last live bytes, which is filled again.
pub(super) fn emptiable<'a>(
    mut zones: Vec<ZoneRow>,
    zone_bytes: u64,
    uses: impl Iterator<Item = &'a ZoneUse>,
) -> Vec<ZoneRow> {
    let mut held: HashMap<ZoneId, (u64, u64)> = HashMap::new();
    for zone_use in uses {
        let (bytes, stretches) = held.entry(zone_use.zone).or_default();
        *bytes += zone_use.bytes;
        *stretches += u64::from(zone_use.pieces);
    }
    zones.retain_mut(|zone| {
        let Some(&(bytes, stretches)) = held.get(&zone.zone) else { return false };
        // As pieces know them: the allocator counts what was written one behind the other as several.
        zone.stretches = stretches;
        let is_all_of_it = zone.state == ZoneState::Closed && bytes == zone.bytes_live;
        is_all_of_it && zone.takes_new && zone.bytes_filled * 2 > zone_bytes
    });
    zones
}

/// Of the zones that are `wanted`, in this order, those that are free when the merge of `step` has passed
/// what it holds there, and in which the step begins; those that have begun go on. What is live in all of
/// them fits.
pub(super) fn of_step(zones: &[ZoneRow], wanted: &[ZoneRow], step: &Step<'_>) -> Vec<u32> {
    let goes_on = |zone: &&ZoneRow| {
        step.begun.have(zone.zone) && zone.state == ZoneState::Closed && zone.bytes_live > 0
    };
    let mut chosen: Vec<&ZoneRow> = zones.iter().filter(goes_on).collect();
    let mut room_bytes = step.room_bytes.saturating_sub(chosen.iter().map(|zone| zone.bytes_live).sum());
    let begins = |zone: &&ZoneRow| {
        !step.begun.have(zone.zone)
            && step.near.contains(&zone.zone)
            && step.held.get(&zone.zone) == Some(&zone.bytes_live)
    };
    for zone in wanted.iter().filter(begins) {
        let Some(left) = room_bytes.checked_sub(zone.bytes_live) else { break };
        room_bytes = left;
        chosen.push(zone);
    }
    chosen.iter().map(|zone| zone.zone.0).collect()
}

#[cfg(test)]
mod tests;
