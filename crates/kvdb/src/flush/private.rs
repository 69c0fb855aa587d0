//! Transactions larger than memory: private tables become private runs, and these, at the commit, part of the
//! one history. Nothing of it is written a second time.
//!
//! Crash order: pieces → device flush → edits that enter them as *prepared* → one record in the journal, the
//! commit point → (everything older is in runs) → one edit that adopts them and moves the journal's tail past
//! the record. Prepared runs without a record were never committed: an opening drops them.
//!
//! Order of layers: at the commit point the active memtable is sealed, and the runs come above it as a sealed
//! layer of their own. Sealed layers are flushed oldest first; the flush of this one is the edit alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{KeyspaceKind, Result, StoreError, TxnId};

use crate::commit::{PRIVATE, PrivateRuns, Spill};
use crate::compaction::{Finished, MergeJob, OutputSpec, Pace, Rescue, Sink, Victims, end_of_step};
use crate::flush::patches::Below;
use crate::flush::write_table;
use crate::flush::{Collect, Flusher};
use crate::iter::KeepRules;
use crate::layers::adopted::CommittedRuns;
use crate::layers::view::Sealed;
use crate::live::keyspaces::KeyspaceMeta;
use crate::memtable::MemTable;
use crate::space::{Budget, Stream};
use crate::table::Piece;
use crate::version::{Edit, Run};

/// Collects pieces until an error ends it.
struct CollectWhile<'g> {
    goes_on: &'g mut dyn FnMut() -> Result<()>,
    collect: Collect,
}

impl Sink for CollectWhile<'_> {
    fn piece(&mut self, finished: Option<Finished>, bound: Option<&Bytes>) -> Result<()> {
        (self.goes_on)()?;
        self.collect.piece(finished, bound)
    }
}

impl Flusher {
    /// Writes a private table of `txn`, not durably. Its space has been spoken for, as that of every
    /// memtable: where that was cut too fine, the reserve helps out.
    pub(crate) fn write_private(&self, txn: TxnId, table: &Arc<MemTable>) -> Result<Spill> {
        match self.write_private_within(Budget::Ordinary, txn, table) {
            Err(StoreError::Full) => self.write_private_within(Budget::Reserve, txn, table),
            other => other,
        }
    }

    fn write_private_within(&self, budget: Budget, txn: TxnId, table: &Arc<MemTable>) -> Result<Spill> {
        let (_, last) = table.seqno_range().unwrap_or((PRIVATE, PRIVATE));
        let mut spill = Spill { txn, run: self.live.new_run_id(), last, pieces: BTreeMap::new() };
        for keyspace in table.keyspaces() {
            let meta = self.keyspaces.get(keyspace)?;
            // Nothing pins a position inside of a transaction; below it there may be anything.
            let rules = KeepRules { boundaries: Vec::new(), bottom: false, merger: meta.merger.clone() };
            let mut spec = self.private_spec(keyspace, &meta, budget);
            spec.base = PRIVATE;
            spec.wishes = self.live.tier_wishes(keyspace, Some(table));
            // Transactions keep whole blocks: patches would be put over zeros here.
            debug_assert!(!table.has_patches(), "a private table has whole blocks alone");
            let (pieces, _) = write_table(table, spec, rules, &mut Below::nothing())?;
            if !pieces.is_empty() {
                spill.pieces.insert(keyspace, pieces);
            }
        }
        Ok(spill)
    }

    fn private_spec(&self, keyspace: u32, meta: &KeyspaceMeta, budget: Budget) -> OutputSpec {
        let mut spec = self.output_spec(keyspace, meta, None, budget);
        spec.stream = match meta.kind {
            KeyspaceKind::Block => Stream::SpillBlock,
            KeyspaceKind::Tuple => Stream::SpillTuple,
        };
        spec
    }

