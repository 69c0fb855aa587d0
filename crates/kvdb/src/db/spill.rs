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

use kvfs_store::{Position, Result, StoreError, TxnId};

use super::adopted::CommittedRuns;
use super::flush::write_table;
use super::inner::{Inner, Order};
use super::patches::Below;
use super::stalls::Held;
use super::view::{Sealed, SealedLayer, View};
use crate::commit::{PRIVATE, PrivateRuns, Spill};
use crate::iter::KeepRules;
use crate::journal::{AppendError, Appended, CommitMark, Lsn, SpilledCommit};
use crate::memtable::MemTable;
use crate::run::Piece;
use crate::version::Edit;
use crate::zone::{Budget, Stream};

impl Inner {
    /// Writes a private table of `txn`, not durably. Its space has been spoken for, as that of every memtable:
    /// where that was cut too fine, the reserve helps out.
    pub(crate) fn write_private(&self, txn: TxnId, table: &Arc<MemTable>) -> Result<Spill> {
        match self.write_private_within(Budget::Ordinary, txn, table) {
            Err(StoreError::Full) => self.write_private_within(Budget::Reserve, txn, table),
            other => other,
        }
    }

    fn write_private_within(&self, budget: Budget, txn: TxnId, table: &Arc<MemTable>) -> Result<Spill> {
        let (_, last) = table.seqno_range().unwrap_or((PRIVATE, PRIVATE));
        let mut spill = Spill { txn, run: self.new_run_id(), last, pieces: BTreeMap::new() };
        for keyspace in table.keyspaces() {
            let meta = self.keyspaces.get(keyspace)?;
            // Nobody pins a position inside of a transaction; below it there may be anything.
            let rules = KeepRules { boundaries: Vec::new(), bottom: false, merger: meta.merger.clone() };
            let mut spec = self.output_spec(keyspace, &meta, None, budget);
            spec.stream = match spec.stream {
                Stream::FlushBlock => Stream::SpillBlock,
                _ => Stream::SpillTuple,
            };
            spec.base = PRIVATE;
            // Transactions keep whole blocks: patches would be put over zeros here.
            debug_assert!(!table.has_patches(), "a private table has whole blocks alone");
            let (pieces, _) = write_table(table, spec, rules, &mut Below::nothing())?;
            if !pieces.is_empty() {
                spill.pieces.insert(keyspace, pieces);
            }
        }
        Ok(spill)
    }

    /// Makes private runs durable and enters them in the manifest, where they wait for the commit.
    pub(crate) fn prepare_runs(&self, edits: Vec<Edit>) -> Result<()> {
        if edits.is_empty() {
            return Ok(());
        }
        self.check_running()?;
        self.health.observe(self.flush_device("a transaction's runs"))?;
        self.health.observe(self.install(edits, &[], &[], |view| view))
    }

    /// Frees the runs of a transaction that ends without commit, unless the manifest goes on naming them: then
    /// their space is kept for as long. After a failure that is until the next opening, which knows what the
    /// journal says of them; writers that were under way may still be given space until then.
    pub(crate) fn drop_private(&self, txn: TxnId, runs: PrivateRuns) {
        if runs.is_prepared() {
            let forgotten = self
                .check_running()
                .and_then(|()| self.install(vec![Edit::DropPrepared { txn }], &[], &[], |view| view));
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
            self.ctx.zones.close_stream(stream);
        }
    }

    /// Commits `operations` that are in prepared `runs`. Nothing has happened when this fails, but for
    /// [`StoreError::Failed`].
    pub(crate) fn commit_runs(
        &self,
        mark: &CommitMark,
        operations: u64,
        runs: &PrivateRuns,
    ) -> Result<Position> {
        let mut held = Held::default();
        self.wait_for_layer(&mut held)?;
        let CommitMark { txn, note } = mark.clone();
        let commit = SpilledCommit { txn, note, operations, runs: runs.ids() };
        let journal = self.journal()?;
        let (layer, ticket, is_due, order) = loop {
            let mut order = self.order.lock();
            let base = order.next_seqno;
            match journal.append_spilled(base, &commit) {
                Ok(Appended { lsn, is_due }) => {
                    let layer = CommittedRuns::new(txn, base - 1, runs.checkpoint().cloned());
                    let layer = Arc::new(layer);
                    let ticket = self.publisher.begin(base, operations);
                    let older = self.rotate(&mut order, lsn);
                    order.next_seqno += operations;
                    order.active_from = order.next_seqno;
                    let last_seqno = base + operations - 1;
                    let layer_of = SealedLayer::Runs(Arc::clone(&layer));
                    let sealed = Sealed { layer: layer_of, next_lsn: journal.head(), last_seqno };
                    break ((layer, older, sealed), ticket, is_due, order);
                }
                Err(AppendError::AreaFull) => {
                    drop(order);
                    self.make_journal_space(&mut held)?;
                }
                Err(AppendError::Store(error)) => return self.health.observe(Err(error)),
            }
        };
        self.note_held(&held);
        let (layer, older, sealed) = layer;
        let last = sealed.last_seqno;
        let committing = layer.begin();
        self.replace_view(|view| {
            let active =
                older.as_ref().map_or_else(|| Arc::clone(&view.active), |(_, fresh)| Arc::clone(fresh));
            let newer = [Some(sealed.clone()), older.as_ref().map(|(older, _)| older.clone())];
            let sealed = newer.into_iter().flatten().chain(view.sealed.iter().cloned()).collect();
            View { active, sealed, version: Arc::clone(&view.version) }
        });
        drop(order);
        layer.set(runs.rebased(layer.base));
        // The record is there: whatever comes now, it must not be taken back.
        self.health.observe(ticket.publish())?;
        // Before the runs can be adopted, which takes the name of the commit along, and merged.
        self.transactions.note_commit(txn, last);
        self.keep_for_undo(mark, layer.base, last);
        drop(committing);
        self.close_spill_streams();
        self.work.ring();
        if is_due {
            self.write_journal_soon();
        }
        Ok(Position(last))
    }

    /// The active memtable as a sealed layer, and one to take its place; `None` when no seqno was given to it.
    /// `next_lsn`: of the group with the first record that is not in it.
    fn rotate(&self, order: &mut Order, next_lsn: Lsn) -> Option<(Sealed, Arc<MemTable>)> {
        if order.next_seqno == order.active_from {
            return None;
        }
        let last_seqno = order.next_seqno - 1;
        let sealed = Sealed::table(Arc::clone(&self.view().active), next_lsn, last_seqno);
        Some((sealed, Arc::new(self.new_memtable())))
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

    /// Whether this opening of the store goes on: when it has ended, the device may be another one's.
    pub(crate) fn check_running(&self) -> Result<()> {
        if self.stopping.load(std::sync::atomic::Ordering::Acquire) {
            return Err(StoreError::Failed { reason: "the store was closed".into() });
        }
        self.check_writable()
    }
}
