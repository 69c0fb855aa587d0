//! An open piece: its index in memory, its place on the device.
//!
//! Thread safety: shared by `Arc`; immutable but for the filter, which is loaded at first use.
//! Invariant: owns the references on its zones that its descriptor lists.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{KeyspaceKind, Result, Seqno, StoreError};

use super::filter::Filter;
use super::read_ahead::ReadAhead;
use super::{Access, RunContext, block_iter, tuple_iter};
use crate::cache::{CacheKey, CachedBlock, Charge, Pool};
use crate::format::{
    DecodeError, Fingerprints, Layer, PieceDesc, PieceMetaHeader, RecordIter, SECTOR_BYTES, TupleEntry,
    crc32c, decode_fingerprints, decode_layers, decode_tombstones, decode_tuples,
};
use crate::memtable::{BlockFill, Lookup, RangeTombstone, TombstoneSet, split_block_key};

/// Metadata up to this length is read in one request when a piece is opened (bytes).
const META_READ_BYTES: usize = 64 << 10;

/// The sparse index.
#[derive(Clone)]
pub(super) enum Content {
    Tuples(Vec<TupleEntry>),
    Blocks(Vec<Layer>),
}

impl Content {
    /// From the section of the metadata.
    pub(super) fn decode(kind: KeyspaceKind, section: &[u8]) -> Result<Self, DecodeError> {
        match kind {
            KeyspaceKind::Tuple => decode_tuples(section).map(Self::Tuples),
            KeyspaceKind::Block => decode_layers(section).map(Self::Blocks),
        }
    }

    fn rebase(&mut self, base: Seqno) {
        match self {
            Self::Tuples(entries) => entries.iter_mut().for_each(|entry| entry.rebase(base)),
            Self::Blocks(layers) => layers.iter_mut().for_each(|layer| layer.rebase(base)),
        }
    }

    /// Bytes of the data before it was packed.
    fn raw_bytes(&self) -> u64 {
        match self {
            Self::Tuples(entries) => {
                let raw = |entry: &TupleEntry| match entry.packed {
                    Some(_) => u64::from(entry.bytes).next_multiple_of(SECTOR_BYTES),
                    None => entry.extent.len.into(),
                };
                entries.iter().map(raw).sum()
            }
            Self::Blocks(layers) => layers.iter().map(|layer| layer.blocks() * SECTOR_BYTES).sum(),
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Tuples(entries) => entries
                .iter()
                .map(|entry| size_of::<TupleEntry>() + entry.first_key.len() + entry.last_key.len())
                .sum(),
            Self::Blocks(layers) => layers.iter().map(Layer::memory_bytes).sum(),
        }
    }
}

/// The range tombstones in the section of the metadata.
pub(super) fn tombstones_of(section: &[u8]) -> Result<TombstoneSet, DecodeError> {
    let list = decode_tombstones(section)?;
    Ok(TombstoneSet::new(list.into_iter().map(|(start, end, seqno)| RangeTombstone { start, end, seqno })))
}

/// What a piece consists of besides its descriptor.
pub(super) struct Parts {
    pub(super) keyspace: u32,
    pub(super) kind: KeyspaceKind,
    pub(super) header: PieceMetaHeader,
    pub(super) content: Content,
    pub(super) tombstones: TombstoneSet,
}

impl Parts {
    fn rebase(&mut self, base: Seqno) {
        if base != 0 {
            self.content.rebase(base);
            self.tombstones.rebase(base);
        }
    }
}

struct LoadedFilter {
    filter: Option<Filter>,
    _charge: Charge,
}

/// An immutable table: the unit that runs are made of, and that merges install and drop.
///
/// The seqnos on the device, and those of the descriptor, count from the piece's *base*; everything else here
/// has it in it.
pub struct Piece {
    ctx: Arc<RunContext>,
    desc: PieceDesc,
    base: Seqno,
    keyspace: u32,
    kind: KeyspaceKind,
    header: PieceMetaHeader,
    content: Content,
    tombstones: Arc<TombstoneSet>,
    /// Shared with the same piece on another base.
    filter: Arc<OnceLock<LoadedFilter>>,
    /// Generation of each zone in `desc.zones`; fixed while the piece lives.
    generations: Vec<u32>,
    read_ahead: ReadAhead,
    raw_bytes: u64,
    _index_charge: Charge,
}

