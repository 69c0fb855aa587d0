//! An open piece: what is always known of it, its metadata on demand, its place on the device.
//!
//! Thread safety: shared by `Arc`; immutable but for what is loaded and evicted. A reader that needs the index gets a guard,
//! and keeps it for as long as it is needed.
//! Invariant: owns the references on its zones that its descriptor lists.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, KeyspaceKind, Result, Seqno, StoreError};

use super::filter::Filter;
use super::filtering::FilterWish;
use super::index::{Content, Facts, Index};
use super::meta_read::{Front, MetaReader, place};
use super::piece_iter::PieceIter;
use super::read_ahead::ReadAhead;
use super::{Access, RunContext};
use crate::cache::{CacheKey, CachedBlock, Charge, Page, PageRef, Pool};
use crate::format::{Fingerprints, PieceDesc, PieceMetaHeader, ZoneId, ZoneUse, crc32c};
use crate::memtable::{Lookup, TombstoneSet};

/// What a piece consists of besides its descriptor.
pub(super) struct Parts {
    pub(super) keyspace: u32,
    pub(super) kind: KeyspaceKind,
    pub(super) header: PieceMetaHeader,
    pub(super) content: Content,
    pub(super) tombstones: TombstoneSet,
}

/// Where the index of a piece that is put together can be had from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// From its metadata, whenever it is needed.
    Device,
    /// Only from memory: its metadata is damaged.
    Memory,
}

/// An immutable table: the unit that runs are made of, and that merges install and drop.
///
/// The seqnos on the device, and those of the descriptor, count from the piece's *base*; everything else here
/// has it in it. Range tombstones and a few facts are always in memory; index and filter are [pages](crate::cache).
pub(crate) struct Piece {
    ctx: Arc<RunContext>,
    /// Not shared for long: it goes when the references on the zones have gone.
    desc: Arc<PieceDesc>,
    base: Seqno,
    keyspace: u32,
    kind: KeyspaceKind,
    /// Known once any metadata was read.
    header: OnceLock<PieceMetaHeader>,
    /// Known once the index was in memory.
    facts: OnceLock<Facts>,
    index: Page<Content>,
    tombstones: Arc<TombstoneSet>,
    /// Shared with the same piece on another base. `None` in it: more keys than a filter can tell apart.
    pub(super) filter: Arc<Page<Option<Filter>>>,
    pub(super) filter_wish: FilterWish,
    /// Generation of each zone in `desc.zones`; fixed while the piece lives.
    generations: Vec<u32>,
    read_ahead: ReadAhead,
    _tombstones_charge: Charge,
}

impl Piece {
    /// Opens a piece that the manifest knows, and counts its seqnos from `base` on: reads and verifies its
    /// range tombstones, if it has any, and, as long as all indexes fit their share of memory, its index.
    ///
    /// Takes over the references on the zones that `Zones::restore` made for `desc`, and gives them
    /// back when dropped; when this fails, they stay.
    ///
    /// # Errors
    /// I/O errors; corruption of the metadata that was read.
    pub(crate) fn open(
        ctx: Arc<RunContext>,
        keyspace: u32,
        kind: KeyspaceKind,
        desc: &PieceDesc,
        base: Seqno,
    ) -> Result<Arc<Self>> {
        let is_ample = ctx.pages.is_ample();
        let (mut header, mut content, mut tombstones) = (None, None, TombstoneSet::new([]));
        if is_ample || desc.tombstones > 0 {
            let meta = MetaReader { ctx: &ctx, keyspace, kind, desc };
            let front = meta.front()?;
            tombstones = meta.tombstones(&front)?;
            if is_ample {
                content = Some(meta.index(&front)?);
            }
            header = Some(front.header);
        }
        tombstones.rebase(base);
        let filter = Arc::new(Page::new(&ctx.pages, Pool::Filter));
        let piece = Self::assemble(ctx, (keyspace, kind), desc.clone(), base, tombstones, filter);
        if let Some(header) = header {
            piece.header.get_or_init(|| header);
        }
        if let Some(content) = content {
            piece.put_index(content, Source::Device);
        }
        Ok(Arc::new(piece))
    }

    /// Puts a piece together, which owns the references of `desc.zones` from here on. The seqnos in `parts`
    /// count from `base` on.
    pub(super) fn new(
        ctx: Arc<RunContext>,
        desc: PieceDesc,
        base: Seqno,
        parts: Parts,
        fingerprints: Option<Fingerprints>,
        source: Source,
    ) -> Arc<Self> {
        let Parts { keyspace, kind, header, content, mut tombstones } = parts;
        tombstones.rebase(base);
        let filter = Arc::new(Page::new(&ctx.pages, Pool::Filter));
        let piece = Self::assemble(ctx, (keyspace, kind), desc, base, tombstones, filter);
        piece.header.get_or_init(|| header);
        piece.put_index(content, source);
        if let Some(fingerprints) = fingerprints {
            piece.put_filter(fingerprints);
        }
        Arc::new(piece)
    }

