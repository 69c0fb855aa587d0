//! What was copied out of zones that are being emptied, so that bytes to which several prefixes or pieces refer are copied once.
//!
//! Thread safety: plain values; one thread at a time notes what it has copied. Invariant: what is noted lies in pieces that are held here,
//! so it stays where it is for as long as this lives. Zones that were emptied may be filled again meanwhile: what lies there then was not copied.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use kvfs_store::{BLOCK_BYTES, Result};

use super::Victims;
use crate::format::{Layer, Region, Unit, ZoneId};
use crate::space::Zones;
use crate::table::Piece;

/// A stretch of blocks, or a packed unit, that lies elsewhere now, too.
#[derive(Debug, Clone, Copy)]
struct Copied {
    /// Behind the last block, from where it was; of a unit, behind its bytes.
    end: u64,
    /// Where it is.
    addr: u64,
    unit: Option<Unit>,
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Copies {
    /// By the device address from which it was copied.
    copied: BTreeMap<u64, Copied>,
    pieces: Vec<Arc<Piece>>,
    /// The zones that are being emptied, and how often each had been filled when that began.
    generations: HashMap<ZoneId, u32>,
}

impl Copies {
    /// Nothing yet, of these zones.
    pub(crate) fn of(victims: &Victims, zones: &Zones) -> Self {
        let generations = victims.zones().map(|zone| (zone, zones.generation(zone))).collect();
        Self { generations, ..Self::default() }
    }

    /// Whether `zone` is one of them, and has not been filled again.
    pub(crate) fn is_to_be_emptied(&self, zone: ZoneId, zones: &Zones) -> bool {
        self.generations.get(&zone).is_some_and(|&generation| generation == zones.generation(zone))
    }

    /// The parts of blocks `blocks` of a region, in their order: those that were copied, each with its address now, and what is between.
    pub(super) fn parts_of(
        &self,
        region: &Region<'_>,
        blocks: &Range<u64>,
    ) -> Vec<(Range<u64>, Option<u64>)> {
        if let Some(unit) = region.unit {
            let copied = self.copied.get(&region.addr).filter(|copied| is_same_unit(copied.unit, unit));
            return vec![(blocks.clone(), copied.map(|copied| copied.addr))];
        }
        let (mut parts, mut at) = (Vec::new(), blocks.start);
        let end_addr = region.addr_of(blocks.start) + (blocks.end - blocks.start) * BLOCK_BYTES as u64;
        while at < blocks.end {
            let addr = region.addr_of(at);
            let holds = |copied: &Copied| copied.unit.is_none() && copied.end > addr;
            let before = self.copied.range(..=addr).next_back().filter(|(_, copied)| holds(copied));
            let (until, now) = match before {
                Some((from, copied)) => (copied.end, Some(copied.addr + (addr - from))),
                None => (self.copied.range(addr..).next().map_or(end_addr, |(&next, _)| next), None),
            };
            let end = at + (until.min(end_addr) - addr) / BLOCK_BYTES as u64;
            parts.push((at..end, now));
            at = end;
        }
        parts
    }

    /// Notes that blocks of a plain region are being copied, to where is not known yet.
    pub(super) fn note_stretch(&mut self, region: &Region<'_>, blocks: &Range<u64>) {
        let addr = region.addr_of(blocks.start);
        let end = addr + (blocks.end - blocks.start) * BLOCK_BYTES as u64;
        self.copied.insert(addr, Copied { end, addr: 0, unit: None });
    }

    /// Notes what of `old`, as far as `is_meant` says so of its regions, lies elsewhere in the pieces that took its place.
    ///
    /// # Errors
    /// Those of reading an index.
    pub(crate) fn note(
        &mut self,
        old: &Piece,
        new: &[Arc<Piece>],
        is_meant: impl Fn(&Region<'_>) -> bool,
    ) -> Result<()> {
        let old = old.index()?;
        let indexes = new.iter().map(|piece| piece.index()).collect::<Result<Vec<_>>>()?;
        let layers = || indexes.iter().flat_map(|index| index.layers());
        let known = self.copied.len();
        for region in old.layers().iter().flat_map(Layer::regions).filter(is_meant) {
            let mut block = region.first;
            while block < region.end() {
                let found = layers().find_map(|layer| same_in(layer, &region, block));
                let Some((now, count)) = found else {
                    block += 1;
                    continue;
                };
                let (addr, from) = (now.addr_of(block), region.addr_of(block));
                let len = region.unit.map_or(count * BLOCK_BYTES as u64, |unit| unit.stored_len().into());
                if addr != from {
                    self.copied.insert(from, Copied { end: from + len, addr, unit: region.unit });
                }
                block += count;
            }
        }
        if self.copied.len() > known {
            self.pieces.extend(new.iter().cloned());
        }
        Ok(())
    }
}

/// Whether these are one unit, of which there may be different parts.
fn is_same_unit(one: Option<Unit>, other: Unit) -> bool {
    one.is_some_and(|one| Unit { skip: other.skip, ..one } == other)
}

/// The region of `layer` with `block` of `region`, in the same version, and how many blocks from there on are in both, one behind the
/// other.
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