impl Piece {
    /// Opens a piece that the manifest knows, and counts its seqnos from `base` on: reads and verifies its
    /// index and range tombstones.
    ///
    /// Takes over the references on the zones that `Zones::restore` made for `desc`, and gives them
    /// back when dropped; when this fails, they stay.
    ///
    /// # Errors
    /// I/O errors; corruption of the metadata.
    pub fn open(
        ctx: Arc<RunContext>,
        keyspace: u32,
        kind: KeyspaceKind,
        desc: &PieceDesc,
        base: Seqno,
    ) -> Result<Arc<Self>> {
        let meta = MetaReader { ctx: &ctx, keyspace, desc };
        let mut blob = meta.read(0, META_READ_BYTES.min(desc.meta_len as usize))?;
        let header = PieceMetaHeader::decode(&blob, keyspace, desc.id.0, desc.meta_len, desc.meta_crc)
            .map_err(|error| meta.corrupt("header", error))?;
        let index_end = PieceMetaHeader::BYTES + header.index.len();
        let tombstones_end = index_end + header.tombstones.len();
        if tombstones_end > blob.len() {
            blob = meta.read(0, tombstones_end)?;
        }
        let index = &blob[PieceMetaHeader::BYTES..index_end];
        if !header.index.matches(index) {
            return Err(meta.corrupt("index", DecodeError("checksum does not match")));
        }
        let tombstones = &blob[index_end..tombstones_end];
        if !header.tombstones.matches(tombstones) {
            return Err(meta.corrupt("range tombstones", DecodeError("checksum does not match")));
        }
        let content = Content::decode(kind, index).map_err(|error| meta.corrupt("index", error))?;
        let tombstones =
            tombstones_of(tombstones).map_err(|error| meta.corrupt("range tombstones", error))?;
        let parts = Parts { keyspace, kind, header, content, tombstones };
        Ok(Self::new(ctx, desc.clone(), base, parts, None))
    }

    /// Puts a piece together, which owns the references of `desc.zones` from here on. The seqnos in `parts`
    /// count from `base` on.
    pub(super) fn new(
        ctx: Arc<RunContext>,
        desc: PieceDesc,
        base: Seqno,
        mut parts: Parts,
        fingerprints: Option<Fingerprints>,
    ) -> Arc<Self> {
        parts.rebase(base);
        let piece = Self::assemble(ctx, desc, base, parts, Arc::default());
        if let Some(fingerprints) = fingerprints {
            piece.filter.get_or_init(|| piece.build_filter(fingerprints));
        }
        Arc::new(piece)
    }

    /// The same piece with its seqnos counted from `base` on, with references of its own. No I/O; O(index).
    pub(crate) fn rebased(&self, base: Seqno) -> Arc<Self> {
        for zone_use in &self.desc.zones {
            self.ctx.zones.retain_use(zone_use);
        }
        let mut parts = Parts {
            keyspace: self.keyspace,
            kind: self.kind,
            header: self.header,
            content: self.content.clone(),
            tombstones: (*self.tombstones).clone(),
        };
        parts.rebase(base.wrapping_sub(self.base));
        let (ctx, filter) = (Arc::clone(&self.ctx), Arc::clone(&self.filter));
        Arc::new(Self::assemble(ctx, self.desc.clone(), base, parts, filter))
    }

    fn assemble(
        ctx: Arc<RunContext>,
        desc: PieceDesc,
        base: Seqno,
        parts: Parts,
        filter: Arc<OnceLock<LoadedFilter>>,
    ) -> Self {
        let Parts { keyspace, kind, header, content, tombstones } = parts;
        let index_bytes = tombstones.bytes() + content.memory_bytes();
        let generations = desc.zones.iter().map(|zone_use| ctx.zones.generation(zone_use.zone)).collect();
        Self {
            read_ahead: ReadAhead::new(ctx.windows.new_owner()),
            raw_bytes: content.raw_bytes(),
            _index_charge: ctx.accountant.guard(Pool::Index, index_bytes as u64),
            ctx,
            desc,
            base,
            keyspace,
            kind,
            header,
            content,
            tombstones: Arc::new(tombstones),
            filter,
            generations,
        }
    }

    /// What the manifest knows of the piece.
    pub fn desc(&self) -> &PieceDesc {
        &self.desc
    }

    /// The smallest seqno of any record or range tombstone.
    pub fn seqno_min(&self) -> Seqno {
        self.desc.seqno_min.wrapping_add(self.base)
    }

    /// The greatest seqno of any record or range tombstone.
    pub fn seqno_max(&self) -> Seqno {
        self.desc.seqno_max.wrapping_add(self.base)
    }

    /// Keyspace that the piece belongs to.
    pub fn keyspace(&self) -> u32 {
        self.keyspace
    }

    /// Layout of its data.
    pub fn kind(&self) -> KeyspaceKind {
        self.kind
    }

    /// The range tombstones.
    pub fn tombstones(&self) -> &Arc<TombstoneSet> {
        &self.tombstones
    }

