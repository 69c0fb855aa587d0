//! Tests of the allocator: against a plain model, and one by one.

use std::collections::BTreeMap;

use kvfs_device::{Call, FaultDevice, FaultError, FaultRule, MemoryDevice, Rng};
use kvfs_store::Tier;

use super::small_medium::SmallMedium;
use super::table::Table;
use super::*;

const ZONE_BYTES: u32 = 64 << 10;
const SECTOR: u32 = SECTOR_BYTES as u32;

fn zones(present: u32, total: u32) -> Arc<Zones> {
    let bytes = |zones: u32| u64::from(zones) * u64::from(ZONE_BYTES);
    let device = Arc::new(MemoryDevice::growable(bytes(present), bytes(total)));
    Zones::new(device, ZONE_BYTES, bytes(total), ZoneId(3))
}

/// Which bytes are held, sector by sector: how many references each has.
#[derive(Default)]
struct Model {
    sectors: BTreeMap<u64, u32>,
}

impl Model {
    fn retain(&mut self, extent: Extent, is_new: bool) {
        for sector in extent.addr / SECTOR_BYTES..(extent.addr + u64::from(extent.len)) / SECTOR_BYTES {
            let count = self.sectors.entry(sector).or_default();
            assert!(is_new == (*count == 0), "sector {sector} was given out twice");
            *count += 1;
        }
    }

    fn release(&mut self, extent: Extent) {
        for sector in extent.addr / SECTOR_BYTES..(extent.addr + u64::from(extent.len)) / SECTOR_BYTES {
            let count = self.sectors.get_mut(&sector).unwrap();
            *count -= 1;
            if *count == 0 {
                self.sectors.remove(&sector);
            }
        }
    }

    fn bytes_live(&self, zone: ZoneId) -> u64 {
        let sectors_per_zone = u64::from(ZONE_BYTES) / SECTOR_BYTES;
        let first = u64::from(zone.0) * sectors_per_zone;
        self.sectors
            .range(first..first + sectors_per_zone)
            .map(|(_, &count)| u64::from(count) * SECTOR_BYTES)
            .sum()
    }
}

#[test]
fn no_live_byte_is_ever_given_out_again() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let zones = zones(10, 60);
        let mut model = Model::default();
        let mut held: Vec<Extent> = Vec::new();
        let mut manifest: Vec<ZoneId> = Vec::new();
        for step in 0..2000 {
            let stream = Stream::ALL[rng.index(Stream::ALL.len())];
            let budget = if rng.chance(1, 4) { Budget::Reserve } else { Budget::Ordinary };
            let len = SECTOR * rng.range(1, u64::from(ZONE_BYTES / SECTOR) + 1) as u32;
            match rng.below(12) {
                0..=3 => {
                    if let Ok(extent) = zones.allocate(stream, len, budget) {
                        assert_eq!(extent.len, len);
                        model.retain(extent, true);
                        held.push(extent);
                    }
                }
                4 | 5 => {
                    if let Ok(extent) = zones.allocate_up_to(stream, len, budget) {
                        assert!(extent.len >= SECTOR && extent.len <= len);
                        model.retain(extent, true);
                        held.push(extent);
                    }
                }
                6 if !held.is_empty() => {
                    let extent = held[rng.index(held.len())];
                    zones.retain(extent);
                    model.retain(extent, false);
                    held.push(extent);
                }
                7 => manifest.extend(zones.allocate_zone(budget)),
                8 if !manifest.is_empty() => {
                    zones.free_zone(manifest.swap_remove(rng.index(manifest.len())));
                }
                _ if !held.is_empty() => {
                    let extent = held.swap_remove(rng.index(held.len()));
                    zones.release(extent);
                    model.release(extent);
                }
                _ => {}
            }
            if step % 50 == 0 {
                for (zone, state, bytes_live) in zones.table() {
                    assert_eq!(bytes_live, model.bytes_live(zone), "seed {seed}, step {step}, {zone:?}");
                    assert_eq!(state == ZoneState::System, zone.0 < 3);
                    assert_eq!(state == ZoneState::Manifest, manifest.contains(&zone));
                    assert!(bytes_live == 0 || matches!(state, ZoneState::Open(_) | ZoneState::Closed));
                }
            }
        }
        for extent in held.drain(..) {
            zones.release(extent);
        }
        assert_eq!(zones.space().bytes_live, 0);
        let is_idle = |state| !matches!(state, ZoneState::Closed);
        assert!(zones.table().into_iter().all(|(_, state, _)| is_idle(state)), "seed {seed}");
    }
}

