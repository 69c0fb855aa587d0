//! The allocator's tables, without device and locks.

mod entries;
mod free;
mod tiers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvfs_store::{Result, StoreError, Tier};

use entries::{Entries, Entry};
use free::FreeZones;

use super::members::Members;
use super::placement::Placement;
use super::{Budget, MemberSpace, MemberZones, Stream, ZoneRow, ZoneState, ZoneStats};
use crate::format::{Extent, SECTOR_BYTES, ZoneId, ZoneUse};

/// Zones of the reserve: what deletions need, and a merge of two runs and more when there is no other space.
const RESERVE_ZONES: u32 = 16;
/// And of each zone so much (bytes): merges leave the end of a zone empty that no block fits into.
const RESERVE_OF_ZONE: u32 = 8 << 10;
/// Fewest zones of the reserve.
const RESERVE_ZONES_MIN: u32 = 4;
/// The reserve is at least one zone in so many.
const RESERVE_SHARE: u32 = 100;
/// The reserve is at most one zone in so many, if that is not too little.
const RESERVE_SHARE_MAX: u32 = 8;
/// Zones of the reserve that deletions leave to merges of two runs: each has two zones besides a piece of one
/// zone, and so has what they become, with one of metadata. A small reserve is all for deletions.
const RESERVE_ZONES_MERGING: u32 = 10;

pub(super) struct Table {
    zone_bytes: u32,
    first_data: u32,
    /// The first one has the superblocks, the journal and the manifest.
    members: Members,
    entries: Entries,
    /// Those that may be taken.
    free: FreeZones,
    /// Closed zones of which at least half may still be filled: what a reopened store left behind.
    partly: BTreeSet<u32>,
    /// The zone that each stream fills on each tier.
    open: BTreeMap<(Stream, Tier), u32>,
    /// Free zones of the first device that only the manifest may take.
    manifest_zones: u32,
    placement: Placement,
    can_grow: bool,
    /// What the medium said to have room for (bytes) when it refused a zone: with no more than that it
    /// refuses again.
    room_refused: Option<u64>,
    failed: Option<Arc<str>>,
}

impl Table {
    pub(super) fn new(zone_bytes: u32, zones_total: u32, zones_present: u32, first_data: ZoneId) -> Self {
        let mut table = Self {
            zone_bytes,
            first_data: first_data.0,
            members: Members::first(zones_total),
            entries: Entries::default(),
            free: FreeZones::default(),
            partly: BTreeSet::new(),
            open: BTreeMap::new(),
            manifest_zones: 1,
            placement: Placement::default(),
            can_grow: true,
            room_refused: None,
            failed: None,
        };
        table.add_zones(zones_present);
        for zone in 0..first_data.0.min(zones_present) {
            table.free.remove(zone);
            table.entries[zone].state = ZoneState::System;
        }
        table
    }

    pub(super) fn zones_present(&self) -> u32 {
        self.members.zones_present()
    }

