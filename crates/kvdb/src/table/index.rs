//! The sparse index of a piece in memory, and the few facts about it that stay when it goes.
//!
//! Thread safety: immutable.

use std::ops::Deref;
use std::sync::Arc;

use kvfs_store::{KeyspaceKind, Seqno};

use crate::cache::Loaded;
use crate::format::{
    DecodeError, Extent, Layer, PieceDesc, Region, SECTOR_BYTES, TupleEntry, decode_layers, decode_tuples,
};

/// The sparse index.
#[derive(Clone)]
pub(crate) enum Content {
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

    /// Whether all that it names lies where `desc` says that the piece has something. What is read elsewhere
    /// may be another piece's by then, or no zone at all.
    pub(super) fn lies_in(&self, desc: &PieceDesc, zone_bytes: u32) -> bool {
        let has_block = |entry: &TupleEntry| {
            let Extent { addr, len } = entry.extent;
            desc.holds(addr, len.into(), zone_bytes)
        };
        let has_region = |region: Region<'_>| {
            let len = region.unit.map(|unit| u64::from(unit.stored_len()));
            desc.holds(region.addr, len.unwrap_or(u64::from(region.count) * SECTOR_BYTES), zone_bytes)
        };
        match self {
            Self::Tuples(entries) => entries.iter().all(has_block),
            Self::Blocks(layers) => layers.iter().flat_map(Layer::regions).all(has_region),
        }
    }

    /// The blocks of a tuple piece, in key order; empty for a block piece.
    pub(crate) fn tuple_entries(&self) -> &[TupleEntry] {
        match self {
            Self::Tuples(entries) => entries,
            Self::Blocks(_) => &[],
        }
    }

    /// The layers of a block piece, where a lower one has the newer version of a block; empty for a tuple
    /// piece.
    pub(crate) fn layers(&self) -> &[Layer] {
        match self {
            Self::Tuples(_) => &[],
            Self::Blocks(layers) => layers,
        }
    }

    pub(super) fn rebase(&mut self, base: Seqno) {
        match self {
            Self::Tuples(entries) => entries.iter_mut().for_each(|entry| entry.rebase(base)),
            Self::Blocks(layers) => layers.iter_mut().for_each(|layer| layer.rebase(base)),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Tuples(entries) => entries
                .iter()
                .map(|entry| size_of::<TupleEntry>() + entry.first_key.len() + entry.last_key.len())
                .sum(),
            Self::Blocks(layers) => layers.iter().map(Layer::memory_bytes).sum(),
        }
    }
}

/// An index that stays in memory as long as this lives.
#[derive(Clone)]
pub(crate) struct Index(Arc<Loaded<Content>>);

impl Index {
    pub(super) fn new(loaded: Arc<Loaded<Content>>) -> Self {
        Self(loaded)
    }
}

impl Deref for Index {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.0
    }
}

/// What stays known of an index that has been in memory once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Tuple blocks.
    pub(super) blocks: usize,
    /// Layers of a block piece.
    pub(super) layers: usize,
    /// A merge of the piece alone, with nothing older below, may drop something.
    pub(super) is_droppable: bool,
    /// Bytes of the data before it was packed.
    pub(super) raw_bytes: u64,
    /// What the index takes in memory (bytes).
    pub(super) index_bytes: u64,
}

impl Facts {
    pub(super) fn of(content: &Content) -> Self {
        const DROPPABLE: u8 = TupleEntry::HAS_VERSIONS | TupleEntry::HAS_DELETES | TupleEntry::HAS_MERGES;
        let (entries, layers) = (content.tuple_entries(), content.layers());
        let raw = |entry: &TupleEntry| match entry.packed {
            Some(_) => u64::from(entry.bytes).next_multiple_of(SECTOR_BYTES),
            None => entry.extent.len.into(),
        };
        let in_layers: u64 = layers.iter().map(|layer| layer.blocks() * SECTOR_BYTES).sum();
        Self {
            blocks: entries.len(),
            layers: layers.len(),
            is_droppable: layers.len() > 1 || entries.iter().any(|entry| entry.flags & DROPPABLE != 0),
            raw_bytes: entries.iter().map(raw).sum::<u64>() + in_layers,
            index_bytes: content.memory_bytes() as u64,
        }
    }
}
