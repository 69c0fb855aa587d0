//! Reads of one keyspace through private writes.
//!
//! Thread safety: borrows the state below; immutable.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::cursor::OverlayCursor;
use super::{Space, WriteSet, Written};
use crate::blocks::{block_key, block_of, extent, keys_of_blocks};
use crate::{BLOCK_BYTES, Cursor, Extent, ExtentKind, KeyRange, KeyspaceKind, Read, Result};

/// One keyspace of `base`, with what was written over it.
pub struct Overlay<'a> {
    base: &'a dyn Read,
    space: Arc<Space>,
    own: WriteSet,
}

impl<'a> Overlay<'a> {
    /// See the type.
    pub fn new(base: &'a dyn Read, space: Arc<Space>, own: WriteSet) -> Self {
        Self { base, space, own }
    }

    /// As [`Read::get`].
    ///
    /// # Errors
    /// As there, and those of merge functions, here and below.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.own.get(key) {
            Some(Written::Value(value)) => Ok(Some(value)),
            Some(Written::Deleted) => Ok(None),
            Some(Written::Operands(operands)) => {
                let base = self.base.get(self.space.keyspace, key)?;
                resolved(&self.space, key, base.as_deref(), &operands)
            }
            None => self.base.get(self.space.keyspace, key),
        }
    }

    /// As [`Read::multi_get`].
    ///
    /// # Errors
    /// As [`Overlay::get`].
    pub fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        if self.own.is_empty() {
            return self.base.multi_get(self.space.keyspace, keys);
        }
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// As [`Read::cursor`].
    ///
    /// # Errors
    /// As [`Overlay::get`].
    pub fn cursor(&self, range: KeyRange) -> Result<Box<dyn Cursor>> {
        let base = self.base.cursor(self.space.keyspace, range.clone())?;
        if !self.own.touches(&range) {
            return Ok(base);
        }
        Ok(Box::new(OverlayCursor::new(base, Arc::clone(&self.space), self.own.clone(), range)))
    }

    /// As [`Read::read_blocks`].
    ///
    /// # Errors
    /// As [`Overlay::get`].
    pub fn read_blocks(&self, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.base.read_blocks(self.space.keyspace, prefix, first, buf)?;
        let count = (buf.len() / BLOCK_BYTES) as u64;
        if !self.own.touches(&keys_of_blocks(prefix, &(first..first.saturating_add(count)))) {
            return Ok(());
        }
        for (data, block) in buf.chunks_mut(BLOCK_BYTES).zip(first..) {
            match self.own.get(&block_key(prefix, block)) {
                Some(Written::Value(value)) => data.copy_from_slice(&value),
                Some(_) => data.fill(0),
                None => {}
            }
        }
        Ok(())
    }

    /// As [`Read::next_extent`].
    ///
    /// # Errors
    /// As [`Overlay::get`].
    pub fn next_extent(&self, prefix: &[u8], blocks: Range<u64>, kind: ExtentKind) -> Result<Option<Extent>> {
        self.space.expect_kind(KeyspaceKind::Block, "next_extent")?;
        let range = keys_of_blocks(prefix, &blocks);
        if blocks.is_empty() || !self.own.touches(&range) {
            return self.base.next_extent(self.space.keyspace, prefix, blocks, kind);
        }
        let mut cursor = self.cursor(range)?;
        let mut failed = None;
        let mut present = std::iter::from_fn(|| {
            loop {
                if let Err(error) = cursor.next() {
                    failed = Some(error);
                    return None;
                }
                let (key, _) = cursor.entry()?;
                if let Some(block) = block_of(prefix, key) {
                    return Some(block);
                }
            }
        });
        let found = extent(blocks, kind, &mut present);
        failed.map_or(Ok(found), Err)
    }
}

/// `operands` merged into what is below of `key`.
pub(super) fn resolved(
    space: &Space,
    key: &[u8],
    base: Option<&[u8]>,
    operands: &[Bytes],
) -> Result<Option<Bytes>> {
    let operands: Vec<&[u8]> = operands.iter().map(|operand| &operand[..]).collect();
    space.merge_function()?.resolve(key, base, &operands)
}
