//! What is still good of a damaged piece, as a whole piece.
//!
//! Purpose: reads everything that a piece refers to, block by block. Where something does not match its
//! checksum or can't be read, a new piece is written that refers to what is good (stitched, not copied), and
//! what is lost is told. An index that is damaged is taken from its copy, or made anew from the headers of
//! tuple blocks; fingerprints are made anew from the keys. Lost blocks of a block piece become holes: a range
//! tombstone hides older versions.
//!
//! Thread safety: one thread. Invariants: nothing of the old piece is written to or freed; nothing is
//! flushed. All seqnos are those on the device (a run's base is not added).

mod blocks;
mod meta;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, KeyspaceKind, Result, Seqno};

use super::held::zone_uses;
use super::index::{Content, Index};
use super::metadata::Source;
use super::piece::{Parts, Piece, is_intact};
use super::{PieceWriter, RunContext};
use crate::format::{Extent, Fingerprints, Layer, PieceDesc, PieceId, Region, TupleEntry, ZoneId, ZoneUse};
use crate::memtable::{TombstoneSet, block_key};
use crate::salvage::for_each_extent;
use crate::space::{Budget, Lane, Stream};
use meta::FoundMeta;
pub(super) use meta::{copy_of, has_damaged_copy};

/// Something that is gone of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostPart {
    /// Smallest key that may be concerned.
    pub first: Bytes,
    /// Greatest key that may be concerned, inclusive.
    pub last: Bytes,
    /// Nothing newer was lost.
    pub seqno_max: Seqno,
    /// Oldest lost change.
    pub seqno_min: Seqno,
    /// Fingerprints of the keys that are gone, sorted; `None`: any key in the range may be.
    pub keys: Option<Vec<u32>>,
    /// These are blocks all of which are gone, and older versions of them are hidden. Else any block in the
    /// range may be gone, or be there as it was earlier.
    pub is_hole: bool,
}

impl LostPart {
    /// Whether a record of `key` may be among what was lost; wrong for one key in 2^32 / keys.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        let in_range = self.first[..] <= *key && *key <= self.last[..];
        let is_listed = |keys: &Vec<u32>| keys.binary_search(&super::filter::fingerprint(key)).is_ok();
        in_range && self.keys.as_ref().is_none_or(is_listed)
    }
}

/// What became of a piece.
#[derive(Clone)]
pub(crate) enum Salvaged {
    /// Nothing is wrong with it. Keep it as long as its space must not be given out.
    Sound(Arc<Piece>),
    /// What is left of it is another piece; `None`: nothing.
    Mended { piece: Option<(PieceDesc, Arc<Piece>)>, lost: Vec<LostPart>, old: Option<Arc<Piece>> },
    /// Its index is gone, everything else has to be looked at first: see [`rebuild`].
    Headless,
}

/// Verifies all of `desc`, and mends it. `id` gives a number for a new piece. `is_adopted`: no manifest names
/// the piece, so it may be dead, and what is damaged of it be whole in a run below: it hides nothing then.
///
/// # Errors
/// Failed writes; `Full`. Damage is no error.
pub(crate) fn salvage(
    ctx: &Arc<RunContext>,
    keyspace: u32,
    kind: KeyspaceKind,
    (desc, is_adopted): (&PieceDesc, bool),
    id: &mut dyn FnMut() -> PieceId,
) -> Result<Salvaged> {
    let found = meta::find(ctx, keyspace, kind, desc);
    let Some((found, content)) = found.and_then(FoundMeta::with_content) else {
        return Ok(Salvaged::Headless);
    };
    let found = FoundMeta { is_adopted, ..found };
    put_together(ctx, (keyspace, kind), desc, found, content, Vec::new(), id)
}

