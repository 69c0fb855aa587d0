//! The tuple half of a piece writer: records into blocks, blocks into chunks, chunks to the device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, SECTOR_BYTES};
use kvfs_store::{Compression, Result, Seqno, StoreError};

use super::RunContext;
use super::filter::fingerprint;
use super::held::HeldExtents;
use super::index::Index;
use super::piece::Piece;
use super::salvage::fingerprints_anew;
use super::writer::Target;
use crate::cache::{Charge, Pool};
use crate::format::{
    Extent, Fingerprints, PackedBlock, Packer, PieceId, RecordKind, TUPLE_BLOCK_BYTES_MAX, TupleBlockBuilder,
    TupleEntry, crc32c,
};

/// A block may pass its target size up to this many times over, if it would waste much of its last
/// sector otherwise.
const STRETCH_MAX: usize = 2;

/// A block that is to be packed gets so many times as long, since the sectors that this saves are whole ones.
const PACKED_BLOCKS: usize = 2;

/// Blocks, written and pending, with what the index says of them.
pub(super) struct TupleOutput {
    builder: TupleBlockBuilder,
    block_bytes: usize,
    /// What is known of the block that is being built.
    first_key: Vec<u8>,
    flags: u8,
    seqno_min: Seqno,
    seqno_max: Seqno,
    /// Whole finished blocks that are not written yet, each padded to sectors.
    chunk: AlignedBuf,
    chunk_len: usize,
    /// Index of each block in the chunk; `addr` of their entries is not set yet.
    pending: Vec<usize>,
    pub(super) entries: Vec<TupleEntry>,
    pub(super) fingerprints: Fingerprints,
    /// Fingerprints of the pieces that were stitched from, and the memory that they take.
    sources: HashMap<PieceId, Fingerprints>,
    sources_charge: Charge,
    /// For entries and fingerprints of what is written: they stay until the end.
    meta_charge: Charge,
    packer: Packer,
    /// How the block that is being built is to be stored, as far as its records wish for anything.
    wish: Compression,
}

impl TupleOutput {
    pub(super) fn new(ctx: &RunContext) -> Self {
        Self {
            sources: HashMap::new(),
            sources_charge: ctx.accountant.charge(Pool::Io, 0),
            meta_charge: ctx.accountant.charge(Pool::Io, 0),
            builder: TupleBlockBuilder::default(),
            block_bytes: ctx.options.tuple_block_bytes,
            first_key: Vec::new(),
            flags: 0,
            seqno_min: Seqno::MAX,
            seqno_max: 0,
            chunk: AlignedBuf::zeroed(0),
            chunk_len: 0,
            pending: Vec::new(),
            entries: Vec::new(),
            fingerprints: Fingerprints::default(),
            packer: Packer::default(),
            wish: Compression::None,
        }
    }

    /// Memory of index entries and fingerprints, but for long keys.
    pub(super) fn meta_bytes(&self) -> usize {
        self.entries.len() * size_of::<TupleEntry>() + self.fingerprints.values.len() * size_of::<u32>()
    }

    pub(super) fn add(
        &mut self,
        (target, held): (&Target, &mut HeldExtents),
        key: &[u8],
        seqno: Seqno,
        kind: RecordKind,
        value: &[u8],
    ) -> Result<()> {
        if !self.builder.is_empty() && self.is_block_full(key, value) {
            self.end_block(target, held)?;
        }
        if self.wish == Compression::None {
            self.wish = target.packing.wish_of(kind, value);
        }
        let block_bytes_max = TUPLE_BLOCK_BYTES_MAX.min(target.ctx.zones.zone_bytes() as usize);
        if self.builder.is_empty() && self.builder.len_with(key, value) > block_bytes_max {
            let overhead = self.builder.len_with(key, &[]) + 4;
            let len_max = block_bytes_max.saturating_sub(overhead);
            return Err(StoreError::ValueTooLong { len: value.len(), len_max });
        }
        let same_key = if self.builder.is_empty() {
            self.first_key.clear();
            self.first_key.extend_from_slice(key);
            self.continues_key(key)
        } else {
            self.builder.key_last() == key
        };
        if same_key {
            self.flags |= TupleEntry::HAS_VERSIONS;
        }
        if !same_key || self.builder.is_empty() {
            self.fingerprints.values.push(fingerprint(key));
        }
        self.flags |= match kind {
            RecordKind::Put => 0,
            RecordKind::Delete => TupleEntry::HAS_DELETES,
            RecordKind::Merge => TupleEntry::HAS_MERGES,
        };
        self.seqno_min = self.seqno_min.min(seqno);
        self.seqno_max = self.seqno_max.max(seqno);
        self.builder.add(key, seqno, kind, value);
        Ok(())
    }

    /// Whether the key goes on from the last block; then that one has several versions of it, too.
    fn continues_key(&mut self, key: &[u8]) -> bool {
        match self.entries.last_mut() {
            Some(last) if last.last_key == key => {
                last.flags |= TupleEntry::HAS_VERSIONS;
                true
            }
            _ => false,
        }
    }

    fn is_block_full(&self, key: &[u8], value: &[u8]) -> bool {
        let len_with = self.builder.len_with(key, value);
        if self.wish != Compression::None {
            // Its padding is known only when it is packed.
            return len_with > self.block_bytes * PACKED_BLOCKS;
        }
        if len_with <= self.block_bytes {
            return false;
        }
        let len = self.builder.len();
        let padding = len.next_multiple_of(SECTOR_BYTES) - len;
        padding <= len / 8 || len_with > self.block_bytes * STRETCH_MAX
    }

