//! Memtables become runs.
//!
//! Crash order: data and metadata of all new pieces → device flush → manifest (with the journal's new
//! tail) → the journal space may be reused. A crash in between loses nothing: before the manifest
//! edit the journal still has everything, after it the runs do. Blocks that lie in their final place already are not
//! written again: the pieces refer to them there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Compression, KeyspaceKind, Result, StoreError, progress};

use super::flush_blocks::write_blocks;
use super::inner::Inner;
use super::keyspaces::KeyspaceMeta;
use super::patches::{Below, Source, WINDOW_RECORDS};
use super::view::{Sealed, SealedLayer, View};
use crate::cache::Pool;
use crate::compaction::{CopyBound, Finished, Output, OutputSpec, Sink, Totals};
use crate::iter::{CompactionIter, KeepRules, Kept, surviving_tombstones};
use crate::memtable::MemTable;
use crate::run::Piece;
use crate::version::Edit;
use crate::zone::{Budget, Lane, Stream};

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

impl Inner {
    /// Flushes the oldest sealed memtable; false when there is none.
    pub(crate) fn flush_oldest(&self) -> Result<bool> {
        let _one_at_a_time = self.flushing.lock();
        let Some(sealed) = self.view().sealed.last().cloned() else { return Ok(false) };
        self.check_writable()?;
        let start = self.clock.monotonic();
        let flushed = self.health.observe(match &sealed.layer {
            SealedLayer::Table(table) => {
                table.wait_quiescent();
                self.write_bound(table).and_then(|()| self.flush_table(&sealed, table))
            }
            SealedLayer::Runs(runs) => {
                runs.wait_quiescent();
                self.adopt(&sealed, runs).map(|()| (0, 0))
            }
        });
        // What they bring now may delete what the last pass kept.
        let was_full = self.flush_is_full.swap(matches!(flushed, Err(StoreError::Full)), Ordering::AcqRel);
        if was_full && flushed.is_ok() {
            self.note_garbage();
        }
        self.pace.note_stuck(flushed.is_err());
        let (bytes, raw_bytes) = flushed?;
        if bytes > 0 {
            self.counters.note_flush(bytes, raw_bytes, self.clock.monotonic().saturating_sub(start));
        }
        self.drop_kept();
        self.work.ring();
        Ok(true)
    }

    /// Everything that `table` has bound is written when this returns, and so will be durable with its runs.
    fn write_bound(&self, table: &MemTable) -> Result<()> {
        if table.bytes_bound() == 0 { Ok(()) } else { self.journal()?.write_out() }
    }

    /// What of the bound blocks is to be copied: nothing, where there is no space for all of them beside what others wait
    /// to write, since none was kept free.
    fn copies_bound(&self, table: &MemTable) -> CopyBound {
        if self.has_space(table.bytes_bound(), Budget::Ordinary) {
            CopyBound::Shorter(self.options.merge.stitch_bytes_min)
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
            let run = self.new_run_id();
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
            self.flush_device("a memtable's runs")?;
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
        self.install(edits, keyspaces, fresh, |view| View {
            sealed: view.sealed.iter().filter(|other| !other.is(sealed)).cloned().collect(),
            ..view
        })?;
        self.transactions.note_saved(sealed.last_seqno);
        self.undo.note_saved(sealed.last_seqno);
        self.journal()?.retire(sealed.next_lsn);
        self.progress.ring();
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
        let view = self.view();
        let rules = KeepRules {
            boundaries: self.snapshots.boundaries(),
            // Sealed tables are flushed oldest first, so only runs lie below this one.
            bottom: view.version.runs(keyspace).is_empty(),
            merger: meta.merger.clone(),
        };
        let mut below = Below::new(view.version.runs(keyspace).to_vec(), self.flush_readers());
        let spec =
            OutputSpec { copy_bound: copy, ..self.output_spec(keyspace, &meta, None, Budget::Reserve) };
        let written = write_table(table, spec, rules, &mut below)?;
        self.counters.note_lost_blocks(below.tell_lost(&meta.name));
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
            ctx: Arc::clone(&self.ctx),
            keyspace,
            kind: meta.kind,
            stream,
            base: 0,
            budget,
            piece_bytes: self.options.merge.piece_bytes,
            copy_bound: CopyBound::Never,
            packing: self.packing(meta),
            filters: self.is_searched(keyspace),
            copies_meta: true,
            next_id: Arc::clone(&self.next_id),
            pace: None,
        }
    }

    /// Whether anybody has looked for keys in the runs of the keyspace, or could not yet, since there are none.
    fn is_searched(&self, keyspace: u32) -> bool {
        let view = self.view();
        let runs = view.version.runs(keyspace);
        runs.is_empty() || runs.iter().any(|run| run.is_searched())
    }

    pub(crate) fn flush_device(&self, what: &str) -> Result<()> {
        let flushed = self.ctx.device.flush();
        flushed.map_err(|error| StoreError::io(format!("flushing {what} to the device"), error))
    }
}

/// What the keyspace of `spec` has in `table`, as pieces; `below` is everything older.
pub(super) fn write_table(
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
    let _charge = table.has_patches().then(|| spec.ctx.accountant.guard(Pool::Io, window_bytes));
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
