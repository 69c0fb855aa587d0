//! A map of heat: how often what lies in each part of each device was lately asked for.
//!
//! Counts are kept by name, not by place (`space/heat.rs`). So a map goes over the indexes of all pieces of
//! blocks, which say what lies where, as a migration does. Rows, metadata, and what is dead or still in
//! memory have no count.
//!
//! Thread safety: any thread, beside everything else: no lock is held while it goes over the pieces, only a
//! view. Memory: the cells, which the caller bounds, and one index at a time.

use kvfs_store::{BLOCK_BYTES, KeyspaceKind, Result, Tier};

use super::Merger;
use super::rewrite::pass_over;
use crate::format::ZoneId;
use crate::memtable::first_block_at_or_after;
use crate::space::{Heat, MemberZones, STRETCH_BLOCKS, ZoneState, Zones};
use crate::table::Piece;
use crate::version::Run;

/// The smallest cell (bytes): what is counted as one.
const CELL_BYTES_MIN: u64 = STRETCH_BLOCKS * BLOCK_BYTES as u64;

/// How often what lies where was lately asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeatMap {
    /// Whether anything was counted before; if not, all counts are 0.
    pub was_counted: bool,
    /// From this count on something is called hot.
    pub hot_from: u8,
    /// In the order in which content is wished to lie: fast ones first.
    pub devices: Vec<DeviceHeat>,
}

/// Of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHeat {
    /// Its number.
    pub id: u32,
    /// Its class.
    pub tier: Tier,
    /// Its size, with that by which it may grow; there are cells as far as it has grown.
    pub bytes_total: u64,
    /// Blocks of files there, as pieces refer to them (bytes).
    pub bytes_counted: u64,
    /// Of these, the hot ones.
    pub bytes_hot: u64,
    /// What one cell stands for (bytes).
    pub cell_bytes: u64,
    /// From its start on; the last one may reach beyond its end.
    pub cells: Vec<HeatCell>,
}

/// A part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeatCell {
    /// Nothing is there.
    Free,
    /// Something is there, but no blocks of files, as far as pieces refer to them.
    Other,
    /// How often what is there was asked for: the mean over its bytes, rounded up. Counts are halved from
    /// time to time.
    Counted(u8),
}

/// What a cell has so far.
#[derive(Clone, Copy, Default)]
struct Sum {
    is_used: bool,
    bytes: u64,
    /// Each times its count.
    bytes_asked: u64,
}

impl Sum {
    fn cell(self) -> HeatCell {
        match self.bytes_asked.div_ceil(self.bytes.max(1)) {
            _ if self.bytes == 0 && !self.is_used => HeatCell::Free,
            _ if self.bytes == 0 => HeatCell::Other,
            mean => HeatCell::Counted(mean.min(u8::MAX.into()) as u8),
        }
    }
}

/// The cells of one device.
struct Canvas {
    member: MemberZones,
    bytes_total: u64,
    begin: u64,
    end: u64,
    cell_bytes: u64,
    sums: Vec<Sum>,
    bytes_counted: u64,
    bytes_hot: u64,
}

impl Canvas {
    /// Of the zones from its first one to `zones_end`.
    fn new(zones: &Zones, member: MemberZones, zones_end: u32, cells_max: u64) -> Self {
        let begin = zones.zone_addr(ZoneId(member.zones.start));
        let end = zones.zone_addr(ZoneId(zones_end));
        let bytes_total = zones.zone_addr(ZoneId(member.zones.end)) - begin;
        let cell_bytes =
            (end - begin).div_ceil(cells_max).next_multiple_of(CELL_BYTES_MIN).max(CELL_BYTES_MIN);
        let sums = vec![Sum::default(); (end - begin).div_ceil(cell_bytes) as usize];
        Self { member, bytes_total, begin, end, cell_bytes, sums, bytes_counted: 0, bytes_hot: 0 }
    }

    /// Each cell that these bytes reach into, and how many of them it has.
    fn each_cell(&mut self, addr: u64, len: u64, mut note: impl FnMut(&mut Sum, u64)) {
        let end = (addr + len).min(self.end);
        let mut from = addr;
        while from < end {
            let at = (from - self.begin) / self.cell_bytes;
            let to = (self.begin + (at + 1) * self.cell_bytes).min(end);
            note(&mut self.sums[at as usize], to - from);
            from = to;
        }
    }

    fn use_bytes(&mut self, addr: u64, len: u64) {
        self.each_cell(addr, len, |sum, _| sum.is_used = true);
    }

    fn count(&mut self, addr: u64, len: u64, count: u8, hot_from: u8) {
        self.bytes_counted += len;
        self.bytes_hot += if count >= hot_from { len } else { 0 };
        self.each_cell(addr, len, |sum, bytes| {
            sum.bytes += bytes;
            sum.bytes_asked += bytes * u64::from(count);
        });
    }

