//! Reads at a view and a seqno, and snapshots.

pub(crate) mod changed;
mod shared;
mod tiers;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{
    BLOCK_BYTES, BlockRange, Cursor, EachShared, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceKind,
    Result, Seqno, Snapshot, StoreError,
};

use crate::commit::{OwnWrites, SnapshotPin};
use crate::history::History;
use crate::layers::{Layers, Located};
use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::memtable::{BlockState, split_block_key};
use crate::runtime::Runtime;
use crate::table::load_advised;

/// The keyspace part of a read: what is stored where, and how it is resolved.
pub(crate) struct Reader {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) live: Arc<LiveSet>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    pub(crate) history: Arc<History>,
}

impl Reader {
    /// Of all positions of `history`.
    pub(crate) fn new(keyspaces: &Arc<Keyspaces>, history: &Arc<History>) -> Self {
        let (runtime, live) = (Arc::clone(&history.runtime), Arc::clone(&history.live));
        Self { runtime, live, keyspaces: Arc::clone(keyspaces), history: Arc::clone(history) }
    }

    pub(crate) fn get_at(&self, layers: &Layers, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        let meta = self.keyspaces.get(keyspace.0)?;
        self.runtime.counters.note_lookup();
        match meta.kind {
            KeyspaceKind::Tuple => layers.get(keyspace.0, key, &meta.merger),
            KeyspaceKind::Block => get_block(layers, keyspace, key),
        }
    }

    pub(crate) fn cursor_at(
        &self,
        layers: Layers,
        keyspace: Keyspace,
        range: KeyRange,
    ) -> Result<Box<dyn Cursor>> {
        let meta = self.keyspaces.get(keyspace.0)?;
        Ok(Box::new(layers.cursor(keyspace.0, range, meta.merger)))
    }

    pub(crate) fn read_blocks_at(
        &self,
        layers: &Layers,
        keyspace: Keyspace,
        prefix: &[u8],
        first: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        self.require_blocks(keyspace, "read_blocks")?;
        let count = (buf.len() / BLOCK_BYTES) as u64;
        if !buf.len().is_multiple_of(BLOCK_BYTES) || first.checked_add(count).is_none() {
            return Err(StoreError::BlockShape { first, len: buf.len() });
        }
        if buf.is_empty() {
            return Ok(());
        }
        self.runtime.ctx.zones.heat().note(prefix, first, count);
        layers.read_blocks(keyspace.0, prefix, first, buf).map(drop)
    }

    pub(crate) fn next_extent_at(
        &self,
        layers: &Layers,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.require_blocks(keyspace, "next_extent")?;
        layers.next_extent(keyspace.0, prefix, blocks, kind)
    }

    /// Takes advice, which is followed by the thread that reads ahead. It goes by the layers of now: what is
    /// merged meanwhile stays until then.
    pub(crate) fn will_need_at(&self, layers: Layers, keyspace: Keyspace, ranges: Vec<BlockRange>) {
        let follow = move || {
            let locate = |BlockRange { prefix, first, count }: &BlockRange| {
                layers.locate(keyspace.0, prefix, *first, usize::try_from(*count).ok()?).ok()
            };
            let in_piece = |located| match located {
                Located::InPiece(location) => Some(location),
                Located::InMemory(_) => None,
            };
            // What fails here fails again where it is asked for, and is told there.
            let located = ranges.iter().filter_map(locate).flatten();
            load_advised(located.filter_map(in_piece).collect());
        };
        if self.require_blocks(keyspace, "will_need").is_ok() {
            self.runtime.ctx.windows.advise(Box::new(follow));
        }
    }

    pub(crate) fn require_blocks(&self, keyspace: Keyspace, operation: &'static str) -> Result<()> {
        let meta = self.keyspaces.get(keyspace.0)?;
        if meta.kind == KeyspaceKind::Block {
            return Ok(());
        }
        Err(StoreError::wrong_kind(operation, &*meta.name, meta.kind))
    }
}

/// A pinned position, maybe below what a transaction had written. Reads go through the layers of the moment:
/// the pin keeps merges from dropping what it sees.
pub(crate) struct DbSnapshot {
    reader: Arc<Reader>,
    pin: SnapshotPin,
    own: Option<OwnWrites>,
}

