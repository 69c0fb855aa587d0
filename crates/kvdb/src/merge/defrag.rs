//! Defragmentation: zones of which much is dead, or that hold many short stretches, are emptied until what is
//! stored fills as few zones as it can, in long ones.
//!
//! Source: KVFS thesis, 3.2.1 and 4.5. There the data of the zones with the shortest stretches goes into
//! holes of the others. Here the reserve always has zones to begin with, so it goes into zones of its own,
//! and what it leaves makes room for the next.
//!
//! Thread safety: any thread; each piece is rewritten in a claim of its run, beside reads, writes and merges.
//! Invariants: each rewrite is one edit, so a defragmentation may end behind any of them; a zone is emptied
//! once, whatever comes to lie in it then.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use kvfs_store::Result;

use super::limited::Limited;
use super::reclaim::ReclaimReason;
use super::rounds::Rounds;
use super::victims::uses_of;
use super::{Merger, StepConfig};
use crate::compaction::Victims;
use crate::format::ZoneId;
use crate::runtime::ok_unless_full;
use crate::space::{Budget, Lane, ZoneRow};

/// A zone with less live data than this share is worth emptying.
const LIVE_PERCENT_MAX: u64 = 90;

/// So is one whose stretches have fewer bytes in the mean, if pieces have several of them there.
const STRETCH_BYTES_MIN: u64 = 128 << 10;

/// Zones that are begun while others are emptied, and those that are left to others.
const ZONES_KEPT: u64 = 5;

/// What is chosen to be copied in a round (bytes): pieces with data in several of its zones are written once
/// for all of them.
const ROUND_BYTES_MAX: u64 = 1 << 30;

/// It is worth it from so many zones that could be free on, and from this part of those in use on.
const WORTH_ZONES_MIN: u64 = 8;
const WORTH_PART_MIN: u64 = 4;

/// Which zones are rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DefragPolicy {
    /// Those of which a tenth or more is dead, or that hold many short stretches; these first.
    #[default]
    Sparse,
    /// All that hold data.
    Rewrite,
}

/// Most bytes that are copied each second, until it is lifted.
#[derive(Clone, Default)]
pub struct DefragLimit {
    bytes_per_second: u64,
    holds: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl DefragLimit {
    /// So many bytes; 0: no limit. When `holds` says no there is none, also for the piece that is being
    /// copied: a defragmentation that is told to end does so soon. It is asked often.
    pub fn new(bytes_per_second: u64, holds: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        Self { bytes_per_second, holds: Some(holds) }
    }

    fn bytes_per_second(&self) -> u64 {
        let holds = || self.holds.as_ref().is_none_or(|holds| holds());
        if self.bytes_per_second > 0 && holds() { self.bytes_per_second } else { 0 }
    }
}

impl fmt::Debug for DefragLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DefragLimit")
            .field("bytes_per_second", &self.bytes_per_second)
            .finish_non_exhaustive()
    }
}

/// What is stored where, as far as it can be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fragmentation {
    /// Zones with data of files and keys.
    pub zones_used: u64,
    /// Zones that it would fill without a gap.
    pub zones_needed: u64,
    /// Live bytes in them.
    pub bytes_live: u64,
    /// Contiguous stretches that they are in.
    pub stretches: u64,
    /// Size of a zone (bytes).
    pub zone_bytes: u64,
}

impl Fragmentation {
    /// Mean length of a contiguous stretch (bytes), the thesis's weight; 0 when there is none.
    pub fn stretch_bytes_mean(&self) -> u64 {
        self.bytes_live.checked_div(self.stretches).unwrap_or(0)
    }

    /// Zones that could be free.
    pub fn zones_reclaimable(&self) -> u64 {
        self.zones_used.saturating_sub(self.zones_needed)
    }

    /// What they hold (bytes).
    pub fn bytes_reclaimable(&self) -> u64 {
        self.zones_reclaimable() * self.zone_bytes
    }

    /// A quarter of the zones in use could be free, and there are enough of these to be noticed.
    pub fn is_worth_it(&self) -> bool {
        let zones = self.zones_reclaimable();
        zones >= WORTH_ZONES_MIN && zones * WORTH_PART_MIN >= self.zones_used
    }

