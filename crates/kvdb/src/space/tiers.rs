//! Which devices the zones lie on, where blocks of files are placed among them, how often these are asked
//! for, and how much fast devices are written to.
//!
//! Thread safety: short looks at the table of zones.

use kvfs_store::Tier;

use super::endurance::Endurance;
use super::heat::{FastSpace, Heat};
use super::{Destination, MemberSpace, MemberZones, NewBlocks, Placement, Stream, Zones};

/// Zones that a rewrite begins besides what it copies: of blocks, of metadata, and one that it fills in part.
const ZONES_OF_REWRITE: u64 = 3;

impl Zones {
    /// The devices of the store.
    pub(crate) fn members(&self) -> Vec<MemberZones> {
        self.table.lock().members().list().to_vec()
    }

    /// The same, with what each of them holds. O(zones).
    pub(crate) fn members_space(&self) -> Vec<(MemberZones, MemberSpace)> {
        self.table.lock().members_space()
    }

    /// Where new things of that stream go; of `blocks` this is known.
    pub(crate) fn for_new(&self, stream: Stream, blocks: NewBlocks) -> Destination {
        self.table.lock().for_new(stream, blocks, &|| self.endurance.is_spent())
    }

    /// The tier on which the device address `addr` lies.
    pub(crate) fn tier_at(&self, addr: u64) -> Tier {
        let zone = self.zone_of(addr);
        self.table.lock().members().tier_of(zone.0)
    }

    /// The tier to which blocks go that lie at `addr`, wish to lie somewhere, and are copied.
    pub(crate) fn for_copy(&self, addr: u64, wish: Option<Tier>) -> Tier {
        let zone = self.zone_of(addr);
        self.table.lock().members().for_copy(zone.0, wish)
    }

    /// The tier to which blocks belong that are copied, by how often they were asked for.
    pub(crate) fn wish_by_heat(&self, prefix: &[u8], first: u64, blocks: u64) -> Option<Tier> {
        let wish = self.heat.wish_of(prefix, first, blocks);
        wish.filter(|wish| *wish == Tier::Slow || !self.endurance.is_spent())
    }

    /// Whether blocks at `addr` lie on another tier than they wish to, and could lie there.
    pub(crate) fn is_misplaced(&self, addr: u64, wish: Option<Tier>) -> bool {
        self.table.lock().members().is_misplaced(self.zone_of(addr).0, wish)
    }

    /// What may be moved to a tier (bytes): what is free there, but for what is kept for rows and metadata,
    /// or for writers. Nothing, where it may not be written to for now.
    pub(crate) fn room_on(&self, tier: Tier) -> u64 {
        if tier == Tier::Fast && !self.endurance.has_for_moves() {
            return 0;
        }
        self.table.lock().room_on(tier)
    }

    /// Whether so many bytes and the metadata of their piece can be copied to where so much is free.
    pub(crate) fn fits_rewrite(&self, bytes: u64, room_bytes: u64) -> bool {
        bytes + ZONES_OF_REWRITE * u64::from(self.zone_bytes()) <= room_bytes
    }

    /// Whether it makes a difference where something wishes to lie.
    pub(crate) fn are_of_both_tiers(&self) -> bool {
        self.table.lock().members().are_of_both_tiers()
    }

    /// What is written from now on is placed so.
    pub(crate) fn set_placement(&self, placement: Placement) {
        self.table.lock().set_placement(placement);
        self.endurance.set_budget(placement.bytes_per_day());
        if placement.counts_heat() {
            self.heat.turn_on(self.fast_space().bytes_total);
        } else {
            self.heat.forget_levels();
        }
    }

    /// How much fast devices are written to.
    pub(crate) fn endurance(&self) -> &Endurance {
        &self.endurance
    }

    /// How often blocks of files were asked for.
    pub(crate) fn heat(&self) -> &Heat {
        &self.heat
    }

    /// Counts from now on, whatever the placement. Whether it did before. O(zones).
    pub(crate) fn count_heat(&self) -> bool {
        let was_on = self.heat.is_on();
        self.heat.turn_on(self.fast_space().bytes_total);
        was_on
    }

    /// Whether the placement asks what is hot, and there was enough to count for another answer.
    pub(crate) fn is_heat_unsettled(&self) -> bool {
        self.placement().counts_heat() && self.heat.is_unsettled()
    }

    /// What is hot and cold by now. O(zones).
    pub(crate) fn settle_heat(&self) {
        if self.placement().counts_heat() {
            self.heat.settle(self.fast_space());
        }
    }

    /// Whether what is cold is to leave the fast devices, which are crowded. O(zones).
    pub(crate) fn is_fast_crowded(&self) -> bool {
        self.heat.note_space(self.fast_space());
        self.heat.levels().1 > 0
    }

    /// What fast devices have for blocks of files.
    pub(crate) fn fast_space(&self) -> FastSpace {
        self.table.lock().fast_space()
    }

    /// How it is placed.
    pub(crate) fn placement(&self) -> Placement {
        self.table.lock().placement()
    }
}