    /// The same piece with its seqnos counted from `base` on, with references of its own. No I/O; O(index) if that is
    /// in memory.
    pub(crate) fn rebased(&self, base: Seqno) -> Arc<Self> {
        for zone_use in &self.desc.zones {
            self.ctx.zones.retain_use(zone_use);
        }
        let by = base.wrapping_sub(self.base);
        let mut tombstones = (*self.tombstones).clone();
        tombstones.rebase(by);
        let (ctx, filter) = (Arc::clone(&self.ctx), Arc::clone(&self.filter));
        let whose = (self.keyspace, self.kind);
        let piece = Self::assemble(ctx, whose, (*self.desc).clone(), base, tombstones, filter);
        if let Some(header) = self.header.get() {
            piece.header.get_or_init(|| *header);
        }
        if let Some(facts) = self.facts.get() {
            piece.facts.get_or_init(|| *facts);
        }
        if let Some(index) = self.index.peek() {
            let mut content = (*index).clone();
            content.rebase(by);
            let bytes = content.memory_bytes();
            piece.index.put(content, bytes);
        }
        Arc::new(piece)
    }

    fn assemble(
        ctx: Arc<RunContext>,
        (keyspace, kind): (u32, KeyspaceKind),
        desc: PieceDesc,
        base: Seqno,
        tombstones: TombstoneSet,
        filter: Arc<Page<Option<Filter>>>,
    ) -> Self {
        let generations = desc.zones.iter().map(|zone_use| ctx.zones.generation(zone_use.zone)).collect();
        Self {
            read_ahead: ReadAhead::new(ctx.windows.new_owner()),
            _tombstones_charge: ctx.accountant.guard(Pool::Index, tombstones.bytes() as u64),
            index: Page::new(&ctx.pages, Pool::Index),
            ctx,
            desc: Arc::new(desc),
            base,
            keyspace,
            kind,
            header: OnceLock::new(),
            facts: OnceLock::new(),
            tombstones: Arc::new(tombstones),
            filter,
            filter_wish: FilterWish::default(),
            generations,
        }
    }

    /// Puts in what was just read or made, with its seqnos as they are on the device.
    fn put_index(&self, mut content: Content, source: Source) {
        self.facts.get_or_init(|| Facts::of(&content));
        content.rebase(self.base);
        let bytes = content.memory_bytes();
        match source {
            Source::Device => self.index.put(content, bytes),
            Source::Memory => self.index.pin(content, bytes),
        }
    }

    fn load_index(&self) -> Result<(Content, usize)> {
        let meta = self.meta();
        let mut content = meta.index(&self.front()?)?;
        self.facts.get_or_init(|| Facts::of(&content));
        content.rebase(self.base);
        let bytes = content.memory_bytes();
        self.ctx.make_room_for(bytes);
        Ok((content, bytes))
    }

