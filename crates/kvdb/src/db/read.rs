//! Reads at a view and a seqno, and snapshots.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{
    BLOCK_BYTES, Cursor, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceKind, Read, Result, Seqno, Snapshot,
    StoreError,
};

use super::inner::Inner;
use super::view::View;
use crate::commit::SnapshotPin;
use crate::iter::VisibleCursor;
use crate::memtable::{BlockFill, BlockState, Lookup, split_block_key};

impl Inner {
    pub(crate) fn get_at(
        &self,
        view: &View,
        seqno: Seqno,
        keyspace: Keyspace,
        key: &[u8],
    ) -> Result<Option<Bytes>> {
        let meta = self.keyspaces.get(keyspace.0)?;
        if meta.kind == KeyspaceKind::Block {
            return Self::get_block(view, seqno, keyspace, key);
        }
        let mut lookup = Lookup::new(key, seqno);
        view.lookup(keyspace.0, &mut lookup)?;
        lookup.finish(&meta.merger)
    }

    fn get_block(view: &View, seqno: Seqno, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        // A key without room for a block number names nothing.
        let Some((prefix, block)) = split_block_key(key) else { return Ok(None) };
        let mut buf = vec![0; BLOCK_BYTES];
        let mut fill = BlockFill::new(prefix, block, seqno, &mut buf);
        view.fill(keyspace.0, &mut fill)?;
        let present = fill.finish().first() == Some(&BlockState::Data);
        Ok(present.then(|| buf.into()))
    }

    pub(crate) fn cursor_at(
        &self,
        view: Arc<View>,
        seqno: Seqno,
        keyspace: Keyspace,
        range: KeyRange,
    ) -> Result<Box<dyn Cursor>> {
        let meta = self.keyspaces.get(keyspace.0)?;
        let sources = view.sources(keyspace.0);
        Ok(Box::new(VisibleCursor::new(sources, seqno, range, meta.merger, Box::new(view))))
    }

    pub(crate) fn read_blocks_at(
        &self,
        view: &View,
        seqno: Seqno,
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
        let mut fill = BlockFill::new(prefix, first, seqno, buf);
        view.fill(keyspace.0, &mut fill)?;
        fill.finish();
        Ok(())
    }

    pub(crate) fn next_extent_at(
        &self,
        view: &View,
        seqno: Seqno,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.require_blocks(keyspace, "next_extent")?;
        view.next_extent(keyspace.0, prefix, from, kind, seqno)
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
}

impl Read for DbSnapshot {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.inner.get_at(&self.inner.view(), self.pin.seqno(), keyspace, key)
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let view = self.inner.view();
        keys.iter().map(|key| self.inner.get_at(&view, self.pin.seqno(), keyspace, key)).collect()
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        self.inner.cursor_at(self.inner.view(), self.pin.seqno(), keyspace, range)
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_blocks_at(&self.inner.view(), self.pin.seqno(), keyspace, prefix, first, buf)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.inner.next_extent_at(&self.inner.view(), self.pin.seqno(), keyspace, prefix, from, kind)
    }
}

impl Snapshot for DbSnapshot {
    fn seqno(&self) -> Seqno {
        self.pin.seqno()
    }
}
