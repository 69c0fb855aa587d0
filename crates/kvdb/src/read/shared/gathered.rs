//! References to blocks, by place.
//!
//! A *place* is a block on the device, or one of a packed unit: 64 for each sector, of which a plain block
//! has all, and a packed one the one with its number in its unit. So places of both are numbers in one order.
//!
//! Thread safety: plain values.

use std::ops::Range;

use bytes::Bytes;
use kvfs_store::{EachShared, Result};

use crate::cache::Charge;
use crate::format::{Region, SECTOR_BYTES, UNIT_BLOCKS_MAX};

const PLACES_OF_SECTOR: u64 = UNIT_BLOCKS_MAX as u64;

/// A reference to blocks that lie one behind the other.
#[derive(Debug, Clone)]
pub(super) struct Reference {
    places: Range<u64>,
    is_packed: bool,
    prefix: Bytes,
}

impl Reference {
    /// Of these blocks of a region.
    pub(super) fn of(region: &Region<'_>, first: u64, count: u32) -> Self {
        let sector = region.addr_of(first) / SECTOR_BYTES * PLACES_OF_SECTOR;
        let places = match region.unit {
            Some(unit) => {
                let start = sector + u64::from(unit.skip) + (first - region.first);
                start..start + u64::from(count)
            }
            None => sector..sector + u64::from(count) * PLACES_OF_SECTOR,
        };
        Self { places, is_packed: region.unit.is_some(), prefix: region.prefix.clone() }
    }
}

/// What a reference takes at most: in a vector that grows by twice, and in the lists of [`Gathered::tell`].
const REFERENCE_BYTES: usize = 2 * size_of::<Reference>() + TOLD_BYTES;
const TOLD_BYTES: usize = 2 * size_of::<&Reference>() + size_of::<&[u8]>();

/// What refers to anything between some sectors.
pub(super) struct Gathered {
    sectors: Range<u64>,
    references: Vec<Reference>,
    references_max: usize,
    /// As much as so many references take.
    charge: Charge,
}

impl Gathered {
    /// `charge`: grows with what is held.
    pub(super) fn new(sectors: Range<u64>, references_max: usize, charge: Charge) -> Self {
        let mut gathered = Self { sectors, references: Vec::new(), references_max, charge };
        gathered.allow(references_max);
        gathered
    }

    fn allow(&mut self, references_max: usize) {
        self.references_max = references_max;
        self.charge.resize((references_max * REFERENCE_BYTES) as u64);
    }

    /// Between which sectors, by now.
    pub(super) fn sectors(&self) -> &Range<u64> {
        &self.sectors
    }

    /// Adds what lies between the sectors. Where that is too much, they end earlier from then on.
    pub(super) fn add(&mut self, mut reference: Reference) {
        let Range { start, end } = &self.sectors;
        let places = &mut reference.places;
        *places = places.start.max(start * PLACES_OF_SECTOR)..places.end.min(end * PLACES_OF_SECTOR);
        if places.is_empty() {
            return;
        }
        self.references.push(reference);
        if self.references.len() > self.references_max {
            self.narrow();
        }
    }

    /// Gives up the upper half, as far as it lies behind the first one.
    fn narrow(&mut self) {
        let mut starts: Vec<u64> =
            self.references.iter().map(|reference| reference.places.start / PLACES_OF_SECTOR).collect();
        starts.sort_unstable();
        let first = starts[0];
        let behind = &starts[starts.partition_point(|&start| start == first)..];
        if let Some(&next) = behind.first() {
            let end = next.max(starts[starts.len() / 2]);
            self.sectors.end = end;
            self.references.retain_mut(|Reference { places, .. }| {
                places.end = places.end.min(end * PLACES_OF_SECTOR);
                !places.is_empty()
            });
        }
        // All that begins in one sector is held.
        self.allow(self.references_max.max(2 * self.references.len()));
    }

    /// Tells `each` what several of them refer to.
    pub(super) fn tell(&self, each: EachShared<'_>) -> Result<()> {
        let mut sorted: Vec<&Reference> = self.references.iter().collect();
        sorted.sort_unstable_by_key(|reference| reference.places.start);
        let mut later = sorted.into_iter().peekable();
        let mut here: Vec<&Reference> = Vec::new();
        let mut at = 0;
        loop {
            here.retain(|reference| reference.places.end > at);
            let next = later.peek().map(|reference| reference.places.start);
            match next {
                Some(start) if here.is_empty() => at = start,
                None if here.is_empty() => return Ok(()),
                _ => {}
            }
            while let Some(reference) = later.next_if(|reference| reference.places.start <= at) {
                here.push(reference);
            }
            let ends = here.iter().map(|reference| reference.places.end);
            let until = ends.chain(later.peek().map(|reference| reference.places.start)).min().unwrap_or(at);
            if here.len() > 1 {
                let prefixes: Vec<&[u8]> = here.iter().map(|reference| &reference.prefix[..]).collect();
                let places_of_block = if here[0].is_packed { 1 } else { PLACES_OF_SECTOR };
                each((until - at) / places_of_block, &prefixes)?;
            }
            at = until;
        }
    }
}
