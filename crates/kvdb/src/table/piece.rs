//! An open piece: an immutable table, which answers from its range tombstones, its metadata and its storage.
//!
//! Thread safety: shared by `Arc`; immutable but for what is loaded and evicted.
//! Invariant: what is read of it is verified before a reader sees a byte.

use std::sync::Arc;

use kvfs_store::{BLOCK_BYTES, KeyspaceKind, Result, Seqno};

use super::index::{Content, Index};
use super::meta_read::MetaReader;
use super::metadata::{Metadata, Source};
use super::piece_iter::PieceIter;
use super::storage::Storage;
use super::tuple_iter::LeavesOut;
use super::{Access, RunContext};
use crate::cache::{Charge, Pool};
use crate::format::{Fingerprints, PieceDesc, PieceMetaHeader, crc32c};
use crate::memtable::{Lookup, TombstoneSet};

/// An index of single blocks takes so many times as much in memory as on the device.
const INDEX_GROWTH: u64 = 6;

/// What a piece consists of besides its descriptor.
pub(super) struct Parts {
    pub(super) keyspace: u32,
    pub(super) kind: KeyspaceKind,
    pub(super) header: PieceMetaHeader,
    pub(super) content: Content,
    pub(super) tombstones: TombstoneSet,
}

/// An immutable table: the unit that runs are made of, and that merges install and drop.
///
/// The seqnos on the device, and those of the descriptor, count from the piece's *base*; everything else here
/// has it in it. Range tombstones and a few facts are always in memory; index and filter are
/// [pages](crate::cache).
pub(crate) struct Piece {
    storage: Storage,
    metadata: Metadata,
    tombstones: Arc<TombstoneSet>,
    _tombstones_charge: Charge,
}

impl Piece {
    /// Opens a piece that the manifest knows, and counts its seqnos from `base` on: reads and verifies its
    /// range tombstones, if it has any, and, as long as all indexes fit their share of memory, its index. An
    /// index that can't be read is left for the first reader that needs it.
    ///
    /// Takes over the references on the zones that `Zones::restore` made for `desc`, and gives them
    /// back when dropped; when this fails, they stay.
    ///
    /// # Errors
    /// I/O errors and corruption, if there are range tombstones and no copy of them can be read either.
    pub(crate) fn open(
        ctx: Arc<RunContext>,
        keyspace: u32,
        kind: KeyspaceKind,
        desc: &PieceDesc,
        base: Seqno,
    ) -> Result<Arc<Self>> {
        let is_ample = ctx.pages.is_ample();
        let reader = MetaReader { ctx, keyspace, kind, desc: Arc::new(desc.clone()) };
        let metadata = Metadata::new(reader.clone(), base);
        let mut tombstones = metadata.preload(is_ample)?;
        tombstones.rebase(base);
        let piece = Self::assemble(metadata, reader, tombstones);
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
        let reader = MetaReader { ctx, keyspace, kind, desc: Arc::new(desc) };
        let piece = Self::assemble(Metadata::new(reader.clone(), base), reader, tombstones);
        piece.metadata.put_header(header);
        piece.metadata.put_index(content, source);
        if let Some(fingerprints) = fingerprints {
            piece.metadata.filter().put(fingerprints);
        }
        Arc::new(piece)
    }

    /// The same piece with its seqnos counted from `base` on, with references of its own. No I/O; O(index) if
    /// that is in memory.
    pub(crate) fn rebased(&self, base: Seqno) -> Arc<Self> {
        for zone_use in &self.desc().zones {
            self.ctx().zones.retain_use(zone_use);
        }
        let mut tombstones = (*self.tombstones).clone();
        tombstones.rebase(base.wrapping_sub(self.metadata.base()));
        let ctx = Arc::clone(self.ctx());
        let desc = Arc::new(self.desc().clone());
        let reader = MetaReader { ctx, keyspace: self.keyspace(), kind: self.kind(), desc };
        Arc::new(Self::assemble(self.metadata.rebased(reader.clone(), base), reader, tombstones))
    }

    /// Takes over the references on the zones. `tombstones` has the base in it.
    fn assemble(metadata: Metadata, reader: MetaReader, tombstones: TombstoneSet) -> Self {
        let charge = reader.ctx.accountant.charge(Pool::Index, tombstones.bytes() as u64);
        Self {
            storage: Storage::new(reader.ctx, reader.keyspace, reader.desc),
            metadata,
            tombstones: Arc::new(tombstones),
            _tombstones_charge: charge,
        }
    }

    /// The sparse index, read and verified if it is not in memory; it stays there with the result.
    ///
    /// # Errors
    /// I/O errors and corruption of the metadata.
    pub(crate) fn index(&self) -> Result<Index> {
        Ok(Index::new(self.metadata.glance()?.keep()))
    }

