//! Merging block runs: a sweep over the indexes says which blocks survive; long stretches of them are
//! stitched, short ones copied.
//!
//! A *move* takes consecutive blocks of one region of one input to one layer of the output. Moves that
//! lie one behind the other on the device are judged together: if they reach the stitching threshold,
//! none of their data is read (thesis 3.2).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Result, Seqno, Tier};

use super::copies::{CopyPlace, Stretches};
use super::copy::CopyReader;
use super::job::MergeJob;
use super::output::{Output, Sink, Totals};
use super::sweep::{Hiding, Interval, Span, Stripes, Sweep};
use crate::format::{Layer, Region, SeqnoSpan};
use crate::memtable::{TombstoneSet, block_key, first_block_at_or_after};
use crate::table::{Index, Piece};
use crate::version::Run;

/// A packed unit of fewer blocks gains from being packed together with its neighbours.
const VERBATIM_BLOCKS_MIN: u32 = 16;

/// Which region of which input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    input: usize,
    piece: usize,
    layer: usize,
    region: usize,
}

/// Where a span's blocks are, and the index that says so: it stays in memory while anything of it is under
/// way.
#[derive(Clone)]
struct Source {
    place: Place,
    index: Index,
}

impl Source {
    fn region(&self) -> Region<'_> {
        self.index.layers()[self.place.layer].region(self.place.region)
    }
}

/// What has been copied of blocks that lie in a zone which is being emptied.
enum Shared {
    /// Nothing.
    No,
    /// They lie here, too.
    Copied(CopyPlace),
    /// They stay for now: they are copied by this merge, for another prefix, and where they come to lie is
    /// known behind it. Or the zone has been emptied, and is being filled again.
    Stays,
}

/// Consecutive blocks of one region on their way to one layer.
struct Move {
    source: Source,
    first: u64,
    seqnos: Vec<SeqnoSpan>,
}

impl Move {
    fn count(&self) -> u64 {
        self.seqnos.iter().map(|span| u64::from(span.count)).sum()
    }

    /// These of its blocks.
    fn part(&self, blocks: &Range<u64>) -> Self {
        let mut part = Self { source: self.source.clone(), first: blocks.start, seqnos: Vec::new() };
        let mut at = self.first;
        for span in &self.seqnos {
            let end = at + u64::from(span.count);
            let (from, to) = (at.max(blocks.start), end.min(blocks.end));
            if from < to {
                part.push(to - from, span.seqno);
            }
            at = end;
        }
        part
    }

    fn push(&mut self, count: u64, seqno: Seqno) {
        match self.seqnos.last_mut() {
            Some(last) if last.seqno == seqno => last.count += count as u32,
            _ => self.seqnos.push(SeqnoSpan { count: count as u32, seqno }),
        }
    }
}

/// Moves to one layer that lie one behind the other on the device.
#[derive(Default)]
struct Group {
    moves: Vec<Move>,
    bytes: u64,
    /// Device address behind the last move.
    end: u64,
    stitching: bool,
}

impl Group {
    /// Whether its last move goes on with `block` of the same region.
    fn goes_on(&self, place: Place, block: u64) -> bool {
        self.moves.last().is_some_and(|last| last.source.place == place && last.first + last.count() == block)
    }
}

pub(super) fn merge(job: &MergeJob, sink: &mut dyn Sink) -> Result<Totals> {
    let (tombstones, survivors, _charge) = job.tombstones();
    let hiding = BlockTombstones { set: &tombstones, end: job.end.as_ref() };
    let sources = sources(job)?;
    let sweep = Sweep::new(sources, &hiding, Stripes { boundaries: &job.rules.boundaries })?;
    let mut mover = Mover {
        job,
        output: Output::new(job.spec.clone(), survivors, sink),
        groups: BTreeMap::new(),
        pending_bytes: 0,
        wish: None,
        reader: CopyReader::new(&job.spec, job.inputs.len()),
        copied_here: Stretches::default(),
        units_here: HashMap::new(),
    };
    for interval in sweep {
        let interval = interval?;
        if job.is_behind(&block_key(&interval.prefix, interval.first)) {
            break;
        }
        mover.take(&interval)?;
    }
    mover.flush_groups()?;
    mover.output.finish_at(job.end.as_ref())
}

