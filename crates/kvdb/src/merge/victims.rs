//! Which zones are emptied, and how much of them, when: what [`choice`] is asked.
//!
//! Thread safety: the choice is made on a copy of the table; what becomes live or dead meanwhile makes it
//! worse, not wrong.
//!
//! Invariants: what lies in the chosen zones fits the space that is free before the first of them is; nothing
//! but runs has anything there, neither transactions nor the journal nor readers of what has been merged
//! since.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_store::Tier;

use crate::compaction::Victims;
use crate::flush::headroom::Space;
use crate::format::{Feature, ZoneId, ZoneUse};
use crate::live::LiveSet;
use crate::merge::Merge;
use crate::merge::choice::{self, LIVE_PERCENT_MAX, Limits, POOR_PERCENT, Step};
use crate::merge::deleted::Deleted;
use crate::merge::shared::count_once;
use crate::runtime::Runtime;
use crate::space::{Budget, FastSpace, SHARE_LEFT_FREE, ZoneRow};
use crate::table::Piece;
use crate::version::Version;

/// At leisure zones are emptied until one part in so many of the capacity is free. With more, they would be
/// emptied before much of them is dead; with less, writers would come to wait.
const BACKGROUND_SHARE: u64 = 32;

/// While a merge goes over the largest of its runs, zones are chosen anew so often at most.
const CHOICES_OF_RUN: u64 = 64;

/// From this shortage on emptying is pressing.
const SHORTAGE_PRESSING: f64 = 0.5;

/// For a caller that waits until this is: one part in so many of the capacity, and no more than so much
/// (bytes), lest it wait for minutes.
const SHARE_WAITED_FOR: u64 = 32;
const BYTES_WAITED_FOR_MAX: u64 = 256 << 20;

/// A pass at leisure copies no more than one part in so many of the capacity, or so much if that is more
/// (bytes): a caller may come to wait for its end.
const SHARE_COPIED_MAX: u64 = 64;
const BYTES_COPIED_MIN: u64 = 1 << 30;

/// Zones that a pass begins: what it copies ends in some, and so does metadata.
const ZONES_BEGUN: u64 = 3;

/// Zones of the reserve that no pass takes.
const ZONES_LEFT: u64 = 2;

/// Where readers hold so many that would be free without them, no more are emptied but for a caller that
/// waits.
const ZONES_OF_READERS: usize = 4;

/// Chooses zones to be emptied.
pub(crate) struct VictimPicker {
    runtime: Arc<Runtime>,
    live: Arc<LiveSet>,
    space: Arc<Space>,
    deleted: Arc<Deleted>,
    /// See [`VictimPicker::steps_emptying`].
    steps_emptying: AtomicU64,
}

impl VictimPicker {
    /// Of what `space` has, and `deleted` knows to be dead.
    pub(super) fn new(space: &Arc<Space>, deleted: &Arc<Deleted>) -> Self {
        let (runtime, live) = (Arc::clone(&space.runtime), Arc::clone(&space.live));
        Self {
            runtime,
            live,
            space: Arc::clone(space),
            deleted: Arc::clone(deleted),
            steps_emptying: AtomicU64::new(0),
        }
    }

    /// The zones that are worth emptying while no caller waits.
    pub(crate) fn background_victims(&self) -> Victims {
        if self.readers_hold_zones() {
            return Victims::default();
        }
        let copied_max =
            (self.runtime.ctx.zones.space().bytes_capacity / SHARE_COPIED_MAX).max(BYTES_COPIED_MIN);
        // Writers meanwhile take the rest.
        self.victims(&self.background_limits((self.space.space_left() / 4 * 3).min(copied_max)))
    }

    /// The emptiest zones of the fast devices, of which much is dead while these are nearly full: what is
    /// copied out of them fits there. So they are not full of what is dead while slow ones have room. None:
    /// these have enough room, or there is none that is worth it.
    pub(super) fn on_crowded_fast_devices(&self) -> Victims {
        let zones = &self.runtime.ctx.zones;
        let FastSpace { bytes_total, bytes_free } = zones.fast_space();
        let wanted_bytes = bytes_total / SHARE_LEFT_FREE;
        if bytes_free >= wanted_bytes || self.readers_hold_zones() {
            return Victims::default();
        }
        let fast: Vec<_> = zones
            .members_space()
            .into_iter()
            .filter(|(member, _)| member.tier == Tier::Fast && member.takes_new)
            .collect();
        // What is kept for rows comes back at once; writers meanwhile take the rest.
        let zones_free: u64 = fast.iter().map(|(_, space)| u64::from(space.zones_free)).sum();
        let limits = Limits {
            gain_bytes: wanted_bytes - bytes_free,
            room_bytes: zones_free.saturating_sub(ZONES_BEGUN) * self.zone_bytes() / 2,
            live_percent_max: LIVE_PERCENT_MAX,
            gain_bytes_min: ZONES_BEGUN * self.zone_bytes(),
        };
        let mut emptiable = self.emptiable();
        emptiable.retain(|row| fast.iter().any(|(member, _)| member.zones.contains(&row.zone.0)));
        let chosen = choice::emptiest(emptiable, self.zone_bytes(), &limits);
        Victims::new(chosen.iter().map(|zone| zone.zone.0).collect(), self.zone_bytes())
    }