    fn of(zones: &[ZoneRow], zone_bytes: u64) -> Self {
        let bytes_live = zones.iter().map(|zone| zone.bytes_live).sum::<u64>();
        Self {
            zones_used: zones.len() as u64,
            zones_needed: bytes_live.div_ceil(zone_bytes),
            bytes_live,
            stretches: zones.iter().map(|zone| zone.stretches).sum(),
            zone_bytes,
        }
    }
}

/// What a defragmentation would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DefragPlan {
    /// What there is.
    pub now: Fragmentation,
    /// Zones to be emptied.
    pub zones: u64,
    /// What is copied out of them (bytes).
    pub bytes: u64,
}

impl DefragPlan {
    /// Zones that are free behind it: those that are emptied, but for those that the copies take.
    pub fn zones_freed(&self) -> u64 {
        self.zones.saturating_sub(self.bytes.div_ceil(self.now.zone_bytes.max(1)))
    }
}

/// How far a defragmentation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DefragProgress {
    /// Of the plan (bytes).
    pub bytes_done: u64,
    /// See [`DefragPlan::bytes`].
    pub bytes: u64,
}

/// What a defragmentation has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defragmented {
    /// Before it.
    pub before: Fragmentation,
    /// Behind it; others may have written meanwhile.
    pub after: Fragmentation,
    /// What lay in the zones that were emptied (bytes).
    pub bytes_moved: u64,
    /// False: it was told to end, or found too little space to go on.
    pub is_complete: bool,
}

/// Defragments what `merger` merges.
pub(crate) struct Defragmenter {
    merger: Arc<Merger>,
}

impl Defragmenter {
    pub(crate) fn new(merger: &Arc<Merger>) -> Self {
        Self { merger: Arc::clone(merger) }
    }

    /// What is stored where. O(zones + pieces).
    pub(crate) fn fragmentation(&self) -> Fragmentation {
        Fragmentation::of(&self.merger.victims.emptiable(), self.merger.runtime.ctx.zones.zone_bytes().into())
    }

    /// What a defragmentation would do now. O(zones + pieces).
    pub(crate) fn plan(&self, policy: DefragPolicy) -> DefragPlan {
        let zones = self.merger.victims.emptiable();
        let now = Fragmentation::of(&zones, self.merger.runtime.ctx.zones.zone_bytes().into());
        let targets = self.targets(zones, policy);
        let bytes = targets.iter().map(|zone| zone.bytes_live).sum();
        DefragPlan { now, zones: targets.len() as u64, bytes }
    }

    /// Empties zones by `policy`, within `limit`, until `goes_on` says no: it is asked before each piece.
    ///
    /// # Errors
    /// I/O errors, corruption. Too little space ends it without one.
    pub(crate) fn run(
        &self,
        policy: DefragPolicy,
        limit: &DefragLimit,
        goes_on: &mut dyn FnMut(DefragProgress) -> bool,
    ) -> Result<Defragmented> {
        self.merger.runtime.check_writable()?;
        let before = self.fragmentation();
        Rounds::let_merges_end(&self.merger, || goes_on(DefragProgress { bytes_done: 0, bytes: 0 }));
        // What is dead goes first: it is not to be copied.
        ok_unless_full(self.merger.background_reclaim(ReclaimReason::OldGarbage))?;
        let zones = &self.merger.runtime.ctx.zones;
        let targets = self.targets(self.merger.victims.emptiable(), policy);
        let bytes = targets.iter().map(|zone| zone.bytes_live).sum();
        let mut left: Vec<(ZoneId, u32)> =
            targets.into_iter().map(|zone| (zone.zone, zones.generation(zone.zone))).collect();
        let (mut bytes_done, mut rounds) = (0, Rounds::of(&self.merger));
        let mut is_complete = true;
        while !left.is_empty() && is_complete {
            let (victims, budget, bytes_round) = self.next_round(&mut left);
            let limit = limit.clone();
            let pace = Limited::over(self.merger.pace(), &self.merger, move || limit.bytes_per_second());
            let config =
                StepConfig { victims, ..self.merger.stepper.step_config(Lane::FIRST, budget, Some(pace)) };
            let mut is_told_to_end = false;
            let mut tell = |done: usize, all: usize| {
                let part = bytes_round * done as u64 / all.max(1) as u64;
                is_told_to_end =
                    !goes_on(DefragProgress { bytes_done: (bytes_done + part).min(bytes), bytes });
                !is_told_to_end
            };
            // Also where there is nothing to choose.
            if tell(0, 1) {
                let emptied = self.merger.empty(&config, false, &mut tell);
                ok_unless_full(emptied.map(drop))?;
            }
            let count = left.len();
            self.drop_emptied(&mut left);
            let mut gets_on = true;
            if left.len() < count {
                bytes_done = (bytes_done + bytes_round).min(bytes);
                rounds.got_on();
            } else if !left.is_empty() {
                // Runs that are merged just now were passed over: that ends by itself. That readers hold
                // much, or that there is too little space, may not.
                left.rotate_left(1);
                gets_on = rounds.wait_for_others();
            }
            is_complete = !is_told_to_end && !self.merger.runtime.is_stopping() && gets_on;
        }
        goes_on(DefragProgress { bytes_done, bytes });
        let after = self.fragmentation();
        Ok(Defragmented { before, after, bytes_moved: bytes_done, is_complete })
    }