/// As [`salvage`], for a piece without an index: tuple blocks are found by their headers. `claimed` are the
/// addresses of blocks that other pieces refer to.
///
/// # Errors
/// As [`salvage`].
pub(crate) fn rebuild(
    ctx: &Arc<RunContext>,
    keyspace: u32,
    kind: KeyspaceKind,
    desc: &PieceDesc,
    claimed: &HashSet<u64>,
    id: &mut dyn FnMut() -> PieceId,
) -> Result<Salvaged> {
    let found = meta::find(ctx, keyspace, kind, desc).unwrap_or_else(|| FoundMeta::nothing(keyspace, desc));
    let (mut lost, mut fingerprints) = (vec![everything(desc)], None);
    let content = match kind {
        KeyspaceKind::Block => Content::Blocks(Vec::new()),
        KeyspaceKind::Tuple => {
            let known = found.fingerprints.as_ref().map(blocks::by_block);
            let rebuilt = blocks::rebuild(ctx, desc, known.as_deref(), claimed);
            if rebuilt.is_exact {
                lost.clear();
            }
            let made = fingerprints.insert(Fingerprints::default());
            for block in &rebuilt.blocks {
                made.values.extend_from_slice(&block.fingerprints);
                made.end_block();
            }
            Content::Tuples(rebuilt.blocks.into_iter().map(|block| block.entry).collect())
        }
    };
    let tombstones = found.tombstones;
    let found = FoundMeta { tombstones, fingerprints, ..FoundMeta::nothing(keyspace, desc) };
    put_together(ctx, (keyspace, kind), desc, found, content, lost, id)
}

/// Verifies the piece that has this metadata. Of it `lost` is gone in any case.
fn put_together(
    ctx: &Arc<RunContext>,
    (keyspace, kind): (u32, KeyspaceKind),
    desc: &PieceDesc,
    found: FoundMeta,
    content: Content,
    mut lost: Vec<LostPart>,
    id: &mut dyn FnMut() -> PieceId,
) -> Result<Salvaged> {
    let FoundMeta { header, tombstones, fingerprints, is_whole, is_adopted, .. } = found;
    if lost.is_empty() && tombstones.is_none() && desc.tombstones > 0 {
        lost.push(everything(desc));
    }
    let tombstones = tombstones.unwrap_or_else(|| TombstoneSet::new([]));
    let parts = Parts { keyspace, kind, header, content, tombstones };
    let source = if is_whole { Source::Device } else { Source::Memory };
    let piece = Piece::new(Arc::clone(ctx), desc.clone(), 0, parts, None, source);
    mend(piece, fingerprints, (is_whole, is_adopted), lost, id)
}

/// A piece that no manifest names.
pub(crate) struct Found {
    pub(crate) keyspace: u32,
    /// `None`: it has no data that tells.
    pub(crate) kind: Option<KeyspaceKind>,
    pub(crate) desc: PieceDesc,
}

/// All pieces in the given zones whose index is whole, as a manifest would describe them.
pub(crate) fn find_pieces(
    ctx: &Arc<RunContext>,
    zones: impl Iterator<Item = ZoneId>,
    are_stamped: bool,
    mut note: impl FnMut(),
) -> Vec<Found> {
    let mut all = HashMap::new();
    let salt = are_stamped.then_some(ctx.salt);
    for zone in zones {
        meta::strays(&meta::zone_stream(ctx, zone), salt, &mut all);
        note();
    }
    let mut found: Vec<Found> =
        all.into_values().filter_map(|(addr, kind, stray)| describe(ctx, addr, kind, stray)).collect();
    found.sort_by_key(|found| (found.keyspace, found.desc.id));
    found
}

