//! Memtables become runs.
//!
//! Crash order: data and metadata of all new pieces → device flush → manifest (with the journal's new tail) →
//! the journal space may be reused. A crash in between loses nothing: before the manifest edit the journal
//! still has everything, after it the runs do. Blocks that lie in their final place already are not written
//! again: the pieces refer to them there.

pub(crate) mod blocks;
pub(crate) mod clones;
pub(crate) mod headroom;
pub(crate) mod patches;
mod private;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Compression, KeyspaceKind, Result, StoreError, progress};

use crate::cache::Pool;
use crate::commits::transactions::Transactions;
use crate::commits::undo::Undo;
use crate::compaction::{CopyBound, Finished, Output, OutputSpec, Sink, Totals};
use crate::flush::blocks::write_blocks;
use crate::flush::headroom::Space;
use crate::flush::patches::{Below, Source, WINDOW_RECORDS};
use crate::history::History;
use crate::iter::{CompactionIter, KeepRules, Kept, surviving_tombstones};
use crate::layers::view::{Sealed, SealedLayer, View};
use crate::live::LiveSet;
use crate::live::keyspaces::KeyspaceMeta;
use crate::live::keyspaces::Keyspaces;
use crate::memtable::MemTable;
use crate::order::Sequencer;
use crate::order::log::Log;
use crate::runtime::Runtime;
use crate::runtime::ok_unless_full;
use crate::space::{Budget, Lane, Stream};
use crate::table::Piece;
use crate::version::Edit;

/// Collects the pieces of one run.
#[derive(Default)]
struct Collect {
    pieces: Vec<Arc<Piece>>,
}

impl Sink for Collect {
    fn piece(&mut self, finished: Option<Finished>, _bound: Option<&Bytes>) -> Result<()> {
        if let Some(Finished { piece, .. }) = finished {
            progress::advance(piece.desc().data_bytes);
            self.pieces.push(piece);
        }
        Ok(())
    }
}

/// See the module.
pub(crate) struct Flusher {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) live: Arc<LiveSet>,
    pub(crate) log: Arc<Log>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    pub(crate) history: Arc<History>,
    pub(crate) sequencer: Arc<Sequencer>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) undo: Arc<Undo>,
    pub(crate) space: Arc<Space>,
    /// One flush at a time finds no space, and the next one may, after a merge.,
    flush_is_full: AtomicBool,
}

impl Flusher {
    /// Nothing is flushed yet.
    pub(crate) fn new(
        keyspaces: &Arc<Keyspaces>,
        history: &Arc<History>,
        sequencer: &Arc<Sequencer>,
        transactions: &Arc<Transactions>,
        undo: &Arc<Undo>,
        space: &Arc<Space>,
    ) -> Self {
        Self {
            runtime: Arc::clone(&history.runtime),
            live: Arc::clone(&history.live),
            log: Arc::clone(&history.log),
            keyspaces: Arc::clone(keyspaces),
            history: Arc::clone(history),
            sequencer: Arc::clone(sequencer),
            transactions: Arc::clone(transactions),
            undo: Arc::clone(undo),
            space: Arc::clone(space),
            flush_is_full: AtomicBool::new(false),
        }
    }

    /// Whether the last flush found no space. The next one may, after a merge.
    pub(crate) fn is_full(&self) -> bool {
        self.flush_is_full.load(Ordering::Acquire)
    }

    /// Flushes the oldest sealed memtable; false when there is none.
    pub(crate) fn flush_oldest(&self) -> Result<bool> {
        let _one_at_a_time = self.undo.lock_flushes();
        let Some(sealed) = self.live.view().sealed.last().cloned() else { return Ok(false) };
        self.runtime.check_writable()?;
        let start = self.runtime.clock.monotonic();
        let flushed = self.runtime.health.observe(match &sealed.layer {
            SealedLayer::Table(table) => {
                table.wait_quiescent();
                self.log.write_bound(table).and_then(|()| self.flush_table(&sealed, table))
            }
            SealedLayer::Runs(runs) => {
                runs.wait_quiescent();
                self.adopt(&sealed, runs).map(|()| (0, 0))
            }
        });
        // What they bring now may delete what the last pass kept.
        let was_full = self.flush_is_full.swap(matches!(flushed, Err(StoreError::Full)), Ordering::AcqRel);
        if was_full && flushed.is_ok() {
            self.live.note_garbage();
        }
        self.live.pressure.pace.note_stuck(flushed.is_err());
        let (bytes, raw_bytes) = flushed?;
        if bytes > 0 {
            self.runtime.counters.note_flush(
                bytes,
                raw_bytes,
                self.runtime.clock.monotonic().saturating_sub(start),
            );
        }
        self.drop_kept();
        self.runtime.work.notify();
        Ok(true)
    }

