//! Point reads in tuple pieces, and the verified way from the device to a tuple block.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::Result;

use super::Access;
use super::piece::{Piece, is_intact};
use super::read_ahead::Direction;
use crate::format::{DecodeError, PackedBlock, TupleBlock, TupleCursor, TupleEntry, unpack};
use crate::memtable::Lookup;

impl Piece {
    pub(super) fn lookup_tuple(&self, lookup: &mut Lookup<'_>) -> Result<()> {
        let (key, snapshot) = (lookup.key(), lookup.snapshot());
        let tombstone = self.tombstones().covering(key, snapshot);
        let filtered = self.resident_filter_says(key);
        if filtered == Some(false) {
            // Not even the index is needed.
            lookup.end_layer(tombstone);
            return Ok(());
        }
        let index = self.glance()?;
        let entries = index.tuple_entries();
        let first = entries.partition_point(|entry| entry.last_key[..] < *key);
        // The versions of a key may go on in the next blocks.
        let candidates = entries[first..].iter().take_while(|entry| entry.first_key[..] <= *key);
        let mut must_ask = filtered.is_none();
        for entry in candidates {
            if must_ask && !self.passes_filter(key) {
                break;
            }
            must_ask = false;
            let block = self.tuple_block(entry, Direction::Forward)?;
            let malformed = |error| self.malformed_block(entry, error);
            let mut cursor = TupleCursor::new(block, entry.shift).map_err(malformed)?;
            cursor.seek(key, snapshot).map_err(malformed)?;
            while let Some(record) = cursor.record() {
                let go_on = record.key == key
                    && lookup.visit(record.seqno, record.kind, || cursor.value(), tombstone);
                if !go_on {
                    lookup.end_layer(tombstone);
                    return Ok(());
                }
                cursor.next().map_err(malformed)?;
            }
        }
        lookup.end_layer(tombstone);
        Ok(())
    }

    /// The verified bytes of a block, from the cache or the device; reads ahead along a walk in `direction`.
    pub(super) fn tuple_block(&self, entry: &TupleEntry, direction: Direction) -> Result<Bytes> {
        let (addr, len) = (entry.extent.addr, entry.extent.len as usize);
        if let Some(block) = self.ctx().cache.get(self.cache_key(addr)) {
            return Ok(block.bytes().clone());
        }
        if let Some(window) = self.ahead(addr, len, len, direction)
            && let Some(bytes) = window.bytes()
        {
            let block = bytes.at(addr, len);
            if let Some(packed) = &entry.packed {
                return Ok(self.cache_own(addr, self.unpack_block(entry, packed, block)?));
            }
            let len = self.verify_tuple_block(entry, block)?;
            return Ok(self.cache_copy(addr, &block[..len]));
        }
        let mut buf = AlignedBuf::zeroed(len);
        self.read(buf.as_mut(), addr)?;
        if let Some(packed) = &entry.packed {
            return Ok(self.cache_own(addr, self.unpack_block(entry, packed, buf.as_ref())?));
        }
        let len = self.verify_tuple_block(entry, buf.as_ref())?;
        // Not the buffer itself: the cache is to hold no more than the block.
        Ok(self.cache_copy(addr, &buf.as_ref()[..len]))
    }

    /// The verified block that is packed at the start of `stored`.
    pub(super) fn unpack_block(
        &self,
        entry: &TupleEntry,
        packed: &PackedBlock,
        stored: &[u8],
    ) -> Result<Bytes> {
        let stored = &stored[..packed.bytes as usize];
        if !is_intact(stored, packed.crc) {
            return Err(self.malformed_block(entry, DecodeError("checksum does not match")));
        }
        let mut raw = vec![0; entry.bytes as usize];
        unpack(packed.codec, stored, &mut raw).map_err(|error| self.malformed_block(entry, error))?;
        self.verify_tuple_block(entry, &raw)?;
        Ok(raw.into())
    }

    /// Checks the block at the start of `bytes` against its checksum and its index entry; returns
    /// its length.
    pub(super) fn verify_tuple_block(&self, entry: &TupleEntry, bytes: &[u8]) -> Result<usize> {
        let block = TupleBlock::verify(bytes).map_err(|error| self.malformed_block(entry, error))?;
        let is_named = block.len() == entry.bytes as usize
            && block.records() == entry.records
            && block.crc() == entry.crc;
        if !is_named {
            let detail = "another block than the index names";
            return Err(self.corrupt("tuple block", entry.extent.addr, detail));
        }
        Ok(block.len())
    }

    pub(super) fn malformed_block(&self, entry: &TupleEntry, error: DecodeError) -> kvfs_store::StoreError {
        self.corrupt("tuple block", entry.extent.addr, error.0)
    }

    pub(super) fn verify_tuples(self: &Arc<Self>) -> Result<u64> {
        let mut iter = self.iter(Access::Sequential);
        let mut last: Option<(Vec<u8>, u64)> = None;
        iter.first()?;
        while let Some(record) = iter.record() {
            let in_order = last.as_ref().is_none_or(|(key, seqno)| {
                (&key[..], std::cmp::Reverse(*seqno)) < (record.key, std::cmp::Reverse(record.seqno))
            });
            if !in_order {
                let addr = self.index()?.tuple_entries().first().map_or(0, |entry| entry.extent.addr);
                return Err(self.corrupt("tuples", addr, "records are not in order"));
            }
            last = Some((record.key.to_vec(), record.seqno));
            iter.next()?;
        }
        Ok(self.desc().data_bytes)
    }
}
