//! Blocks in an ordered map, for engines that know of keys and values alone.
//!
//! Purpose: keys of blocks, patches and extents as the traits mean them.
//!
//! Thread safety: functions.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{BLOCK_BYTES, Extent, ExtentKind, KeyRange};

/// Longest extent of data that one call looks for (blocks), so that readers of huge files don't
/// keep writers out for long.
const EXTENT_BLOCKS_MAX: u64 = 1 << 16;

/// The first extent of `kind` within `blocks`, of which those in `present` (ascending, no others) are there.
pub fn extent(
    blocks: Range<u64>,
    kind: ExtentKind,
    present: &mut dyn Iterator<Item = u64>,
) -> Option<Extent> {
    match kind {
        ExtentKind::Data => data_from(present),
        ExtentKind::Hole => hole_within(blocks, present),
    }
}

/// The run of consecutive numbers that `blocks` (ascending) begins with.
fn data_from(blocks: &mut dyn Iterator<Item = u64>) -> Option<Extent> {
    let first = blocks.next()?;
    let mut count = 1;
    while count < EXTENT_BLOCKS_MAX && blocks.next() == Some(first + count) {
        count += 1;
    }
    Some(Extent { first, count })
}

/// The first gap within `blocks` between the numbers of `present`.
fn hole_within(blocks: Range<u64>, present: &mut dyn Iterator<Item = u64>) -> Option<Extent> {
    let mut first = blocks.start;
    let end = loop {
        match present.next() {
            Some(block) if block == first => first += 1,
            Some(block) => break block,
            None => break blocks.end,
        }
    };
    (first < end).then(|| Extent { first, count: end - first })
}

/// The key of block `block` of `prefix`.
pub fn block_key(prefix: &[u8], block: u64) -> Bytes {
    let mut key = BytesMut::with_capacity(prefix.len() + 8);
    key.put_slice(prefix);
    key.put_u64(block);
    key.freeze()
}

/// The keys of some blocks of `prefix`; others may lie between them.
pub fn keys_of_blocks(prefix: &[u8], blocks: &Range<u64>) -> KeyRange {
    KeyRange::new(block_key(prefix, blocks.start), block_key(prefix, blocks.end))
}

/// The block number in `key` if it is a key of exactly `prefix`.
pub fn block_of(prefix: &[u8], key: &[u8]) -> Option<u64> {
    key.strip_prefix(prefix)?.try_into().ok().map(u64::from_be_bytes)
}

/// The prefix and the block number of a key of a block.
pub fn block_of_key(key: &Bytes) -> Option<(Bytes, u64)> {
    let (prefix, number) = key.split_last_chunk::<8>()?;
    Some((key.slice(..prefix.len()), u64::from_be_bytes(*number)))
}

/// The block numbers of `prefix` whose keys lie in `range`; beyond the last one is 2⁶⁴.
pub fn blocks_in(range: &KeyRange, prefix: &[u8]) -> Range<u128> {
    let end = range.end.as_ref().map_or(1 << 64, |end| first_block_from(prefix, end));
    first_block_from(prefix, &range.start)..end
}

/// The first block of `prefix` whose key is at or behind `key`.
fn first_block_from(prefix: &[u8], key: &Bytes) -> u128 {
    let Some(suffix) = key.strip_prefix(prefix) else {
        return if **key < *prefix { 0 } else { 1 << 64 };
    };
    let mut number = [0; 8];
    let len = suffix.len().min(8);
    number[..len].copy_from_slice(&suffix[..len]);
    u128::from(u64::from_be_bytes(number)) + u128::from(suffix.len() > 8)
}

/// A block (`None`: zeros) with `data` over it from `offset` on.
pub fn patched(old: Option<&[u8]>, offset: u16, data: &[u8]) -> Bytes {
    let mut block = old.map_or_else(|| vec![0; BLOCK_BYTES], <[u8]>::to_vec);
    block[usize::from(offset)..][..data.len()].copy_from_slice(data);
    block.into()
}
