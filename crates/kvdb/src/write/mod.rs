//! The life of a write: admission → a place for large ones → order → journal → memtable → publication →
//! (sync).
//!
//! Thread safety: the order lock covers seqno assignment, the journal append and the choice of the
//! memtable, so that all three agree on one order; insertion runs outside it, in parallel.

pub(crate) mod admission;
mod binding;
mod growth;
mod journal_space;
mod runs;

use std::sync::Arc;

use kvfs_store::{Batch, Durability, Position, Result, StoreError};

use crate::commits::transactions::Transactions;
use crate::commits::undo::Undo;
use crate::flush::Flusher;
use crate::format::Feature;
use crate::history::History;
use crate::journal::{AppendError, Appended, CommitMark, Record};
use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::merge::deleted::Deleted;
use crate::order::Sequencer;
use crate::order::log::Log;
use crate::pressure::throttle::SEALED_MAX;
use crate::runtime::Runtime;
use crate::runtime::stalls::StallTimer;
use crate::space::HoldsBound;
use crate::write::admission::Admission;
use crate::write::binding::GroupBinder;

/// See the module.
pub(crate) struct Writer {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) live: Arc<LiveSet>,
    log: Arc<Log>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    sequencer: Arc<Sequencer>,
    pub(crate) history: Arc<History>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) undo: Arc<Undo>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) admission: Arc<Admission>,
    deleted: Arc<Deleted>,
}

impl Writer {
    /// Behind this admission. From now on the journal has small writes bound, too.
    pub(crate) fn new(flusher: &Arc<Flusher>, admission: &Arc<Admission>, deleted: &Arc<Deleted>) -> Self {
        if let Ok(journal) = flusher.log.journal() {
            journal.bind_by(Arc::new(GroupBinder::new(&flusher.live, &flusher.keyspaces)));
        }
        Self {
            runtime: Arc::clone(&flusher.runtime),
            live: Arc::clone(&flusher.live),
            log: Arc::clone(&flusher.log),
            keyspaces: Arc::clone(&flusher.keyspaces),
            sequencer: Arc::clone(&flusher.sequencer),
            history: Arc::clone(&flusher.history),
            transactions: Arc::clone(&flusher.transactions),
            undo: Arc::clone(&flusher.undo),
            flusher: Arc::clone(flusher),
            admission: Arc::clone(admission),
            deleted: Arc::clone(deleted),
        }
    }

    pub(crate) fn apply(&self, batch: &Batch, durability: Durability) -> Result<Position> {
        self.runtime.check_accepting()?;
        batch.check_limits()?;
        self.keyspaces.check(batch)?;
        if batch.is_empty() {
            return Ok(self.history.position());
        }
        let mut held = StallTimer::default();
        self.bound_unsynced(&mut held)?;
        let admitted = self.admission.admit(batch, || Ok(self.history.newest_layers()), &mut held);
        let applied = admitted.and_then(|()| self.apply_admitted(batch, None, &mut held));
        self.runtime.note_held(&held);
        let last = applied?;
        self.finish_write(last, durability)?;
        Ok(last)
    }

    /// Waits until what is not durable is no more than it may be.
    fn bound_unsynced(&self, held: &mut StallTimer) -> Result<()> {
        let bytes_max = self.runtime.options.unsynced_bytes_max;
        if bytes_max == 0 || self.runtime.unsynced.bytes() <= bytes_max {
            return Ok(());
        }
        self.runtime.hold(held, || self.history.sync()).map(drop)
    }

    /// Makes `batch` the commit of a transaction, whose space is spoken for. Nothing has happened when this
    /// fails, but for [`StoreError::Failed`].
    pub(crate) fn commit_batch(&self, batch: &Batch, mark: &CommitMark) -> Result<Position> {
        let mut held = StallTimer::default();
        let admitted = self.admission.admit_commit(&mut held);
        let applied = admitted.and_then(|()| self.apply_admitted(batch, Some(mark), &mut held));
        self.runtime.note_held(&held);
        applied
    }

