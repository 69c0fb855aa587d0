//! Blocks to which several files refer at one place: clones, until they are overwritten or copied apart.
//!
//! Purpose: which bytes are a file's alone. Several indexes may name a block of which no file has anything
//! any more, since older runs still name what was overwritten or removed; so a reference counts if it is to
//! the newest version that the reader sees. The addresses are gone through in windows. The indexes of the
//! pieces that have something there *mark* what is referred to, and what of it more than once. Of the latter
//! the newest versions are looked up, as for a clone, and *gathered* by place.
//!
//! Thread safety: any thread, beside everything else: no lock is held, only a view, so that what merges
//! replace meanwhile stays until then. Memory: two bits for each block of a window, one index, and so many
//! references; where a window has more, its upper part is gathered behind the lower one. What refers to one
//! and the same stretch of blocks is held, however much that is. All of it is charged.

mod gathered;
mod marks;

use std::ops::Range;
use std::sync::Arc;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{EachShared, Keyspace, Result};

use super::Reader;
use crate::cache::{Accountant, Pool};
use crate::format::{Feature, Layer, PieceDesc, Region, SECTOR_BYTES};
use crate::layers::{Layers, Located};
use crate::memtable::first_block_at_or_after;
use crate::table::Piece;
use crate::version::Run;
use gathered::{Gathered, Reference};
use marks::Marks;

/// Blocks of a file that are looked up at once, unless one region has more.
const LOCATED_BLOCKS_MAX: u64 = 1 << 14;

/// What one window, and what is gathered of it, may come to.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Sectors of a window.
    sectors: u64,
    references: usize,
}

/// Windows of 128 GiB in 8 MiB of memory, references in 9 MiB.
const LIMITS: Limits = Limits { sectors: 1 << 25, references: 1 << 16 };

impl Reader {
    /// As [`kvfs_store::Snapshot::each_shared`], of what `layers` show.
    pub(crate) fn each_shared(
        &self,
        layers: &Layers,
        keyspace: Keyspace,
        each: EachShared<'_>,
    ) -> Result<()> {
        self.require_blocks(keyspace, "each_shared")?;
        if !self.live.has_announced(Feature::Clones) {
            return Ok(());
        }
        let (accountant, zone_bytes) = (&self.runtime.ctx.accountant, self.runtime.ctx.zones.zone_bytes());
        Walk::new(layers, keyspace.0, zone_bytes, accountant, LIMITS).each_shared(each)
    }
}

/// A walk over all windows.
struct Walk<'l> {
    layers: &'l Layers,
    keyspace: u32,
    runs: Vec<&'l Arc<Run>>,
    zone_sectors: u64,
    /// Behind the last zone in which there is anything.
    end: u64,
    accountant: &'l Accountant,
    limits: Limits,
}

impl<'l> Walk<'l> {
    fn new(
        layers: &'l Layers,
        keyspace: u32,
        zone_bytes: u32,
        accountant: &'l Accountant,
        limits: Limits,
    ) -> Self {
        let zone_sectors = u64::from(zone_bytes) / SECTOR_BYTES;
        let runs: Vec<_> = layers.runs(keyspace).collect();
        let pieces = runs.iter().flat_map(|run| &run.pieces);
        let last = pieces.filter_map(|piece| piece.desc().zones.last()).map(|zone_use| zone_use.zone.0).max();
        let end = last.map_or(0, |zone| (u64::from(zone) + 1) * zone_sectors);
        Self { layers, keyspace, runs, zone_sectors, end, accountant, limits }
    }

    fn each_shared(&self, each: EachShared<'_>) -> Result<()> {
        progress::stage("looking for shared blocks", Unit::Items, 0);
        let marks_bytes = Marks::memory_bytes(self.limits.sectors.min(self.end));
        let _charge = self.accountant.charge(Pool::Io, marks_bytes);
        let mut at = 0;
        while let Some(start) = self.next_used(at) {
            let window = start..self.end.min(start + self.limits.sectors);
            let marks = self.mark(window.clone())?;
            let mut from = window.start;
            while marks.has_repeated(&(from..window.end)) {
                let gathered = self.gather(&marks, from..window.end)?;
                gathered.tell(each)?;
                from = gathered.sectors().end;
            }
            at = window.end;
        }
        Ok(())
    }