#[test]
fn streams_fill_zones_of_their_own_from_the_start() {
    let zones = zones(20, 20);
    let first = zones.allocate(Stream::FlushTuple, 8192, Budget::Ordinary).unwrap();
    let other = zones.allocate(Stream::MergeTuple(Lane::FIRST), 8192, Budget::Ordinary).unwrap();
    let second = zones.allocate(Stream::FlushTuple, 4096, Budget::Ordinary).unwrap();
    assert_eq!(second.addr, first.addr + 8192);
    assert_ne!(zones.zone_of(other.addr), zones.zone_of(first.addr));
    let rest = zones.allocate_up_to(Stream::FlushTuple, ZONE_BYTES, Budget::Ordinary).unwrap();
    assert_eq!((rest.addr, rest.len), (second.addr + 4096, ZONE_BYTES - 12288));
    let next = zones.allocate_up_to(Stream::FlushTuple, ZONE_BYTES, Budget::Ordinary).unwrap();
    assert_eq!(next.len, ZONE_BYTES);
}

#[test]
fn what_two_merges_write_lies_in_zones_of_their_own() {
    let zones = zones(20, 20);
    let allocate =
        |lane| zones.allocate(Stream::MergeTuple(Lane(lane)), ZONE_BYTES / 4, Budget::Ordinary).unwrap();
    let free = zones.space().zones_free;
    let by_turns: Vec<[Extent; 2]> = (0..4).map(|_| [0, 1].map(allocate)).collect();
    assert_eq!(zones.space().zones_free, free - 2);
    for [first, _] in &by_turns {
        zones.release(*first);
    }
    // One merge has been merged again: all that it wrote is free, whatever the other one still holds.
    zones.close_stream(Stream::MergeTuple(Lane::FIRST));
    assert_eq!(zones.space().zones_free, free - 1);
    let third = allocate(2);
    zones.close_other_lanes();
    let is_open = |state| matches!(state, ZoneState::Open(_));
    assert!(!zones.table().into_iter().any(|(_, state, _)| is_open(state)));
    // Half a zone and more is filled by the next allocation.
    assert_eq!(allocate(0).addr, third.addr + u64::from(third.len));
}

#[test]
fn a_zone_becomes_free_with_its_last_live_byte_and_a_new_generation() {
    let zones = zones(20, 20);
    let extent = zones.allocate(Stream::FlushBlock, ZONE_BYTES, Budget::Ordinary).unwrap();
    let zone = zones.zone_of(extent.addr);
    let free = zones.space().zones_free;
    zones.retain(extent);
    zones.allocate(Stream::FlushBlock, 4096, Budget::Ordinary).unwrap();
    zones.release(extent);
    assert_eq!((zones.generation(zone), zones.space().zones_free), (0, free - 1));
    zones.release(extent);
    assert_eq!((zones.generation(zone), zones.space().zones_free), (1, free));
    let again = zones.allocate(Stream::MergeBlock(Lane::FIRST), 4096, Budget::Ordinary).unwrap();
    assert_eq!(again.addr, extent.addr);
    // An open zone starts over.
    zones.release(again);
    assert_eq!(zones.generation(zone), 2);
    assert_eq!(zones.allocate(Stream::MergeBlock(Lane::FIRST), 4096, Budget::Ordinary).unwrap(), again);
}

#[test]
fn the_reserve_is_for_what_makes_space_and_its_last_zones_for_the_manifest() {
    let zones = zones(13, 13);
    zones.set_manifest_zones(2);
    let fill = |budget| std::iter::from_fn(|| zones.allocate(Stream::Meta, ZONE_BYTES, budget).ok()).count();
    assert_eq!(zones.free_bytes(Budget::Ordinary), 6 * u64::from(ZONE_BYTES));
    assert_eq!(fill(Budget::Ordinary), 6);
    assert_eq!(zones.free_bytes(Budget::Ordinary), 0);
    assert_eq!(fill(Budget::Reserve), 2);
    assert!(matches!(zones.allocate_zone(Budget::Ordinary), Err(StoreError::Full)));
    let manifest = [(); 2].map(|()| zones.allocate_zone(Budget::Reserve).unwrap());
    assert!(matches!(zones.allocate_zone(Budget::Reserve), Err(StoreError::Full)));
    zones.free_zone(manifest[0]);
    assert!(matches!(zones.allocate(Stream::Meta, 4096, Budget::Reserve), Err(StoreError::Full)));
}

