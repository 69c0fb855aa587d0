//! Builds one piece.
//!
//! Thread safety: belongs to one thread. Invariant: whatever was allocated or retained is released
//! when the writer is dropped unfinished, also after an error.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Compression, KeyspaceKind, Result, Seqno, StoreError, Tier};

use super::RunContext;
use super::block_writer::LayerOutput;
use super::held::HeldExtents;
use super::index::Content;
use super::metadata::Source;
use super::piece::{Parts, Piece};
use super::tuple_writer::TupleOutput;
use crate::cache::{Charge, Pool};
use crate::format::{
    Extent, Fingerprints, Layer, PieceDesc, PieceId, PieceMetaHeader, RecordKind, Region, SECTOR_BYTES,
    Section, SeqnoSpan, UNIT_BLOCKS_MAX, encode_fingerprints, encode_layers, encode_tombstones,
    encode_tuples,
};
use crate::memtable::{Merger, RangeTombstone, TombstoneSet, block_key};
use crate::space::{Budget, Destination, NewBlocks, Stream};

/// Blocks that are packed together: the more, the fewer bytes, and the more of them to read one block.
const UNIT_BLOCKS: u32 = 32;

const _: () = assert!(UNIT_BLOCKS <= UNIT_BLOCKS_MAX);

/// How data is to be packed.
#[derive(Clone, Default)]
pub(crate) struct Packing {
    /// The keyspace's setting.
    pub compression: Compression,
    /// Where that is silent, values may have a wish.
    pub merger: Option<Merger>,
}

impl Packing {
    /// How a record wants to be stored.
    pub(super) fn wish_of(&self, kind: RecordKind, value: &[u8]) -> Compression {
        match &self.merger {
            Some(merger) if kind == RecordKind::Put => self.compression.or(merger.compression(value)),
            _ => self.compression,
        }
    }
}
/// The copy of the index takes at most one part in so many of a zone.
const COPY_SHARE: usize = 8;

/// Where the data of a piece goes.
pub(super) struct Target {
    pub(super) ctx: Arc<RunContext>,
    /// Where the data goes that comes next.
    pub(super) data: Destination,
    pub(super) budget: Budget,
    pub(super) packing: Packing,
    keyspace: u32,
    id: PieceId,
}

impl Target {
    /// Where the metadata goes: that of a transaction's pieces dies with them.
    fn meta(&self) -> Destination {
        let stream = match self.data.stream {
            Stream::SpillTuple | Stream::SpillBlock => Stream::SpillTuple,
            _ => Stream::Meta,
        };
        stream.into()
    }

    /// Size of the write buffer (bytes).
    pub(super) fn chunk_bytes(&self) -> usize {
        let bytes = self.ctx.options.write_chunk_bytes.min(self.ctx.zones.zone_bytes() as usize);
        bytes.next_multiple_of(BLOCK_BYTES)
    }

    /// Blocks of a packed unit, a power of two: what fits one write, too.
    pub(super) fn unit_blocks(&self) -> u32 {
        let fitting = (self.chunk_bytes() / BLOCK_BYTES) as u32;
        UNIT_BLOCKS.min(1 << fitting.ilog2())
    }

    pub(super) fn write(&self, bytes: &[u8], addr: u64) -> Result<()> {
        self.ctx.device.write_at(bytes, addr).map_err(|error| {
            self.ctx.write_failed.store(true, Ordering::Relaxed);
            let (piece, keyspace) = (self.id.0, self.keyspace);
            StoreError::io(
                format!("writing piece {piece} of keyspace {keyspace} at device address {addr:#x}"),
                error,
            )
        })
    }
}

/// Smallest and greatest key and seqno so far.
struct Bounds {
    first_key: Option<Bytes>,
    last_key: Bytes,
    seqno_min: Seqno,
    seqno_max: Seqno,
}