    /// Waits as long as a commit of so many bytes has to, and looks for space, so that
    /// [`Writer::commit_batch`] need not: others wait for that.
    pub(crate) fn wait_to_commit(&self, payload_bytes: u64) -> Result<()> {
        let mut held = StallTimer::default();
        self.admission.pay_debt(payload_bytes, &mut held);
        let waited = self.admission.admit_commit(&mut held);
        self.runtime.note_held(&held);
        waited
    }

    /// As [`Writer::wait_to_commit`], for [`Writer::commit_runs`].
    pub(crate) fn wait_to_commit_runs(&self) -> Result<()> {
        let mut held = StallTimer::default();
        let waited = self.admission.wait_for_layer(&mut held);
        self.runtime.note_held(&held);
        waited
    }

    /// What follows a write at `last`: rotation, and the sync if there is to be one.
    pub(crate) fn finish_write(&self, last: Position, durability: Durability) -> Result<()> {
        if self.is_to_be_sealed() {
            self.sequencer.seal_if_room(|active| active.flush_bytes() >= self.runtime.table_bytes);
        }
        if durability == Durability::Synced {
            self.log.sync(last)?;
        }
        Ok(())
    }

    /// A table is full, and there is room for another one; else it takes in a little more, at a high price.
    fn is_to_be_sealed(&self) -> bool {
        let view = self.live.view();
        view.active.flush_bytes() >= self.runtime.table_bytes && view.sealed.len() < SEALED_MAX
    }

    /// Orders, journals, inserts and publishes; the batch is visible when this returns.
    fn apply_admitted(
        &self,
        batch: &Batch,
        mark: Option<&CommitMark>,
        held: &mut StallTimer,
    ) -> Result<Position> {
        let count = batch.len() as u64;
        let kinds = self.keyspaces.kinds_of(batch)?;
        let journal = self.log.journal()?;
        let bindings = self.bind(batch)?;
        let needed = [
            batch.has_patches().then_some(Feature::Patches),
            (!bindings.is_empty()).then_some(Feature::Bound),
        ];
        let (base, table, ticket, is_due, order) = loop {
            let mut order = self.sequencer.lock();
            if needed.into_iter().flatten().any(|feature| !self.live.has_announced(feature)) {
                return Err(StoreError::Failed { reason: "the store was closed".into() });
            }
            let base = order.next_seqno;
            let table = Arc::clone(&self.live.view().active);
            let holder: Arc<dyn HoldsBound> = table.clone();
            let record = Record { batch, bindings: &bindings, mark, holder: Some(&holder) };
            match journal.append(base, record) {
                Ok(Appended { is_due, .. }) => {
                    order.next_seqno += count;
                    let ticket = self.history.begin(base, count);
                    break (base, table, ticket, is_due, order);
                }
                Err(AppendError::AreaFull(found)) => {
                    drop(order);
                    self.make_journal_space(found, held)?;
                }
                Err(AppendError::Store(error)) => return self.runtime.health.observe(Err(error)),
            }
        };
        let writing = table.begin_write();
        drop(order);
        if batch.has_patches() {
            table.note_pinned(self.history.newest_pinned().unwrap_or(0));
        }
        table.apply(batch, base, kinds);
        table.bind(batch, base, &bindings);
        ticket.publish()?;
        let last = base + count - 1;
        if let Some(mark) = mark {
            // Before the table can be flushed, which takes the names of its commits along, and thins out what
            // is not pinned.
            self.transactions.note_commit(mark.txn, last);
            self.undo.note_commit(mark, base - 1, last);
        }
        drop(writing);
        self.runtime.counters.note_write(batch);
        self.runtime.unsynced.note_written(batch.payload_bytes() as u64);
        if self.runtime.is_commit_due() {
            self.runtime.commit_due.notify();
        }
        self.deleted.note(batch);
        if is_due {
            self.log.write_journal_soon();
        }
        Ok(Position(last))
    }
}