    /// Present zones but for those of superblocks and journal.
    pub(super) fn data_zones(&self) -> u32 {
        self.zones_present().saturating_sub(self.first_data)
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    pub(super) fn set_first_total(&mut self, zones: u32) {
        self.members.set_first_total(zones);
    }

    /// The first device has `zones` zones now.
    pub(super) fn add_zones(&mut self, zones: u32) {
        let old = self.members.of_first().start;
        self.members.grow_first(zones);
        self.entries.add(old..zones);
        self.free.extend(old..zones);
        (self.can_grow, self.room_refused) = (true, None);
    }

    /// The store has another device, behind all that it has.
    pub(super) fn add_member(&mut self, member: MemberZones) {
        self.entries.add(member.zones.clone());
        if member.takes_new {
            self.free.extend(member.zones.clone());
        }
        self.members.add(member);
    }

    /// Whether anything new goes to the device. What streams fill there is closed.
    pub(super) fn set_takes_new(&mut self, id: u32, takes_new: bool) {
        let Some(zones) = self.members.set_takes_new(id, takes_new) else { return };
        if takes_new {
            let there = self.entries.of(zones.clone());
            self.free.extend(there.filter(|(_, entry)| entry.state == ZoneState::Free).map(|(zone, _)| zone));
        } else {
            let closed = self.open.extract_if(.., |_, zone| zones.contains(zone));
            let closed: Vec<u32> = closed.map(|(_, zone)| zone).collect();
            for zone in closed {
                self.close(zone);
            }
            self.free.remove_all(zones.clone());
        }
        for zone in zones {
            self.note_partly(zone);
        }
    }

    /// The device has nothing any more, and is gone.
    pub(super) fn drop_member(&mut self, id: u32) {
        self.members.remove(id);
    }

    /// A medium that told of so much room has refused a zone.
    pub(super) fn growth_failed(&mut self, room_bytes: Option<u64>) {
        (self.can_grow, self.room_refused) = (false, room_bytes);
    }

    /// Whether a medium that tells of so much room has refused a zone before, with as much.
    pub(super) fn refuses_growth(&self, room_bytes: Option<u64>) -> bool {
        self.room_refused.is_some() && room_bytes <= self.room_refused
    }

    pub(super) fn check_usable(&self) -> Result<()> {
        match &self.failed {
            Some(reason) => Err(StoreError::Failed { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(super) fn fail(&mut self, reason: Arc<str>) {
        self.failed.get_or_insert(reason);
    }

    pub(super) fn restore(&mut self, zone_use: &ZoneUse) -> Result<(), &'static str> {
        if !self.members.is_present(zone_use.zone.0) {
            return Err("the device has no such zone");
        }
        let entry = &mut self.entries[zone_use.zone.0];
        if zone_use.end > self.zone_bytes || !u64::from(zone_use.end).is_multiple_of(SECTOR_BYTES) {
            return Err("it does not fit a zone");
        }
        let bytes_live = entry.bytes_live.checked_add(zone_use.bytes).filter(|_| zone_use.bytes > 0);
        let bytes_live = bytes_live.ok_or("it is of no bytes, or of more than there can be")?;
        match entry.state {
            ZoneState::Free => {
                entry.state = ZoneState::Closed;
                self.free.remove(zone_use.zone.0);
            }
            ZoneState::Closed => {}
            // A repair fills the zone behind what the journal has bound there, which is held by then.
            ZoneState::Open(_) if zone_use.end <= entry.bump && entry.bytes_live > 0 => {}
            ZoneState::System | ZoneState::Manifest | ZoneState::Open(_) => {
                return Err("that zone is not for pieces");
            }
        }
        entry.bytes_live = bytes_live;
        entry.stretches = entry.stretches.saturating_add(zone_use.pieces);
        entry.bump = entry.bump.max(zone_use.end);
        self.note_partly(zone_use.zone.0);
        Ok(())
    }

    pub(super) fn claim(&mut self, zone: ZoneId) -> Result<(), &'static str> {
        if zone.0 >= self.members.of_first().start {
            return Err("the device has no such zone");
        }
        let entry = &mut self.entries[zone.0];
        if entry.state != ZoneState::Free {
            return Err("that zone is in use already");
        }
        entry.state = ZoneState::Manifest;
        self.free.remove(zone.0);
        Ok(())
    }

    /// An extent in the stream's zone or in a new one, on `tier` if it has room; `None` when no zone may be
    /// taken, or the first device, which is a fast one, may grow.
    pub(super) fn allocate(
        &mut self,
        (stream, tier): (Stream, Tier),
        len_min: u32,
        len_max: u32,
        budget: Budget,
    ) -> Option<Extent> {
        if self.members.list().len() == 1 {
            let zone = self.zone_for((stream, tier), len_min, (budget, budget))?;
            return Some(self.bump(zone, len_max));
        }
        let is_growing = tier == Tier::Fast && self.growth_left() > 0;
        // The reserve of the first device comes last.
        let zone = self.zone_for((stream, tier), len_min, (budget, Budget::Ordinary)).or_else(|| {
            let other = (stream, tier.other());
            if is_growing { None } else { self.zone_for(other, len_min, (budget, Budget::Ordinary)) }
        });
        let zone = zone.or_else(|| {
            if is_growing { None } else { self.zone_for((stream, Tier::Fast), len_min, (budget, budget)) }
        })?;
        Some(self.bump(zone, len_max))
    }

    /// The zone that the stream fills on that tier, with room for `len_min`; a new one within the first
    /// budget, of the first device within the second.
    fn zone_for(
        &mut self,
        stream: (Stream, Tier),
        len_min: u32,
        (budget, on_first): (Budget, Budget),
    ) -> Option<u32> {
        if let Some(&zone) = self.open.get(&stream)
            && self.room(zone) >= len_min
        {
            return Some(zone);
        }
        let zone = if let Some(zone) = self.take_partly(stream.1, len_min) {
            zone
        } else {
            let kept_on_first = self.zones_kept_on_first(self.zones_held_back(on_first));
            self.take_zone(stream.1, self.zones_held_back(budget), kept_on_first)?
        };
        if let Some(full) = self.open.insert(stream, zone) {
            self.close(full);
        }
        self.entries[zone].state = ZoneState::Open(stream.0);
        Some(zone)
    }

    /// Keeps `partly` right for a zone whose bump pointer or state has changed.
    fn note_partly(&mut self, zone: u32) {
        let is_closed = self.entries[zone].state == ZoneState::Closed;
        if is_closed && self.room(zone) >= self.zone_bytes / 2 && self.members.takes_new(zone) {
            self.partly.insert(zone);
        } else {
            self.partly.remove(&zone);
        }
    }

    /// A closed zone of that tier with room for `len_min`. Without this each opening of the store would cost
    /// a new zone per stream.
    fn take_partly(&mut self, tier: Tier, len_min: u32) -> Option<u32> {
        let fits = |&zone: &u32| self.room(zone) >= len_min && self.members.tier_of(zone) == tier;
        let zone = self.partly.iter().copied().find(fits)?;
        self.partly.remove(&zone);
        Some(zone)
    }

    /// The last resort: space behind the bump pointer of any data zone, the tightest that holds
    /// `len_max`, else the roomiest that holds `len_min`. O(zones).
    pub(super) fn allocate_in_gap(&mut self, len_min: u32, len_max: u32) -> Option<Extent> {
        let data_zones =
            self.entries.all().filter(|&(zone, entry)| entry.is_of_data() && self.members.takes_new(zone));
        let (_, zone) = data_zones
            .map(|(zone, _)| (self.room(zone), zone))
            .filter(|&(room, _)| room >= len_min)
            .min_by_key(|&(room, _)| if room >= len_max { (0, room) } else { (1, u32::MAX - room) })?;
        let extent = self.bump(zone, len_max);
        self.note_partly(zone);
        Some(extent)
    }

    fn room(&self, zone: u32) -> u32 {
        self.zone_bytes - self.entries[zone].bump
    }

    /// Takes up to `len_max` bytes of a zone that has room.
    fn bump(&mut self, zone: u32, len_max: u32) -> Extent {
        let len = len_max.min(self.room(zone));
        let entry = &mut self.entries[zone];
        let addr = u64::from(zone) * u64::from(self.zone_bytes) + u64::from(entry.bump);
        entry.bump += len;
        entry.bytes_live += u64::from(len);
        entry.stretches += 1;
        Extent { addr, len }
    }

    /// The lowest free zone of that tier, if more than `zones_held_back` are free in all, and, of the first
    /// device, more than `kept_on_first` there.
    fn take_zone(&mut self, tier: Tier, zones_held_back: u32, kept_on_first: usize) -> Option<u32> {
        if self.free.len() as u64 <= u64::from(zones_held_back) {
            return None;
        }
        let zone = self.members.list().iter().filter(|member| member.tier == tier).find_map(|member| {
            let kept = if member.id == 0 { kept_on_first } else { 0 };
            let lowest = self.free.range(member.zones.clone()).next();
            lowest.filter(|_| kept == 0 || self.free.count(member.zones.clone()) > kept)
        })?;
        self.free.remove(zone);
        Some(zone)
    }

    /// Free zones of the first device that an allocation leaves which leaves so many in all: the manifest,
    /// which grows with the store, has no other one to go to.
    fn zones_kept_on_first(&self, zones_held_back: u32) -> usize {
        let own_reserve = self.zones_reserved_of(self.members.of_first().start);
        self.manifest_zones.max(own_reserve.min(zones_held_back)) as usize
    }

    /// By how many zones the first device may still grow.
    fn growth_left(&self) -> u32 {
        if self.can_grow { self.members.of_first().len() as u32 } else { 0 }
    }

    fn zones_reserved(&self) -> u32 {
        // A store that can still grow has not got its reserve of the whole capacity yet: else a
        // huge sparse store would allocate a hundredth of itself before its first write. What a device
        // that takes nothing new has free is no part of it: the others would be full of its share.
        self.zones_reserved_of(self.members.zones_present_for_new())
    }

    /// The reserve of a device with so many zones.
    fn zones_reserved_of(&self, zones_present: u32) -> u32 {
        let ends = u64::from(zones_present) * u64::from(RESERVE_OF_ZONE) / u64::from(self.zone_bytes);
        let zones = (RESERVE_ZONES + ends as u32).min(self.members.zones_total() / RESERVE_SHARE_MAX);
        let zones = zones.max(RESERVE_ZONES_MIN);
        zones.max(zones_present / RESERVE_SHARE).max(self.manifest_zones)
    }

    pub(super) fn reserves_for_merges(&self) -> bool {
        self.zones_reserved() >= self.manifest_zones + RESERVE_ZONES_MERGING + RESERVE_ZONES_MIN
    }

    pub(super) fn has_zones_for_merges(&self) -> bool {
        self.zones_to_take() >= u64::from(self.manifest_zones + RESERVE_ZONES_MERGING)
    }

    /// Free zones, those included by which the store may still grow.
    fn zones_to_take(&self) -> u64 {
        self.free.len() as u64 + u64::from(self.growth_left())
    }

    /// Free zones that an allocation of data has to leave.
    fn zones_held_back(&self, budget: Budget) -> u32 {
        match budget {
            Budget::Ordinary => self.zones_reserved(),
            // A merge that has too little space frees nothing, so deletions alone would fill the store for
            // good.
            Budget::Deleting if self.reserves_for_merges() => self.manifest_zones + RESERVE_ZONES_MERGING,
            Budget::Deleting | Budget::Reserve => self.manifest_zones,
        }
    }

    /// False, and nothing is done, if what was written in that `generation` of the zone has gone.
    pub(super) fn retain(&mut self, zone_use: &ZoneUse, generation: Option<u32>) -> bool {
        let entry = &mut self.entries[zone_use.zone.0];
        let is_gone = |generation| entry.generation != generation || entry.bytes_live == 0;
        if generation.is_some_and(is_gone) {
            return false;
        }
        debug_assert!(entry.bytes_live > 0 && entry.bump >= zone_use.end, "only live bytes are shared");
        entry.bytes_live += zone_use.bytes;
        entry.stretches += zone_use.pieces;
        true
    }

    pub(super) fn release(&mut self, zone_use: &ZoneUse) {
        let entry = &mut self.entries[zone_use.zone.0];
        let Some(bytes_live) = entry.bytes_live.checked_sub(zone_use.bytes) else {
            // Freeing too early would destroy data; losing a zone until the next open does not.
            debug_assert!(false, "zone {} was released more often than taken", zone_use.zone.0);
            tracing::error!(zone = zone_use.zone.0, "a zone was released more often than taken; it leaks");
            entry.bytes_live = u64::MAX / 2;
            return;
        };
        entry.bytes_live = bytes_live;
        entry.stretches = entry.stretches.saturating_sub(zone_use.pieces);
        if bytes_live == 0 {
            self.clear(zone_use.zone.0);
        }
    }

    /// Releases what was not written to; when nothing was given out behind it, it can be given out again.
    pub(super) fn give_back(&mut self, zone_use: &ZoneUse) {
        let entry = &mut self.entries[zone_use.zone.0];
        if entry.bump == zone_use.end {
            entry.bump -= zone_use.bytes as u32;
        }
        self.release(zone_use);
        self.note_partly(zone_use.zone.0);
    }

    /// Those of which `is_meant` says so.
    pub(super) fn close_streams(&mut self, is_meant: impl Fn(Stream) -> bool) {
        let closed: Vec<u32> =
            self.open.extract_if(.., |(stream, _), _| is_meant(*stream)).map(|(_, zone)| zone).collect();
        for zone in closed {
            self.close(zone);
        }
    }

    /// A stream has filled the zone.
    fn close(&mut self, zone: u32) {
        self.entries[zone].state = ZoneState::Closed;
        if self.entries[zone].bytes_live == 0 {
            self.clear(zone);
        }
        self.note_partly(zone);
    }

    /// The zone holds nothing any more: it starts over, and is free unless a stream has it open.
    fn clear(&mut self, zone: u32) {
        if self.failed.is_some() {
            return;
        }
        let takes_new = self.members.takes_new(zone);
        let entry = &mut self.entries[zone];
        entry.bump = 0;
        entry.stretches = 0;
        entry.generation = entry.generation.wrapping_add(1);
        if !matches!(entry.state, ZoneState::Open(_)) {
            entry.state = ZoneState::Free;
            if takes_new {
                self.free.insert(zone);
            }
            self.partly.remove(&zone);
        }
    }

    /// One of the first device, which alone is read before the manifest is known.
    pub(super) fn take_manifest_zone(&mut self, budget: Budget) -> Option<ZoneId> {
        let held_back = match budget {
            Budget::Reserve => 0,
            budget => self.zones_held_back(budget),
        };
        if self.free.len() as u64 <= u64::from(held_back) {
            return None;
        }
        let zone = self.free.range(0..self.members.of_first().end).next()?;
        self.free.remove(zone);
        self.entries[zone].state = ZoneState::Manifest;
        Some(ZoneId(zone))
    }

    pub(super) fn free_manifest_zone(&mut self, zone: ZoneId) {
        let is_manifest = self.entries[zone.0].state == ZoneState::Manifest;
        assert!(is_manifest, "zone {} does not belong to the manifest", zone.0);
        if self.failed.is_none() {
            self.entries[zone.0].state = ZoneState::Closed;
            self.clear(zone.0);
        }
    }

    pub(super) fn set_manifest_zones(&mut self, zones: u32) {
        self.manifest_zones = zones;
    }

    pub(super) fn generation(&self, zone: ZoneId) -> u32 {
        self.entries.get(zone.0).map_or(0, |entry| entry.generation)
    }

    fn count(&self, state: ZoneState) -> u32 {
        self.entries.all().filter(|(_, entry)| entry.state == state).count() as u32
    }

    pub(super) fn stats(&self) -> ZoneStats {
        let zones_untaken = self.free.len() as u64 + self.members.of_first().len() as u64;
        let zones_untaken = zones_untaken.saturating_sub(self.manifest_zones.into());
        let data = || self.entries.all().map(|(_, entry)| entry).filter(|entry| entry.is_of_data());
        ZoneStats {
            zone_bytes: self.zone_bytes,
            zones_total: self.members.zones_total(),
            zones_present: self.zones_present(),
            zones_system: self.count(ZoneState::System),
            zones_manifest: self.count(ZoneState::Manifest),
            zones_free: self.free.len() as u32,
            zones_reserved: self.zones_reserved(),
            bytes_live: data().map(|entry| entry.bytes_live).sum(),
            bytes_unfilled: data().map(|entry| u64::from(self.zone_bytes - entry.bump)).sum(),
            bytes_capacity: u64::from(self.members.zones_total()) * u64::from(self.zone_bytes),
            bytes_for_new: u64::from(self.members.zones_for_new()) * u64::from(self.zone_bytes),
            bytes_untaken: zones_untaken * u64::from(self.zone_bytes) + self.bytes_in_partly(),
        }
    }

    /// As [`Table::free_bytes`], of the zones that are present.
    pub(super) fn present_bytes(&self, budget: Budget) -> u64 {
        let zones = (self.free.len() as u64).saturating_sub(self.zones_held_back(budget).into());
        zones * u64::from(self.zone_bytes) + self.bytes_in_partly()
    }

    fn bytes_in_partly(&self) -> u64 {
        self.partly.iter().map(|&zone| u64::from(self.room(zone))).sum()
    }

    pub(super) fn free_bytes(&self, budget: Budget) -> u64 {
        let zones = self.zones_to_take();
        // An allocation that takes the zones by which the store may grow makes the reserve larger, too.
        let held_back = match budget {
            Budget::Ordinary if self.can_grow => self.zones_reserved_of(self.members.zones_for_new()),
            budget => self.zones_held_back(budget),
        };
        zones.saturating_sub(held_back.into()) * u64::from(self.zone_bytes) + self.bytes_in_partly()
    }

    /// As [`Table::free_bytes`] for ordinary writes, on a medium that has room for `room_bytes` more.
    pub(super) fn free_bytes_within(&self, room_bytes: u64) -> u64 {
        let growth = self.members.of_first().len() as u64;
        let growth = match growth.min(room_bytes / u64::from(self.zone_bytes)) as u32 {
            _ if self.refuses_growth(Some(room_bytes)) => 0,
            growth => growth,
        };
        let held_back = self.zones_reserved_of(self.members.zones_present_for_new() + growth);
        let zones = (self.free.len() as u64 + u64::from(growth)).saturating_sub(held_back.into());
        zones * u64::from(self.zone_bytes) + self.bytes_in_partly()
    }

    pub(super) fn members_space(&self) -> Vec<(MemberZones, MemberSpace)> {
        let space_of = |member: &MemberZones| {
            let entries = || self.entries.of(member.zones.clone()).map(|(_, entry)| entry);
            let in_use = entries().filter(|entry| entry.state != ZoneState::Free).count() as u32;
            let space = MemberSpace {
                zones_total: member.len(),
                zones_free: member.len() - in_use,
                bytes_live: entries().filter(|entry| entry.is_of_data()).map(|entry| entry.bytes_live).sum(),
            };
            (member.clone(), space)
        };
        self.members.list().iter().map(space_of).collect()
    }

    pub(super) fn zones(&self) -> Vec<ZoneRow> {
        let row = |(zone, entry): (u32, &Entry)| ZoneRow {
            zone: ZoneId(zone),
            state: entry.state,
            bytes_live: entry.bytes_live,
            bytes_filled: entry.bump.into(),
            stretches: entry.stretches.into(),
            takes_new: self.members.takes_new(zone),
        };
        let present = self.entries.all().filter(|&(zone, _)| self.members.is_present(zone));
        present.map(row).collect()
    }

    pub(super) fn rows(&self) -> Vec<(ZoneId, ZoneState, u64)> {
        self.zones().into_iter().map(|row| (row.zone, row.state, row.bytes_live)).collect()
    }
}
