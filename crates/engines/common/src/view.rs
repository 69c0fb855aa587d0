//! Reads at one position: the newest, or that of a snapshot.
//!
//! Thread safety: borrows; any thread.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::blocks::{block_key, block_of, extent, keys_of_blocks};
use kvfs_store::{BLOCK_BYTES, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceKind, Result, StoreError};

use crate::database::{Database, Entries};
use crate::shared::Shared;
use crate::space::Space;

/// Longest extent of data that one call looks for (blocks): an entry comes with its content, so that each
/// block costs as much as to read it.
const EXTENT_BLOCKS_MAX: usize = 64;

/// Called with a key and its value; says whether to go on.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// See the module.
pub(crate) struct View<'a, D: Database> {
    pub(crate) shared: &'a Shared<D>,
    /// `None`: the newest state, a fresh position at each call.
    pub(crate) at: Option<&'a Arc<D::Snapshot>>,
}

impl<'a, D: Database> View<'a, D> {
    pub(crate) fn newest(shared: &'a Shared<D>) -> Self {
        Self { shared, at: None }
    }

    /// Reads at the position.
    fn read<T>(&self, read: impl FnOnce(Option<&Arc<D::Snapshot>>) -> Result<T>) -> Result<T> {
        if self.at.is_some() || D::DELETES_RANGES {
            return read(self.at);
        }
        self.shared.held.read(read)
    }

    pub(crate) fn get(&self, space: &Space<D::Handle>, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(|at| self.shared.db.get(at, space, key))
    }

    pub(crate) fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let space = self.shared.space(keyspace)?;
        self.read(|at| self.shared.db.multi_get(at, &space, keys))
    }

    /// Over the keys in `range`, which is not empty; nowhere yet.
    pub(crate) fn entries(&self, space: &Space<D::Handle>, range: &KeyRange) -> Result<D::Entries> {
        self.read(|at| self.shared.db.entries(at, space, range))
    }

    pub(crate) fn read_blocks(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        first: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let space = self.shared.space(keyspace)?;
        space.expect_kind(KeyspaceKind::Block, "read_blocks")?;
        let count = (buf.len() / BLOCK_BYTES) as u64;
        let Some(end) = first.checked_add(count).filter(|_| buf.len().is_multiple_of(BLOCK_BYTES)) else {
            return Err(StoreError::BlockShape { first, len: buf.len() });
        };
        if count == 1 {
            match self.get(&space, &block_key(prefix, first))? {
                Some(block) => place::<D>(&block, 0, buf)?,
                None => buf.fill(0),
            }
            return Ok(());
        }
        buf.fill(0);
        let range = KeyRange::new(block_key(prefix, first), block_key(prefix, end));
        self.walk(&space, &range, &mut |key, value| {
            let block = block_of(prefix, key).map(|block| (block - first) as usize * BLOCK_BYTES);
            block.map_or(Ok(true), |offset| place::<D>(value, offset, buf).map(|()| true))
        })
    }

    pub(crate) fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        let space = self.shared.space(keyspace)?;
        space.expect_kind(KeyspaceKind::Block, "next_extent")?;
        if blocks.is_empty() {
            return Ok(None);
        }
        let mut entries = self.entries(&space, &keys_of_blocks(prefix, &blocks))?;
        entries.first();
        let mut is_first = true;
        let mut present = std::iter::from_fn(|| {
            loop {
                if !std::mem::take(&mut is_first) {
                    entries.next();
                }
                let (key, _) = entries.entry()?;
                if let Some(block) = block_of(prefix, key) {
                    return Some(block);
                }
            }
        });
        let found = match kind {
            ExtentKind::Data => extent(blocks, kind, &mut present.by_ref().take(EXTENT_BLOCKS_MAX)),
            ExtentKind::Hole => extent(blocks, kind, &mut present),
        };
        entries.check()?;
        Ok(found)
    }

    /// Calls `visit` for each entry of `range` until it says no.
    pub(crate) fn walk(&self, space: &Space<D::Handle>, range: &KeyRange, visit: Visit<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut entries = self.entries(space, range)?;
        entries.first();
        while let Some((key, value)) = entries.entry() {
            if !visit(key, value)? {
                return Ok(());
            }
            entries.next();
        }
        entries.check()
    }
}

/// Copies a block to its place.
fn place<D: Database>(block: &[u8], offset: usize, buf: &mut [u8]) -> Result<()> {
    if block.len() != BLOCK_BYTES {
        return Err(StoreError::corrupt(D::TITLE, format!("a block has {} bytes", block.len())));
    }
    buf[offset..offset + BLOCK_BYTES].copy_from_slice(block);
    Ok(())
}
