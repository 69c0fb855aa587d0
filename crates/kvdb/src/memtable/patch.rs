//! Patches of blocks: parts that are put over what is below, which was not looked at.
//!
//! Purpose: in a memtable a patch is a record of the kind "merge" whose operand says which bytes it sets;
//! here is how operands are read, put one over the other ([`Overlay`]), and over their block. Runs hold whole
//! blocks alone.
//!
//! An operand is any number of parts in ascending order that do not touch: offset and length (u16 each,
//! little endian), and the bytes. It never leaves memory.
//!
//! Thread safety: an overlay belongs to one reader.

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, MergeFunction, Result};

const WORD_BITS: usize = u64::BITS as usize;
const PART_HEAD_BYTES: usize = 4;

/// The operand of a patch of the bytes from `offset` on.
pub(super) fn operand(offset: u16, data: &[u8]) -> Bytes {
    let mut operand = Vec::with_capacity(PART_HEAD_BYTES + data.len());
    push_part(&mut operand, usize::from(offset), data);
    operand.into()
}

fn push_part(operand: &mut Vec<u8>, offset: usize, data: &[u8]) {
    operand.extend_from_slice(&(offset as u16).to_le_bytes());
    operand.extend_from_slice(&(data.len() as u16).to_le_bytes());
    operand.extend_from_slice(data);
}

/// The parts of an operand: offset and bytes. Ends at what is none, which no writer makes.
fn parts(mut operand: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    std::iter::from_fn(move || {
        let (offset, rest) = operand.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (data, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        operand = rest;
        let offset = usize::from(u16::from_le_bytes(*offset));
        (offset + data.len() <= BLOCK_BYTES).then_some((offset, data))
    })
}

/// Puts the parts of `operand` over a whole block.
fn put_over(block: &mut [u8], operand: &[u8]) {
    for (offset, data) in parts(operand) {
        block[offset..offset + data.len()].copy_from_slice(data);
    }
}

/// What several patches of one block come to, taken in from the newest to the oldest.
#[derive(Debug, Clone)]
pub(crate) struct Overlay(Box<Known>);

#[derive(Debug, Clone)]
struct Known {
    bytes: [u8; BLOCK_BYTES],
    /// Which of them are set, one bit each.
    mask: [u64; BLOCK_BYTES / WORD_BITS],
    count: usize,
}

impl Default for Overlay {
    fn default() -> Self {
        Self(Box::new(Known { bytes: [0; BLOCK_BYTES], mask: [0; BLOCK_BYTES / WORD_BITS], count: 0 }))
    }
}

impl Overlay {
    /// Takes in an older patch: its bytes count where no newer ones are known. O(bytes).
    pub(super) fn put_below(&mut self, operand: &[u8]) {
        for (offset, data) in parts(operand) {
            self.put_part_below(offset, data);
        }
    }

    fn put_part_below(&mut self, offset: usize, data: &[u8]) {
        let known = &mut *self.0;
        for (at, &byte) in (offset..).zip(data) {
            let (word, bit) = (at / WORD_BITS, 1 << (at % WORD_BITS));
            if known.mask[word] & bit == 0 {
                known.mask[word] |= bit;
                known.bytes[at] = byte;
                known.count += 1;
            }
        }
    }

    /// As [`Self::put_below`], for all of an older overlay.
    pub(super) fn put_overlay_below(&mut self, older: &Self) {
        older.for_each_part(|offset, data| self.put_part_below(offset, data));
    }

    /// Whether nothing that is older counts.
    pub(super) fn is_whole(&self) -> bool {
        self.0.count == BLOCK_BYTES
    }

    /// Puts what is known over `block`.
    pub(crate) fn apply(&self, block: &mut [u8]) {
        self.for_each_part(|offset, data| block[offset..offset + data.len()].copy_from_slice(data));
    }

    /// One operand with the same effect.
    pub(super) fn operand(&self) -> Bytes {
        let mut operand = Vec::new();
        self.for_each_part(|offset, data| push_part(&mut operand, offset, data));
        operand.into()
    }

    fn is_known(&self, at: usize) -> bool {
        self.0.mask[at / WORD_BITS] >> (at % WORD_BITS) & 1 == 1
    }

    fn for_each_part(&self, mut each: impl FnMut(usize, &[u8])) {
        let mut at = 0;
        while at < BLOCK_BYTES {
            if self.0.mask[at / WORD_BITS] >> (at % WORD_BITS) == 0 {
                // Nothing more in this word.
                at = (at / WORD_BITS + 1) * WORD_BITS;
                continue;
            }
            if !self.is_known(at) {
                at += 1;
                continue;
            }
            let end = (at..BLOCK_BYTES).find(|&end| !self.is_known(end)).unwrap_or(BLOCK_BYTES);
            each(at, &self.0.bytes[at..end]);
            at = end;
        }
    }
}

/// The merge function of every block keyspace.
pub(super) struct Patches;

impl MergeFunction for Patches {
    fn resolve(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        let mut block = base.map_or_else(|| vec![0; BLOCK_BYTES], <[u8]>::to_vec);
        for operand in operands {
            put_over(&mut block, operand);
        }
        Ok(Some(block.into()))
    }

    fn fold(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes> {
        let mut both = Overlay::default();
        both.put_below(newer);
        both.put_below(older);
        Some(both.operand())
    }
}

#[cfg(test)]
mod tests;