/// One sorted walk for each layer of each input.
fn sources(job: &MergeJob) -> Result<Vec<LayerWalk<'_>>> {
    let mut walks = Vec::new();
    for (input, run) in job.inputs.iter().enumerate() {
        let mut layers = 0;
        for piece in &run.pieces {
            layers = layers.max(piece.layer_count()?);
        }
        walks.extend(
            (0..layers).map(|layer| LayerWalk::new(run, Place { input, piece: 0, layer, region: 0 })),
        );
    }
    Ok(walks)
}

/// The spans of one layer of one input, at or above the input's bound. Has the index of one piece in memory.
struct LayerWalk<'a> {
    run: &'a Run,
    /// The region that comes next.
    next: Place,
    index: Option<Index>,
    /// Those that are left of the region before it.
    spans: std::vec::IntoIter<Span<Source>>,
}

impl<'a> LayerWalk<'a> {
    fn new(run: &'a Run, next: Place) -> Self {
        Self { run, next, index: None, spans: Vec::new().into_iter() }
    }

    /// Goes on to the next region, or piece; says whether there is one.
    fn advance(&mut self) -> Result<bool> {
        let Some(piece) = self.run.pieces.get(self.next.piece) else { return Ok(false) };
        let index = match &self.index {
            Some(index) => index,
            None => self.index.insert(piece.index()?),
        };
        let regions = index.layers().get(self.next.layer).map_or(0, Layer::len);
        if self.next.region < regions {
            let source = Source { place: self.next, index: index.clone() };
            let spans: Vec<_> = region_spans(source.region(), &self.run.lower_bound, &source).collect();
            self.spans = spans.into_iter();
            self.next.region += 1;
        } else {
            self.index = None;
            self.next = Place { piece: self.next.piece + 1, region: 0, ..self.next };
        }
        Ok(true)
    }
}

impl Iterator for LayerWalk<'_> {
    type Item = Result<Span<Source>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(span) = self.spans.next() {
                return Some(Ok(span));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// A region cut where its seqno changes, without what lies below `bound`.
fn region_spans(region: Region<'_>, bound: &[u8], source: &Source) -> impl Iterator<Item = Span<Source>> {
    let end = region.end();
    let from =
        first_block_at_or_after(region.prefix, bound).map_or(end, |floor| floor.clamp(region.first, end));
    region.spans(from, end).map(move |(first, span)| Span {
        prefix: region.prefix.clone(),
        first,
        count: u64::from(span.count),
        seqno: span.seqno,
        source: source.clone(),
    })
}

/// Turns intervals into moves, groups of moves, and output.
struct Mover<'a> {
    job: &'a MergeJob,
    output: Output<'a>,
    /// By output layer.
    groups: BTreeMap<usize, Group>,
    /// Bytes of moves that are not in the output yet.
    pending_bytes: u64,
    /// Of the prefix before, where its blocks are wished to lie.
    wish: Option<(Bytes, Option<Tier>)>,
    reader: CopyReader,
    /// From where it has copied, of zones that are being emptied.
    copied_here: Stretches,
    /// The packed units among that, with the prefix for which they were copied.
    units_here: HashMap<u64, Bytes>,
}

