//! Reads at one position: the newest, or that of a snapshot.
//!
//! Thread safety: borrows; any thread.

use bytes::Bytes;
use kvfs_store::blocks::{block_key, block_of, extent};
use kvfs_store::{BLOCK_BYTES, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceKind, Result, StoreError};
use rocksdb::{DBRawIteratorWithThreadMode, ReadOptions, SnapshotWithThreadMode};

use crate::error::of_rocksdb;
use crate::shared::{Db, Shared};
use crate::space::Space;

pub(crate) type DbSnapshot<'a> = SnapshotWithThreadMode<'a, Db>;
pub(crate) type DbIterator<'a> = DBRawIteratorWithThreadMode<'a, Db>;

/// Called with a key and its value; says whether to go on.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) shared: &'a Shared,
    /// `None`: the newest state, a fresh position at each call.
    pub(crate) at: Option<&'a DbSnapshot<'a>>,
}

impl<'a> View<'a> {
    pub(crate) fn newest(shared: &'a Shared) -> Self {
        Self { shared, at: None }
    }

    fn options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        if let Some(at) = self.at {
            options.set_snapshot(at);
        }
        options
    }

    pub(crate) fn get(&self, space: &Space, key: &[u8]) -> Result<Option<Bytes>> {
        let family = self.shared.family(space)?;
        let found = self.shared.db.get_pinned_cf_opt(&family, key, &self.options());
        let found = found.map_err(|error| of_rocksdb("reading a key", &error))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    pub(crate) fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let space = self.shared.space(keyspace)?;
        let family = self.shared.family(&space)?;
        let found = self.shared.db.batched_multi_get_cf_opt(&family, keys, false, &self.options());
        let value = |found: Result<Option<rocksdb::DBPinnableSlice<'_>>, rocksdb::Error>| {
            let found = found.map_err(|error| of_rocksdb("reading keys", &error))?;
            Ok(found.map(|value| Bytes::copy_from_slice(&value)))
        };
        found.into_iter().map(value).collect()
    }

    /// Over the keys in `range`, which is not empty; nowhere yet.
    pub(crate) fn iterator(&self, space: &Space, range: &KeyRange) -> Result<DbIterator<'a>> {
        let family = self.shared.family(space)?;
        let mut options = self.options();
        if !range.start.is_empty() {
            options.set_iterate_lower_bound(range.start.to_vec());
        }
        if let Some(end) = &range.end {
            options.set_iterate_upper_bound(end.to_vec());
        }
        Ok(self.shared.db.raw_iterator_cf_opt(&family, options))
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
                Some(block) => place(&block, 0, buf)?,
                None => buf.fill(0),
            }
            return Ok(());
        }
        buf.fill(0);
        let range = KeyRange::new(block_key(prefix, first), block_key(prefix, end));
        self.walk(&space, &range, &mut |key, value| {
            let block = block_of(prefix, key).map(|block| (block - first) as usize * BLOCK_BYTES);
            block.map_or(Ok(true), |offset| place(value, offset, buf).map(|()| true))
        })
    }

    pub(crate) fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        let space = self.shared.space(keyspace)?;
        space.expect_kind(KeyspaceKind::Block, "next_extent")?;
        let mut end = block_key(prefix, u64::MAX).to_vec();
        end.push(0);
        let mut iterator = self.iterator(&space, &KeyRange::new(block_key(prefix, from), end))?;
        iterator.seek_to_first();
        let mut is_first = true;
        let mut blocks = std::iter::from_fn(|| {
            loop {
                if !std::mem::take(&mut is_first) {
                    iterator.next();
                }
                let key = iterator.key()?;
                if let Some(block) = block_of(prefix, key) {
                    return Some(block);
                }
            }
        });
        let found = extent(from, kind, &mut blocks);
        iterator.status().map_err(|error| of_rocksdb("looking for blocks", &error))?;
        Ok(found)
    }

    /// Calls `visit` for each entry of `range`, which is not empty, until it says no.
    pub(crate) fn walk(&self, space: &Space, range: &KeyRange, visit: Visit<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut iterator = self.iterator(space, range)?;
        iterator.seek_to_first();
        while let Some((key, value)) = iterator.item() {
            if !visit(key, value)? {
                return Ok(());
            }
            iterator.next();
        }
        iterator.status().map_err(|error| of_rocksdb("walking over keys", &error))
    }
}

/// Copies a block to its place.
fn place(block: &[u8], offset: usize, buf: &mut [u8]) -> Result<()> {
    if block.len() != BLOCK_BYTES {
        return Err(StoreError::corrupt("RocksDB", format!("a block has {} bytes", block.len())));
    }
    buf[offset..offset + BLOCK_BYTES].copy_from_slice(block);
    Ok(())
}