    /// Where the first zone at or behind `sector` begins that any piece has something in, or `sector` itself
    /// inside of it. O(pieces · log zones).
    fn next_used(&self, sector: u64) -> Option<u64> {
        let from = sector / self.zone_sectors;
        let first_of = |desc: &PieceDesc| {
            let at = desc.zones.partition_point(|zone_use| u64::from(zone_use.zone.0) < from);
            desc.zones.get(at).map(|zone_use| u64::from(zone_use.zone.0))
        };
        let pieces = self.runs.iter().flat_map(|run| &run.pieces);
        let zone = pieces.filter_map(|piece| first_of(piece.desc())).min()?;
        Some(sector.max(zone * self.zone_sectors))
    }

    /// Tells `visit` the pieces that have something in these sectors.
    fn each_piece(
        &self,
        sectors: &Range<u64>,
        mut visit: impl FnMut(&Run, &Arc<Piece>) -> Result<()>,
    ) -> Result<()> {
        let zones = sectors.start / self.zone_sectors..sectors.end.div_ceil(self.zone_sectors);
        let has_any = |desc: &PieceDesc| {
            let at = desc.zones.partition_point(|zone_use| u64::from(zone_use.zone.0) < zones.start);
            desc.zones.get(at).is_some_and(|zone_use| u64::from(zone_use.zone.0) < zones.end)
        };
        for run in &self.runs {
            for piece in run.pieces.iter().filter(|piece| has_any(piece.desc())) {
                progress::check_wanted()?;
                visit(run, piece)?;
                progress::advance(1);
            }
        }
        Ok(())
    }

    fn mark(&self, window: Range<u64>) -> Result<Marks> {
        let mut marks = Marks::of(window.clone());
        self.each_piece(&window, |run, piece| {
            let index = piece.index()?;
            for region in index.layers().iter().flat_map(Layer::regions) {
                if let Some(first) = first_left(&region, run) {
                    marks.note(&sectors_of(&region, first));
                }
            }
            Ok(())
        })?;
        Ok(marks)
    }

    /// What refers to blocks between these sectors that are marked as repeated, or to others beside them.
    fn gather(&self, marks: &Marks, sectors: Range<u64>) -> Result<Gathered> {
        let charge = self.accountant.charge(Pool::Io, 0);
        let mut gathered = Gathered::new(sectors.clone(), self.limits.references, charge);
        self.each_piece(&sectors, |run, piece| {
            let index = piece.index()?;
            index.layers().iter().enumerate().try_for_each(|(number, layer)| {
                self.gather_layer(run, piece, (number, layer), marks, &mut gathered)
            })
        })?;
        Ok(gathered)
    }

    fn gather_layer(
        &self,
        run: &Run,
        piece: &Arc<Piece>,
        (number, layer): (usize, &Layer),
        marks: &Marks,
        gathered: &mut Gathered,
    ) -> Result<()> {
        let wanted_from = |region: &Region<'_>, gathered: &Gathered| {
            let first = first_left(region, run)?;
            let sectors = sectors_of(region, first);
            let asked = gathered.sectors();
            let within = sectors.start.max(asked.start)..sectors.end.min(asked.end);
            marks.has_repeated(&within).then_some(first)
        };
        let mut regions = layer.regions().peekable();
        while let Some(region) = regions.next() {
            let Some(first) = wanted_from(&region, gathered) else { continue };
            let mut end = region.end();
            let goes_on = |next: &Region<'_>, end: u64| {
                let continues = next.prefix == region.prefix && next.first == end;
                continues && next.end() - first <= LOCATED_BLOCKS_MAX
            };
            while let Some(next) =
                regions.next_if(|next| goes_on(next, end) && wanted_from(next, gathered).is_some())
            {
                end = next.end();
            }
            let count = (end - first) as usize;
            for located in self.layers.locate(self.keyspace, region.prefix, first, count)? {
                // Elsewhere are newer versions; those are told of where they are.
                if let Located::InPiece(location) = located
                    && location.layer == number
                    && Arc::ptr_eq(&location.piece, piece)
                {
                    let region = layer.region(location.region);
                    gathered.add(Reference::of(&region, location.first, location.count));
                }
            }
        }
        Ok(())
    }
}

/// The first block of a region that the run still has. `None`: all have moved on.
fn first_left(region: &Region<'_>, run: &Run) -> Option<u64> {
    let first = first_block_at_or_after(region.prefix, &run.lower_bound)?.max(region.first);
    (first < region.end()).then_some(first)
}

/// The sectors of a region from block `first` on. Those of a unit have one address, as their blocks have.
fn sectors_of(region: &Region<'_>, first: u64) -> Range<u64> {
    let start = region.addr_of(first) / SECTOR_BYTES;
    let count = if region.unit.is_some() { 1 } else { region.end() - first };
    start..start + count
}

#[cfg(test)]
mod tests;
