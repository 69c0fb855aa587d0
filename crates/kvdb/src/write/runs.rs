//! The commit of a transaction whose writes are in runs already.
//!
//! Order of layers: at the commit point the active memtable is sealed, and the runs come above it as a sealed
//! layer of their own. Sealed layers are flushed oldest first; the flush of this one is the edit alone.

use std::sync::Arc;

use kvfs_store::{Position, Result};

use super::Writer;
use crate::commit::PrivateRuns;
use crate::journal::{AppendError, Appended, CommitMark, SpilledCommit};
use crate::layers::adopted::CommittedRuns;
use crate::layers::view::{Sealed, SealedLayer, View};
use crate::runtime::stalls::StallTimer;

impl Writer {
    /// Commits `operations` that are in prepared `runs`. Nothing has happened when this fails, but for
    /// `StoreError::Failed`.
    pub(crate) fn commit_runs(
        &self,
        mark: &CommitMark,
        operations: u64,
        runs: &PrivateRuns,
    ) -> Result<Position> {
        let mut held = StallTimer::default();
        self.admission.wait_for_layer(&mut held)?;
        let CommitMark { txn, note } = mark.clone();
        let commit = SpilledCommit { txn, note, operations, runs: runs.ids() };
        let journal = self.log.journal()?;
        let (layer, ticket, is_due, order) = loop {
            let mut order = self.sequencer.lock();
            let base = order.next_seqno;
            match journal.append_spilled(base, &commit) {
                Ok(Appended { lsn, is_due }) => {
                    let layer = CommittedRuns::new(txn, base - 1, runs.checkpoint().cloned());
                    let layer = Arc::new(layer);
                    let ticket = self.history.begin(base, operations);
                    let older = self.sequencer.rotate(&mut order, lsn);
                    order.next_seqno += operations;
                    order.active_from = order.next_seqno;
                    let last_seqno = base + operations - 1;
                    let layer_of = SealedLayer::Runs(Arc::clone(&layer));
                    let sealed = Sealed { layer: layer_of, next_lsn: journal.head(), last_seqno };
                    break ((layer, older, sealed), ticket, is_due, order);
                }
                Err(AppendError::AreaFull(found)) => {
                    drop(order);
                    self.make_journal_space(found, &mut held)?;
                }
                Err(AppendError::Store(error)) => return self.runtime.health.observe(Err(error)),
            }
        };
        self.runtime.note_held(&held);
        let (layer, older, sealed) = layer;
        let last = sealed.last_seqno;
        let committing = layer.begin();
        self.live.replace_view(|view| {
            let active =
                older.as_ref().map_or_else(|| Arc::clone(&view.active), |(_, fresh)| Arc::clone(fresh));
            let newer = [Some(sealed.clone()), older.as_ref().map(|(older, _)| older.clone())];
            let sealed = newer.into_iter().flatten().chain(view.sealed.iter().cloned()).collect();
            View { active, sealed, version: Arc::clone(&view.version) }
        });
        drop(order);
        layer.set(runs.rebased(layer.base));
        // The record is there: whatever comes now, it must not be taken back.
        self.runtime.health.observe(ticket.publish())?;
        // Before the runs can be adopted, which takes the name of the commit along, and merged.
        self.transactions.note_commit(txn, last);
        self.undo.note_commit(mark, layer.base, last);
        drop(committing);
        self.flusher.close_spill_streams();
        self.runtime.work.notify();
        if is_due {
            self.log.write_journal_soon();
        }
        Ok(Position(last))
    }
}
