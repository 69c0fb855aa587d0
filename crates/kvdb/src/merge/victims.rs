//! Which zones are emptied: those of which the least is live.
//!
//! A zone is free when nothing in it is live any more. What is overwritten here and there leaves zones of which much is live and
//! none that is free; then the rest of some of them is copied together. A zone that is four fifths live costs four times
//! what it gains, so the fuller zones are, the shorter space has to be for it (the greedy choice of log-structured file systems).
//!
//! Thread safety: the choice is made on a copy of the table; what becomes live or dead meanwhile makes it worse, not wrong.
//!
//! Invariants: what lies in the chosen zones fits the space that is free before the first of them is; nothing but runs has
//! anything there, neither transactions nor the journal nor readers of what has been merged since.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::compaction::Victims;
use crate::flush::headroom::Space;
use crate::format::{ZoneId, ZoneUse};
use crate::live::LiveSet;
use crate::merge::deleted::Deleted;
use crate::runtime::Runtime;
use crate::space::{Budget, ZoneRow, ZoneState};
use crate::version::Version;

/// A zone with less live data than this share is emptied whenever one looks at it: at least three of them become at most two.
const POOR_PERCENT: u64 = 60;

/// One with so much is never: it would cost nine times what it gains.
const LIVE_PERCENT_MAX: u64 = 90;

/// What is dead in zones with less counts as available. With more, a full store may lack the room to copy enough of them.
const AVAILABLE_PERCENT: u64 = 80;

/// At leisure zones are emptied until one part in so many of the capacity is free. With more, they would be emptied before much of
/// them is dead; with less, little could be copied at a time.
const BACKGROUND_SHARE: u64 = 16;

/// From this shortage on emptying is pressing.
const SHORTAGE_PRESSING: f64 = 0.5;

/// For a caller that waits until this is: one part in so many of the capacity, and no more than so much (bytes), lest it wait for
/// minutes.
const SHARE_WAITED_FOR: u64 = 32;
const BYTES_WAITED_FOR_MAX: u64 = 256 << 20;

/// A pass at leisure copies no more than one part in so many of the capacity, or so much if that is more (bytes): a caller may
/// come to wait for its end.
const SHARE_COPIED_MAX: u64 = 64;
const BYTES_COPIED_MIN: u64 = 1 << 30;

/// Zones that a pass begins: what it copies ends in some, and so does metadata.
const ZONES_BEGUN: u64 = 3;

/// Zones of the reserve that no pass takes.
const ZONES_LEFT: u64 = 2;

/// Where readers hold so many that would be free without them, no more are emptied but for a caller that waits.
const ZONES_OF_READERS: usize = 4;

/// How far one goes.
struct Limits {
    /// What zones that are not poor are emptied for (bytes).
    gain_bytes: u64,
    /// What may be copied (bytes).
    room_bytes: u64,
    /// Zones with so much live data stay.
    live_percent_max: u64,
    /// Less is not worth it (bytes).
    gain_bytes_min: u64,
}

/// The dead bytes of a zone. Those behind its last live one are written again without it.
fn dead_bytes(zone: &ZoneRow) -> u64 {
    zone.bytes_filled.saturating_sub(zone.bytes_live)
}

/// The dead bytes of these zones, as far as one can count on them.
fn available_bytes(zones: &[ZoneRow], zone_bytes: u64) -> u64 {
    let may_be = |zone: &&ZoneRow| is_below(zone, AVAILABLE_PERCENT, zone_bytes);
    zones.iter().filter(may_be).map(dead_bytes).sum()
}

/// The emptiest of these within `limits`.
fn choose(mut zones: Vec<ZoneRow>, zone_bytes: u64, limits: &Limits) -> Victims {
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
    let chosen = &zones[..count];
    let gained: u64 = chosen.iter().map(dead_bytes).sum();
    let is_worth_it = gained >= limits.gain_bytes_min;
    let numbers = chosen.iter().filter(|_| is_worth_it).map(|zone| zone.zone.0).collect();
    Victims::new(numbers, zone_bytes)
}

fn is_below(zone: &ZoneRow, live_percent: u64, zone_bytes: u64) -> bool {
    zone.bytes_live * 100 < zone_bytes * live_percent
}

/// Those that are free when all of these uses have gone: nothing else has anything there. But for those with much room behind their
/// last live bytes, which is filled again.
fn emptiable<'a>(
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
        zone.state == ZoneState::Closed && zone.bytes_filled * 2 > zone_bytes && bytes == zone.bytes_live
    });
    zones
}

/// Chooses zones to be emptied.
pub(crate) struct VictimPicker {
    runtime: Arc<Runtime>,
    live: Arc<LiveSet>,
    space: Arc<Space>,
    deleted: Arc<Deleted>,
}

