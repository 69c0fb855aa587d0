//! A search for the next block on its way down through the layers of a block keyspace.
//!
//! Invariant: as in [`super::fill`], so what the range tombstones of a layer cover is looked for in no older
//! one.
//!
//! Thread safety: belongs to one reader.

use std::ops::Range;

use kvfs_store::Seqno;

use super::fill::{block_key, first_block_at_or_after};

/// The search for the smallest block of `prefix` in a range that any layer holds.
#[derive(Debug)]
pub(crate) struct BlockSearch<'a> {
    prefix: &'a [u8],
    /// What is looked for in the layers that have not been asked.
    blocks: Range<u64>,
    is_found: bool,
    snapshot: Seqno,
}

impl<'a> BlockSearch<'a> {
    pub(crate) fn new(prefix: &'a [u8], blocks: Range<u64>, snapshot: Seqno) -> Self {
        Self { prefix, blocks, is_found: false, snapshot }
    }

    pub(crate) fn prefix(&self) -> &'a [u8] {
        self.prefix
    }

    pub(crate) fn blocks(&self) -> Range<u64> {
        self.blocks.clone()
    }

    /// The newest seqno that the search sees.
    pub(crate) fn snapshot(&self) -> Seqno {
        self.snapshot
    }

    /// Goes on in layers of which an older state is read.
    pub(crate) fn descend(&mut self, snapshot: Seqno) {
        self.snapshot = snapshot;
    }

    /// Whether no older layer need be asked.
    pub(crate) fn is_over(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The key of the first block that is looked for.
    pub(crate) fn key(&self) -> Vec<u8> {
        block_key(self.prefix, self.blocks.start)
    }

    /// Takes in the first block that a layer holds, deleted or not, of those that are looked for.
    pub(crate) fn note(&mut self, block: u64) {
        self.blocks.end = block;
        self.is_found = true;
    }

    /// Passes over what tombstones of a layer cover. `covered_until` tells the end of a stretch from a key on
    /// that they cover, at least up to another key if it goes so far.
    pub(crate) fn pass_covered<K: AsRef<[u8]>>(&mut self, covered_until: impl Fn(&[u8], &[u8]) -> Option<K>) {
        let end = block_key(self.prefix, self.blocks.end);
        while !self.is_over()
            && let Some(until) = covered_until(&self.key(), &end)
        {
            let next = first_block_at_or_after(self.prefix, until.as_ref());
            self.blocks.start = next.unwrap_or(self.blocks.end);
        }
    }

    /// What was found, after all layers were asked.
    pub(crate) fn finish(self) -> Option<u64> {
        self.is_found.then_some(self.blocks.end)
    }
}
