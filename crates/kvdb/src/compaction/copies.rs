//! What was copied out of zones that are emptied, so that bytes to which several prefixes or pieces refer are
//! copied once.
//!
//! A copy is known by where it was and where it is, each with the life of its zone: nothing is written over
//! while a zone lives, so both hold the same bytes for as long. Nothing is held for it: what has gone
//! meanwhile is copied again.
//!
//! Thread safety: [`Copies`] is shared by all that empties zones, under one lock; the others are plain
//! values. Invariant: the stretches that are known of a zone do not overlap.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use kvfs_store::{BLOCK_BYTES, Result};

use super::Victims;
use crate::cache::{Charge, Pool};
use crate::format::{Layer, Region, Unit, ZoneId};
use crate::space::Zones;
use crate::table::{Piece, RunContext};

/// The part of the memory of the cache that what is known may take, and what it takes for each stretch
/// (bytes).
const SHARE_OF_CACHE: u64 = 16;
const STRETCH_BYTES: u64 = 64;

/// An address, in which life of its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopyPlace {
    pub(super) addr: u64,
    pub(super) generation: u32,
}

/// A stretch of blocks, or a packed unit, that lies elsewhere now, too.
#[derive(Debug, Clone, Copy)]
struct Copied {
    /// Behind the last block, from where it was; of a unit, behind its bytes.
    end: u64,
    /// Where it is.
    place: CopyPlace,
    unit: Option<Unit>,
}

/// By the device address from which they were copied.
#[derive(Default)]
pub(super) struct Stretches(BTreeMap<u64, Copied>);

/// Blocks that are known to lie elsewhere, too, or are not.
type Part = (Range<u64>, Option<CopyPlace>);

impl Stretches {
    /// The parts of blocks `blocks` of a region, in their order: those that were copied, each with its place
    /// now, and what is between.
    pub(super) fn parts_of(&self, region: &Region<'_>, blocks: &Range<u64>) -> Vec<Part> {
        if let Some(unit) = region.unit {
            let copied = self.0.get(&region.addr).filter(|copied| is_same_unit(copied.unit, unit));
            return vec![(blocks.clone(), copied.map(|copied| copied.place))];
        }
        let (mut parts, mut at) = (Vec::new(), blocks.start);
        let end_addr = region.addr_of(blocks.start) + (blocks.end - blocks.start) * BLOCK_BYTES as u64;
        while at < blocks.end {
            let addr = region.addr_of(at);
            let holds = |copied: &Copied| copied.unit.is_none() && copied.end > addr;
            let before = self.0.range(..=addr).next_back().filter(|(_, copied)| holds(copied));
            let (until, now) = match before {
                Some((from, &Copied { end, place, .. })) => {
                    (end, Some(CopyPlace { addr: place.addr + (addr - from), ..place }))
                }
                None => (self.0.range(addr + 1..).next().map_or(end_addr, |(&next, _)| next), None),
            };
            let end = at + (until.min(end_addr) - addr) / BLOCK_BYTES as u64;
            parts.push((at..end, now));
            at = end;
        }
        parts
    }

    /// Notes that blocks of a region lie at `place`, too, as far as nothing is known of them.
    pub(super) fn note(&mut self, region: &Region<'_>, blocks: &Range<u64>, place: CopyPlace) {
        for (part, known) in self.parts_of(region, blocks) {
            if known.is_some() {
                continue;
            }
            let from = region.addr_of(part.start);
            let bytes = (part.end - part.start) * BLOCK_BYTES as u64;
            let end = from + region.unit.map_or(bytes, |unit| unit.stored_len().into());
            let addr = place.addr + (from - region.addr_of(blocks.start));
            let place = CopyPlace { addr, ..place };
            self.0.insert(from, Copied { end, place, unit: region.unit });
        }
    }

    /// Forgets those whose copy has gone.
    fn forget_gone(&mut self, zones: &Zones) {
        let is_there = |place: CopyPlace| zones.generation(zones.zone_of(place.addr)) == place.generation;
        self.0.retain(|_, copied| is_there(copied.place));
    }
}