impl VictimPicker {
    /// Of what `space` has, and `deleted` knows to be dead.
    pub(super) fn new(space: &Arc<Space>, deleted: &Arc<Deleted>) -> Self {
        let (runtime, live) = (Arc::clone(&space.runtime), Arc::clone(&space.live));
        Self { runtime, live, space: Arc::clone(space), deleted: Arc::clone(deleted) }
    }

    /// The zones that are worth emptying while no caller waits.
    pub(crate) fn background_victims(&self) -> Victims {
        if self.readers_hold_zones() {
            return Victims::default();
        }
        let wanted = self.background_bytes();
        let gain_bytes = wanted.saturating_sub(self.runtime.ctx.zones.free_bytes(Budget::Ordinary));
        let percent_more = (LIVE_PERCENT_MAX - POOR_PERCENT) * gain_bytes / wanted.max(1);
        let copied_max =
            (self.runtime.ctx.zones.space().bytes_capacity / SHARE_COPIED_MAX).max(BYTES_COPIED_MIN);
        // Writers meanwhile take the rest.
        let room_bytes = (self.space.space_left() / 4 * 3).min(copied_max);
        let live_percent_max = POOR_PERCENT + percent_more;
        let gain_bytes_min = 2 * self.space.flush_slack_bytes();
        self.victims(&Limits { gain_bytes, room_bytes, live_percent_max, gain_bytes_min })
    }

    /// What is to be free for ordinary writes before no zones have to be emptied (bytes).
    fn background_bytes(&self) -> u64 {
        self.runtime.ctx.zones.space().bytes_capacity / BACKGROUND_SHARE
    }

    /// How much of that is gone, from 0 to 1.
    pub(crate) fn shortage(&self) -> f64 {
        let left = self.runtime.ctx.zones.free_bytes(Budget::Ordinary) as f64
            / self.background_bytes().max(1) as f64;
        (1.0 - left).max(0.0)
    }

    /// Whether making space comes before ordinary merges.
    pub(crate) fn is_emptying_pressing(&self) -> bool {
        self.shortage() >= SHORTAGE_PRESSING && self.background_victims().any()
    }

    /// The zones that a waiting caller has emptied, and how far that may go. What merges of rows need is taken only if nothing can
    /// be done without it.
    pub(crate) fn victims_for_waiting(&self) -> (Victims, Budget) {
        let victims = self.victims_in(Budget::Deleting, 0);
        if victims.any() || self.readers_hold_zones() {
            return (victims, Budget::Deleting);
        }
        let victims = self.victims_in(Budget::Reserve, ZONES_LEFT);
        let budget = if victims.any() { Budget::Reserve } else { Budget::Deleting };
        (victims, budget)
    }

    /// Those that can be emptied in what `budget` has, but for so many zones. A pass that found too little space would have taken some and
    /// given none back, so what it writes besides is counted, too.
    fn victims_in(&self, budget: Budget, zones_left: u64) -> Victims {
        let zones = &self.runtime.ctx.zones;
        let gain_bytes = self.bytes_waited_for().saturating_sub(zones.free_bytes(Budget::Ordinary));
        let zone_bytes = u64::from(zones.zone_bytes());
        let begun_bytes = (ZONES_BEGUN + zones_left) * zone_bytes;
        let taken_bytes = self.space.bytes_waiting() + begun_bytes;
        let room_bytes = zones.free_bytes(budget).saturating_sub(taken_bytes);
        // What a pass that ended half-way has left of some zones may be brought to its end.
        let is_least = budget == Budget::Reserve && zones.free_bytes(budget) >= ZONES_BEGUN * zone_bytes;
        let room_bytes = room_bytes.max(if is_least { zone_bytes } else { 0 });
        // As much metadata as a pass writes becomes free in its end.
        let gain_bytes_min = self.space.flush_slack_bytes();
        self.victims(&Limits { gain_bytes, room_bytes, live_percent_max: LIVE_PERCENT_MAX, gain_bytes_min })
    }

    /// Whether no caller needs more space for now.
    pub(crate) fn has_much_space(&self) -> bool {
        self.runtime.ctx.zones.free_bytes(Budget::Ordinary) > self.bytes_waited_for()
    }

    fn bytes_waited_for(&self) -> u64 {
        let share_bytes = self.runtime.ctx.zones.space().bytes_capacity / SHARE_WAITED_FOR;
        share_bytes.min(BYTES_WAITED_FOR_MAX).max(4 * self.space.flush_slack_bytes())
    }

    /// Whether many zones would be free if no reader held what has been merged since.
    pub(super) fn readers_hold_zones(&self) -> bool {
        let view = self.live.view();
        let held: HashSet<ZoneId> = uses_of(&view.version).map(|zone_use| zone_use.zone).collect();
        let zones_of = |old: &Arc<Version>| {
            let zones = uses_of(old).map(|zone_use| zone_use.zone);
            zones.filter(|zone| !held.contains(zone)).collect::<HashSet<_>>().len()
        };
        self.live.old_versions().iter().map(zones_of).sum::<usize>() >= ZONES_OF_READERS
    }