#[test]
fn a_full_store_fills_the_gaps_of_its_zones() {
    let zones = zones(3 + 4 + 2, 9);
    let take = |stream, len| zones.allocate(stream, len, Budget::Ordinary);
    let half = ZONE_BYTES / 2 + 4096;
    take(Stream::FlushTuple, half).unwrap();
    take(Stream::FlushTuple, half).unwrap();
    // No third zone; both have a gap.
    assert!(take(Stream::FlushTuple, half).is_err());
    let gap = take(Stream::Meta, ZONE_BYTES - half).unwrap();
    assert_eq!(gap.addr % u64::from(ZONE_BYTES), half.into());
    let rest = zones.allocate_up_to(Stream::Meta, ZONE_BYTES, Budget::Ordinary).unwrap();
    assert_eq!(rest.len, ZONE_BYTES - half);
    assert!(matches!(take(Stream::Meta, 4096), Err(StoreError::Full)));
}

#[test]
fn deletions_leave_zones_to_merges_unless_the_reserve_is_small() {
    let left_by = |total: u32, budget| {
        let zones = zones(total, total);
        while zones.allocate(Stream::FlushTuple, ZONE_BYTES, budget).is_ok() {}
        zones.space().zones_free
    };
    // A zone of 64 KiB has an eighth of a zone for the ends of zones.
    for (total, reserved, merging) in [(100, 12, 0), (128, 16, 10), (160, 20, 10), (800, 100 + 16, 10)] {
        let reserved = reserved.min(total / 8);
        assert_eq!(left_by(total, Budget::Ordinary), reserved, "{total} zones");
        assert_eq!(left_by(total, Budget::Deleting), 1 + merging, "{total} zones: one is for the manifest");
        assert_eq!(left_by(total, Budget::Reserve), 1, "{total} zones");
    }
}

#[test]
fn the_store_grows_up_to_its_capacity_and_a_refusal_means_full() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(5 << 16, 40 << 16)));
    let zones = Zones::new(device.clone(), ZONE_BYTES, 40 << 16, ZoneId(3));
    let take = || zones.allocate(Stream::FlushBlock, ZONE_BYTES, Budget::Ordinary);
    device.add(FaultRule::from(Call::Grow, 0, FaultError::ENOSPC));
    assert!(matches!(take(), Err(StoreError::Full)));
    assert_eq!(zones.free_bytes(Budget::Ordinary), 0);
    // Growing is not tried less because it failed, nor is the failure sticky.
    device.clear();
    assert_eq!(std::iter::from_fn(|| take().ok()).count(), 40 - 3 - 40 / 8);
    assert_eq!(device.len_bytes(), 40 << 16);
    assert_eq!(zones.space().zones_present, 40);
}

#[test]
fn what_is_restored_is_live_and_what_follows_it_is_not_overwritten() {
    let zones = zones(10, 10);
    let uses = [
        ZoneUse { zone: ZoneId(4), bytes: 8192, pieces: 1, end: 16384 },
        ZoneUse { zone: ZoneId(4), bytes: 4096, pieces: 1, end: 4096 },
    ];
    zones.restore(uses.iter()).unwrap();
    zones.claim_zone(ZoneId(5)).unwrap();
    assert_eq!(zones.table()[4], (ZoneId(4), ZoneState::Closed, 12288));
    let extents: Vec<_> =
        std::iter::from_fn(|| zones.allocate_up_to(Stream::Meta, ZONE_BYTES, Budget::Reserve).ok()).collect();
    assert!(extents.iter().all(|extent| zones.zone_of(extent.addr) != ZoneId(5)));
    let gap = extents.iter().find(|extent| zones.zone_of(extent.addr) == ZoneId(4)).unwrap();
    assert_eq!(gap.addr, zones.zone_addr(ZoneId(4)) + 16384);
    zones.release(*gap);
    zones.release_use(&uses[0]);
    zones.release_use(&uses[1]);
    assert_eq!(zones.table()[4].1, ZoneState::Free);

    let corrupt = |zone, end| {
        let zone_use = ZoneUse { zone: ZoneId(zone), bytes: 4096, pieces: 1, end };
        matches!(zones.restore([zone_use].iter()), Err(StoreError::Corrupt { .. }))
    };
    assert!(corrupt(10, 4096) && corrupt(2, 4096) && corrupt(5, 4096) && corrupt(4, ZONE_BYTES + SECTOR));
    assert!(zones.claim_zone(ZoneId(5)).is_err());
}