    /// Whether a merge of the piece alone, with nothing older below, may drop something.
    pub(crate) fn has_garbage(&self) -> bool {
        const DROPPABLE: u8 = TupleEntry::HAS_VERSIONS | TupleEntry::HAS_DELETES | TupleEntry::HAS_MERGES;
        let in_content = match &self.content {
            Content::Tuples(entries) => entries.iter().any(|entry| entry.flags & DROPPABLE != 0),
            Content::Blocks(layers) => layers.len() > 1,
        };
        in_content || self.desc.tombstones > 0
    }

    /// The sparse index of a tuple piece, in key order; empty for a block piece.
    pub fn tuple_entries(&self) -> &[TupleEntry] {
        match &self.content {
            Content::Tuples(entries) => entries,
            Content::Blocks(_) => &[],
        }
    }

    /// The layers of a block piece, where a lower one has the newer version of a block; empty for a
    /// tuple piece.
    pub fn layers(&self) -> &[Layer] {
        match &self.content {
            Content::Tuples(_) => &[],
            Content::Blocks(layers) => layers,
        }
    }

    /// Whether there may be a record with `key`: exact for blocks, whose index is in memory; for
    /// tuples the filter says yes to very few absent keys. Ignores range tombstones.
    ///
    /// The first call on an opened piece reads the filter; if that fails, the answer is yes, and the
    /// failure is logged.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        if let Content::Blocks(layers) = &self.content {
            return split_block_key(key).is_some_and(|(prefix, block)| {
                layers.iter().any(|layer| {
                    let index = layer.find(prefix, block);
                    index < layer.len() && {
                        let region = layer.region(index);
                        region.prefix[..] == *prefix && region.first <= block
                    }
                })
            });
        }
        let loaded = self.filter.get_or_init(|| match self.fingerprints() {
            Ok(fingerprints) => self.build_filter(fingerprints),
            Err(error) => {
                tracing::error!(%error, "a filter can't be read; lookups in its piece go on without it");
                LoadedFilter { filter: None, _charge: self.ctx.accountant.guard(Pool::Filter, 0) }
            }
        });
        loaded.filter.as_ref().is_none_or(|filter| filter.may_contain(key))
    }

    fn build_filter(&self, fingerprints: Fingerprints) -> LoadedFilter {
        let filter = match self.kind {
            KeyspaceKind::Tuple => Filter::build(fingerprints.values),
            KeyspaceKind::Block => None,
        };
        let bytes = filter.as_ref().map_or(0, Filter::memory_bytes);
        LoadedFilter { filter, _charge: self.ctx.accountant.guard(Pool::Filter, bytes as u64) }
    }

    /// The key fingerprints of each tuple block, read from the device.
    pub(super) fn fingerprints(&self) -> Result<Fingerprints> {
        let meta = MetaReader { ctx: &self.ctx, keyspace: self.keyspace, desc: &self.desc };
        let section = &self.header.fingerprints;
        let from = PieceMetaHeader::BYTES + self.header.index.len() + self.header.tombstones.len();
        let bytes = meta.read(from, section.len())?;
        if !section.matches(&bytes) {
            return Err(meta.corrupt("fingerprints", DecodeError("checksum does not match")));
        }
        decode_fingerprints(&bytes, self.tuple_entries().len())
            .map_err(|error| meta.corrupt("fingerprints", error))
    }

    /// Looks for a key: hands its versions, newest first, to `lookup` until that is decided, and
    /// lets the range tombstones decide the rest. At most one read in the usual case.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn lookup(&self, lookup: &mut Lookup<'_>) -> Result<()> {
        match &self.content {
            Content::Tuples(entries) => self.lookup_tuple(entries, lookup),
            Content::Blocks(layers) => self.lookup_block(layers, lookup),
        }
    }

    /// Fills what `fill` has not decided yet from this piece: reads neighbouring blocks in one
    /// request, straight into the caller's buffer, and verifies each. Small reads go through the
    /// cache.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn fill(&self, fill: &mut BlockFill<'_>) -> Result<()> {
        self.fill_from(fill, &[])
    }

    /// An iterator over the point records. A block piece yields a put for each block, and reads its
    /// data only when asked for the value.
    pub fn iter(self: &Arc<Self>, access: Access) -> Box<dyn RecordIter> {
        match self.kind {
            KeyspaceKind::Tuple => Box::new(tuple_iter::TupleIter::new(Arc::clone(self), access)),
            KeyspaceKind::Block => Box::new(block_iter::BlockIter::new(Arc::clone(self), access)),
        }
    }

    /// Reads and verifies every byte of the piece; for checks of a whole store. Returns the number
    /// of data bytes verified.
    ///
    /// # Errors
    /// I/O errors, and the first corruption.
    pub fn verify(self: &Arc<Self>) -> Result<u64> {
        self.fingerprints()?;
        match &self.content {
            Content::Tuples(_) => self.verify_tuples(),
            Content::Blocks(layers) => self.verify_blocks(layers),
        }
    }

    /// What the data would take if nothing were packed (bytes).
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    pub(super) fn read_ahead(&self) -> &ReadAhead {
        &self.read_ahead
    }

    pub(super) fn ctx(&self) -> &Arc<RunContext> {
        &self.ctx
    }

    /// The part of the zone of `addr` that the piece has, all of which is written.
    pub(super) fn zone_extent(&self, addr: u64) -> Option<Range<u64>> {
        let (zone, offset) = self.ctx.zone_offset(addr);
        let at = self.desc.zones.binary_search_by_key(&zone, |zone_use| zone_use.zone).ok()?;
        let start = addr - u64::from(offset);
        Some(start..start + u64::from(self.desc.zones[at].end))
    }

    /// Fills `buf` from the device.
    pub(super) fn read(&self, buf: &mut [u8], addr: u64) -> Result<()> {
        self.ctx
            .device
            .read_at(buf, addr)
            .map_err(|error| StoreError::io(format!("reading {}", self.place("data", addr)), error))
    }

    /// The words for a place in this piece.
    fn place(&self, what: &str, addr: u64) -> String {
        place(what, &self.desc, self.keyspace, addr)
    }

    pub(super) fn corrupt(&self, what: &str, addr: u64, detail: &str) -> StoreError {
        StoreError::corrupt(self.place(what, addr), detail)
    }

    /// The key in the block cache of what lies at `addr`.
    pub(super) fn cache_key(&self, addr: u64) -> CacheKey {
        let (zone, offset) = self.ctx.zone_offset(addr);
        let at = self.desc.zones.binary_search_by_key(&zone, |zone_use| zone_use.zone);
        let generation = at.map_or_else(|_| self.ctx.zones.generation(zone), |at| self.generations[at]);
        CacheKey { zone, generation, offset }
    }

    /// Puts verified bytes, which nobody else holds, into the cache.
    pub(super) fn cache_own(&self, addr: u64, bytes: Bytes) -> Bytes {
        let len = bytes.len() as u64;
        let block = CachedBlock::new(bytes, len);
        self.ctx.cache.insert(self.cache_key(addr), block).bytes().clone()
    }

    /// Puts verified bytes into the cache, in memory of their own.
    pub(super) fn cache_copy(&self, addr: u64, bytes: &[u8]) -> Bytes {
        let block = CachedBlock::new(Bytes::copy_from_slice(bytes), bytes.len() as u64);
        self.ctx.cache.insert(self.cache_key(addr), block).bytes().clone()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.ctx.windows.forget(self.read_ahead.owner());
        for zone_use in &self.desc.zones {
            self.ctx.zones.release_use(zone_use);
        }
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Piece")
            .field("keyspace", &self.keyspace)
            .field("desc", &self.desc)
            .finish_non_exhaustive()
    }
}

