//! The output of a flush or merge: records, blocks and tombstones become pieces of bounded size.
//!
//! Invariant: pieces are cut only between keys, and each carries the range tombstones of its own key
//! range, clipped to it; so a piece answers alone for the keys between its cuts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kvfs_store::{Compression, KeyspaceKind, Result, Seqno, Tier};

use super::pace::{Meter, Pace};
use crate::format::PieceId;
use crate::memtable::TombstoneSet;
use crate::space::{Budget, Stream, TierWishes};
use crate::table::{Packing, Piece, PieceWriter, RunContext};

/// A piece ends when its metadata has about so many bytes, too: with small records it has much, which each
/// merge holds several times over while it is made, and which is read as a whole.
const META_BYTES_MAX: u64 = 2 << 20;

/// A piece, and what it came to.
pub(crate) struct Finished {
    pub(crate) piece: Arc<Piece>,
    pub(crate) totals: Totals,
}

/// Where finished pieces go. `bound`: every key below it is in pieces that were handed over; `None`
/// at the end.
pub(crate) trait Sink {
    fn piece(&mut self, finished: Option<Finished>, bound: Option<&Bytes>) -> Result<()>;
}

/// Which blocks that lie in their final place are copied, and not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyBound {
    /// None: that needs no space but for the index.
    Never,
    /// Stretches of fewer bytes, and those that are to be packed.
    Shorter(u64),
}

/// What all pieces of one output have in common.
#[derive(Clone)]
pub(crate) struct OutputSpec {
    pub(crate) ctx: Arc<RunContext>,
    pub(crate) keyspace: u32,
    pub(crate) kind: KeyspaceKind,
    pub(crate) stream: Stream,
    /// What seqnos are counted from on the device; 0 but for private runs.
    pub(crate) base: Seqno,
    /// How far allocations may go.
    pub(crate) budget: Budget,
    pub(crate) piece_bytes: u64,
    /// Which bound blocks are copied.
    pub(crate) copy_bound: CopyBound,
    pub(crate) packing: Packing,
    /// Whether pieces get their filters at once: readers look for keys there.
    pub(crate) filters: bool,
    /// Whether the metadata of pieces is written twice.
    pub(crate) copies_meta: bool,
    /// Where numbers for pieces come from.
    pub(crate) next_id: Arc<AtomicU64>,
    /// Where the work gives way to others; `None`: nowhere.
    pub(crate) pace: Option<Arc<dyn Pace>>,
    /// On which tier blocks are wished to lie; `None`: no matter.
    pub(crate) wishes: Option<Arc<dyn TierWishes>>,
}

impl OutputSpec {
    /// Where blocks of `prefix` are wished to lie.
    pub(crate) fn tier_wished(&self, prefix: &[u8]) -> Option<Tier> {
        self.wishes.as_ref().and_then(|wishes| wishes.tier_of(prefix))
    }

    /// A piece with a number of its own.
    pub(super) fn writer(&self) -> PieceWriter {
        let ctx = Arc::clone(&self.ctx);
        let id = PieceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        PieceWriter::new(ctx, self.keyspace, self.kind, self.stream, self.budget, id)
            .counting_from(self.base)
            .packing(self.packing.clone())
            .filtered(self.filters)
            .copying_meta(self.copies_meta)
    }
}

/// What an output came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) bytes_written: u64,
    pub(crate) bytes_stitched: u64,
}

/// An output that is being written, in key order.
pub(crate) struct Output<'a> {
    spec: OutputSpec,
    tombstones: TombstoneSet,
    /// Lower end of the piece that is open.
    low: Bytes,
    writer: PieceWriter,
    sink: &'a mut dyn Sink,
    totals: Totals,
    meter: Meter,
    /// Written bytes that the meter knows of.
    bytes_metered: u64,
}

impl<'a> Output<'a> {
    /// `tombstones` are those that must live on; they are dealt out to the pieces.
    pub(crate) fn new(spec: OutputSpec, tombstones: TombstoneSet, sink: &'a mut dyn Sink) -> Self {
        let writer = spec.writer();
        let meter = Meter::new(spec.pace.clone());
        let (low, totals) = (Bytes::new(), Totals::default());
        Self { spec, tombstones, low, writer, sink, totals, meter, bytes_metered: 0 }
    }

    /// Whether the open piece is full: [`Output::writer_at`] will replace it.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.spec.piece_bytes || self.writer.meta_bytes() >= META_BYTES_MAX
    }

    /// Where blocks of `prefix` are wished to lie.
    pub(crate) fn tier_wished(&self, prefix: &[u8]) -> Option<Tier> {
        self.spec.tier_wished(prefix)
    }

    /// How blocks are packed that have no wish of their own.
    pub(crate) fn compression(&self) -> Compression {
        self.spec.packing.compression
    }

    /// Whether a stretch of so many bytes is taken over that is to be packed, or not.
    pub(crate) fn takes_over(&self, bytes: u64, is_packed: bool) -> bool {
        match self.spec.copy_bound {
            CopyBound::Never => true,
            CopyBound::Shorter(bytes_min) => !is_packed && bytes >= bytes_min,
        }
    }

    /// The piece that is open. Before adding anything at `key`, where no version of `key` is in it yet,
    /// it is replaced when it is full.
    pub(crate) fn writer_at(&mut self, key: &[u8]) -> Result<&mut PieceWriter> {
        if self.is_full() {
            self.cut(key)?;
        }
        Ok(&mut self.writer)
    }

    /// Gives way, if what was written since the last time is worth it.
    pub(crate) fn give_way(&mut self) {
        let bytes_written = self.totals.bytes_written + self.writer.bytes_written();
        self.meter.add(bytes_written - self.bytes_metered);
        self.bytes_metered = bytes_written;
    }

    /// What the open piece holds so far, stitched or written (bytes).
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.bytes_written() + self.writer.bytes_referenced()
    }

    /// The piece that is open, whatever its size.
    pub(crate) fn writer(&mut self) -> &mut PieceWriter {
        &mut self.writer
    }

    /// Ends the open piece: everything below `key` has been added.
    fn cut(&mut self, key: &[u8]) -> Result<()> {
        let bound = Bytes::copy_from_slice(key);
        let piece = self.finish_piece(Some(&bound))?;
        self.low = bound.clone();
        self.sink.piece(piece, Some(&bound))
    }

    fn finish_piece(&mut self, high: Option<&Bytes>) -> Result<Option<Finished>> {
        let fresh = self.spec.writer();
        let mut writer = std::mem::replace(&mut self.writer, fresh);
        for tombstone in self.tombstones.clip(&self.low, high.map(|bound| &bound[..])).list() {
            writer.add_tombstone(&tombstone.start, &tombstone.end, tombstone.seqno);
        }
        if writer.is_empty() {
            return Ok(None);
        }
        let totals =
            Totals { bytes_written: writer.bytes_written(), bytes_stitched: writer.bytes_referenced() };
        self.totals.bytes_written += totals.bytes_written;
        self.totals.bytes_stitched += totals.bytes_stitched;
        writer.finish().map(|(_, piece)| Some(Finished { piece, totals }))
    }

    /// Hands the last piece over.
    pub(crate) fn finish(self) -> Result<Totals> {
        self.finish_at(None)
    }

    /// Hands over the last piece of the keys before `end`; `None`: of all.
    pub(crate) fn finish_at(mut self, end: Option<&Bytes>) -> Result<Totals> {
        let piece = self.finish_piece(end)?;
        self.sink.piece(piece, end)?;
        Ok(self.totals)
    }
}
