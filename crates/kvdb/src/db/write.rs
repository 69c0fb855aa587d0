//! The life of a write: admission → a place for large ones → order → journal → memtable → publication → (sync).
//!
//! Thread safety: the order lock covers seqno assignment, the journal append and the choice of the
//! memtable, so that all three agree on one order; insertion runs outside it, in parallel.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvfs_store::{Batch, Durability, Position, Result, StoreError};

use super::admission::budget_of;
use super::inner::Inner;
use super::options::Background;
use super::stalls::Held;
use super::throttle::SEALED_MAX;
use super::view::{Sealed, View};
use crate::format::Feature;
use crate::journal::{AppendError, Appended, CommitMark, Journal, Record};
use crate::memtable::MemTable;

impl Inner {
    pub(crate) fn apply(&self, batch: &Batch, durability: Durability) -> Result<Position> {
        self.check_accepting()?;
        batch.check_limits()?;
        self.keyspaces.check(batch)?;
        if batch.is_empty() {
            return Ok(self.position());
        }
        let mut held = Held::default();
        let applied = self.admit(batch, &mut held).and_then(|()| self.apply_admitted(batch, None, &mut held));
        self.note_held(&held);
        let last = applied?;
        self.finish_write(last, durability)?;
        Ok(last)
    }

    /// Makes `batch` the commit of a transaction, whose space is spoken for. Nothing has happened when this fails, but
    /// for [`StoreError::Failed`].
    pub(crate) fn commit_batch(&self, batch: &Batch, mark: &CommitMark) -> Result<Position> {
        let mut held = Held::default();
        let admitted = self.admit_bytes(0, budget_of(batch), &mut held);
        let admitted = admitted.and_then(|()| self.wait_for_room(&mut held));
        let applied = admitted.and_then(|()| self.apply_admitted(batch, Some(mark), &mut held));
        self.note_held(&held);
        applied
    }

    /// Waits as long as a commit of so many bytes has to, so that [`Inner::commit_batch`] need not: others wait
    /// for that.
    pub(crate) fn wait_to_commit(&self, payload_bytes: u64) -> Result<()> {
        let mut held = Held::default();
        self.pay_debt(payload_bytes, &mut held);
        let waited = self.wait_for_room(&mut held);
        self.note_held(&held);
        waited
    }

    /// As [`Inner::wait_to_commit`], for [`Inner::commit_runs`].
    pub(crate) fn wait_to_commit_runs(&self) -> Result<()> {
        let mut held = Held::default();
        let waited = self.wait_for_layer(&mut held);
        self.note_held(&held);
        waited
    }

    /// What follows a write at `last`: rotation, and the sync if there is to be one.
    pub(crate) fn finish_write(&self, last: Position, durability: Durability) -> Result<()> {
        if self.is_to_be_sealed() {
            self.seal_if(|_| self.is_to_be_sealed());
        }
        if durability == Durability::Synced {
            self.sync(last)?;
        }
        Ok(())
    }

    /// A table is full, and there is room for another one; else it takes in a little more, at a high price.
    fn is_to_be_sealed(&self) -> bool {
        let view = self.view();
        view.active.flush_bytes() >= self.table_bytes && view.sealed.len() < SEALED_MAX
    }

    /// Orders, journals, inserts and publishes; the batch is visible when this returns.
    fn apply_admitted(&self, batch: &Batch, mark: Option<&CommitMark>, held: &mut Held) -> Result<Position> {
        let count = batch.len() as u64;
        let kinds = self.keyspaces.kinds_of(batch)?;
        let journal = self.journal()?;
        let bindings = self.bind(batch)?;
        let record = Record { batch, bindings: &bindings, mark };
        let needed = [
            batch.has_patches().then_some(Feature::Patches),
            (!bindings.is_empty()).then_some(Feature::Bound),
        ];
        let (base, table, ticket, is_due, order) = loop {
            let mut order = self.order.lock();
            if needed.into_iter().flatten().any(|feature| !self.announced.has(feature)) {
                return Err(StoreError::Failed { reason: "the store was closed".into() });
            }
            let base = order.next_seqno;
            match journal.append(base, record) {
                Ok(Appended { is_due, .. }) => {
                    order.next_seqno += count;
                    let table = Arc::clone(&self.view().active);
                    let ticket = self.publisher.begin(base, count);
                    break (base, table, ticket, is_due, order);
                }
                Err(AppendError::AreaFull) => {
                    drop(order);
                    self.make_journal_space(held)?;
                }
                Err(AppendError::Store(error)) => return self.health.observe(Err(error)),
            }
        };
        let writing = table.begin_write();
        drop(order);
        if batch.has_patches() {
            table.note_pinned(self.snapshots.newest().unwrap_or(0));
        }
        table.apply(batch, base, kinds);
        table.bind(batch, base, &bindings);
        ticket.publish()?;
        let last = base + count - 1;
        if let Some(mark) = mark {
            // Before the table can be flushed, which takes the names of its commits along, and thins out what
            // nobody has pinned.
            self.transactions.note_commit(mark.txn, last);
            self.keep_for_undo(mark, base - 1, last);
        }
        drop(writing);
        self.counters.note_write(batch);
        if is_due {
            self.write_journal_soon();
        }
        Ok(Position(last))
    }

    /// Has the journal's open group written by the thread for that, so that no writer waits for it. A failure is
    /// sticky, and no business of this batch, which nobody has asked to be durable.
    pub(crate) fn write_journal_soon(&self) {
        match self.options.background {
            Background::Threads => self.journal_due.ring(),
            Background::Manual => self.write_journal(),
        }
    }

    /// Writes the journal's open group. The health of the store keeps a failure.
    pub(crate) fn write_journal(&self) {
        let written = self.journal().and_then(Journal::write_out);
        self.health.observe(written).ok();
    }

    pub(crate) fn sync(&self, position: Position) -> Result<()> {
        let journal = self.journal()?;
        if journal.durable_seqno() >= position.0 {
            return Ok(());
        }
        self.health.check()?;
        self.health.observe(journal.sync(position.0))
    }

    /// Whether callers may write: not after `close`, and not when only transactions still hold the store.
    pub(crate) fn check_accepting(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) || self.stopping.load(Ordering::Acquire) {
            return Err(StoreError::Failed { reason: "the store was closed".into() });
        }
        self.check_writable()
    }

    /// Whether the store may write at all.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(StoreError::ReadOnly);
        }
        self.health.check()
    }

    /// Makes the active memtable a sealed one when `wanted` says so under the order lock.
    pub(crate) fn seal_if(&self, wanted: impl Fn(&MemTable) -> bool) {
        let Some(journal) = &self.journal else { return };
        let mut order = self.order.lock();
        let view = self.view();
        if !wanted(&view.active) {
            return;
        }
        let sealed = Sealed::table(Arc::clone(&view.active), journal.head(), order.next_seqno - 1);
        order.active_from = order.next_seqno;
        let active = Arc::new(self.new_memtable());
        self.replace_view(|view| View {
            active,
            sealed: std::iter::once(sealed).chain(view.sealed.iter().cloned()).collect(),
            version: Arc::clone(&view.version),
        });
        drop(order);
        // The caches evict by themselves only when something is put in: while nobody reads, growing memtables
        // would come on top of full ones.
        self.ctx.pages.shrink();
        self.ctx.cache.shrink_to(self.ctx.accountant.cache_budget());
        self.work.ring();
    }
}