impl Bounds {
    fn add_keys(&mut self, first: &[u8], last: &[u8]) {
        if self.first_key.as_ref().is_none_or(|key| first < &key[..]) {
            self.first_key = Some(Bytes::copy_from_slice(first));
        }
        if *last > self.last_key[..] {
            self.last_key = Bytes::copy_from_slice(last);
        }
    }

    fn add_seqnos(&mut self, min: Seqno, max: Seqno) {
        self.seqno_min = self.seqno_min.min(min);
        self.seqno_max = self.seqno_max.max(max);
    }
}

/// Writes one piece from sorted input.
///
/// A tuple piece takes [`PieceWriter::add`] and [`PieceWriter::stitch_tuples`], in record order; a
/// block piece takes [`PieceWriter::add_blocks`] and [`PieceWriter::stitch_region`], in key order
/// within each layer. Where several layers hold the same block, the lower layer has the newer
/// version. Both take range tombstones, in any order.
pub(crate) struct PieceWriter {
    target: Target,
    kind: KeyspaceKind,
    /// What the seqnos of this piece are counted from on the device.
    base: Seqno,
    held: HeldExtents,
    tuples: TupleOutput,
    layers: Vec<LayerOutput>,
    tombstones: Vec<RangeTombstone>,
    bounds: Bounds,
    bytes_added: u64,
    bytes_referenced: u64,
    records: u64,
    makes_filter: bool,
    copies_meta: bool,
    /// What was placed last.
    placed: Option<NewBlocks>,
    buffers: Charge,
}

impl PieceWriter {
    /// A writer of piece `id` of `keyspace`, whose data goes to `stream`.
    pub(crate) fn new(
        ctx: Arc<RunContext>,
        keyspace: u32,
        kind: KeyspaceKind,
        stream: Stream,
        budget: Budget,
        id: PieceId,
    ) -> Self {
        let data = ctx.zones.for_new(stream, NewBlocks::default());
        let target = Target { ctx, data, budget, packing: Packing::default(), keyspace, id };
        let ctx = &target.ctx;
        Self {
            held: HeldExtents::new(Arc::clone(&ctx.zones)),
            tuples: TupleOutput::new(ctx),
            layers: Vec::new(),
            tombstones: Vec::new(),
            bounds: Bounds { first_key: None, last_key: Bytes::new(), seqno_min: Seqno::MAX, seqno_max: 0 },
            bytes_added: 0,
            bytes_referenced: 0,
            records: 0,
            makes_filter: true,
            copies_meta: true,
            placed: None,
            buffers: ctx.accountant.charge(Pool::Io, target.chunk_bytes() as u64),
            target,
            kind,
            base: 0,
        }
    }

    /// Everything that is added from here on has a seqno above `base`; on the device, and in the descriptor,
    /// they count from there. Nothing can be stitched into such a piece.
    #[must_use]
    pub(crate) fn counting_from(mut self, base: Seqno) -> Self {
        self.base = base;
        self
    }

    /// Whether metadata is written twice, for repairs: not where space is short.
    #[must_use]
    pub(crate) fn copying_meta(mut self, copies_meta: bool) -> Self {
        self.copies_meta = copies_meta;
        self
    }

    /// Whether the piece gets its filter at once, or when a reader asks for it.
    #[must_use]
    pub(crate) fn filtered(mut self, makes_filter: bool) -> Self {
        self.makes_filter = makes_filter;
        self
    }

    /// What is added from here on is new, and goes where it is placed. Where it was placed last is asked for
    /// once: that may take long, and each block comes here.
    ///
    /// # Errors
    /// As [`PieceWriter::set_tier`].
    pub(crate) fn place(&mut self, blocks: NewBlocks) -> Result<()> {
        if self.placed == Some(blocks) {
            return Ok(());
        }
        self.placed = Some(blocks);
        let Destination { tier, .. } = self.target.ctx.zones.for_new(self.target.data.stream, blocks);
        self.set_tier(tier)
    }

