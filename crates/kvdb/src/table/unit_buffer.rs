//! Blocks that are to be packed together: consecutive ones of one prefix with one wish, between two multiples
//! of the unit's size, so that units of one file do not straddle each other.

use kvfs_store::{BLOCK_BYTES, Compression, Seqno};

use crate::format::{Codec, Packer, SeqnoSpan};

/// A unit that is being filled; empty at first.
#[derive(Default)]
pub(super) struct UnitBuffer {
    prefix: Vec<u8>,
    first: u64,
    wish: Compression,
    spans: Vec<SeqnoSpan>,
    bytes: Vec<u8>,
    /// The block at which the unit ends.
    end: u64,
    packer: Packer,
    packed_len: usize,
}

impl UnitBuffer {
    /// Whether `block` goes on with what is there, or there is nothing.
    pub(super) fn takes(&self, prefix: &[u8], block: u64, wish: Compression) -> bool {
        if self.bytes.is_empty() {
            return true;
        }
        let next = self.first + (self.bytes.len() / BLOCK_BYTES) as u64;
        next == block && block < self.end && self.wish == wish && self.prefix[..] == *prefix
    }

    /// Appends a block, which [`UnitBuffer::takes`] allows. A unit ends at multiples of `unit_blocks`.
    pub(super) fn push(
        &mut self,
        prefix: &[u8],
        block: u64,
        seqno: Seqno,
        wish: Compression,
        bytes: &[u8],
        unit_blocks: u32,
    ) {
        if self.bytes.is_empty() {
            self.prefix.clear();
            self.prefix.extend_from_slice(prefix);
            (self.first, self.wish) = (block, wish);
            let unit_blocks = u64::from(unit_blocks);
            self.end = (block / unit_blocks).saturating_add(1).saturating_mul(unit_blocks);
        }
        match self.spans.last_mut() {
            Some(last) if last.seqno == seqno => last.count += 1,
            _ => self.spans.push(SeqnoSpan { count: 1, seqno }),
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Packs it; `None`: it wins nothing.
    pub(super) fn pack(&mut self) -> Option<Codec> {
        let (codec, stored) = self.packer.pack(&self.bytes, self.wish)?;
        self.packed_len = stored.len();
        Some(codec)
    }

    /// What [`UnitBuffer::pack`] gave.
    pub(super) fn packed(&self) -> &[u8] {
        self.packer.packed(self.packed_len)
    }

    /// The blocks as they came.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn spans(&self) -> &[SeqnoSpan] {
        &self.spans
    }

    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn wish(&self) -> Compression {
        self.wish
    }

    /// Empties it; memory and tables stay.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }
}
