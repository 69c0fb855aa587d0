//! Tuple blocks that are found without an index, by their own headers.
//!
//! A block says neither to which piece nor to which keyspace it belongs. What tells: the keys and seqnos
//! between the piece's bounds, the piece's number of records, and, where they are left, the fingerprints of
//! each of its blocks. Packed blocks have no header of their own on the device: without both copies of the
//! index they are lost.

use std::collections::HashSet;

use bytes::Bytes;
use kvfs_store::Seqno;

use crate::format::{
    Extent, Fingerprints, PieceDesc, RecordKind, TUPLE_BLOCK_BYTES_MAX, TupleBlock, TupleCursor, TupleEntry,
};
use crate::table::RunContext;
use crate::table::filter::fingerprint;

use super::meta::{padded, zone_stream};

/// A block, and the fingerprints of its keys.
pub(super) struct FoundBlock {
    pub(super) entry: TupleEntry,
    pub(super) fingerprints: Vec<u32>,
}

/// What was found of a piece's blocks, in key order.
pub(super) struct Rebuilt {
    pub(super) blocks: Vec<FoundBlock>,
    /// It is certain that these are all blocks of the piece, and no others.
    pub(super) is_exact: bool,
}

/// Looks for the blocks of `desc` in its zones; those at `claimed` addresses belong to other pieces.
pub(super) fn rebuild(
    ctx: &RunContext,
    desc: &PieceDesc,
    fingerprints: Option<&[Vec<u32>]>,
    claimed: &HashSet<u64>,
) -> Rebuilt {
    let mut found = Vec::new();
    for zone_use in &desc.zones {
        let zone = zone_stream(ctx, zone_use.zone);
        let blocks = zone.all_frames(|addr, sector| {
            (!claimed.contains(&addr) && TupleBlock::begins(sector)).then(|| block_len(sector))
        });
        for (addr, len) in blocks {
            let bytes = zone.read(addr, TUPLE_BLOCK_BYTES_MAX.min(len) as u64);
            found.extend(look_at(addr, bytes).filter(|block| fits(&block.entry, desc)));
        }
    }
    if let Some(known) = fingerprints {
        let known: HashSet<&[u32]> = known.iter().map(Vec::as_slice).collect();
        found.retain(|block| known.contains(&block.fingerprints[..]));
    }
    let blocks = without_overlap(found);
    let records: u64 = blocks.iter().map(|block| u64::from(block.entry.records)).sum();
    Rebuilt { is_exact: records == desc.records, blocks }
}

/// Length that the header of a block states (bytes).
fn block_len(sector: &[u8]) -> usize {
    sector.get(8..12).map_or(0, |len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize)
}

fn fits(entry: &TupleEntry, desc: &PieceDesc) -> bool {
    entry.first_key >= desc.first_key
        && entry.last_key <= desc.last_key
        && entry.seqno_min >= desc.seqno_min
        && entry.seqno_max <= desc.seqno_max
}

/// The whole block at the start of `bytes`, as an index would describe it.
fn look_at(addr: u64, bytes: Bytes) -> Option<FoundBlock> {
    let block = TupleBlock::verify(&bytes).ok()?;
    let (len, records, crc) = (block.len() as u32, block.records(), block.crc());
    let mut entry = TupleEntry {
        first_key: Bytes::new(),
        last_key: Bytes::new(),
        extent: Extent { addr, len: padded(len) },
        bytes: len,
        records,
        crc,
        // Whether a key goes on in a neighbouring block is not known here.
        flags: TupleEntry::HAS_VERSIONS,
        seqno_min: Seqno::MAX,
        seqno_max: 0,
        shift: 0,
        packed: None,
    };
    let mut fingerprints = Vec::new();
    let mut cursor = TupleCursor::new(bytes, 0).ok()?;
    cursor.first().ok()?;
    while let Some(record) = cursor.record() {
        if fingerprints.is_empty() || record.key != &entry.last_key[..] {
            fingerprints.push(fingerprint(record.key));
            entry.last_key = Bytes::copy_from_slice(record.key);
        }
        if fingerprints.len() == 1 && entry.first_key.is_empty() {
            entry.first_key = entry.last_key.clone();
        }
        entry.seqno_min = entry.seqno_min.min(record.seqno);
        entry.seqno_max = entry.seqno_max.max(record.seqno);
        entry.flags |= match record.kind {
            RecordKind::Put => 0,
            RecordKind::Delete => TupleEntry::HAS_DELETES,
            RecordKind::Merge => TupleEntry::HAS_MERGES,
        };
        cursor.next().ok()?;
    }
    (!fingerprints.is_empty()).then_some(FoundBlock { entry, fingerprints })
}

/// The newest ones where several overlap: what was left behind by a merge is older.
fn without_overlap(mut found: Vec<FoundBlock>) -> Vec<FoundBlock> {
    found.sort_by(|a, b| b.entry.seqno_max.cmp(&a.entry.seqno_max).then(b.entry.extent.cmp(&a.entry.extent)));
    let mut chosen: Vec<FoundBlock> = Vec::with_capacity(found.len());
    for block in found {
        let at = chosen.partition_point(|other| other.entry.first_key < block.entry.first_key);
        let is_free = chosen[..at].last().is_none_or(|left| left.entry.last_key < block.entry.first_key)
            && chosen.get(at).is_none_or(|right| block.entry.last_key < right.entry.first_key);
        if is_free {
            chosen.insert(at, block);
        }
    }
    chosen
}

/// The fingerprints of one block's bytes.
pub(super) fn fingerprints_of(bytes: Bytes) -> Vec<u32> {
    look_at(0, bytes).map(|block| block.fingerprints).unwrap_or_default()
}

/// As lists, block by block.
pub(super) fn by_block(fingerprints: &Fingerprints) -> Vec<Vec<u32>> {
    (0..fingerprints.ends.len()).map(|index| fingerprints.of_block(index).to_vec()).collect()
}