impl Mover<'_> {
    fn piece(&self, place: Place) -> &Arc<Piece> {
        &self.job.inputs[place.input].pieces[place.piece]
    }

    fn take(&mut self, interval: &Interval<Source>) -> Result<()> {
        // A cut must not separate what is already decided for smaller keys from its piece.
        if self.output.bytes() + self.pending_bytes >= self.job.spec.piece_bytes {
            self.flush_groups()?;
            self.output.writer_at(&block_key(&interval.prefix, interval.first))?;
        }
        for (layer, (seqno, source)) in interval.kept.iter().enumerate() {
            self.add(layer, interval, *seqno, source)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        layer: usize,
        interval: &Interval<Source>,
        seqno: Seqno,
        source: &Source,
    ) -> Result<()> {
        let region = source.region();
        let addr = region.addr_of(interval.first);
        let mut bytes = interval.count * BLOCK_BYTES as u64;
        if let Some(unit) = &region.unit {
            let goes_on =
                self.groups.get(&layer).is_some_and(|group| group.goes_on(source.place, interval.first));
            bytes = if goes_on { 0 } else { unit.stored_len().into() };
        }
        let is_apart = |group: &Group| bytes > 0 && group.end != addr;
        if self.groups.get(&layer).is_some_and(is_apart) {
            self.flush_group(layer)?;
        }
        let group = self.groups.entry(layer).or_default();
        match group.moves.last_mut() {
            Some(last)
                if last.source.place == source.place && last.first + last.count() == interval.first =>
            {
                last.push(interval.count, seqno);
            }
            _ => group.moves.push(Move {
                source: source.clone(),
                first: interval.first,
                seqnos: vec![SeqnoSpan { count: interval.count as u32, seqno }],
            }),
        }
        if bytes > 0 {
            group.bytes += bytes;
            group.end = addr + bytes;
        }
        group.stitching |= group.bytes >= self.job.options.stitch_bytes_min;
        self.pending_bytes += bytes;
        Ok(())
    }

    fn flush_groups(&mut self) -> Result<()> {
        let layers: Vec<usize> = self.groups.keys().copied().collect();
        layers.into_iter().try_for_each(|layer| self.flush_group(layer))
    }

    fn flush_group(&mut self, layer: usize) -> Result<()> {
        let Some(group) = self.groups.remove(&layer) else { return Ok(()) };
        self.pending_bytes -= group.bytes;
        let never = self.job.options.stitch_bytes_min == u64::MAX;
        let moves = group.moves.into_iter().flat_map(|moving| self.parts_of(moving)).collect::<Vec<_>>();
        let parts = moves.into_iter().flat_map(|moving| self.parts_copied(moving)).collect::<Vec<_>>();
        for (moving, shared) in parts {
            let part = moving.source.region().part(moving.first, moving.count() as u32, &moving.seqnos);
            let is_worth_it = !is_remnant(&part) || self.job.options.stitch_bytes_min == 0;
            if let Shared::Copied(place) = shared
                && self.output.writer().take_over_in(
                    layer,
                    Region { addr: place.addr, ..part },
                    place.generation,
                )?
            {
                self.job.victims.note_moved(part.extent().len.into());
                continue;
            }
            let stays = matches!(shared, Shared::Stays);
            let is_misplaced = !stays && self.is_to_migrate(&part);
            let is_victim = is_misplaced || (!stays && self.job.empties(part.extent()));
            if group.stitching && is_worth_it && !never && !is_victim {
                self.stitch(layer, &moving, moving.first, moving.count())?;
                continue;
            }
            let bytes = self.copy(layer, &moving, is_victim)?;
            if is_victim {
                self.job.rescue.note_copied(bytes);
            }
            if is_misplaced {
                self.job.victims.note_moved(bytes);
            }
            self.output.give_way();
        }
        Ok(())
    }

    /// Refers to `count` blocks from `first` on where they are.
    fn stitch(&mut self, layer: usize, moving: &Move, first: u64, count: u64) -> Result<()> {
        let place = moving.source.place;
        let piece = Arc::clone(self.piece(place));
        let writer = self.output.writer();
        writer.stitch_region(layer, &piece, place.layer, place.region, first, count as u32)
    }

    /// Parts that may belong on different tiers, in a migration.
    fn parts_of(&self, moving: Move) -> Vec<Move> {
        let heat = self.job.spec.ctx.zones.heat();
        if !self.job.victims.are_misplaced() || !heat.has_levels() || moving.source.region().unit.is_some() {
            return vec![moving];
        }
        let parts = heat.parts_of(moving.first, moving.count());
        parts.map(|part| moving.part(&part)).collect()
    }

    /// Parts of what lies in zones that are being emptied, or on another tier than it wishes, by what has
    /// been copied of it for another prefix or piece.
    fn parts_copied(&mut self, moving: Move) -> Vec<(Move, Shared)> {
        let region = moving.source.region();
        let (victims, zones) = (&self.job.victims, &self.job.spec.ctx.zones);
        let Some(sharing) = victims.sharing() else { return vec![(moving, Shared::No)] };
        let wish = if victims.are_misplaced() {
            self.tier_wished(&region.part(moving.first, moving.count() as u32, &moving.seqnos))
        } else {
            None
        };
        if !victims.contain(region.extent()) && !zones.is_misplaced(region.addr, wish) {
            return vec![(moving, Shared::No)];
        }
        if !victims.are_misplaced() && !sharing.is_to_be_emptied(zones.zone_of(region.addr)) {
            return vec![(moving, Shared::Stays)];
        }
        let mut all = Vec::new();
        for (blocks, place) in sharing.parts_of(&region, &(moving.first..moving.first + moving.count())) {
            if let Some(place) = place.filter(|place| !zones.is_misplaced(place.addr, wish)) {
                all.push((moving.part(&blocks), Shared::Copied(place)));
                continue;
            }
            if region.unit.is_some() {
                // A prefix copies all that it has of a unit at once.
                let owner = self.units_here.entry(region.addr).or_insert_with(|| region.prefix.clone());
                let shared = if owner == region.prefix { Shared::No } else { Shared::Stays };
                all.push((moving.part(&blocks), shared));
                continue;
            }
            for (blocks, here) in self.copied_here.parts_of(&region, &blocks) {
                if here.is_none() {
                    // To where is not known yet.
                    self.copied_here.note(&region, &blocks, CopyPlace { addr: 0, generation: 0 });
                }
                let shared = if here.is_some() { Shared::Stays } else { Shared::No };
                all.push((moving.part(&blocks), shared));
            }
        }
        all
    }

    /// Where blocks of a region are wished to lie: by their file, or by how often they are asked for.
    fn tier_wished(&mut self, region: &Region<'_>) -> Option<Tier> {
        let of_file = match &self.wish {
            Some((known, wish)) if known == region.prefix => *wish,
            _ => {
                let wish = self.job.spec.tier_wished(region.prefix);
                self.wish = Some((region.prefix.clone(), wish));
                wish
            }
        };
        let zones = &self.job.spec.ctx.zones;
        of_file.or_else(|| zones.wish_by_heat(region.prefix, region.first, region.count.into()))
    }

    /// Whether this is a migration, and blocks of the region are to be moved by it: what finds no room stays
    /// where it is.
    fn is_to_migrate(&mut self, region: &Region<'_>) -> bool {
        if !self.job.victims.are_misplaced() {
            return false;
        }
        let wish = self.tier_wished(region);
        let (zones, bytes) = (&self.job.spec.ctx.zones, u64::from(region.extent().len));
        let fits =
            |tier| zones.is_misplaced(region.addr, wish) && zones.fits_rewrite(bytes, zones.room_on(tier));
        wish.is_some_and(fits)
    }

    /// `is_victim`: for the sake of where it lies; what can't be read of it may stay there then. Returns how
    /// much was copied (bytes).
    fn copy(&mut self, layer: usize, moving: &Move, is_victim: bool) -> Result<u64> {
        let region = moving.source.region();
        let wish = self.tier_wished(&region.part(moving.first, moving.count() as u32, &moving.seqnos));
        self.output.writer().set_tier(self.job.spec.ctx.zones.for_copy(region.addr, wish))?;
        if region.unit.is_some() {
            let piece = Arc::clone(self.piece(moving.source.place));
            return self.copy_unit(layer, moving, &piece, &region, is_victim);
        }
        let (mut first, mut bytes) = (moving.first, 0);
        for &SeqnoSpan { count, seqno } in &moving.seqnos {
            let mut left = u64::from(count);
            while left > 0 {
                let at = region.addr_of(first);
                let blocks = left.min(CopyReader::BLOCKS_MAX);
                let crcs = &region.crcs[(first - region.first) as usize..][..blocks as usize];
                match self.reader.read(moving.source.place.input, at, crcs) {
                    Ok(data) => {
                        let span = SeqnoSpan { count: blocks as u32, seqno };
                        let writer = self.output.writer();
                        writer.add_blocks(layer, region.prefix, first, &[span], &[data], region.wish)?;
                        bytes += data.len() as u64;
                    }
                    Err(error) if is_victim && self.job.leaves_unread(&error) => {
                        self.stitch(layer, moving, first, blocks)?;
                    }
                    Err(error) => return Err(error),
                }
                first += blocks;
                left -= blocks;
            }
        }
        Ok(bytes)
    }

    /// A whole unit is copied as it is; a small one, or what is left of one, is unpacked, and packed anew
    /// with its neighbours.
    fn copy_unit(
        &mut self,
        layer: usize,
        moving: &Move,
        piece: &Piece,
        region: &Region<'_>,
        is_victim: bool,
    ) -> Result<u64> {
        let extent = region.extent();
        let count = moving.count();
        let is_whole =
            region.count >= VERBATIM_BLOCKS_MIN && region.is_whole_unit() && count == u64::from(region.count);
        let read = self.reader.stored(moving.source.place.input, extent).and_then(|stored| {
            let raw = if is_whole { None } else { Some(piece.unpack_unit(region, stored)?) };
            if is_whole {
                piece.verify_unit(region, stored)?;
            }
            Ok((stored, raw))
        });
        let writer = self.output.writer();
        match read {
            Ok((stored, None)) => writer.add_unit(layer, *region, &moving.seqnos, stored)?,
            Ok((_, Some(raw))) => {
                let skip = region.unit.map_or(0, |unit| u64::from(unit.skip)) + (moving.first - region.first);
                let data = &raw[skip as usize * BLOCK_BYTES..][..count as usize * BLOCK_BYTES];
                writer.add_blocks(
                    layer,
                    region.prefix,
                    moving.first,
                    &moving.seqnos,
                    &[data],
                    region.wish,
                )?;
            }
            Err(error) if is_victim && self.job.leaves_unread(&error) => {
                self.stitch(layer, moving, moving.first, count)?;
                return Ok(0);
            }
            Err(error) => return Err(error),
        }
        Ok(extent.len.into())
    }
}