    /// The fuller zones are, the shorter space has to be for them.
    fn background_limits(&self, room_bytes: u64) -> Limits {
        let wanted = self.background_bytes();
        let gain_bytes = wanted.saturating_sub(self.runtime.ctx.zones.free_bytes(Budget::Ordinary));
        let percent_more = (LIVE_PERCENT_MAX - POOR_PERCENT) * gain_bytes / wanted.max(1);
        let live_percent_max = POOR_PERCENT + percent_more;
        Limits {
            gain_bytes,
            room_bytes,
            live_percent_max,
            gain_bytes_min: 2 * self.space.flush_slack_bytes(),
        }
    }

    /// The zones that the next steps of `merge` empty within `budget`, and how many steps: of the emptiest
    /// those that lie in the keys of these steps and in none before them, so that they are free when the
    /// merge has passed what they hold; `begun` go on. O(zones + pieces), for at most [`CHOICES_OF_RUN`]
    /// times of a run.
    pub(super) fn of_steps(&self, merge: &Merge, budget: Budget, begun: &Victims) -> (Victims, u64) {
        let view = self.live.view();
        let runs = view.version.runs(merge.keyspace).iter();
        let inputs: Vec<_> = runs.filter(|run| merge.inputs.contains(&run.id)).collect();
        let Some(largest) = inputs.iter().max_by_key(|run| run.data_bytes()) else {
            return (Victims::default(), 1);
        };
        let piece_bytes = self.runtime.options.merge.piece_bytes;
        let steps = (largest.data_bytes() / CHOICES_OF_RUN / piece_bytes).max(1);
        let mut bytes = 0;
        let is_next = |piece: &&Arc<Piece>| {
            let is_next = bytes <= steps * piece_bytes;
            bytes += piece.desc().data_bytes;
            is_next
        };
        let end = largest.pieces.iter().take_while(is_next).last().map(|piece| &piece.desc().last_key);
        let (mut held, mut near) = (HashMap::new(), HashSet::new());
        for piece in inputs.iter().flat_map(|run| &run.pieces).map(|piece| piece.desc()) {
            for zone_use in &piece.zones {
                *held.entry(zone_use.zone).or_default() += zone_use.bytes;
            }
            if end.is_some_and(|end| piece.first_key <= *end) {
                near.extend(piece.zones.iter().map(|zone_use| zone_use.zone));
            }
        }
        let (zones, zone_bytes) = (self.runtime.ctx.zones.rows(), self.zone_bytes());
        let taken_bytes = self.space.bytes_waiting() + ZONES_BEGUN * zone_bytes;
        let room_bytes = self.runtime.ctx.zones.free_bytes(budget).saturating_sub(taken_bytes);
        let wanted = self.wanted(&view.version, zones.clone());
        let numbers = choice::of_step(&zones, &wanted, &Step { begun, held, near, room_bytes });
        (Victims::new(numbers, zone_bytes), steps)
    }

    /// Steps so far that have copied what lay in zones chosen for them.
    pub(super) fn steps_emptying(&self) -> u64 {
        self.steps_emptying.load(Ordering::Relaxed)
    }

    /// There was one more.
    pub(super) fn note_step_emptying(&self) {
        self.steps_emptying.fetch_add(1, Ordering::Relaxed);
    }

    /// Those of `zones` that are worth emptying while no caller waits, whatever room there is; none while
    /// readers hold what was emptied before.
    fn wanted(&self, version: &Version, zones: Vec<ZoneRow>) -> Vec<ZoneRow> {
        if self.readers_hold_zones() {
            return Vec::new();
        }
        let zones = choice::emptiable(zones, self.zone_bytes(), uses_of(version));
        choice::emptiest(zones, self.zone_bytes(), &self.background_limits(u64::MAX))
    }

    fn zone_bytes(&self) -> u64 {
        self.runtime.ctx.zones.zone_bytes().into()
    }

    /// What is to be free for ordinary writes before no zones have to be emptied (bytes).
    fn background_bytes(&self) -> u64 {
        self.runtime.ctx.zones.space().bytes_for_new / BACKGROUND_SHARE
    }

    /// How much of that is gone, from 0 to 1.
    pub(crate) fn shortage(&self) -> f64 {
        let left = self.runtime.ctx.zones.free_bytes(Budget::Ordinary) as f64
            / self.background_bytes().max(1) as f64;
        (1.0 - left).max(0.0)
    }

    /// Whether making space comes before ordinary merges.
    pub(crate) fn is_emptying_pressing(&self) -> bool {
        let are_wanted = || {
            let zones = self.runtime.ctx.zones.rows();
            !self.wanted(&self.live.view().version, zones).is_empty()
        };
        self.shortage() >= SHORTAGE_PRESSING && are_wanted()
    }

