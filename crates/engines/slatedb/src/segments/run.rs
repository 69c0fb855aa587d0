//! Runs of blocks: how what is appended becomes references and records.
//!
//! Thread safety: plain values. Invariant: each block that was appended has a reference, and lies in an
//! extent.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use kvfs_store::blocks::block_of_key;

use super::record::suspect_key;
use super::{BYTES, BlockRef, Extent, Segments};
use crate::{keys, meta};

/// What is to be written of a run that was appended.
pub(crate) struct Appended {
    /// One for each block.
    pub(crate) references: Vec<BlockRef>,
    /// Whole keys of the database, and values.
    pub(crate) records: Vec<(Bytes, Bytes)>,
}

impl Segments {
    /// Appends the blocks from `key` on, of one file, for the batch with the sequence number `born`. The
    /// caller holds the order lock until that is committed.
    pub(crate) fn append_run(
        self: &Arc<Self>,
        space: u32,
        key: &Bytes,
        born: u64,
        blocks: &[Bytes],
    ) -> Appended {
        let (prefix, mut first) = block_of_key(key).unwrap_or_default();
        let mut appended = Appended { references: Vec::with_capacity(blocks.len()), records: Vec::new() };
        let mut left = blocks;
        for piece in self.append(blocks) {
            let (now, later) = left.split_at(usize::from(piece.count));
            left = later;
            let references = (piece.index..).zip(now);
            let references = references.map(|(index, block)| BlockRef::to(piece.segment, index, block));
            appended.references.extend(references);
            let extent = Extent {
                segment: piece.segment,
                index: piece.index,
                count: piece.count,
                born,
                space,
                prefix: prefix.clone(),
                first,
            };
            first += u64::from(piece.count);
            appended.records.push((keys::full(keys::META, &extent.key()), extent.value()));
        }
        appended
    }

    /// Records of a batch that refers to segments, beside those of its runs: what all segments have together,
    /// and that there are some.
    pub(crate) fn records(&self) -> impl Iterator<Item = (Bytes, Bytes)> {
        let version = (keys::full(keys::META, meta::VERSION), Bytes::from_static(meta::VERSION_SEGMENTS));
        std::iter::once(self.stored_record()).chain(self.is_first().then_some(version))
    }

    /// Records that have segments looked at, also after a crash, some blocks of which are deleted in the same
    /// batch.
    pub(crate) fn suspect_records(segments: &BTreeSet<u64>) -> impl Iterator<Item = (Bytes, Bytes)> {
        segments.iter().map(|segment| (keys::full(keys::META, &suspect_key(*segment)), Bytes::new()))
    }

    /// The record of what all segments have together.
    pub(crate) fn stored_record(&self) -> (Bytes, Bytes) {
        let mut value = BytesMut::new();
        value.put_u64_le(self.stored_bytes());
        (keys::full(keys::META, BYTES), value.freeze())
    }
}