    /// What is added from here on goes to that tier.
    ///
    /// # Errors
    /// As [`PieceWriter::add_blocks`], since a packed unit that is being filled ends here.
    pub(crate) fn set_tier(&mut self, tier: Tier) -> Result<()> {
        if self.target.data.tier == tier {
            return Ok(());
        }
        let (target, held) = (&self.target, &mut self.held);
        self.layers.iter_mut().try_for_each(|layer| layer.end_unit(target, held))?;
        self.target.data.tier = tier;
        Ok(())
    }

    /// What is added is packed as `packing` says.
    #[must_use]
    pub(crate) fn packing(mut self, packing: Packing) -> Self {
        self.target.packing = packing;
        self
    }

    /// Appends a record; records come in record order. O(1) and one copy, amortized.
    ///
    /// # Errors
    /// I/O errors and `Full`; the writer is then good for nothing but dropping. `ValueTooLong` when
    /// the record does not fit a zone.
    pub(crate) fn add(&mut self, key: &[u8], seqno: Seqno, kind: RecordKind, value: &[u8]) -> Result<()> {
        debug_assert_eq!(self.kind, KeyspaceKind::Tuple);
        self.tuples.add((&self.target, &mut self.held), key, seqno - self.base, kind, value)?;
        self.records += 1;
        self.bytes_added += (key.len() + value.len()) as u64;
        Ok(())
    }

    /// Appends the blocks `first ..` of `prefix`, given as slices of whole blocks, to a layer. The counts of
    /// `seqnos` add up to the number of blocks. Adjacent blocks become one region, or, with a `wish` or a
    /// setting to compress, packed units.
    ///
    /// # Errors
    /// I/O errors and `Full`; the writer is then good for nothing but dropping.
    pub(crate) fn add_blocks(
        &mut self,
        layer: usize,
        prefix: &[u8],
        first: u64,
        seqnos: &[SeqnoSpan],
        data: &[&[u8]],
        wish: Compression,
    ) -> Result<()> {
        debug_assert_eq!(self.kind, KeyspaceKind::Block);
        let bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        let count = bytes / BLOCK_BYTES as u64;
        debug_assert_eq!(seqnos.iter().map(|span| u64::from(span.count)).sum::<u64>(), count);
        if count == 0 {
            return Ok(());
        }
        self.bounds.add_keys(&block_key(prefix, first), &block_key(prefix, first + (count - 1)));
        let counted: Vec<SeqnoSpan>;
        let seqnos = if self.base == 0 {
            seqnos
        } else {
            let count = |span: &SeqnoSpan| SeqnoSpan { seqno: span.seqno - self.base, ..*span };
            counted = seqnos.iter().map(count).collect();
            &counted
        };
        for span in seqnos {
            self.bounds.add_seqnos(span.seqno, span.seqno);
        }
        let (target, held) = (&self.target, &mut self.held);
        let wish = wish.or(target.packing.compression);
        layer_output(&mut self.layers, layer).add((target, held), (prefix, first, seqnos), data, wish)?;
        self.buffers.resize((self.layers.len() * self.target.chunk_bytes()) as u64);
        self.records += count;
        self.bytes_added += bytes;
        Ok(())
    }

    /// Takes over the blocks `entries` of the index of `source`, in place of their records. Their data is not
    /// read, but the fingerprints of `source` are, once per writer, and its index, unless a reader holds it.
    ///
    /// # Errors
    /// I/O errors and corruption of the index or the fingerprints; `Full`, since the block that is being
    /// built ends here.
    pub(crate) fn stitch_tuples(&mut self, source: &Arc<Piece>, entries: Range<usize>) -> Result<()> {
        debug_assert!(self.kind == KeyspaceKind::Tuple && self.base == 0);
        let index = source.index()?;
        for entry in &index.tuple_entries()[entries.clone()] {
            self.bounds.add_seqnos(entry.seqno_min, entry.seqno_max);
            self.records += u64::from(entry.records);
        }
        self.bytes_referenced +=
            self.tuples.stitch((&self.target, &mut self.held), source, &index, entries)?;
        Ok(())
    }