fn place(what: &str, desc: &PieceDesc, keyspace: u32, addr: u64) -> String {
    format!("{what} of piece {} of keyspace {keyspace} at device address {addr:#x}", desc.id.0)
}

/// Reads parts of a metadata blob, which may lie in several extents.
struct MetaReader<'a> {
    ctx: &'a RunContext,
    keyspace: u32,
    desc: &'a PieceDesc,
}

impl MetaReader<'_> {
    /// Bytes `from .. from + len` of the blob.
    fn read(&self, from: usize, len: usize) -> Result<Vec<u8>> {
        let sector = SECTOR_BYTES as usize;
        let (mut out, mut extent_from) = (Vec::with_capacity(len), 0_usize);
        for extent in &self.desc.meta {
            let extent_end = extent_from + extent.len as usize;
            let (low, high) = (from.max(extent_from), (from + len).min(extent_end));
            if low < high {
                let skipped = (low - extent_from) / sector * sector;
                let addr = extent.addr + skipped as u64;
                let mut buf = AlignedBuf::zeroed(high - extent_from - skipped);
                self.ctx.device.read_at(buf.as_mut(), addr).map_err(|error| {
                    let place = place("metadata", self.desc, self.keyspace, addr);
                    StoreError::io(format!("reading {place}"), error)
                })?;
                let start = low - extent_from - skipped;
                out.extend_from_slice(&buf.as_ref()[start..start + high - low]);
            }
            extent_from = extent_end;
        }
        if out.len() < len {
            return Err(self.corrupt("metadata", DecodeError("its extents are shorter than its length")));
        }
        Ok(out)
    }

    fn corrupt(&self, what: &str, error: DecodeError) -> StoreError {
        let addr = self.desc.meta.first().map_or(0, |extent| extent.addr);
        error.at(place(&format!("metadata ({what})"), self.desc, self.keyspace, addr))
    }
}

/// Checks a data block against its checksum.
pub(super) fn is_intact(block: &[u8], crc: u32) -> bool {
    crc32c(block) == crc
}
