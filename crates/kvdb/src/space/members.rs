//! Which devices have which zones.
//!
//! Thread safety: plain data. Invariants: the first device is always there and has the zones from 0 on; those
//! of each other one lie behind those of all before it, and are there as a whole.

use std::ops::Range;

use kvfs_store::Tier;

use super::Stream;
use super::placement::{Asked, NewBlocks, Placement};

/// Where something is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) stream: Stream,
    /// As long as a device of it has room.
    pub(crate) tier: Tier,
}

impl Stream {
    /// On a device of that tier.
    fn on(self, tier: Tier) -> Destination {
        Destination { stream: self, tier }
    }

    fn is_of_blocks(self) -> bool {
        matches!(self, Self::FlushBlock | Self::SpillBlock | Self::MergeBlock(_))
    }
}

impl From<Stream> for Destination {
    /// What is not data of files is needed quickly.
    fn from(stream: Stream) -> Self {
        stream.on(Tier::Fast)
    }
}

/// The zones of one device of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberZones {
    /// Of the device; 0: the first one.
    pub(crate) id: u32,
    /// By number; of the first device some may not be there yet.
    pub(crate) zones: Range<u32>,
    pub(crate) tier: Tier,
    /// Whether anything new goes there.
    pub(crate) takes_new: bool,
}

impl MemberZones {
    pub(super) fn len(&self) -> u32 {
        self.zones.end - self.zones.start
    }
}

/// What a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MemberSpace {
    /// Zones that it has, those by which it may grow included.
    pub(crate) zones_total: u32,
    /// Of these, those that hold nothing.
    pub(crate) zones_free: u32,
    /// Bytes that pieces refer to; shared ones count once per piece.
    pub(crate) bytes_live: u64,
}

/// All of them.
pub(super) struct Members {
    list: Vec<MemberZones>,
    /// Zones of the first device that are there.
    first_present: u32,
}

impl Members {
    /// The first device alone, which may reach so far and has no zone yet.
    pub(super) fn first(zones_total: u32) -> Self {
        let first = MemberZones { id: 0, zones: 0..zones_total, tier: Tier::Fast, takes_new: true };
        Self { list: vec![first], first_present: 0 }
    }

    /// In the order of their zones.
    pub(super) fn list(&self) -> &[MemberZones] {
        &self.list
    }

    /// Zones that are there.
    pub(super) fn zones_present(&self) -> u32 {
        self.first_present + self.list[1..].iter().map(MemberZones::len).sum::<u32>()
    }

    /// Of these, zones of devices to which new things go.
    pub(super) fn zones_present_for_new(&self) -> u32 {
        let to_come = self.of_first().len() as u32;
        let first = &self.list[0];
        self.zones_for_new() - if first.takes_new { to_come } else { 0 }
    }

    /// Zones that there may be of devices to which new things go.
    pub(super) fn zones_for_new(&self) -> u32 {
        self.for_new_things().map(MemberZones::len).sum()
    }

    /// Devices to which new things go.
    pub(super) fn for_new_things(&self) -> impl Iterator<Item = &MemberZones> {
        self.list.iter().filter(|member| member.takes_new)
    }

    /// Zones that there may be.
    pub(super) fn zones_total(&self) -> u32 {
        self.list.iter().map(MemberZones::len).sum()
    }

    /// Zones of the first device that are there, and that there may be.
    pub(super) fn of_first(&self) -> Range<u32> {
        self.first_present..self.list[0].zones.end
    }

    /// The first device has so many zones now.
    pub(super) fn grow_first(&mut self, zones: u32) {
        self.first_present = zones;
    }

    /// The first device may reach so far, where none is behind it.
    pub(super) fn set_first_total(&mut self, zones: u32) {
        debug_assert!(self.list.len() == 1, "others lie behind the first device");
        let end = &mut self.list[0].zones.end;
        *end = zones.max(*end);
    }

    pub(super) fn add(&mut self, member: MemberZones) {
        debug_assert!(self.list.iter().all(|other| other.zones.end <= member.zones.start));
        self.list.push(member);
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.list.retain(|member| member.id != id);
    }

    /// The zones of the device, to which new things go from now on, or not.
    pub(super) fn set_takes_new(&mut self, id: u32, takes_new: bool) -> Option<Range<u32>> {
        let member = self.list.iter_mut().find(|member| member.id == id)?;
        member.takes_new = takes_new;
        Some(member.zones.clone())
    }

    fn of(&self, zone: u32) -> Option<&MemberZones> {
        self.list.iter().find(|member| member.zones.contains(&zone))
    }

    pub(super) fn is_present(&self, zone: u32) -> bool {
        zone < self.first_present || self.list[1..].iter().any(|member| member.zones.contains(&zone))
    }

    pub(super) fn takes_new(&self, zone: u32) -> bool {
        self.of(zone).is_some_and(|member| member.takes_new)
    }

    /// The tier of the device that has it.
    pub(super) fn tier_of(&self, zone: u32) -> Tier {
        self.of(zone).map_or(Tier::Fast, |member| member.tier)
    }

    /// Whether a device of that tier takes anything new.
    pub(super) fn has(&self, tier: Tier) -> bool {
        self.list.iter().any(|member| member.tier == tier && member.takes_new)
    }

    /// Whether anything may lie on a slow device.
    pub(super) fn are_of_both_tiers(&self) -> bool {
        self.list[1..].iter().any(|member| member.tier == Tier::Slow)
    }

    /// Where new things of that stream go: to the tier that blocks of files wish for, or `placement` chooses,
    /// if there are both.
    pub(super) fn for_new(
        &self,
        stream: Stream,
        blocks: NewBlocks,
        placement: &Placement,
        asked: &Asked<'_>,
    ) -> Destination {
        if !stream.is_of_blocks() || !self.has(Tier::Slow) {
            return stream.on(Tier::Fast);
        }
        stream.on(blocks.wish.unwrap_or_else(|| placement.tier_of_new(asked)))
    }

    /// Where blocks go that lie in `zone`, and are copied: where they wish to, or to the tier where they are.
    pub(super) fn for_copy(&self, zone: u32, wish: Option<Tier>) -> Tier {
        let wish = wish.filter(|wish| self.are_of_both_tiers() && self.has(*wish));
        wish.unwrap_or_else(|| self.tier_of(zone))
    }

    /// Whether blocks in `zone` lie on another tier than they wish to, and could lie there.
    pub(super) fn is_misplaced(&self, zone: u32, wish: Option<Tier>) -> bool {
        wish.is_some_and(|wish| wish != self.tier_of(zone) && self.has(wish))
    }
}