    /// Closes the block that is being built, if any, and puts it into the chunk.
    fn end_block(&mut self, target: &Target, held: &mut HeldExtents) -> Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let records = self.builder.records();
        let last_key = Bytes::copy_from_slice(self.builder.key_last());
        // What is packed has become no longer.
        let padded = self.builder.len().next_multiple_of(SECTOR_BYTES);
        if self.chunk_len + padded > target.chunk_bytes() {
            self.write_chunk(target, held)?;
        }
        if self.chunk_len + padded > self.chunk.len() {
            // The chunk is empty, or this is the first time that it gets so long.
            let mut chunk = AlignedBuf::zeroed(target.chunk_bytes().max(padded));
            chunk.as_mut()[..self.chunk_len].copy_from_slice(&self.chunk.as_ref()[..self.chunk_len]);
            self.chunk = chunk;
        }
        let (block, crc) = self.builder.finish();
        let wish = std::mem::take(&mut self.wish);
        let packed = self.packer.pack(block, wish);
        let stored = packed.map_or(block, |(_, stored)| stored);
        let packed = packed.map(|(codec, stored)| PackedBlock {
            codec,
            bytes: stored.len() as u32,
            crc: crc32c(stored),
        });
        let bytes = block.len() as u32;
        let padded = stored.len().next_multiple_of(SECTOR_BYTES);
        let place = &mut self.chunk.as_mut()[self.chunk_len..self.chunk_len + padded];
        place[..stored.len()].copy_from_slice(stored);
        place[stored.len()..].fill(0);
        self.pending.push(self.entries.len());
        self.entries.push(TupleEntry {
            first_key: Bytes::copy_from_slice(&self.first_key),
            last_key,
            extent: Extent { addr: 0, len: padded as u32 },
            bytes,
            records,
            crc,
            flags: self.flags,
            seqno_min: self.seqno_min,
            seqno_max: self.seqno_max,
            shift: 0,
            packed,
        });
        self.fingerprints.end_block();
        self.meta_charge.resize(self.meta_bytes() as u64);
        self.chunk_len += padded;
        self.builder.clear();
        (self.flags, self.seqno_min, self.seqno_max) = (0, Seqno::MAX, 0);
        Ok(())
    }

    /// Writes the chunk: as many whole blocks as fit the rest of the open zone, and so on.
    fn write_chunk(&mut self, target: &Target, held: &mut HeldExtents) -> Result<()> {
        let mut at = 0;
        let mut pending = &self.pending[..];
        while let Some(&first) = pending.first() {
            let len_first = self.entries[first].extent.len;
            let len_max = ((self.chunk_len - at) as u32).min(target.ctx.zones.zone_bytes());
            let mut fitting = 0;
            let extent = held.allocate_fitting(target.data, len_max, target.budget, len_first, |len| {
                let mut end = 0;
                for &index in pending {
                    let next = end + self.entries[index].extent.len;
                    if next > len {
                        break;
                    }
                    end = next;
                    fitting += 1;
                }
                end
            })?;
            target.write(&self.chunk.as_ref()[at..at + extent.len as usize], extent.addr)?;
            let (now, later) = pending.split_at(fitting.max(1));
            let mut addr = extent.addr;
            for &index in now {
                let entry = &mut self.entries[index];
                entry.extent.addr = addr;
                addr += u64::from(entry.extent.len);
            }
            at += extent.len as usize;
            pending = later;
        }
        self.pending.clear();
        self.chunk_len = 0;
        Ok(())
    }

    /// As if they had been read from `source`.
    pub(super) fn set_fingerprints(&mut self, source: PieceId, fingerprints: Fingerprints) {
        self.sources.insert(source, fingerprints);
    }

    /// Takes over index entries of another piece, with their fingerprints.
    pub(super) fn stitch(
        &mut self,
        (target, held): (&Target, &mut HeldExtents),
        source: &Piece,
        index: &Index,
        range: Range<usize>,
    ) -> Result<u64> {
        self.end_block(target, held)?;
        let fingerprints = match self.sources.entry(source.desc().id) {
            Entry::Occupied(present) => present.into_mut(),
            Entry::Vacant(vacant) => {
                let read = source.metadata().fingerprints();
                let read = read.or_else(|error| fingerprints_anew(source, index).ok_or(error))?;
                let fingerprints = vacant.insert(read);
                let bytes = (fingerprints.values.len() + fingerprints.ends.len()) * size_of::<u32>();
                self.sources_charge.resize(self.sources_charge.bytes() + bytes as u64);
                fingerprints
            }
        };
        let mut bytes = 0;
        for (number, entry) in range.clone().zip(&index.tuple_entries()[range]) {
            held.retain(entry.extent);
            bytes += u64::from(entry.extent.len);
            let mut entry = TupleEntry {
                first_key: Bytes::copy_from_slice(&entry.first_key),
                last_key: Bytes::copy_from_slice(&entry.last_key),
                ..entry.clone()
            };
            if let Some(last) = self.entries.last_mut()
                && last.last_key == entry.first_key
            {
                last.flags |= TupleEntry::HAS_VERSIONS;
                entry.flags |= TupleEntry::HAS_VERSIONS;
            }
            self.entries.push(entry);
            self.fingerprints.values.extend_from_slice(fingerprints.of_block(number));
            self.fingerprints.end_block();
        }
        self.meta_charge.resize(self.meta_bytes() as u64);
        Ok(bytes)
    }

    /// Writes what is left.
    pub(super) fn finish(&mut self, target: &Target, held: &mut HeldExtents) -> Result<()> {
        self.end_block(target, held)?;
        self.write_chunk(target, held)
    }
}