    /// Takes those off the list that are free, or can't be emptied any more; all that can, by number.
    fn drop_emptied(&self, left: &mut Vec<(ZoneId, u32)>) -> HashMap<ZoneId, ZoneRow> {
        let zones = &self.merger.runtime.ctx.zones;
        let rows: HashMap<ZoneId, ZoneRow> =
            self.merger.victims.emptiable().into_iter().map(|row| (row.zone, row)).collect();
        left.retain(|(zone, generation)| rows.contains_key(zone) && zones.generation(*zone) == *generation);
        rows
    }

    /// Those that `policy` wants to be emptied, in this order.
    fn targets(&self, mut zones: Vec<ZoneRow>, policy: DefragPolicy) -> Vec<ZoneRow> {
        let zone_bytes = u64::from(self.merger.runtime.ctx.zones.zone_bytes());
        let weight = |zone: &ZoneRow| zone.bytes_live / zone.stretches.max(1);
        if policy == DefragPolicy::Sparse {
            let view = self.merger.live.view();
            let mut pieces: HashMap<ZoneId, u64> = HashMap::new();
            for zone_use in uses_of(&view.version) {
                *pieces.entry(zone_use.zone).or_default() += 1;
            }
            let is_torn = |zone: &ZoneRow| zone.stretches > 2 * pieces.get(&zone.zone).copied().unwrap_or(0);
            zones.retain(|zone| {
                zone.bytes_live * 100 < zone_bytes * LIVE_PERCENT_MAX
                    || (weight(zone) < STRETCH_BYTES_MIN && is_torn(zone))
            });
        }
        zones.sort_by_key(|zone| (weight(zone), zone.bytes_live));
        // One alone would only be another one.
        if zones.len() < 2 { Vec::new() } else { zones }
    }

    /// The first of those that are left whose data fits what is free, one at least; how far that may go, and
    /// how much it is (bytes). None is chosen while readers hold what others have been emptied of: it would
    /// not come back before they end.
    fn next_round(&self, left: &mut Vec<(ZoneId, u32)>) -> (Victims, Budget, u64) {
        let zones = &self.merger.runtime.ctx.zones;
        let zone_bytes = u64::from(zones.zone_bytes());
        let rows = self.drop_emptied(left);
        let kept = self.merger.space.bytes_waiting() + ZONES_KEPT * zone_bytes;
        let room_in = |budget| zones.free_bytes(budget).saturating_sub(kept);
        // What deletions leave to merges is taken only where nothing can be done without it, and it comes
        // back at once.
        let budget = if room_in(Budget::Deleting) > 0 { Budget::Deleting } else { Budget::Reserve };
        let is_held = budget == Budget::Reserve && self.merger.live.is_old_version_read();
        if is_held || self.merger.victims.readers_hold_zones() {
            return (Victims::default(), budget, 0);
        }
        let room = room_in(budget).min(ROUND_BYTES_MAX);
        let mut bytes = 0;
        let mut chosen = Vec::new();
        for (zone, _) in left.iter() {
            let live = rows[zone].bytes_live;
            if !chosen.is_empty() && bytes + live > room {
                break;
            }
            bytes += live;
            chosen.push(zone.0);
        }
        (Victims::new(chosen, zone_bytes), budget, bytes)
    }
}