    /// What of the bound blocks is to be copied: nothing, where there is no space for all of them beside what
    /// others wait to write, since none was kept free.
    fn copies_bound(&self, table: &MemTable) -> CopyBound {
        if self.space.has_space(table.bytes_bound(), Budget::Ordinary) {
            CopyBound::Shorter(self.runtime.options.merge.stitch_bytes_min)
        } else {
            CopyBound::Never
        }
    }

    /// Returns the bytes that were written, and what the runs would be if nothing was packed.
    fn flush_table(&self, sealed: &Sealed, table: &Arc<MemTable>) -> Result<(u64, u64)> {
        let mut edits = Vec::new();
        let mut keyspaces = Vec::new();
        let mut fresh = Vec::new();
        let mut stitched_bytes = 0;
        let copy = self.copies_bound(table);
        for keyspace in table.keyspaces() {
            let (pieces, totals) = self.write_run(keyspace, table, copy)?;
            stitched_bytes += totals.bytes_stitched;
            if pieces.is_empty() {
                continue;
            }
            let run = self.live.new_run_id();
            edits.push(Edit::AddRun { keyspace, run, age: sealed.last_seqno });
            for piece in &pieces {
                edits.push(Edit::AddPiece { keyspace, run, piece: piece.desc().clone() });
            }
            keyspaces.push(keyspace);
            fresh.extend(pieces);
        }
        let bytes: u64 = fresh.iter().map(|piece| piece.desc().data_bytes).sum();
        let raw_bytes: u64 = fresh.iter().map(|piece| piece.raw_bytes()).sum();
        if !fresh.is_empty() {
            self.runtime.flush_device("a memtable's runs")?;
        }
        self.install_sealed(sealed, edits, &keyspaces, &fresh)?;
        Ok((bytes.saturating_sub(stitched_bytes), raw_bytes))
    }

    /// Puts runs in the place of the oldest sealed layer; its part of the journal retires.
    pub(crate) fn install_sealed(
        &self,
        sealed: &Sealed,
        mut edits: Vec<Edit>,
        keyspaces: &[u32],
        fresh: &[Arc<Piece>],
    ) -> Result<()> {
        edits.extend(self.transactions.retiring(sealed.last_seqno));
        edits.extend(self.undo.retiring(sealed.last_seqno));
        edits.push(Edit::JournalTail { lsn: sealed.next_lsn, seqno: sealed.last_seqno });
        self.live.install(edits, keyspaces, fresh, |view| View {
            sealed: view.sealed.iter().filter(|other| !other.is(sealed)).cloned().collect(),
            ..view
        })?;
        self.transactions.note_saved(sealed.last_seqno);
        self.undo.note_saved(sealed.last_seqno);
        self.log.journal()?.retire(sealed.next_lsn);
        self.runtime.progress.notify();
        Ok(())
    }

    /// What one keyspace's part of the memtable becomes.
    fn write_run(
        &self,
        keyspace: u32,
        table: &Arc<MemTable>,
        copy: CopyBound,
    ) -> Result<(Vec<Arc<Piece>>, Totals)> {
        let meta = self.keyspaces.get(keyspace)?;
        let view = self.live.view();
        let rules = KeepRules {
            boundaries: self.history.boundaries(),
            // Sealed tables are flushed oldest first, so only runs lie below this one.
            bottom: view.version.runs(keyspace).is_empty(),
            merger: meta.merger.clone(),
        };
        let mut below = Below::new(view.version.runs(keyspace).to_vec(), self.flush_readers());
        let spec =
            OutputSpec { copy_bound: copy, ..self.output_spec(keyspace, &meta, None, Budget::Reserve) };
        let written = write_table(table, spec, rules, &mut below)?;
        self.runtime.counters.note_lost_blocks(below.tell_lost(&meta.name));
        Ok(written)
    }