    fn meta(&self) -> MetaReader<'_> {
        MetaReader { ctx: &self.ctx, keyspace: self.keyspace, kind: self.kind, desc: &self.desc }
    }

    /// The header, read if it is not known yet.
    fn front(&self) -> Result<Front> {
        if let Some(header) = self.header.get() {
            return Ok(Front::known(*header));
        }
        let front = self.meta().front()?;
        self.header.get_or_init(|| front.header);
        Ok(front)
    }

    /// The sparse index for one look-up, read and verified if it is not in memory.
    pub(super) fn glance(&self) -> Result<PageRef<Content>> {
        self.index.get(|| self.load_index())
    }

    /// The sparse index, read and verified if it is not in memory; it stays there with the result.
    ///
    /// # Errors
    /// I/O errors and corruption of the metadata.
    pub(crate) fn index(&self) -> Result<Index> {
        Ok(Index::new(self.glance()?.keep()))
    }

    fn facts(&self) -> Result<Facts> {
        if let Some(facts) = self.facts.get() {
            return Ok(*facts);
        }
        let index = self.glance()?;
        Ok(*self.facts.get_or_init(|| Facts::of(&index)))
    }

    /// Number of layers of a block piece. Reads the index if that has never been in memory.
    ///
    /// # Errors
    /// As [`Piece::index`].
    pub(crate) fn layer_count(&self) -> Result<usize> {
        Ok(self.facts()?.layers)
    }

    /// Whether a merge of the piece alone, with nothing older below, may drop something. Reads the index if that has
    /// never been in memory.
    ///
    /// # Errors
    /// As [`Piece::index`].
    pub(crate) fn has_garbage(&self) -> Result<bool> {
        Ok(self.desc.tombstones > 0 || self.facts()?.is_droppable)
    }

    /// The key fingerprints of each tuple block, read from the device.
    pub(super) fn fingerprints(&self) -> Result<Fingerprints> {
        let blocks = self.facts()?.blocks;
        self.meta().fingerprints(&self.front()?, blocks)
    }

    /// What the manifest knows of the piece.
    pub(crate) fn desc(&self) -> &PieceDesc {
        &self.desc
    }

    /// As [`Piece::desc`]. A holder of no more than a weak reference learns when the piece has given its space back.
    pub(crate) fn shared_desc(&self) -> &Arc<PieceDesc> {
        &self.desc
    }

    /// The smallest seqno of any record or range tombstone.
    pub(crate) fn seqno_min(&self) -> Seqno {
        self.desc.seqno_min.wrapping_add(self.base)
    }

    /// The greatest seqno of any record or range tombstone.
    pub(crate) fn seqno_max(&self) -> Seqno {
        self.desc.seqno_max.wrapping_add(self.base)
    }

    /// Keyspace that the piece belongs to.
    pub(crate) fn keyspace(&self) -> u32 {
        self.keyspace
    }

    /// Layout of its data.
    pub(crate) fn kind(&self) -> KeyspaceKind {
        self.kind
    }

    /// The range tombstones.
    pub(crate) fn tombstones(&self) -> &Arc<TombstoneSet> {
        &self.tombstones
    }

    /// Looks for a key: hands its versions, newest first, to `lookup` until that is decided, and
    /// lets the range tombstones decide the rest. At most one read in the usual case.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(crate) fn lookup(&self, lookup: &mut Lookup<'_>) -> Result<()> {
        match self.kind {
            KeyspaceKind::Tuple => self.lookup_tuple(lookup),
            KeyspaceKind::Block => self.lookup_block(self.glance()?.layers(), lookup),
        }
    }

    /// As [`Piece::fill_from`], of all keys.
    #[cfg(test)]
    pub(crate) fn fill(&self, fill: &mut crate::memtable::BlockFill<'_>) -> Result<()> {
        self.fill_from(fill, &[])
    }

    /// An iterator over the point records. A block piece yields a put for each block, and reads its
    /// data only when asked for the value.
    pub(crate) fn iter(self: &Arc<Self>, access: Access) -> PieceIter {
        match self.kind {
            KeyspaceKind::Tuple => PieceIter::tuples(Arc::clone(self), access),
            KeyspaceKind::Block => PieceIter::blocks(Arc::clone(self), access),
        }
    }

    /// Reads and verifies every byte of the piece; for checks of a whole store. Returns the number
    /// of data bytes verified.
    ///
    /// # Errors
    /// I/O errors, and the first corruption.
    pub(crate) fn verify(self: &Arc<Self>) -> Result<u64> {
        let (meta, index) = (self.meta(), self.index()?);
        let front = meta.front()?;
        meta.index(&front)?;
        meta.tombstones(&front)?;
        meta.fingerprints(&front, index.tuple_entries().len())?;
        match self.kind {
            KeyspaceKind::Tuple => self.verify_tuples(),
            KeyspaceKind::Block => self.verify_blocks(index.layers()),
        }
    }

    /// What the data would take if nothing were packed (bytes); of a tuple piece whose index has not been in memory
    /// since it was opened, what they take.
    pub(crate) fn raw_bytes(&self) -> u64 {
        match self.kind {
            KeyspaceKind::Block => self.desc.records * BLOCK_BYTES as u64,
            KeyspaceKind::Tuple => self.facts.get().map_or(self.desc.data_bytes, |facts| facts.raw_bytes),
        }
    }

    pub(super) fn read_ahead(&self) -> &ReadAhead {
        &self.read_ahead
    }

    pub(super) fn ctx(&self) -> &Arc<RunContext> {
        &self.ctx
    }

    /// The part of the zone of `addr` that the piece has, all of which is written.
    pub(super) fn zone_extent(&self, addr: u64) -> Option<Range<u64>> {
        let start = addr - u64::from(self.ctx.zone_offset(addr).1);
        Some(start..start + u64::from(self.zone_use(addr)?.end))
    }

    /// What the piece has in the zone of `addr`.
    pub(super) fn zone_use(&self, addr: u64) -> Option<&ZoneUse> {
        Some(&self.desc.zones[self.zone_index(self.ctx.zones.zone_of(addr))?])
    }

    /// Where `zone` is in `desc.zones`, and in `generations`.
    fn zone_index(&self, zone: ZoneId) -> Option<usize> {
        self.desc.zones.binary_search_by_key(&zone, |zone_use| zone_use.zone).ok()
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
        let at = self.zone_index(zone);
        let generation = at.map_or_else(|| self.ctx.zones.generation(zone), |at| self.generations[at]);
        CacheKey { zone, generation, offset }
    }

    /// Puts verified bytes, which no other holds, into the cache.
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

/// Checks a data block against its checksum.
pub(super) fn is_intact(block: &[u8], crc: u32) -> bool {
    crc32c(block) == crc
}