/// Of one zone.
struct OfZone {
    generation: u32,
    stretches: Stretches,
}

/// All that is known.
struct Known {
    zones: BTreeMap<ZoneId, OfZone>,
    charge: Charge,
}

/// See the module.
pub(crate) struct Copies {
    ctx: Arc<RunContext>,
    known: Mutex<Known, class::KvdbCompactionCopies>,
}

impl Copies {
    /// Nothing yet.
    pub(crate) fn new(ctx: &Arc<RunContext>) -> Self {
        let charge = ctx.accountant.charge(Pool::Io, 0);
        Self { ctx: Arc::clone(ctx), known: Mutex::new(Known { zones: BTreeMap::new(), charge }) }
    }

    /// As [`Stretches::parts_of`]; the region is live.
    fn parts_of(&self, region: &Region<'_>, blocks: &Range<u64>) -> Vec<Part> {
        let zones = &self.ctx.zones;
        let zone = zones.zone_of(region.addr);
        let mut known = self.known.lock();
        let Some(of_zone) = known.zones.get_mut(&zone) else { return vec![(blocks.clone(), None)] };
        if of_zone.generation != zones.generation(zone) {
            known.zones.remove(&zone);
            return vec![(blocks.clone(), None)];
        }
        let is_gone = |place: CopyPlace| zones.generation(zones.zone_of(place.addr)) != place.generation;
        let mut parts = of_zone.stretches.parts_of(region, blocks);
        if parts.iter().any(|(_, place)| place.is_some_and(is_gone)) {
            of_zone.stretches.forget_gone(zones);
            parts = of_zone.stretches.parts_of(region, blocks);
        }
        parts
    }

    /// Forgets what is known of zones that were emptied.
    pub(crate) fn forget_emptied(&self) {
        self.known.lock().forget_emptied(&self.ctx.zones);
    }

    /// Notes what of `old`, as far as `is_meant` says so of its regions, lies elsewhere in the pieces that
    /// took its place, all of which are there. `both_ways`: where it was it stays for others, so that what
    /// comes back may lie there again.
    fn note(
        &self,
        old: &Piece,
        new: &[Arc<Piece>],
        is_meant: impl Fn(&Region<'_>) -> bool,
        both_ways: bool,
    ) -> Result<()> {
        let zones = &self.ctx.zones;
        let old = old.index()?;
        let indexes = new.iter().map(|piece| piece.index()).collect::<Result<Vec<_>>>()?;
        let layers = || indexes.iter().flat_map(|index| index.layers());
        for region in old.layers().iter().flat_map(Layer::regions).filter(is_meant) {
            let mut block = region.first;
            while block < region.end() {
                let found = layers().find_map(|layer| same_in(layer, &region, block));
                let Some((now, count)) = found else {
                    block += 1;
                    continue;
                };
                let (addr, was) = (now.addr_of(block), region.addr_of(block));
                let place = |addr| CopyPlace { addr, generation: zones.generation(zones.zone_of(addr)) };
                if addr != was {
                    self.note_blocks(&region, &(block..block + count), place(addr));
                    if both_ways {
                        self.note_blocks(&now, &(block..block + count), place(was));
                    }
                }
                block += count;
            }
        }
        Ok(())
    }

    fn note_blocks(&self, region: &Region<'_>, blocks: &Range<u64>, place: CopyPlace) {
        // What has gone is forgotten by this.
        let parts = self.parts_of(region, blocks);
        if parts.iter().all(|(_, known)| known.is_some()) {
            return;
        }
        let zones = &self.ctx.zones;
        let mut known = self.known.lock();
        let bytes_max = self.ctx.accountant.cache_budget() / SHARE_OF_CACHE;
        if known.charge.bytes() + STRETCH_BYTES > bytes_max {
            known.forget_emptied(zones);
        }
        if known.charge.bytes() + STRETCH_BYTES > bytes_max {
            return;
        }
        let zone = zones.zone_of(region.addr);
        let fresh = || OfZone { generation: zones.generation(zone), stretches: Stretches::default() };
        let of_zone = known.zones.entry(zone).or_insert_with(fresh);
        let before = of_zone.stretches.0.len();
        of_zone.stretches.note(region, blocks, place);
        let bytes = (of_zone.stretches.0.len() - before) as u64 * STRETCH_BYTES;
        let bytes = known.charge.bytes() + bytes;
        known.charge.resize(bytes);
    }
}

impl Known {
    fn forget_emptied(&mut self, zones: &Zones) {
        self.zones.retain(|&zone, of_zone| of_zone.generation == zones.generation(zone));
        let stretches: usize = self.zones.values().map(|of_zone| of_zone.stretches.0.len()).sum();
        self.charge.resize(stretches as u64 * STRETCH_BYTES);
    }
}

/// What a pass that empties zones knows of copies. Zones that were emptied may be filled again meanwhile:
/// what lies there then stays.
pub(crate) struct Sharing {
    copies: Arc<Copies>,
    /// No zones are emptied: what lies on another tier than it wishes is moved.
    is_migration: bool,
    /// The zones that are being emptied, and how often each had been filled when that began.
    generations: HashMap<ZoneId, u32>,
}

impl Sharing {
    /// Of these zones.
    pub(crate) fn of(copies: &Arc<Copies>, victims: &Victims) -> Self {
        let generation = |zone| (zone, copies.ctx.zones.generation(zone));
        Self {
            generations: victims.zones().map(generation).collect(),
            is_migration: victims.are_misplaced(),
            copies: Arc::clone(copies),
        }
    }

