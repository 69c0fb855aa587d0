//! The part of the tables that knows of tiers: where blocks are placed, and what may be placed there.

use kvfs_store::Tier;

use super::Table;
use crate::space::Stream;
use crate::space::heat::FastSpace;
use crate::space::members::{Destination, MemberZones};
use crate::space::placement::{Asked, NewBlocks, Placement};

/// One zone in so many of fast devices is kept for rows and metadata where a policy has a choice.
const FAST_SHARE_KEPT: u32 = 16;
/// One zone in so many of slow devices is left to writers by what is moved there.
const SLOW_SHARE_KEPT: u32 = 64;

impl Table {
    pub(in crate::space) fn placement(&self) -> Placement {
        self.placement
    }

    pub(in crate::space) fn set_placement(&mut self, placement: Placement) {
        self.placement = placement;
    }

    pub(in crate::space) fn for_new(
        &self,
        stream: Stream,
        blocks: NewBlocks,
        is_budget_spent: &dyn Fn() -> bool,
    ) -> Destination {
        let fast_has_room = &|| self.fast_has_room();
        let asked = Asked { bytes_in_row: blocks.bytes_in_row, fast_has_room, is_budget_spent };
        self.members.for_new(stream, blocks, &self.placement, &asked)
    }

    /// Whether more is free on fast devices than is kept there for rows and metadata, which come from now on.
    fn fast_has_room(&self) -> bool {
        let kept = self.zones_kept_on(Tier::Fast);
        self.growth_left() as usize + self.free_on(Tier::Fast) > kept
    }

    /// Zones of a tier that are left to rows and metadata, or to writers.
    fn zones_kept_on(&self, tier: Tier) -> usize {
        let share = match tier {
            Tier::Fast => FAST_SHARE_KEPT,
            Tier::Slow => SLOW_SHARE_KEPT,
        };
        let zones_all = self.zones_on(tier);
        // The reserve of the store lies on all devices, so what fast ones keep goes by their own size.
        let reserved = match tier {
            Tier::Fast => self.zones_reserved().min(self.zones_reserved_of(zones_all)),
            Tier::Slow => 0,
        };
        reserved.max(zones_all / share) as usize
    }

    /// What fast devices have for blocks of files. As [`Self::room_on`].
    pub(in crate::space) fn fast_space(&self) -> FastSpace {
        let zones =
            u64::from(self.zones_on(Tier::Fast)).saturating_sub(self.zones_kept_on(Tier::Fast) as u64);
        FastSpace { bytes_total: zones * u64::from(self.zone_bytes), bytes_free: self.room_on(Tier::Fast) }
    }

    /// Zones that there may be of the tier's devices to which new things go.
    fn zones_on(&self, tier: Tier) -> u32 {
        self.members.for_new_things().filter(|member| member.tier == tier).map(MemberZones::len).sum()
    }

    fn free_on(&self, tier: Tier) -> usize {
        let of_tier = self.members.list().iter().filter(|member| member.tier == tier);
        of_tier.map(|member| self.free.count(member.zones.clone())).sum()
    }

    /// What may be moved to a tier (bytes). O(devices, their groups of free zones).
    pub(in crate::space) fn room_on(&self, tier: Tier) -> u64 {
        let growth = if tier == Tier::Fast { self.growth_left() as usize } else { 0 };
        let zones = (growth + self.free_on(tier)).saturating_sub(self.zones_kept_on(tier));
        zones as u64 * u64::from(self.zone_bytes)
    }
}
