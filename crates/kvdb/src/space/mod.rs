//! Space: the device as an array of zones, allocated by bumping a pointer, freed by the zone.
//!
//! Purpose: gives out extents to the writers of pieces and whole zones to the manifest, counts the
//! live bytes of each zone, and grows the device by whole zones. (Zones: KVFS thesis, 3.2.)
//!
//! Thread safety: [`Zones`] is shared by `Arc`; all calls take a short lock, except that one thread
//! at a time may be growing the device while the others go on.
//!
//! Invariants:
//! * nothing of this is on disk: the manifest's pieces and the journal's bindings say what is in use,
//!   [`Zones::restore`] rebuilds the tables from them;
//! * bytes below the bump pointer of a zone are never given out again before the whole zone has
//!   become free; each time it does, its generation rises, so that cached blocks can't be confused;
//! * after [`Zones::fail`] nothing is given out any more: after a failed manifest write it is not
//!   known which pieces are on disk, so no space may be used again.

mod bound;
mod endurance;
mod heat;
mod members;
pub(crate) mod passes;
mod placement;
pub(crate) mod planner;
#[cfg(test)]
pub(crate) mod small_medium;
mod table;
mod tiers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_device::Device;
use kvfs_locks::{Mutex, class};
use kvfs_store::{Result, StoreError};

pub(crate) use crate::format::ZoneUse;
use crate::format::{Extent, SECTOR_BYTES, ZoneId};
pub(crate) use bound::{Bindings, Bound, BoundOp, HoldsBound, Place};
pub use endurance::BudgetInfo;
pub(crate) use endurance::{Endurance, WrittenToFast};
pub(crate) use heat::{FastSpace, Heat, SHARE_LEFT_FREE, STRETCH_BLOCKS};
pub(crate) use members::{Destination, MemberSpace, MemberZones};
pub(crate) use placement::{NewBlocks, TierWishes};
pub use placement::{Placement, UnknownPlacement};
use table::Table;

/// One of the merges that are under way at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lane(pub u32);

impl Lane {
    /// Of a merge that has all runs to itself.
    pub(crate) const FIRST: Self = Self(0);
}

/// What is written: each stream fills a zone of its own, so that data which dies together lies together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stream {
    /// Tuples from memtables.
    FlushTuple,
    /// Blocks from memtables.
    FlushBlock,
    /// Tuples that a transaction has spilled: they die together when it aborts.
    SpillTuple,
    /// Blocks that a transaction has spilled.
    SpillBlock,
    /// Tuples from a merge.
    MergeTuple(Lane),
    /// Blocks from a merge.
    MergeBlock(Lane),
    /// Metadata of pieces.
    Meta,
}

impl Stream {
    /// All streams of a merge that has all runs to itself.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 7] = [
        Self::FlushTuple,
        Self::FlushBlock,
        Self::SpillTuple,
        Self::SpillBlock,
        Self::MergeTuple(Lane::FIRST),
        Self::MergeBlock(Lane::FIRST),
        Self::Meta,
    ];
}

/// How far an allocation may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Budget {
    /// Leaves the reserve alone.
    Ordinary,
    /// May take the reserve but for what a merge needs: for deletions, until their space is back. (The
    /// reserve has 16 zones and 8 KiB for each zone, in stores of few zones less, but at least four; or 1 %
    /// if that is more.)
    Deleting,
    /// May take the reserve: for what was admitted already, and for merges that give space back.
    Reserve,
}

/// What a zone is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ZoneState {
    /// Holds nothing.
    Free,
    /// Superblocks or journal.
    System,
    /// Belongs to the manifest.
    Manifest,
    /// A stream is filling it.
    Open(Stream),
    /// Holds data; no stream writes to it.
    Closed,
}