    fn finish(self) -> DeviceHeat {
        DeviceHeat {
            id: self.member.id,
            tier: self.member.tier,
            bytes_total: self.bytes_total,
            bytes_counted: self.bytes_counted,
            bytes_hot: self.bytes_hot,
            cell_bytes: self.cell_bytes,
            cells: self.sums.into_iter().map(Sum::cell).collect(),
        }
    }
}

/// All devices.
struct Canvases {
    list: Vec<Canvas>,
    hot_from: u8,
}

impl Canvases {
    fn new(zones: &Zones, cells_max: usize) -> Self {
        let members = zones.members();
        let of_each = (cells_max / members.len()).max(1) as u64;
        let rows = zones.rows();
        let mut list: Vec<_> = members
            .into_iter()
            .map(|member| {
                let there = rows.iter().map(|row| row.zone.0).filter(|zone| member.zones.contains(zone));
                let end = there.max().map_or(member.zones.start, |zone| zone + 1);
                Canvas::new(zones, member, end, of_each)
            })
            .collect();
        list.sort_by_key(|canvas| (canvas.member.tier != Tier::Fast, canvas.member.id));
        let mut all = Self { list, hot_from: zones.heat().hot_from() };
        let zone_bytes = u64::from(zones.zone_bytes());
        for row in rows {
            let used = match row.state {
                ZoneState::Free => 0,
                ZoneState::System | ZoneState::Manifest => zone_bytes,
                ZoneState::Open(_) | ZoneState::Closed => row.bytes_filled,
            };
            let addr = zones.zone_addr(row.zone);
            if let Some(canvas) = all.at(addr) {
                canvas.use_bytes(addr, used);
            }
        }
        all
    }

    /// `None`: the device has come, or gone, meanwhile.
    fn at(&mut self, addr: u64) -> Option<&mut Canvas> {
        self.list.iter_mut().find(|canvas| (canvas.begin..canvas.end).contains(&addr))
    }

    fn count(&mut self, addr: u64, len: u64, count: u8) {
        let hot_from = self.hot_from;
        if let Some(canvas) = self.at(addr) {
            canvas.count(addr, len, count, hot_from);
        }
    }

    /// What the run still has of the piece.
    fn count_piece(&mut self, heat: &Heat, run: &Run, piece: &Piece) -> Result<()> {
        let index = piece.index()?;
        for layer in index.layers() {
            for at in 0..layer.len() {
                let region = layer.region(at);
                let bound = first_block_at_or_after(region.prefix, &run.lower_bound);
                let Some(first) = bound.map(|bound| bound.max(region.first)) else { continue };
                let blocks = region.end().saturating_sub(first);
                if blocks == 0 {
                    continue;
                }
                let counted = heat
                    .stretches_of(first, blocks)
                    .map(|stretch| (stretch.clone(), heat.count(region.prefix, stretch.start)));
                if region.unit.is_some() {
                    // Packed blocks lie nowhere one by one.
                    let hottest = counted.map(|(_, count)| count).max().unwrap_or(0);
                    self.count(region.addr, region.extent().len.into(), hottest);
                    continue;
                }
                for (stretch, count) in counted {
                    let len = (stretch.end - stretch.start) * BLOCK_BYTES as u64;
                    self.count(region.addr_of(stretch.start), len, count);
                }
            }
        }
        Ok(())
    }
}

/// See [`crate::Db::heat_map`].
///
/// # Errors
/// I/O errors, corruption.
pub(crate) fn heat_map(
    merger: &Merger,
    cells_max: usize,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Option<HeatMap>> {
    let zones = &merger.runtime.ctx.zones;
    let was_counted = zones.count_heat();
    let mut canvases = Canvases::new(zones, cells_max);
    let mut unread = Ok(());
    let view = merger.live.view();
    for (keyspace, runs) in view.version.keyspaces() {
        if merger.keyspaces.kind(keyspace)? != KeyspaceKind::Block {
            continue;
        }
        for run in runs {
            for piece in &run.pieces {
                if merger.runtime.is_stopping() || !goes_on() {
                    return Ok(None);
                }
                let counted = canvases.count_piece(zones.heat(), run, piece);
                pass_over(&mut unread, counted, &merger.runtime.health)?;
            }
        }
    }
    if let Err(error) = unread {
        tracing::warn!(%error, "what lies in a piece is not in the heat map");
    }
    let hot_from = canvases.hot_from;
    let devices = canvases.list.into_iter().map(Canvas::finish).collect();
    Ok(Some(HeatMap { was_counted, hot_from, devices }))
}