    /// Merges private runs, neighbours, newest first, into one, not durably. `goes_on` is asked behind each
    /// piece.
    ///
    /// # Errors
    /// `Full`; I/O errors, sticky where a write failed; corruption; those of `goes_on`.
    pub(crate) fn merge_private(
        &self,
        keyspace: u32,
        inputs: &[Arc<Run>],
        goes_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<Run>> {
        let meta = self.keyspaces.get(keyspace)?;
        let rules = KeepRules { boundaries: Vec::new(), bottom: false, merger: meta.merger.clone() };
        let mut spec = self.private_spec(keyspace, &meta, Budget::Ordinary);
        spec.filters = inputs.iter().any(|run| run.is_searched());
        spec.pace = Some(Arc::clone(&self.live.pressure.pace) as Arc<dyn Pace>);
        let options = self.runtime.options.merge;
        // As they are counted on the device, and in the pieces that come of them.
        let mut rest: Vec<_> = inputs.iter().map(|run| Arc::new(run.rebased(0))).collect();
        let mut merged = CollectWhile { goes_on, collect: Collect::default() };
        loop {
            let end = end_of_step(&rest, options.tombstones_max);
            let (spec, rules, victims) = (spec.clone(), rules.clone(), Victims::default());
            let rescue = Rescue::default();
            let job =
                MergeJob { spec, inputs: rest.clone(), rules, options, victims, end: end.clone(), rescue };
            let totals = self.runtime.observe_writes(job.run(&mut merged))?;
            self.runtime.counters.note_merge_output(totals);
            let Some(end) = end else { break };
            for run in &mut rest {
                *run = Arc::new(Run { lower_bound: end.clone(), ..Run::clone(run) });
            }
        }
        self.close_spill_streams();
        let age = inputs.first().map_or(0, |newest| newest.age);
        let pieces = merged.collect.pieces;
        let run = Run { id: self.live.new_run_id(), age, lower_bound: Bytes::new(), pieces };
        Ok(Arc::new(run.rebased(PRIVATE)))
    }

    /// Makes private runs durable and enters them in the manifest, where they wait for the commit.
    pub(crate) fn prepare_runs(&self, edits: Vec<Edit>) -> Result<()> {
        if edits.is_empty() {
            return Ok(());
        }
        self.runtime.check_running()?;
        self.runtime.flush_device("a transaction's runs")?;
        self.runtime.health.observe(self.live.install(edits, &[], &[], |view| view))
    }

    /// Frees the runs of a transaction that ends without commit, unless the manifest goes on naming them:
    /// then their space is kept for as long. After a failure that is until the next opening, which knows what
    /// the journal says of them; writers that were under way may still be given space until then.
    pub(crate) fn drop_private(&self, txn: TxnId, runs: PrivateRuns) {
        if runs.is_prepared() {
            let forgotten = self
                .runtime
                .check_running()
                .and_then(|()| self.live.install(vec![Edit::DropPrepared { txn }], &[], &[], |view| view));
            if let Err(error) = forgotten {
                tracing::warn!(%txn, %error, "the space of an aborted transaction can't be freed yet");
                return self.transactions.keep_dropped(txn, runs);
            }
        }
        drop(runs);
        self.close_spill_streams();
    }

    /// Tries again to free runs of transactions that ended when the manifest found no space.
    pub(crate) fn drop_kept(&self) {
        for (txn, runs) in self.transactions.take_kept() {
            self.drop_private(txn, runs);
        }
    }

    /// So that zones in which nothing is left are free, and those of a commit hold nothing else.
    pub(crate) fn close_spill_streams(&self) {
        for stream in [Stream::SpillTuple, Stream::SpillBlock] {
            self.runtime.ctx.zones.close_stream(stream);
        }
    }

    /// The sealed layer `sealed` becomes part of the version. Everything older is.
    pub(crate) fn adopt(&self, sealed: &Sealed, runs: &CommittedRuns) -> Result<()> {
        let Some(by_keyspace) = runs.all() else {
            return Err(StoreError::Failed { reason: "a commit was given up half-way".into() });
        };
        let keyspaces: Vec<u32> = by_keyspace.keys().copied().collect();
        let all = by_keyspace.values().flatten();
        let fresh: Vec<Arc<Piece>> = all.flat_map(|run| run.pieces.iter().cloned()).collect();
        let edits = vec![Edit::AdoptRuns { txn: runs.txn, base: runs.base }];
        self.install_sealed(sealed, edits, &keyspaces, &fresh)?;
        runs.release_checkpoint();
        Ok(())
    }
}