/// Whether so little is left of a packed unit that keeping the whole of it would be waste.
fn is_remnant(part: &Region<'_>) -> bool {
    part.unit.is_some_and(|unit| part.count * 2 < unit.blocks)
}

/// Range tombstones, asked by block.
struct BlockTombstones<'a> {
    set: &'a TombstoneSet,
    /// Those that lie behind it are not known.
    end: Option<&'a Bytes>,
}

impl Hiding for BlockTombstones<'_> {
    fn covering(&self, prefix: &[u8], block: u64, at: Seqno) -> Option<Seqno> {
        if self.set.is_empty() { None } else { self.set.covering(&block_key(prefix, block), at) }
    }

    fn next_change(&self, prefix: &[u8], block: u64) -> u64 {
        if self.set.is_empty() && self.end.is_none() {
            return u64::MAX;
        }
        let key = block_key(prefix, block);
        let ends = self.set.fragments_from(&key).take(2).flat_map(|fragment| [fragment.start, fragment.end]);
        let beyond = ends.chain(self.end).filter_map(|end: &Bytes| first_block_at_or_after(prefix, end));
        beyond.filter(|&next| next > block).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::RangeTombstone;

    #[test]
    fn tombstone_changes_by_block() {
        let range = |start: u64, end: u64| RangeTombstone {
            start: block_key(b"p", start).into(),
            end: block_key(b"p", end).into(),
            seqno: 5,
        };
        let set = TombstoneSet::new([range(3, 6), range(8, 9)]);
        let hiding = BlockTombstones { set: &set, end: None };
        let changes: Vec<u64> =
            [0, 3, 5, 6, 8, 9].iter().map(|&block| hiding.next_change(b"p", block)).collect();
        assert_eq!(changes, [3, 6, 6, 8, 9, u64::MAX]);
        assert_eq!(hiding.next_change(b"o", 0), u64::MAX, "the tombstones of another prefix lie beyond");
        assert_eq!(hiding.covering(b"p", 3, 9), Some(5));
        assert_eq!(hiding.covering(b"p", 6, 9), None);
    }
}
