//! Reads at a view and a seqno, and snapshots.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{
    BLOCK_BYTES, Cursor, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceKind, Read, Result, Seqno, Snapshot,
    StoreError,
};

use super::inner::Inner;
use super::layers::Layers;
use crate::commit::SnapshotPin;
use crate::memtable::{BlockState, split_block_key};

/// The keyspace part of a read: what is stored where, and how it is resolved.
impl Inner {
    pub(crate) fn get_at(&self, layers: &Layers, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        let meta = self.keyspaces.get(keyspace.0)?;
        self.counters.note_lookup();
        match meta.kind {
            KeyspaceKind::Tuple => layers.lookup(keyspace.0, key)?.finish(&meta.merger),
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
        layers.read_blocks(keyspace.0, prefix, first, buf).map(drop)
    }

    pub(crate) fn next_extent_at(
        &self,
        layers: &Layers,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.require_blocks(keyspace, "next_extent")?;
        layers.next_extent(keyspace.0, prefix, from, kind)
    }

    fn require_blocks(&self, keyspace: Keyspace, operation: &'static str) -> Result<()> {
        let meta = self.keyspaces.get(keyspace.0)?;
        if meta.kind == KeyspaceKind::Block {
            return Ok(());
        }
        Err(StoreError::WrongKind { operation, name: meta.name.to_string(), kind: "tuples" })
    }
}

/// A pinned position. Reads go through the layers of the moment: the pin keeps merges from dropping
/// what it sees.
pub(crate) struct DbSnapshot {
    inner: Arc<Inner>,
    pin: SnapshotPin,
}

impl DbSnapshot {
    /// Pins the newest position. The tracker takes the position under its own lock, so that a flush or
    /// merge either sees the pin or works only on what is at or below it.
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let pin = inner.snapshots.pin_newest(&inner.publisher);
        Self { inner, pin }
    }

    /// Reads at a position that is pinned already.
    pub(crate) fn at(inner: Arc<Inner>, pin: SnapshotPin) -> Self {
        Self { inner, pin }
    }
}

fn get_block(layers: &Layers, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
    // A key without room for a block number names nothing.
    let Some((prefix, block)) = split_block_key(key) else { return Ok(None) };
    let mut buf = vec![0; BLOCK_BYTES];
    let states = layers.read_blocks(keyspace.0, prefix, block, &mut buf)?;
    Ok((states.first() == Some(&BlockState::Data)).then(|| buf.into()))
}

/// Whoever reads at layers of its own: the store, a snapshot, a transaction. Each read has one position.
pub(crate) trait ReadAt: Send + Sync {
    fn inner(&self) -> &Inner;

    /// The layers for a read that begins now.
    fn layers(&self) -> Result<Layers>;
}

/// Implements the seam's reads by [`ReadAt`]. (A blanket implementation of a trait of another crate is not
/// allowed.)
macro_rules! read_at_layers {
    ($reader:ty) => {
        impl Read for $reader {
            fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
                self.inner().get_at(&self.layers()?, keyspace, key)
            }

            fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
                let layers = self.layers()?;
                keys.iter().map(|key| self.inner().get_at(&layers, keyspace, key)).collect()
            }

            fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
                self.inner().cursor_at(self.layers()?, keyspace, range)
            }

            fn read_blocks(
                &self,
                keyspace: Keyspace,
                prefix: &[u8],
                first: u64,
                buf: &mut [u8],
            ) -> Result<()> {
                self.inner().read_blocks_at(&self.layers()?, keyspace, prefix, first, buf)
            }

            fn next_extent(
                &self,
                keyspace: Keyspace,
                prefix: &[u8],
                from: u64,
                kind: ExtentKind,
            ) -> Result<Option<Extent>> {
                self.inner().next_extent_at(&self.layers()?, keyspace, prefix, from, kind)
            }
        }
    };
}

read_at_layers!(super::Db);
read_at_layers!(DbSnapshot);
read_at_layers!(super::txn::DbTxn);

impl ReadAt for DbSnapshot {
    fn inner(&self) -> &Inner {
        &self.inner
    }

    fn layers(&self) -> Result<Layers> {
        Ok(Layers { view: self.inner.view(), seqno: self.pin.seqno(), own: None })
    }
}

impl Snapshot for DbSnapshot {
    fn seqno(&self) -> Seqno {
        self.pin.seqno()
    }
}