    /// Of the merge in `lane`, or of a flush.
    pub(crate) fn output_spec(
        &self,
        keyspace: u32,
        meta: &KeyspaceMeta,
        lane: Option<Lane>,
        budget: Budget,
    ) -> OutputSpec {
        let stream = match (meta.kind, lane) {
            (KeyspaceKind::Tuple, None) => Stream::FlushTuple,
            (KeyspaceKind::Block, None) => Stream::FlushBlock,
            (KeyspaceKind::Tuple, Some(lane)) => Stream::MergeTuple(lane),
            (KeyspaceKind::Block, Some(lane)) => Stream::MergeBlock(lane),
        };
        OutputSpec {
            ctx: Arc::clone(&self.runtime.ctx),
            keyspace,
            kind: meta.kind,
            stream,
            base: 0,
            budget,
            piece_bytes: self.runtime.options.merge.piece_bytes,
            copy_bound: CopyBound::Never,
            packing: self.live.packing(meta),
            filters: self.live.is_searched(keyspace),
            copies_meta: true,
            next_id: Arc::clone(self.live.ids()),
            pace: None,
            wishes: self.live.tier_wishes(keyspace, None),
        }
    }

    /// Turns all memtables into runs; false: there was no space for all of them.
    pub(crate) fn flush_everything(&self) -> Result<bool> {
        self.sequencer.seal_if(|active| active.bytes() > 0);
        ok_unless_full(self.flush_all())
    }

    /// Flushes every sealed memtable.
    pub(crate) fn flush_all(&self) -> Result<()> {
        while self.flush_oldest()? {}
        Ok(())
    }
}

/// What the keyspace of `spec` has in `table`, as pieces; `below` is everything older.
pub(crate) fn write_table(
    table: &Arc<MemTable>,
    spec: OutputSpec,
    rules: KeepRules,
    below: &mut Below,
) -> Result<(Vec<Arc<Piece>>, Totals)> {
    let tombstones = table.tombstones(spec.keyspace);
    let survivors = surviving_tombstones(&tombstones, &rules);
    let boundaries = rules.boundaries.clone();
    let mut records = CompactionIter::new(table.iter(spec.keyspace), [tombstones], rules);
    let mut collect = Collect::default();
    let kind = spec.kind;
    let (keyspace, packs) = (spec.keyspace, spec.packing.merger.is_some());
    // No wish is heeded before the superblocks announce it.
    let wish_of = |prefix: &[u8]| if packs { table.compression(keyspace, prefix) } else { Compression::None };
    // What a window of patches comes to.
    let window_bytes = (WINDOW_RECORDS * BLOCK_BYTES) as u64;
    let _charge = table.has_patches().then(|| spec.ctx.accountant.charge(Pool::Io, window_bytes));
    let device = Arc::clone(&spec.ctx.device);
    let source = Source { table, keyspace, device: device.as_ref() };
    let resolve = |window: &mut Vec<Kept>| below.resolve(source, &boundaries, window);
    let output = Output::new(spec, survivors, &mut collect);
    let totals = match kind {
        KeyspaceKind::Tuple => write_tuples(&mut records, output)?,
        KeyspaceKind::Block => write_blocks(table, &mut records, output, wish_of, resolve)?,
    };
    Ok((collect.pieces, totals))
}

fn write_tuples(records: &mut CompactionIter, mut output: Output<'_>) -> Result<Totals> {
    let mut last_key = Bytes::new();
    records.first()?;
    while let Some(record) = records.next_kept()? {
        let writer = if record.key == last_key { output.writer() } else { output.writer_at(&record.key)? };
        writer.add(&record.key, record.seqno, record.kind, &record.value)?;
        last_key = record.key;
    }
    output.finish()
}