/// Totals of the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ZoneStats {
    /// Size of a zone (bytes).
    pub zone_bytes: u32,
    /// Zones up to the capacity, whether present yet or not.
    pub zones_total: u32,
    /// Zones that the device has now.
    pub zones_present: u32,
    /// Zones of superblocks and journal.
    pub zones_system: u32,
    /// Zones of the manifest.
    pub zones_manifest: u32,
    /// Present zones that hold nothing.
    pub zones_free: u32,
    /// Zones that [`Budget::Ordinary`] leaves free.
    pub zones_reserved: u32,
    /// Bytes that pieces refer to; shared ones count once per piece.
    pub bytes_live: u64,
    /// Bytes of data zones behind their bump pointers, which may still be filled.
    pub bytes_unfilled: u64,
    /// Capacity of the store (bytes).
    pub bytes_capacity: u64,
    /// That of the devices to which new things go: of which much or little may be free (bytes).
    pub bytes_for_new: u64,
    /// What of the capacity nothing has taken, the manifest's reserve taken off, whether or not the medium
    /// has room for it now.
    pub bytes_untaken: u64,
}

/// One present zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ZoneRow {
    /// Which.
    pub zone: ZoneId,
    /// Use.
    pub state: ZoneState,
    /// Bytes that pieces refer to; shared ones count once per piece.
    pub bytes_live: u64,
    /// Bytes below the bump pointer.
    pub bytes_filled: u64,
    /// Contiguous stretches that pieces refer to.
    pub stretches: u64,
    /// Whether anything new goes to its device: else it gives nothing back when it is free.
    pub takes_new: bool,
}

/// A device has at most so many zones, 128 TiB of the usual ones: what is known of each is in memory.
pub(crate) const DEVICE_ZONES_MAX: u32 = 16 << 20;

/// A store grows by this much at a time (bytes), or by [`GROWTH_ZONES_MIN`] if that is more.
const GROWTH_BYTES_MIN: u64 = 64 << 20;
/// See [`GROWTH_BYTES_MIN`].
const GROWTH_ZONES_MIN: u32 = 8;
/// But by no more than one zone for so many data zones that it has, or [`GROWTH_ZONES_FIRST`] if that is
/// more.
const GROWTH_SHARE: u32 = 4;
/// See [`GROWTH_SHARE`].
const GROWTH_ZONES_FIRST: u32 = 2;

/// The allocator of a device.
pub(crate) struct Zones {
    device: Arc<dyn Device>,
    zone_bytes: u32,
    table: Mutex<Table, class::KvdbSpaceTable>,
    /// Held by the one thread that grows the device; taken before `table`.
    growth: Mutex<(), class::KvdbSpaceGrowth>,
    /// See [`Zones::retry_growth`].
    retries_growth: AtomicBool,
    heat: Heat,
    endurance: Endurance,
}