    /// Number of layers of a block piece. Reads the index if that has never been in memory.
    ///
    /// # Errors
    /// As [`Piece::index`].
    pub(crate) fn layer_count(&self) -> Result<usize> {
        Ok(self.metadata.facts()?.layers)
    }

    /// Whether a merge of the piece alone, with nothing older below, may drop something. Reads the index if
    /// that has never been in memory.
    ///
    /// # Errors
    /// As [`Piece::index`].
    pub(crate) fn has_garbage(&self) -> Result<bool> {
        Ok(self.desc().tombstones > 0 || self.metadata.facts()?.is_droppable)
    }

    /// Whether a reader has looked for a key here: if not, what becomes of this needs no filter before one
    /// does.
    pub(crate) fn is_filter_asked(&self) -> bool {
        self.metadata.filter().is_asked()
    }

    /// What the manifest knows of the piece.
    pub(crate) fn desc(&self) -> &PieceDesc {
        self.storage.desc()
    }

    /// As [`Piece::desc`]. A holder of no more than a weak reference learns when the piece has given its
    /// space back.
    pub(crate) fn shared_desc(&self) -> &Arc<PieceDesc> {
        self.storage.desc()
    }

    /// The smallest seqno of any record or range tombstone.
    pub(crate) fn seqno_min(&self) -> Seqno {
        self.desc().seqno_min.wrapping_add(self.metadata.base())
    }

    /// The greatest seqno of any record or range tombstone.
    pub(crate) fn seqno_max(&self) -> Seqno {
        self.desc().seqno_max.wrapping_add(self.metadata.base())
    }

    /// Keyspace that the piece belongs to.
    pub(crate) fn keyspace(&self) -> u32 {
        self.storage.keyspace()
    }

    /// Layout of its data.
    pub(crate) fn kind(&self) -> KeyspaceKind {
        self.metadata.kind()
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
        match self.kind() {
            KeyspaceKind::Tuple => self.lookup_tuple(lookup),
            KeyspaceKind::Block => self.lookup_block(self.metadata.glance()?.layers(), lookup),
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
        self.iter_but(access, None)
    }

    /// As [`Piece::iter`], without the records of the tuple blocks that `leaves_out` holds for; they are not
    /// read.
    pub(crate) fn iter_but(self: &Arc<Self>, access: Access, leaves_out: Option<LeavesOut>) -> PieceIter {
        match self.kind() {
            KeyspaceKind::Tuple => PieceIter::tuples(Arc::clone(self), access, leaves_out),
            KeyspaceKind::Block => PieceIter::blocks(Arc::clone(self), access),
        }
    }

    /// Reads and verifies every byte of the piece; for checks of a whole store. Returns the number
    /// of data bytes verified.
    ///
    /// # Errors
    /// I/O errors, and the first corruption.
    pub(crate) fn verify(self: &Arc<Self>) -> Result<u64> {
        self.metadata.verify()?;
        match self.kind() {
            KeyspaceKind::Tuple => self.verify_tuples(),
            KeyspaceKind::Block => self.verify_blocks(self.index()?.layers()),
        }
    }

    /// Whether the copy of its index, which nothing but a repair and a damaged index needs, is damaged.
    ///
    /// # Errors
    /// The index's own header can't be read.
    pub(crate) fn has_damaged_copy(&self) -> Result<bool> {
        self.metadata.has_damaged_copy()
    }

    /// What the data would take if nothing were packed (bytes); of a tuple piece whose index has not been in
    /// memory since it was opened, what they take.
    pub(crate) fn raw_bytes(&self) -> u64 {
        match self.kind() {
            KeyspaceKind::Block => self.desc().records * BLOCK_BYTES as u64,
            KeyspaceKind::Tuple => {
                self.metadata.known_facts().map_or(self.desc().data_bytes, |facts| facts.raw_bytes)
            }
        }
    }

    /// What its index takes in memory (bytes); where that has not been in memory since it was opened, about
    /// the most.
    pub(crate) fn index_bytes(&self) -> u64 {
        let bytes_max = u64::from(self.desc().meta_len) * INDEX_GROWTH;
        self.metadata.known_facts().map_or(bytes_max, |facts| facts.index_bytes)
    }

    /// What it has on the device.
    pub(super) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// What is known of it.
    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(super) fn ctx(&self) -> &Arc<RunContext> {
        self.storage.ctx()
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Piece")
            .field("keyspace", &self.keyspace())
            .field("desc", self.desc())
            .finish_non_exhaustive()
    }
}

/// Checks a data block against its checksum.
pub(super) fn is_intact(block: &[u8], crc: u32) -> bool {
    crc32c(block) == crc
}