    /// Whether `zone` is one of them, and has not been filled again.
    pub(crate) fn is_to_be_emptied(&self, zone: ZoneId) -> bool {
        let is_now = |&generation: &u32| generation == self.copies.ctx.zones.generation(zone);
        self.generations.get(&zone).is_some_and(is_now)
    }

    /// As [`Stretches::parts_of`], of blocks of a piece.
    pub(super) fn parts_of(&self, region: &Region<'_>, blocks: &Range<u64>) -> Vec<Part> {
        self.copies.parts_of(region, blocks)
    }

    /// Notes what of `old` was copied out of these zones, or was moved, to the pieces that took its place.
    /// `old` is still held.
    ///
    /// # Errors
    /// Those of reading an index.
    pub(crate) fn note(&self, old: &Piece, new: &[Arc<Piece>]) -> Result<()> {
        let zones = &self.copies.ctx.zones;
        let is_meant =
            |region: &Region<'_>| self.is_migration || self.is_to_be_emptied(zones.zone_of(region.addr));
        self.copies.note(old, new, is_meant, self.is_migration)
    }
}

/// Whether these are one unit, of which there may be different parts.
fn is_same_unit(one: Option<Unit>, other: Unit) -> bool {
    one.is_some_and(|one| Unit { skip: other.skip, ..one } == other)
}

/// The region of `layer` with `block` of `region`, in the same version, and how many blocks from there on are
/// in both, one behind the other.
fn same_in<'l>(layer: &'l Layer, region: &Region<'_>, block: u64) -> Option<(Region<'l>, u64)> {
    let at = layer.find(region.prefix, block);
    let found = (at < layer.len()).then(|| layer.region(at))?;
    if found.prefix != region.prefix || block < found.first {
        return None;
    }
    let has = |block: u64| {
        block < found.end()
            && found.seqno_of(block) == region.seqno_of(block)
            && found.crc_of(block) == region.crc_of(block)
    };
    let is_same_kind = match (found.unit, region.unit) {
        (None, None) => true,
        (one, Some(other)) => {
            let is_same_place = |one: Unit| {
                block - found.first + u64::from(one.skip) == block - region.first + u64::from(other.skip)
            };
            is_same_unit(one, other) && one.is_some_and(is_same_place)
        }
        (Some(_), None) => false,
    };
    if !is_same_kind || !has(block) {
        return None;
    }
    let count = (block..region.end()).take_while(|&block| has(block)).count();
    Some((found, count as u64))
}