#[test]
fn after_a_failure_nothing_is_given_out_or_freed() {
    let zones = zones(20, 20);
    let extent = zones.allocate(Stream::Meta, ZONE_BYTES, Budget::Ordinary).unwrap();
    zones.fail("injected".into());
    zones.release(extent);
    assert!(matches!(zones.allocate(Stream::Meta, 4096, Budget::Reserve), Err(StoreError::Failed { .. })));
    assert!(matches!(zones.allocate_zone(Budget::Reserve), Err(StoreError::Failed { .. })));
}

/// An allocator on a medium of `bytes` that may reach 40 zones; it has 5.
fn on_small_medium(bytes: u64) -> (Arc<SmallMedium>, Arc<Zones>) {
    let device = Arc::new(SmallMedium::new(40 << 16, bytes));
    device.grow(5 << 16).unwrap();
    let zones = Zones::new(Arc::clone(&device) as _, ZONE_BYTES, 40 << 16, ZoneId(3));
    (device, zones)
}

#[test]
fn full_medium_is_asked_again_when_it_tells_of_more_room() {
    let (device, zones) = on_small_medium(10 << 16);
    for _ in 0..1000 {
        zones.secure(20 << 16);
        assert!(zones.allocate(Stream::Meta, ZONE_BYTES, Budget::Deleting).is_ok() || device.refusals() > 0);
    }
    assert_eq!(zones.space().zones_present, 10);
    assert!(device.refusals() <= 6, "the medium refused {} times", device.refusals());
    device.set_bytes(20 << 16, 20 << 16);
    zones.secure(20 << 16);
    assert_eq!(zones.space().zones_present, 20);
}

#[test]
fn medium_with_a_quota_is_asked_again_every_now_and_then() {
    let (device, zones) = on_small_medium(10 << 16);
    device.set_bytes(10 << 16, 1 << 30);
    for _ in 0..1000 {
        zones.secure(20 << 16);
    }
    let refusals = device.refusals();
    assert!((1..=6).contains(&refusals), "the medium refused {refusals} times");
    let told = device.room_bytes().unwrap();
    assert_eq!(zones.free_bytes_within(told), zones.present_bytes(Budget::Ordinary), "none is promised");
    device.set_bytes(40 << 16, 1 << 30);
    zones.secure(20 << 16);
    assert_eq!(zones.space().zones_present, 10);
    zones.retry_growth();
    zones.secure(20 << 16);
    assert!(zones.space().zones_present > 20);
}

/// As of stores in use: in small zones what lies at their ends is the reserve.
const LARGE_ZONE_BYTES: u32 = 8 << 20;

/// A fast device of 4,000 zones, and a slow one of a hundred times as many.
fn beside_a_large_slow_device() -> Table {
    let mut table = Table::new(LARGE_ZONE_BYTES, 4_000, 4_000, ZoneId(3));
    table.add_member(MemberZones { id: 1, zones: 4_000..404_000, tier: Tier::Slow, takes_new: true });
    table
}

#[test]
fn what_a_fast_device_keeps_goes_by_its_own_size() {
    let table = beside_a_large_slow_device();
    let zone_bytes = u64::from(LARGE_ZONE_BYTES);
    let space = table.fast_space();
    assert!(space.bytes_total > 3_700 * zone_bytes && space.bytes_free > 3_700 * zone_bytes, "{space:?}");
    assert!(table.room_on(Tier::Fast) > 3_700 * zone_bytes);
    assert!(table.room_on(Tier::Slow) > 390_000 * zone_bytes);
}

#[test]
fn a_device_that_is_drained_keeps_nothing_back_on_the_others() {
    let mut table = beside_a_large_slow_device();
    let zone_bytes = u64::from(LARGE_ZONE_BYTES);
    assert!(table.stats().zones_reserved >= 4_000);
    table.set_takes_new(1, false);
    let stats = table.stats();
    assert!(stats.zones_reserved < 100, "{stats:?}");
    assert!(table.free_bytes(Budget::Ordinary) > 3_800 * zone_bytes);
    assert_eq!((stats.bytes_for_new, stats.bytes_capacity), (4_000 * zone_bytes, 404_000 * zone_bytes));
    // A fast one, beside which there is another fast one.
    table.add_member(MemberZones { id: 2, zones: 404_000..804_000, tier: Tier::Fast, takes_new: true });
    table.set_takes_new(2, false);
    let space = table.fast_space();
    assert!(space.bytes_total < 4_000 * zone_bytes && space.bytes_free > 3_700 * zone_bytes, "{space:?}");
}