/// What the manifest said of a piece whose longest blob lies at `addr`; `None` for a piece of nothing.
fn describe(ctx: &RunContext, addr: u64, kind: Option<KeyspaceKind>, stray: FoundMeta) -> Option<Found> {
    let FoundMeta { header, content, tombstones, fingerprints, .. } = stray;
    let ((keyspace, piece), content, tombstones) = (header.owner(), content?, tombstones?);
    let mut keys: Vec<Bytes> = Vec::new();
    let mut seqnos: Vec<Seqno> = Vec::new();
    let mut extents = vec![Extent { addr, len: meta::padded(header.meta_len()) }];
    let mut units = HashSet::new();
    let mut records = 0;
    match &content {
        Content::Tuples(entries) => {
            for entry in entries {
                keys.extend([entry.first_key.clone(), entry.last_key.clone()]);
                seqnos.extend([entry.seqno_min, entry.seqno_max]);
                extents.push(entry.extent);
                records += u64::from(entry.records);
            }
        }
        Content::Blocks(layers) => {
            for region in layers.iter().flat_map(Layer::regions) {
                let last = region.end() - 1;
                keys.extend([region.first, last].map(|block| Bytes::from(block_key(region.prefix, block))));
                seqnos.extend(region.seqnos.iter().map(|span| span.seqno));
                // Several regions may be parts of one packed unit, which counts once for each prefix.
                if region.unit.is_none() || units.insert((region.addr, region.prefix.clone())) {
                    extents.push(region.extent());
                }
                records += u64::from(region.count);
            }
        }
    }
    if let (Some((first, last)), Some((min, max))) = (tombstones.bounds(), tombstones.seqno_range()) {
        keys.extend([first.clone(), last.clone()]);
        seqnos.extend([min, max]);
    }
    if fingerprints.is_none() && kind == Some(KeyspaceKind::Tuple) {
        // Only the copy is left, which ends before them.
        extents[0].len = meta::padded(header.meta_len() - header.fingerprints.len() as u32);
    }
    let data_bytes = extents[1..].iter().map(|extent| u64::from(extent.len)).sum();
    let desc = PieceDesc {
        id: PieceId(piece),
        first_key: keys.iter().min()?.clone(),
        last_key: keys.iter().max()?.clone(),
        seqno_min: *seqnos.iter().min()?,
        seqno_max: *seqnos.iter().max()?,
        data_bytes,
        records,
        tombstones: tombstones.len() as u64,
        meta: vec![Extent { addr, len: meta::padded(header.meta_len()) }],
        meta_len: header.meta_len(),
        meta_crc: header.crc(),
        zones: uses_of(ctx, extents)?,
    };
    Some(Found { keyspace, kind, desc })
}

/// `None` when an extent lies in no zone.
fn uses_of(ctx: &RunContext, extents: Vec<Extent>) -> Option<Vec<ZoneUse>> {
    let zone_bytes = u64::from(ctx.zones.zone_bytes());
    let is_in_zone = |extent: &Extent| extent.addr % zone_bytes + u64::from(extent.len) <= zone_bytes;
    extents.iter().all(is_in_zone).then(|| zone_uses(&ctx.zones, extents))
}

/// What of a piece that is in use can't be read. Nothing is mended.
pub(crate) fn unreadable(piece: &Arc<Piece>) -> Vec<LostPart> {
    let Ok(index) = piece.index() else { return vec![everything(piece.desc())] };
    let known = piece.metadata().fingerprints().ok();
    let mut lost = Vec::new();
    good_tuples(piece, &index, known.as_ref(), &mut lost);
    lost_blocks(piece, &index, &mut lost);
    lost
}