    /// What writers may count on besides what is free, since a pass makes it free for them (bytes): what is dead, and what
    /// was deleted as a range. Of the rest, what is overwritten but not merged yet counts as live. O(zones + pieces), and
    /// what [`Deleted::dead_bytes`](super::deleted::Deleted::dead_bytes) takes.
    pub(crate) fn bytes_to_be_gained(&self) -> u64 {
        let deleted = self.deleted.dead_bytes();
        let mut zones = self.emptiable();
        for zone in &mut zones {
            let bytes = deleted.get(&zone.zone).copied().unwrap_or(0);
            zone.bytes_live = zone.bytes_live.saturating_sub(bytes);
        }
        available_bytes(&zones, self.runtime.ctx.zones.zone_bytes().into())
    }

    fn victims(&self, limits: &Limits) -> Victims {
        choose(self.emptiable(), self.runtime.ctx.zones.zone_bytes().into(), limits)
    }

    /// Zones that are free when nothing of any run lies in them any more.
    pub(super) fn emptiable(&self) -> Vec<ZoneRow> {
        let zones = self.runtime.ctx.zones.rows();
        let view = self.live.view();
        emptiable(zones, self.runtime.ctx.zones.zone_bytes().into(), uses_of(&view.version))
    }
}

/// What the runs have in zones.
pub(super) fn uses_of(version: &Version) -> impl Iterator<Item = &ZoneUse> {
    let pieces = version.keyspaces().flat_map(|(_, runs)| runs).flat_map(|run| &run.pieces);
    pieces.flat_map(|piece| &piece.desc().zones)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Stream;

    const ZONE_BYTES: u64 = 1000;

    fn zone(number: u32, state: ZoneState, bytes_live: u64) -> ZoneRow {
        ZoneRow { zone: ZoneId(number), state, bytes_live, bytes_filled: 1000, stretches: 1 }
    }

    fn closed(live: &[u64]) -> Vec<ZoneRow> {
        (0..).zip(live).map(|(number, &live)| zone(number, ZoneState::Closed, live)).collect()
    }

    fn chosen(zones: Vec<ZoneRow>, gain_bytes: u64, room_bytes: u64, live_percent_max: u64) -> Vec<u32> {
        let numbers = 0..zones.len() as u32;
        let limits = Limits { gain_bytes, room_bytes, live_percent_max, gain_bytes_min: 300 };
        let victims = choose(zones, ZONE_BYTES, &limits);
        numbers.filter(|&number| victims.have(ZoneId(number))).collect()
    }

    #[test]
    fn the_emptiest_zones_come_first_until_enough_is_gained() {
        let zones = || closed(&[950, 800, 700, 750, 900]);
        assert_eq!(chosen(zones(), 550, 9999, 90), [2, 3]);
        assert_eq!(chosen(zones(), 551, 9999, 90), [1, 2, 3]);
        assert_eq!(chosen(zones(), 9999, 9999, 90), [1, 2, 3], "others cost too much");
        assert_eq!(chosen(zones(), 9999, 1500, 90), [2, 3], "what is copied has to fit");
        assert_eq!(chosen(zones(), 0, 9999, 90), [0; 0]);
        assert_eq!(chosen(zones(), 250, 9999, 90), [2], "300 are gained, which is worth it");
        assert_eq!(chosen(closed(&[701]), 250, 9999, 90), [0; 0]);
    }

    #[test]
    fn poor_zones_are_emptied_for_nothing_in_particular() {
        let zones = || closed(&[599, 600, 1]);
        assert_eq!(chosen(zones(), 0, 9999, 60), [0, 2]);
        assert_eq!(chosen(zones(), 0, 599, 60), [2]);
    }

    #[test]
    fn zones_that_would_not_be_free_are_left_alone() {
        let zones = vec![
            zone(0, ZoneState::System, 0),
            zone(1, ZoneState::Open(Stream::Meta), 100),
            zone(2, ZoneState::Free, 0),
            zone(3, ZoneState::Manifest, 0),
            zone(4, ZoneState::Closed, 100),
            zone(5, ZoneState::Closed, 200),
            ZoneRow { bytes_filled: 500, ..zone(6, ZoneState::Closed, 200) },
        ];
        let zone_use = |(zone, bytes)| ZoneUse { zone: ZoneId(zone), bytes, pieces: 1, end: 990 };
        let uses = [(1, 100), (4, 40), (4, 60), (5, 199), (6, 200)].map(zone_use);
        let found = emptiable(zones, ZONE_BYTES, uses.iter());
        assert_eq!(found.iter().map(|zone| zone.zone).collect::<Vec<_>>(), [ZoneId(4)]);
        assert_eq!(available_bytes(&found, ZONE_BYTES), 900);
        assert_eq!(available_bytes(&closed(&[800, 799]), ZONE_BYTES), 201, "what is to be counted on");
    }
}