impl DbSnapshot {
    /// Pins the newest position. The tracker takes the position under its own lock, so that a flush or
    /// merge either sees the pin or works only on what is at or below it.
    pub(crate) fn new(reader: Arc<Reader>) -> Self {
        let pin = reader.history.pin_newest();
        Self::at(reader, pin)
    }

    /// Reads at a position that is pinned already.
    pub(crate) fn at(reader: Arc<Reader>, pin: SnapshotPin) -> Self {
        Self::through(reader, pin, None)
    }

    /// As [`Self::at`], through writes of a transaction.
    pub(crate) fn through(reader: Arc<Reader>, pin: SnapshotPin, own: Option<OwnWrites>) -> Self {
        Self { reader, pin, own }
    }

    /// The layers that `snapshot` sees, be it one of this engine or not.
    pub(crate) fn layers_of(snapshot: &dyn Snapshot, live: &LiveSet) -> Layers {
        let own = snapshot.as_any().and_then(|any| any.downcast_ref::<Self>()).and_then(|of| of.own.clone());
        Layers { view: live.view(), seqno: snapshot.seqno(), own }
    }
}

fn get_block(layers: &Layers, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
    // A key without room for a block number names nothing.
    let Some((prefix, block)) = split_block_key(key) else { return Ok(None) };
    let mut buf = vec![0; BLOCK_BYTES];
    let states = layers.read_blocks(keyspace.0, prefix, block, &mut buf)?;
    Ok((states.first() == Some(&BlockState::Data)).then(|| buf.into()))
}

/// What reads at layers of its own: the store, a snapshot, a transaction. Each read has one position.
pub(crate) trait ReadAt: Send + Sync {
    fn reader(&self) -> &Reader;

    /// The layers for a read that begins now.
    fn layers(&self) -> Result<Layers>;
}

/// Implements the seam's reads by [`ReadAt`]. (A blanket implementation of a trait of another crate is not
/// allowed.)
macro_rules! read_at_layers {
    ($reader:ty) => {
        impl kvfs_store::Read for $reader {
            fn get(
                &self,
                keyspace: kvfs_store::Keyspace,
                key: &[u8],
            ) -> kvfs_store::Result<Option<bytes::Bytes>> {
                self.reader().get_at(&self.layers()?, keyspace, key)
            }

            fn multi_get(
                &self,
                keyspace: kvfs_store::Keyspace,
                keys: &[&[u8]],
            ) -> kvfs_store::Result<Vec<Option<bytes::Bytes>>> {
                let layers = self.layers()?;
                keys.iter().map(|key| self.reader().get_at(&layers, keyspace, key)).collect()
            }

            fn cursor(
                &self,
                keyspace: kvfs_store::Keyspace,
                range: kvfs_store::KeyRange,
            ) -> kvfs_store::Result<Box<dyn kvfs_store::Cursor>> {
                self.reader().cursor_at(self.layers()?, keyspace, range)
            }

            fn read_blocks(
                &self,
                keyspace: kvfs_store::Keyspace,
                prefix: &[u8],
                first: u64,
                buf: &mut [u8],
            ) -> kvfs_store::Result<()> {
                self.reader().read_blocks_at(&self.layers()?, keyspace, prefix, first, buf)
            }

            fn next_extent(
                &self,
                keyspace: kvfs_store::Keyspace,
                prefix: &[u8],
                blocks: std::ops::Range<u64>,
                kind: kvfs_store::ExtentKind,
            ) -> kvfs_store::Result<Option<kvfs_store::Extent>> {
                self.reader().next_extent_at(&self.layers()?, keyspace, prefix, blocks, kind)
            }

            fn will_need(&self, keyspace: kvfs_store::Keyspace, ranges: Vec<kvfs_store::BlockRange>) {
                if let Ok(layers) = self.layers() {
                    self.reader().will_need_at(layers, keyspace, ranges);
                }
            }
        }
    };
}

pub(crate) use read_at_layers;

read_at_layers!(DbSnapshot);

impl ReadAt for DbSnapshot {
    fn reader(&self) -> &Reader {
        &self.reader
    }

    fn layers(&self) -> Result<Layers> {
        Ok(Self::layers_of(self, &self.reader.live))
    }
}

impl Snapshot for DbSnapshot {
    fn seqno(&self) -> Seqno {
        self.pin.seqno()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn each_shared(&self, keyspace: Keyspace, each: EachShared<'_>) -> Result<()> {
        self.reader.each_shared(&self.layers()?, keyspace, each)
    }
}
