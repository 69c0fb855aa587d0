//! Clones of blocks: pieces whose regions lie where those of others do.
//!
//! Thread safety: one thread for a transaction. Nothing of the data is read or written; the new pieces hold
//! references on the zones of what they refer to, so it stays whatever becomes of the pieces that had it
//! first.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvfs_store::{BlockClone, Keyspace, Result, Seqno, TxnId};

use super::Collect;
use super::Flusher;
use crate::commit::{PRIVATE, Spill};
use crate::compaction::Output;
use crate::format::SeqnoSpan;
use crate::memtable::{TombstoneSet, block_key};
use crate::space::{Budget, Stream};
use crate::table::Location;

/// Blocks that lie in a piece, and what they are cloned to.
pub(crate) struct LocatedClone {
    /// Where the clone is.
    pub(crate) target: Bytes,
    pub(crate) first: u64,
    pub(crate) seqno: Seqno,
    pub(crate) location: Location,
}

impl LocatedClone {
    /// Of what `clone` has at `location`.
    pub(crate) fn new(clone: &BlockClone, seqno: Seqno, location: Location) -> Self {
        let BlockClone { target, target_first, .. } = clone.part(location.first, location.count.into());
        Self { target, first: target_first, seqno, location }
    }

    fn key(&self) -> Vec<u8> {
        block_key(&self.target, self.first)
    }
}

impl Flusher {
    /// Pieces of a private run of `txn` with these clones, not durably. Their seqnos are at most `last`.
    ///
    /// # Errors
    /// I/O errors, corruption of an index, `Full`; then nothing is held.
    pub(crate) fn write_clones(
        &self,
        txn: TxnId,
        keyspace: Keyspace,
        mut clones: Vec<LocatedClone>,
        last: Seqno,
    ) -> Result<Spill> {
        clones.sort_by_cached_key(LocatedClone::key);
        let meta = self.keyspaces.get(keyspace.0)?;
        let mut spec = self.output_spec(keyspace.0, &meta, None, Budget::Ordinary);
        spec.stream = Stream::SpillBlock;
        spec.base = PRIVATE;
        let mut collect = Collect::default();
        let mut output = Output::new(spec, TombstoneSet::default(), &mut collect);
        for clone in &clones {
            let Location { piece, layer, region, first, count } = &clone.location;
            let index = piece.index()?;
            let seqnos = [SeqnoSpan { count: *count, seqno: clone.seqno - PRIVATE }];
            let region = index.layers()[*layer].region(*region);
            let mut part = region.part(*first, *count, &seqnos);
            (part.prefix, part.first) = (&clone.target, clone.first);
            output.writer_at(&clone.key())?.take_over(0, part)?;
        }
        output.finish()?;
        let pieces = BTreeMap::from([(keyspace.0, collect.pieces)]);
        Ok(Spill { txn, run: self.live.new_run_id(), last, pieces })
    }
}