impl Zones {
    /// An allocator over `device`: all zones from `first_data_zone` on are free. It may grow up to
    /// `capacity_bytes`.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        zone_bytes: u32,
        capacity_bytes: u64,
        first_data_zone: ZoneId,
    ) -> Arc<Self> {
        let len_bytes = device.len_bytes();
        Self::of_first(device, len_bytes, zone_bytes, capacity_bytes, first_data_zone)
    }

    /// As [`Zones::new`], where `device` may be joined of several by now: the first one has `len_bytes`.
    pub(crate) fn of_first(
        device: Arc<dyn Device>,
        len_bytes: u64,
        zone_bytes: u32,
        capacity_bytes: u64,
        first_data_zone: ZoneId,
    ) -> Arc<Self> {
        let zones_total = (capacity_bytes / u64::from(zone_bytes)) as u32;
        let zones_present = zones_total.min((len_bytes / u64::from(zone_bytes)) as u32);
        let table = Table::new(zone_bytes, zones_total, zones_present, first_data_zone);
        Arc::new(Self {
            device,
            zone_bytes,
            table: Mutex::new(table),
            growth: Mutex::new(()),
            retries_growth: AtomicBool::new(false),
            heat: Heat::default(),
            endurance: Endurance::default(),
        })
    }

    /// Size of a zone (bytes).
    pub(crate) fn zone_bytes(&self) -> u32 {
        self.zone_bytes
    }

    /// The zone in which the device address `addr` lies.
    pub(crate) fn zone_of(&self, addr: u64) -> ZoneId {
        ZoneId((addr / u64::from(self.zone_bytes)) as u32)
    }

    /// Device address of the first byte of `zone`.
    pub(crate) fn zone_addr(&self, zone: ZoneId) -> u64 {
        u64::from(zone.0) * u64::from(self.zone_bytes)
    }

    /// At open, before any allocation: what pieces hold, or blocks that the journal has bound, counts as
    /// live.
    ///
    /// # Errors
    /// `Corrupt` when a use lies outside of the data zones.
    pub(crate) fn restore<'a>(&self, uses: impl Iterator<Item = &'a ZoneUse>) -> Result<()> {
        let mut table = self.table.lock();
        for zone_use in uses {
            table.restore(zone_use).map_err(|detail| {
                StoreError::corrupt(format!("the use of zone {}", zone_use.zone.0), detail)
            })?;
        }
        Ok(())
    }

    /// At open, before any allocation: `zone` belongs to the manifest.
    ///
    /// # Errors
    /// `Corrupt` when it is not a free data zone.
    pub(crate) fn claim_zone(&self, zone: ZoneId) -> Result<()> {
        let claimed = self.table.lock().claim(zone);
        claimed
            .map_err(|detail| StoreError::corrupt(format!("the superblock's use of zone {}", zone.0), detail))
    }

    /// A contiguous extent of `len` bytes (a multiple of 4096, at most a zone) in the stream's open zone, in
    /// a closed zone that is at most half filled, or at the start of a new one. It counts as live at once.
    /// O(log zones), while the store is not full.
    ///
    /// # Errors
    /// `Full`, which is not sticky; `Failed` after [`Zones::fail`].
    pub(crate) fn allocate(&self, to: impl Into<Destination>, len: u32, budget: Budget) -> Result<Extent> {
        self.allocate_between(to.into(), len, len, budget)
    }

    /// As [`Zones::allocate_up_to`], but leaves the gaps of zones alone that are nearly full: they are for
    /// what can't wait.
    ///
    /// # Errors
    /// As [`Zones::allocate`].
    pub(crate) fn allocate_outside_gaps(
        &self,
        to: Destination,
        len_max: u32,
        budget: Budget,
    ) -> Result<Extent> {
        self.allocate_in_zone(to, SECTOR_BYTES as u32, len_max.min(self.zone_bytes), budget)?
            .ok_or(StoreError::Full)
    }

    /// As [`Zones::allocate`], but takes the rest of the open zone if that is shorter than
    /// `len_max`. The extent has at least 4096 bytes.
    ///
    /// # Errors
    /// As [`Zones::allocate`].
    pub(crate) fn allocate_up_to(
        &self,
        to: impl Into<Destination>,
        len_max: u32,
        budget: Budget,
    ) -> Result<Extent> {
        self.allocate_between(to.into(), SECTOR_BYTES as u32, len_max.min(self.zone_bytes), budget)
    }

    fn allocate_between(
        &self,
        to: Destination,
        len_min: u32,
        len_max: u32,
        budget: Budget,
    ) -> Result<Extent> {
        match self.allocate_in_zone(to, len_min, len_max, budget)? {
            Some(extent) => Ok(extent),
            None => self.table.lock().allocate_in_gap(len_min, len_max).ok_or(StoreError::Full),
        }
    }

    /// An extent at the end of the stream's zone, or of one that is at most half filled; `None`: there is
    /// none.
    fn allocate_in_zone(
        &self,
        Destination { stream, tier }: Destination,
        len_min: u32,
        len_max: u32,
        budget: Budget,
    ) -> Result<Option<Extent>> {
        let sector = SECTOR_BYTES as u32;
        assert!(
            len_max.is_multiple_of(sector)
                && len_min >= sector
                && len_max >= len_min
                && len_max <= self.zone_bytes,
            "an extent is whole sectors within a zone, not {len_min} to {len_max} bytes"
        );
        loop {
            let (zones_present, has_others) = {
                let mut table = self.table.lock();
                table.check_usable()?;
                if let Some(extent) = table.allocate((stream, tier), len_min, len_max, budget) {
                    return Ok(Some(extent));
                }
                (table.zones_present(), table.members().list().len() > 1)
            };
            if !self.grow_beyond(zones_present) {
                // A device of the other tier is taken when the first one does not grow.
                let again = || self.table.lock().allocate((stream, tier), len_min, len_max, budget);
                return Ok(if has_others { again() } else { None });
            }
        }
    }

    /// The store has another device, with these zones behind all others; nothing of it is in use.
    pub(crate) fn add_member(&self, member: MemberZones) {
        self.table.lock().add_member(member);
    }

    /// Whether anything new goes to the device.
    pub(crate) fn set_takes_new(&self, id: u32, takes_new: bool) {
        self.table.lock().set_takes_new(id, takes_new);
    }

    /// The device, to which nothing new goes, holds nothing, and is gone.
    pub(crate) fn drop_member(&self, id: u32) {
        self.table.lock().drop_member(id);
    }

    /// One more reference to the bytes of `extent`, which is live.
    pub(crate) fn retain(&self, extent: Extent) {
        self.retain_use(&self.use_of(extent));
    }

    /// As [`Zones::retain`], of bytes that were written in that generation of their zone; false: they have
    /// gone.
    pub(crate) fn retain_in(&self, extent: Extent, generation: u32) -> bool {
        self.table.lock().retain(&self.use_of(extent), Some(generation))
    }

    /// One reference less to the bytes of `extent`. A zone that no stream fills becomes free with
    /// its last live byte.
    pub(crate) fn release(&self, extent: Extent) {
        self.release_use(&self.use_of(extent));
    }

    /// As [`Zones::retain`] for all bytes that a piece holds in one zone.
    pub(crate) fn retain_use(&self, zone_use: &ZoneUse) {
        self.table.lock().retain(zone_use, None);
    }

    /// As [`Zones::release`] for all bytes that a piece holds in one zone.
    pub(crate) fn release_use(&self, zone_use: &ZoneUse) {
        self.table.lock().release(zone_use);
    }

    fn use_of(&self, extent: Extent) -> ZoneUse {
        let end = (extent.addr % u64::from(self.zone_bytes)) as u32 + extent.len;
        ZoneUse { zone: self.zone_of(extent.addr), bytes: extent.len.into(), pieces: 1, end }
    }

    /// As [`Zones::release`], of an extent that was never written to and is the last one of its zone: its
    /// room, too.
    pub(crate) fn give_back(&self, extent: Extent) {
        self.table.lock().give_back(&self.use_of(extent));
    }

    /// A whole zone for the manifest. The reserve's last zones, [`Zones::set_manifest_zones`],
    /// serve this alone.
    ///
    /// # Errors
    /// As [`Zones::allocate`].
    pub(crate) fn allocate_zone(&self, budget: Budget) -> Result<ZoneId> {
        loop {
            let zones_present = {
                let mut table = self.table.lock();
                table.check_usable()?;
                if let Some(zone) = table.take_manifest_zone(budget) {
                    return Ok(zone);
                }
                table.zones_present()
            };
            if !self.grow_beyond(zones_present) {
                return Err(StoreError::Full);
            }
        }
    }

    /// Gives a zone back that [`Zones::allocate_zone`] or [`Zones::claim_zone`] took.
    pub(crate) fn free_zone(&self, zone: ZoneId) {
        self.table.lock().free_manifest_zone(zone);
    }

    /// How many zones the next rewrite of the manifest needs: data never takes the last so many.
    pub(crate) fn set_manifest_zones(&self, zones: u32) {
        self.table.lock().set_manifest_zones(zones);
    }

    /// `stream` begins a new zone with its next extent; the one that it fills is free at once if it holds
    /// nothing.
    pub(crate) fn close_stream(&self, stream: Stream) {
        self.table.lock().close_streams(|open| open == stream);
    }

    /// As [`Zones::close_stream`], those of merges that are none of the first.
    pub(crate) fn close_other_lanes(&self) {
        self.table.lock().close_streams(|open| match open {
            Stream::MergeTuple(lane) | Stream::MergeBlock(lane) => lane != Lane::FIRST,
            _ => false,
        });
    }

    /// The store may reach up to `zones` from now on; the superblocks say so already. A device that is longer
    /// than the zones it had has more of them at once.
    pub(crate) fn set_total(&self, zones: u32) {
        let _one_at_a_time = self.growth.lock();
        let on_device = (self.device.len_bytes() / u64::from(self.zone_bytes)).min(u64::from(zones)) as u32;
        let mut table = self.table.lock();
        table.set_first_total(zones);
        let present = table.members().of_first().start.max(on_device);
        table.add_zones(present);
    }

    /// How often `zone` has become free since the store was opened; part of cache keys.
    pub(crate) fn generation(&self, zone: ZoneId) -> u32 {
        self.table.lock().generation(zone)
    }

    /// Totals. O(zones).
    pub(crate) fn space(&self) -> ZoneStats {
        self.table.lock().stats()
    }

    /// Bytes that `budget` may still take in new and in half-empty closed zones, growth up to the
    /// capacity included (unless the device could not grow lately).
    pub(crate) fn free_bytes(&self, budget: Budget) -> u64 {
        self.table.lock().free_bytes(budget)
    }

    /// Grows the device until it has `bytes` for ordinary writes beside the reserve, or can't grow: what is
    /// promised to them is there. A medium may have no space for zones that the capacity allows.
    pub(crate) fn secure(&self, bytes: u64) {
        loop {
            let zones_present = {
                let table = self.table.lock();
                if table.present_bytes(Budget::Ordinary) >= bytes || table.failed() {
                    return;
                }
                table.zones_present()
            };
            if !self.grow_beyond(zones_present) {
                return;
            }
        }
    }

    /// As [`Zones::free_bytes`] for ordinary writes, on a medium that has room for `room_bytes` more: of that
    /// the reserve takes its growth.
    pub(crate) fn free_bytes_within(&self, room_bytes: u64) -> u64 {
        self.table.lock().free_bytes_within(room_bytes)
    }

    /// As [`Zones::free_bytes`], without growth.
    #[cfg(test)]
    pub(crate) fn present_bytes(&self, budget: Budget) -> u64 {
        self.table.lock().present_bytes(budget)
    }

    /// Whether the reserve has zones that only merges may take.
    pub(crate) fn reserves_for_merges(&self) -> bool {
        self.table.lock().reserves_for_merges()
    }

    /// Whether so many zones are free as the reserve has for merges.
    pub(crate) fn has_zones_for_merges(&self) -> bool {
        self.table.lock().has_zones_for_merges()
    }

    /// Every present zone with its state and its live bytes (shared ones count once per piece).
    pub(crate) fn table(&self) -> Vec<(ZoneId, ZoneState, u64)> {
        self.table.lock().rows()
    }

    /// Every present zone. O(zones).
    pub(crate) fn rows(&self) -> Vec<ZoneRow> {
        self.table.lock().zones()
    }

    /// Refuses every allocation and free from now on, with `reason`.
    pub(crate) fn fail(&self, reason: Arc<str>) {
        self.table.lock().fail(reason);
    }

    /// The device may be asked to grow again although its medium tells of no more room than when it refused:
    /// a quota may have been raised. To be called every now and then.
    pub(crate) fn retry_growth(&self) {
        self.retries_growth.store(true, Ordering::Relaxed);
    }

    /// Grows the device unless it has more than `zones_seen` zones already. Says whether there are more zones
    /// now; a device that can't grow is full, not broken. A medium that has refused is asked again when it
    /// tells of more room, or after [`Zones::retry_growth`]: each refusal costs it a search.
    fn grow_beyond(&self, zones_seen: u32) -> bool {
        let _one_at_a_time = self.growth.lock();
        let (zones_all, first, data_zones) = {
            let table = self.table.lock();
            (table.zones_present(), table.members().of_first(), table.data_zones())
        };
        let (zones_present, zones_total) = (first.start, first.end);
        if zones_all > zones_seen {
            return true;
        }
        let room = self.device.room_bytes();
        if self.table.lock().refuses_growth(room) && !self.retries_growth.swap(false, Ordering::Relaxed) {
            return false;
        }
        let step = GROWTH_ZONES_MIN.max((GROWTH_BYTES_MIN / u64::from(self.zone_bytes)) as u32);
        // A store that holds little takes little.
        let step = step.min((data_zones / GROWTH_SHARE).max(GROWTH_ZONES_FIRST));
        let step = step.min(zones_total.min(DEVICE_ZONES_MAX).saturating_sub(zones_present));
        for zones_more in [step, 1.min(step)] {
            if zones_more == 0 {
                break;
            }
            let zones = zones_present + zones_more;
            match self.device.grow(u64::from(zones) * u64::from(self.zone_bytes)) {
                Ok(()) => {
                    self.table.lock().add_zones(zones);
                    return true;
                }
                Err(error) => tracing::debug!(zones, %error, "the device can't grow"),
            }
        }
        self.table.lock().growth_failed(room);
        false
    }
}

#[cfg(test)]
mod tests;