/// Verifies the data of `piece` and the copy of its index, and writes what is good as another one, if
/// anything is wrong.
fn mend(
    piece: Arc<Piece>,
    fingerprints: Option<Fingerprints>,
    (is_whole, is_adopted): (bool, bool),
    mut lost: Vec<LostPart>,
    id: &mut dyn FnMut() -> PieceId,
) -> Result<Salvaged> {
    let index = piece.index()?;
    let tuples = good_tuples(&piece, &index, fingerprints.as_ref(), &mut lost);
    let holes = lost_blocks(&piece, &index, &mut lost);
    let hides = !is_adopted || lost.is_empty();
    for part in &mut lost {
        part.is_hole &= hides;
    }
    let is_whole = is_whole && !piece.metadata().has_damaged_copy()?;
    if is_whole && tuples.fingerprints.is_none() && lost.is_empty() {
        return Ok(Salvaged::Sound(Arc::clone(&piece)));
    }
    let stream = match piece.kind() {
        KeyspaceKind::Tuple => Stream::MergeTuple(Lane::FIRST),
        KeyspaceKind::Block => Stream::MergeBlock(Lane::FIRST),
    };
    let (ctx, keyspace) = (Arc::clone(piece.ctx()), piece.keyspace());
    let mut writer = PieceWriter::new(ctx, keyspace, piece.kind(), stream, Budget::Reserve, id());
    if let Some(fingerprints) = tuples.fingerprints.or(fingerprints) {
        writer.set_fingerprints(piece.desc().id, fingerprints);
    }
    for range in tuples.good {
        writer.stitch_tuples(&piece, range)?;
    }
    for tombstone in piece.tombstones().list().iter().filter(|_| hides) {
        writer.add_tombstone(&tombstone.start, &tombstone.end, tombstone.seqno);
    }
    stitch_around(&piece, &index, (&holes, hides), &mut writer)?;
    let new = if writer.is_empty() { None } else { Some(writer.finish()?) };
    drop(index);
    Ok(Salvaged::Mended { piece: new, lost, old: Some(piece) })
}

/// What is good of a tuple piece.
#[derive(Default)]
struct GoodTuples {
    /// Stretches of the index.
    good: Vec<std::ops::Range<usize>>,
    /// Those that were made anew.
    fingerprints: Option<Fingerprints>,
}

/// The fingerprints of a piece made anew from its keys; `None` if one of its blocks can't be read.
pub(super) fn fingerprints_anew(piece: &Piece, index: &Index) -> Option<Fingerprints> {
    let mut lost = Vec::new();
    let made = good_tuples(piece, index, None, &mut lost).fingerprints;
    made.filter(|_| lost.is_empty())
}

fn good_tuples(
    piece: &Piece,
    index: &Index,
    known: Option<&Fingerprints>,
    lost: &mut Vec<LostPart>,
) -> GoodTuples {
    let entries = index.tuple_entries();
    let mut made =
        known.is_none().then(Fingerprints::default).filter(|_| piece.kind() == KeyspaceKind::Tuple);
    let mut good: Vec<std::ops::Range<usize>> = Vec::new();
    let extents = entries.iter().map(|entry| entry.extent);
    for_each_extent(piece.ctx().device.as_ref(), extents, |index, stored| {
        let entry = &entries[index];
        let block = match &entry.packed {
            Some(packed) => piece.unpack_block(entry, packed, &stored).ok(),
            None => piece.verify_tuple_block(entry, &stored).ok().map(|len| stored.slice(..len)),
        };
        if block.is_some() {
            match good.last_mut() {
                Some(last) if last.end == index => last.end += 1,
                _ => good.push(index..index + 1),
            }
        } else {
            lost.push(lost_entry(entry, known.map(|known| known.of_block(index))));
        }
        if let Some(made) = &mut made {
            if let Some(block) = block {
                made.values.extend(blocks::fingerprints_of(block));
            }
            made.end_block();
        }
    });
    GoodTuples { good, fingerprints: made }
}

fn lost_entry(entry: &TupleEntry, fingerprints: Option<&[u32]>) -> LostPart {
    let mut keys = fingerprints.map(<[u32]>::to_vec);
    if let Some(keys) = &mut keys {
        keys.sort_unstable();
    }
    LostPart {
        first: entry.first_key.clone(),
        last: entry.last_key.clone(),
        seqno_min: entry.seqno_min,
        seqno_max: entry.seqno_max,
        keys,
        is_hole: false,
    }
}