    /// Takes over the blocks `first .. first + count` of a region of `source`, without reading them.
    ///
    /// # Errors
    /// As [`PieceWriter::add_blocks`], since a packed unit that is being filled ends here; those of reading
    /// the index of `source`.
    ///
    /// # Panics
    /// When the blocks do not all lie in the region.
    pub(crate) fn stitch_region(
        &mut self,
        layer: usize,
        source: &Arc<Piece>,
        layer_source: usize,
        region: usize,
        first: u64,
        count: u32,
    ) -> Result<()> {
        debug_assert!(self.kind == KeyspaceKind::Block && self.base == 0);
        let index = source.index()?;
        let whole = index.layers()[layer_source].region(region);
        assert!(
            whole.first <= first && count > 0 && first + u64::from(count) <= whole.end(),
            "blocks {first} and {} more lie in the region",
            count - 1
        );
        let end = first + u64::from(count);
        let seqnos: Vec<SeqnoSpan> = whole.spans(first, end).map(|(_, span)| span).collect();
        let part = whole.part(first, count, &seqnos);
        self.bounds.add_keys(&block_key(whole.prefix, first), &block_key(whole.prefix, end - 1));
        for span in &seqnos {
            self.bounds.add_seqnos(span.seqno, span.seqno);
        }
        let target = (&self.target, &mut self.held);
        let bytes = layer_output(&mut self.layers, layer).stitch(target, part)?;
        self.records += u64::from(count);
        self.bytes_referenced += bytes;
        Ok(())
    }

    /// Takes over blocks that lie in their final place, whether a piece has them or not. Their bytes are
    /// live. The seqnos are as they are on the device: those of private runs are counted.
    ///
    /// # Errors
    /// As [`PieceWriter::add_blocks`], since a packed unit that is being filled ends here.
    pub(crate) fn take_over(&mut self, layer: usize, region: Region<'_>) -> Result<()> {
        debug_assert_eq!(self.kind, KeyspaceKind::Block);
        let last = block_key(region.prefix, region.end() - 1);
        self.bounds.add_keys(&block_key(region.prefix, region.first), &last);
        for span in region.seqnos {
            self.bounds.add_seqnos(span.seqno, span.seqno);
        }
        let target = (&self.target, &mut self.held);
        let bytes = layer_output(&mut self.layers, layer).stitch(target, region)?;
        self.records += u64::from(region.count);
        self.bytes_referenced += bytes;
        Ok(())
    }

    /// As [`PieceWriter::take_over`], of blocks that may have gone: false if their zone does not live in that
    /// generation any more.
    ///
    /// # Errors
    /// As [`PieceWriter::take_over`].
    pub(crate) fn take_over_in(&mut self, layer: usize, region: Region<'_>, generation: u32) -> Result<bool> {
        let (zones, extent) = (Arc::clone(&self.target.ctx.zones), region.extent());
        if !zones.retain_in(extent, generation) {
            return Ok(false);
        }
        let taken = self.take_over(layer, region);
        zones.release(extent);
        taken.map(|()| true)
    }

    /// Copies a whole packed unit as it is: `region` is one, and `stored` its verified bytes on the device,
    /// padded. `seqnos` are those of its blocks.
    ///
    /// # Errors
    /// As [`PieceWriter::add_blocks`].
    pub(crate) fn add_unit(
        &mut self,
        layer: usize,
        region: Region<'_>,
        seqnos: &[SeqnoSpan],
        stored: &[u8],
    ) -> Result<()> {
        debug_assert!(
            region.is_whole_unit() && self.base == 0 && stored.len() == region.extent().len as usize
        );
        let last = block_key(region.prefix, region.end() - 1);
        self.bounds.add_keys(&block_key(region.prefix, region.first), &last);
        for span in seqnos {
            self.bounds.add_seqnos(span.seqno, span.seqno);
        }
        let target = (&self.target, &mut self.held);
        layer_output(&mut self.layers, layer).add_unit(target, Region { seqnos, ..region }, stored)?;
        self.records += u64::from(region.count);
        self.bytes_added += stored.len() as u64;
        Ok(())
    }