    /// The zones that a waiting caller has emptied, and how far that may go. What merges of rows need is
    /// taken only if nothing can be done without it.
    pub(crate) fn victims_for_waiting(&self) -> (Victims, Budget) {
        let victims = self.victims_in(Budget::Deleting, 0);
        if victims.any() || self.readers_hold_zones() {
            return (victims, Budget::Deleting);
        }
        let victims = self.victims_in(Budget::Reserve, ZONES_LEFT);
        let budget = if victims.any() { Budget::Reserve } else { Budget::Deleting };
        (victims, budget)
    }

    /// Those that can be emptied in what `budget` has, but for so many zones. A pass that found too little
    /// space would have taken some and given none back, so what it writes besides is counted, too.
    fn victims_in(&self, budget: Budget, zones_left: u64) -> Victims {
        self.victims(&self.limits_in(budget, zones_left))
    }

    /// As [`Self::victims_for_waiting`] where that finds none, of zones that count as full because clones
    /// refer to the same bytes: more than was ever written there. What is live in them is copied once.
    pub(super) fn shared_for_waiting(&self) -> (Victims, Budget) {
        let none = (Victims::default(), Budget::Deleting);
        if !self.live.has_announced(Feature::Clones) || self.readers_hold_zones() {
            return none;
        }
        let mut zones = self.emptiable();
        zones.retain(|zone| zone.bytes_live > zone.bytes_filled);
        count_once(&self.live.view().version, &mut zones, self.zone_bytes());
        for (budget, zones_left) in [(Budget::Deleting, 0), (Budget::Reserve, ZONES_LEFT)] {
            let limits = self.limits_in(budget, zones_left);
            let chosen = choice::emptiest(zones.clone(), self.zone_bytes(), &limits);
            if !chosen.is_empty() {
                let numbers = chosen.iter().map(|zone| zone.zone.0).collect();
                return (Victims::new(numbers, self.zone_bytes()), budget);
            }
        }
        none
    }

    /// Whether a waiting caller would have any emptied.
    pub(super) fn are_left(&self) -> bool {
        self.victims_for_waiting().0.any() || self.shared_for_waiting().0.any()
    }

    fn limits_in(&self, budget: Budget, zones_left: u64) -> Limits {
        let zones = &self.runtime.ctx.zones;
        let gain_bytes = self.bytes_waited_for().saturating_sub(zones.free_bytes(Budget::Ordinary));
        let zone_bytes = self.zone_bytes();
        let begun_bytes = (ZONES_BEGUN + zones_left) * zone_bytes;
        let taken_bytes = self.space.bytes_waiting() + begun_bytes;
        let room_bytes = zones.free_bytes(budget).saturating_sub(taken_bytes);
        // What a pass that ended half-way has left of some zones may be brought to its end.
        let is_least = budget == Budget::Reserve && zones.free_bytes(budget) >= ZONES_BEGUN * zone_bytes;
        let room_bytes = room_bytes.max(if is_least { zone_bytes } else { 0 });
        // As much metadata as a pass writes becomes free in its end.
        let gain_bytes_min = self.space.flush_slack_bytes();
        Limits { gain_bytes, room_bytes, live_percent_max: LIVE_PERCENT_MAX, gain_bytes_min }
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

    /// What writers may count on besides what is free, since a pass makes it free for them (bytes): what is
    /// dead, and what was deleted as a range. Of the rest, what is overwritten but not merged yet counts as
    /// live. O(zones + pieces), and what [`Deleted::dead_bytes`](super::deleted::Deleted::dead_bytes) takes.
    pub(crate) fn bytes_to_be_gained(&self) -> u64 {
        let deleted = self.deleted.dead_bytes();
        let mut zones = self.emptiable();
        for zone in &mut zones {
            let bytes = deleted.get(&zone.zone).copied().unwrap_or(0);
            zone.bytes_live = zone.bytes_live.saturating_sub(bytes);
        }
        choice::available_bytes(&zones, self.zone_bytes())
    }

    fn victims(&self, limits: &Limits) -> Victims {
        let zones = choice::emptiest(self.emptiable(), self.zone_bytes(), limits);
        Victims::new(zones.iter().map(|zone| zone.zone.0).collect(), self.zone_bytes())
    }

    /// Zones that may be taken again when nothing of any run lies in them any more.
    pub(super) fn emptiable(&self) -> Vec<ZoneRow> {
        let zones = self.runtime.ctx.zones.rows();
        let view = self.live.view();
        choice::emptiable(zones, self.zone_bytes(), uses_of(&view.version))
    }
}

/// What the runs have in zones.
pub(super) fn uses_of(version: &Version) -> impl Iterator<Item = &ZoneUse> {
    let pieces = version.keyspaces().flat_map(|(_, runs)| runs).flat_map(|run| &run.pieces);
    pieces.flat_map(|piece| &piece.desc().zones)
}