fn everything(desc: &PieceDesc) -> LostPart {
    LostPart {
        first: desc.first_key.clone(),
        last: desc.last_key.clone(),
        seqno_min: desc.seqno_min,
        seqno_max: desc.seqno_max,
        keys: None,
        is_hole: false,
    }
}

/// A stretch of lost blocks in one region.
struct Hole {
    layer: usize,
    region: usize,
    first: u64,
    end: u64,
}

fn lost_blocks(piece: &Arc<Piece>, index: &Index, lost: &mut Vec<LostPart>) -> Vec<Hole> {
    let layers = index.layers();
    let mut holes: Vec<Hole> = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        for (index, region) in layer.regions().enumerate() {
            // Of a packed unit all blocks are good, or none.
            let blocks = if region.unit.is_some() { region.end() - region.first } else { 1 };
            let extents =
                (region.first..region.end()).step_by(blocks as usize).map(|block| match region.unit {
                    Some(_) => region.extent(),
                    None => Extent { addr: region.addr_of(block), len: BLOCK_BYTES as u32 },
                });
            for_each_extent(piece.ctx().device.as_ref(), extents, |number, stored| {
                let block = region.first + number as u64 * blocks;
                let is_good = match region.unit {
                    Some(_) => piece.unpack_unit(&region, &stored).is_ok(),
                    None => is_intact(&stored, region.crc_of(block)),
                };
                let end = block + blocks;
                match holes.last_mut() {
                    _ if is_good => {}
                    Some(hole) if (hole.layer, hole.region, hole.end) == (at, index, block) => hole.end = end,
                    _ => holes.push(Hole { layer: at, region: index, first: block, end }),
                }
            });
        }
    }
    for hole in &holes {
        let region = layers[hole.layer].region(hole.region);
        let seqnos = || region.spans(hole.first, hole.end).map(|(_, span)| span.seqno);
        lost.push(LostPart {
            first: block_key(region.prefix, hole.first).into(),
            last: block_key(region.prefix, hole.end - 1).into(),
            seqno_min: seqnos().min().unwrap_or_default(),
            seqno_max: seqnos().max().unwrap_or_default(),
            keys: None,
            is_hole: true,
        });
    }
    holes
}

/// Takes over all blocks of a block piece but the lost ones, which hide what is older if `hides`.
fn stitch_around(
    piece: &Arc<Piece>,
    index: &Index,
    (holes, hides): (&[Hole], bool),
    writer: &mut PieceWriter,
) -> Result<()> {
    let mut holes = holes.iter().peekable();
    for (at, layer) in index.layers().iter().enumerate() {
        for (index, region) in layer.regions().enumerate() {
            let mut from = region.first;
            while let Some(hole) = holes.next_if(|hole| (hole.layer, hole.region) == (at, index)) {
                if from < hole.first {
                    writer.stitch_region(at, piece, at, index, from, (hole.first - from) as u32)?;
                }
                if hides {
                    hide(&region, hole, writer);
                }
                from = hole.end;
            }
            if from < region.end() {
                writer.stitch_region(at, piece, at, index, from, (region.end() - from) as u32)?;
            }
        }
    }
    Ok(())
}

fn hide(region: &Region<'_>, hole: &Hole, writer: &mut PieceWriter) {
    for (first, span) in region.spans(hole.first, hole.end) {
        let mut end = block_key(region.prefix, first + u64::from(span.count) - 1);
        end.push(0);
        writer.add_tombstone(&block_key(region.prefix, first), &end, span.seqno);
    }
}

#[cfg(test)]
impl Piece {
    /// Where its metadata lies, and the copy of it.
    pub(crate) fn metadata_places(&self) -> Vec<Extent> {
        let copy = copy_of(self.metadata().reader()).map(|copy| copy.desc.meta.clone());
        [self.desc().meta.clone(), copy.unwrap_or_default()].concat()
    }
}