    /// What [`Self::stitch_tuples`] takes for the fingerprints of `source`, in the place of those on the
    /// device.
    pub(super) fn set_fingerprints(&mut self, source: PieceId, fingerprints: Fingerprints) {
        self.tuples.set_fingerprints(source, fingerprints);
    }

    /// Adds a range tombstone over `[start, end)`.
    pub(crate) fn add_tombstone(&mut self, start: &[u8], end: &[u8], seqno: Seqno) {
        let (start, end) = (Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        let tombstone = RangeTombstone { start, end, seqno: seqno - self.base };
        self.tombstones.push(tombstone);
    }

    /// Key and value bytes added so far, stitched ones excluded: what a merge copies.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.bytes_added
    }

    /// Bytes stitched in so far.
    pub(crate) fn bytes_referenced(&self) -> u64 {
        self.bytes_referenced
    }

    /// About how many bytes the metadata of what was added so far takes: they stay in memory until the end.
    pub(crate) fn meta_bytes(&self) -> u64 {
        self.tuples.meta_bytes() as u64
    }

    /// Whether nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0 && self.tombstones.is_empty()
    }

    /// Writes what is left, and the metadata. Does not flush the device: the caller does, once,
    /// before the manifest edit. The piece owns the references on its zones from here on.
    ///
    /// # Errors
    /// I/O errors and `Full`; everything is released then.
    pub(crate) fn finish(mut self) -> Result<(PieceDesc, Arc<Piece>)> {
        self.tuples.finish(&self.target, &mut self.held)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &mut self.layers {
            layers.push(layer.finish(&self.target, &mut self.held)?);
        }
        let tuples = std::mem::take(&mut self.tuples.entries);
        if let (Some(first), Some(last)) = (tuples.first(), tuples.last()) {
            self.bounds.add_keys(&first.first_key, &last.last_key);
        }
        for entry in &tuples {
            self.bounds.add_seqnos(entry.seqno_min, entry.seqno_max);
        }
        let tombstones = TombstoneSet::new(std::mem::take(&mut self.tombstones));
        if let (Some((first, last)), Some((min, max))) = (tombstones.bounds(), tombstones.seqno_range()) {
            self.bounds.add_keys(first, last);
            self.bounds.add_seqnos(min, max);
        }
        let content = match self.kind {
            KeyspaceKind::Tuple => Content::Tuples(tuples),
            KeyspaceKind::Block => Content::Blocks(layers),
        };
        let fingerprints = std::mem::take(&mut self.tuples.fingerprints);
        let (header, meta) = self.write_meta(&content, &tombstones, &fingerprints)?;
        let desc = self.describe(&content, &tombstones, &header, meta);
        let Self { target, held, kind, base, makes_filter, .. } = self;
        let desc = PieceDesc { zones: held.into_uses(), ..desc };
        let parts = Parts { keyspace: target.keyspace, kind, header, content, tombstones };
        let fingerprints = makes_filter.then_some(fingerprints);
        let piece = Piece::new(target.ctx, desc.clone(), base, parts, fingerprints, Source::Device);
        Ok((desc, piece))
    }

    fn describe(
        &self,
        content: &Content,
        tombstones: &TombstoneSet,
        header: &PieceMetaHeader,
        meta: Vec<Extent>,
    ) -> PieceDesc {
        let data_bytes = match content {
            Content::Tuples(entries) => entries.iter().map(|entry| u64::from(entry.extent.len)).sum(),
            Content::Blocks(layers) => stored_bytes(layers),
        };
        PieceDesc {
            id: self.target.id,
            first_key: self.bounds.first_key.clone().unwrap_or_default(),
            last_key: self.bounds.last_key.clone(),
            seqno_min: self.bounds.seqno_min.min(self.bounds.seqno_max),
            seqno_max: self.bounds.seqno_max,
            data_bytes,
            records: self.records,
            tombstones: tombstones.len() as u64,
            meta,
            meta_len: header.meta_len(),
            meta_crc: header.crc(),
            zones: Vec::new(),
        }
    }

    /// Writes the metadata blob, in as many extents as it takes.
    fn write_meta(
        &mut self,
        content: &Content,
        tombstones: &TombstoneSet,
        fingerprints: &Fingerprints,
    ) -> Result<(PieceMetaHeader, Vec<Extent>)> {
        let mut blob = vec![0; PieceMetaHeader::BYTES];
        match content {
            Content::Tuples(entries) => encode_tuples(&mut blob, entries),
            Content::Blocks(layers) => encode_layers(&mut blob, layers),
        }
        let index_end = blob.len();
        let list = tombstones.list();
        encode_tombstones(&mut blob, list.len(), list.iter().map(|t| (&t.start[..], &t.end[..], t.seqno)));
        let tombstones_end = blob.len();
        encode_fingerprints(&mut blob, fingerprints);
        let sections = [
            Section::of(&blob[PieceMetaHeader::BYTES..index_end]),
            Section::of(&blob[index_end..tombstones_end]),
            Section::of(&blob[tombstones_end..]),
        ];
        let header = PieceMetaHeader::new(self.target.keyspace, self.target.id.0, sections);
        blob[..PieceMetaHeader::BYTES].copy_from_slice(header.encode());
        let stamp = header.stamp(self.target.ctx.salt);
        blob.extend(stamp);
        // It is there twice for a moment.
        let mut charge = self.target.ctx.accountant.charge(Pool::Io, 2 * blob.len() as u64);
        self.target.ctx.make_room_for(0);
        let blob = AlignedBuf::from_slice(&std::mem::take(&mut blob));
        charge.resize(blob.len() as u64);
        let mut extents = Vec::new();
        let mut rest = blob.as_ref();
        while !rest.is_empty() {
            // At most 1 GiB at a time: an extent's length has 32 bits.
            let len_max = (rest.len().min(1 << 30) as u32).min(self.target.ctx.zones.zone_bytes());
            let extent = self.held.allocate_fitting(
                self.target.meta(),
                len_max,
                self.target.budget,
                SECTOR_BYTES as u32,
                |len| len,
            )?;
            let (now, later) = rest.split_at(extent.len as usize);
            self.target.write(now, extent.addr)?;
            extents.push(extent);
            rest = later;
        }
        self.write_copy(&blob.as_ref()[..tombstones_end], &stamp)?;
        Ok((header, extents))
    }

    /// Writes header, index and range tombstones once more, beside the data: nothing refers to this copy, a
    /// reader or a repair finds it by its header where the other one is damaged. Not worth a failure, nor
    /// much space.
    fn write_copy(&mut self, start: &[u8], stamp: &[u8]) -> Result<()> {
        let share = self.target.ctx.zones.zone_bytes() as usize / COPY_SHARE;
        if start.len() > share || !self.copies_meta {
            return Ok(());
        }
        let copy = AlignedBuf::from_slice(&[start, stamp].concat());
        match self.held.allocate(self.target.data, copy.len() as u32, self.target.budget) {
            Ok(extent) => self.target.write(copy.as_ref(), extent.addr),
            Err(StoreError::Full) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// What the blocks of all layers take, each packed unit counted once for each prefix.
fn stored_bytes(layers: &[Layer]) -> u64 {
    let mut units = HashSet::new();
    let regions = layers.iter().flat_map(Layer::regions);
    let counted =
        regions.filter(|region| region.unit.is_none() || units.insert((region.addr, region.prefix.clone())));
    counted.map(|region| u64::from(region.extent().len)).sum()
}

/// The output of a layer, made on first use.
fn layer_output(layers: &mut Vec<LayerOutput>, layer: usize) -> &mut LayerOutput {
    if layers.len() <= layer {
        layers.resize_with(layer + 1, LayerOutput::default);
    }
    &mut layers[layer]
}
