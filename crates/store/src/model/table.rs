//! One keyspace: an ordered map of versioned keys, and the reads on it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, Range};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use super::versions::Versions;
use crate::blocks::{block_key, block_of, extent};
use crate::write_set::Space;
use crate::{
    BLOCK_BYTES, ChangedRanges, Extent, ExtentKind, KeyRange, Keyspace, KeyspaceInfo, KeyspaceKind,
    MergeFunction, Result, Seqno, StoreError,
};

/// Reads at this position see the newest state.
pub(super) const NEWEST: Seqno = Seqno::MAX;

/// The map of one keyspace.
pub(super) type Map = BTreeMap<Bytes, Versions>;

/// What differs, found at once.
pub(super) struct ModelChanged(VecDeque<KeyRange>);

impl ChangedRanges for ModelChanged {
    fn next(&mut self) -> Result<Option<KeyRange>> {
        Ok(self.0.pop_front())
    }
}

/// One keyspace.
pub(super) struct Table {
    pub(super) keyspace: Keyspace,
    pub(super) name: String,
    pub(super) kind: KeyspaceKind,
    pub(super) merge: RwLock<Option<Arc<dyn MergeFunction>>>,
    pub(super) map: RwLock<Map>,
}

impl Table {
    pub(super) fn new(
        keyspace: Keyspace,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Self {
        Self { keyspace, name: name.to_owned(), kind, merge: RwLock::new(merge), map: RwLock::default() }
    }

    pub(super) fn info(&self) -> KeyspaceInfo {
        KeyspaceInfo { keyspace: self.keyspace, name: self.name.clone(), kind: self.kind }
    }

    pub(super) fn key_count(&self) -> u64 {
        self.map.read().len() as u64
    }

    /// Exactly the keys in `range` that were written to between two pinned positions.
    pub(super) fn changed_ranges(&self, range: &KeyRange, older: Seqno, newer: Seqno) -> ModelChanged {
        let map = self.map.read();
        let from = (Bound::Included(range.start.clone()), Bound::Unbounded);
        let keys = map.range(from).take_while(|(key, _)| range.contains(key));
        let changed = keys.filter(|(_, versions)| versions.is_touched(older, newer));
        let ranges = changed.map(|(key, _)| KeyRange::new(key.clone(), [&key[..], b"\0"].concat()));
        ModelChanged(ranges.collect())
    }

    /// The merge function, which merges need.
    pub(super) fn merge_function(&self) -> Result<Arc<dyn MergeFunction>> {
        self.merge.read().clone().ok_or_else(|| StoreError::NoMergeFunction(self.name.clone()))
    }

    /// What transactions have to know of it.
    pub(super) fn space(&self) -> Arc<Space> {
        let merge = self.merge.read().clone();
        Arc::new(Space { keyspace: self.keyspace, name: self.name.clone(), kind: self.kind, merge })
    }

    /// Fails with `WrongKind` unless the keyspace holds `kind`.
    pub(super) fn expect_kind(&self, kind: KeyspaceKind, operation: &'static str) -> Result<()> {
        if self.kind == kind { Ok(()) } else { Err(StoreError::wrong_kind(operation, &self.name, self.kind)) }
    }

    pub(super) fn get(&self, key: &[u8], at: Seqno) -> Option<Bytes> {
        self.map.read().get(key)?.at(at).cloned()
    }

    pub(super) fn multi_get(&self, keys: &[&[u8]], at: Seqno) -> Vec<Option<Bytes>> {
        let map = self.map.read();
        keys.iter().map(|&key| map.get(key)?.at(at).cloned()).collect()
    }

    /// The first entry of `range` behind `lower`.
    pub(super) fn entry_after(
        &self,
        range: &KeyRange,
        lower: Bound<&[u8]>,
        at: Seqno,
    ) -> Option<(Bytes, Bytes)> {
        let lower = match lower {
            Bound::Included(key) | Bound::Excluded(key) if key >= &range.start[..] => lower,
            _ => Bound::Included(&range.start[..]),
        };
        let map = self.map.read();
        map.range::<[u8], _>((lower, Bound::Unbounded))
            .take_while(|(key, _)| range.end.as_ref().is_none_or(|end| *key < end))
            .find_map(|(key, versions)| Some((key.clone(), versions.at(at)?.clone())))
    }

    /// The last entry of `range` before `upper`.
    pub(super) fn entry_before(
        &self,
        range: &KeyRange,
        upper: Bound<&[u8]>,
        at: Seqno,
    ) -> Option<(Bytes, Bytes)> {
        let end = range.end.as_ref().map(|end| &end[..]);
        let upper = match (upper, end) {
            (Bound::Included(key) | Bound::Excluded(key), Some(end)) if key >= end => Bound::Excluded(end),
            (Bound::Unbounded, Some(end)) => Bound::Excluded(end),
            _ => upper,
        };
        let map = self.map.read();
        map.range::<[u8], _>((Bound::Unbounded, upper))
            .rev()
            .take_while(|(key, _)| **key >= range.start)
            .find_map(|(key, versions)| Some((key.clone(), versions.at(at)?.clone())))
    }

    pub(super) fn read_blocks(&self, prefix: &[u8], first: u64, buf: &mut [u8], at: Seqno) -> Result<()> {
        self.expect_kind(KeyspaceKind::Block, "read_blocks")?;
        let count = (buf.len() / BLOCK_BYTES) as u64;
        let Some(end) = first.checked_add(count).filter(|_| buf.len().is_multiple_of(BLOCK_BYTES)) else {
            return Err(StoreError::BlockShape { first, len: buf.len() });
        };
        buf.fill(0);
        let (start, end) = (block_key(prefix, first), block_key(prefix, end));
        let map = self.map.read();
        for (key, versions) in map.range(start..end) {
            if let (Some(block), Some(value)) = (block_of(prefix, key), versions.at(at)) {
                let offset = (block - first) as usize * BLOCK_BYTES;
                buf[offset..offset + BLOCK_BYTES].copy_from_slice(value);
            }
        }
        Ok(())
    }

    pub(super) fn next_extent(
        &self,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
        at: Seqno,
    ) -> Result<Option<Extent>> {
        self.expect_kind(KeyspaceKind::Block, "next_extent")?;
        if blocks.is_empty() {
            return Ok(None);
        }
        let map = self.map.read();
        let mut present = map
            .range(block_key(prefix, blocks.start)..block_key(prefix, blocks.end))
            .filter_map(|(key, versions)| versions.at(at).and_then(|_| block_of(prefix, key)));
        Ok(extent(blocks, kind, &mut present))
    }
}
