//! The life of a write: admission → order → journal → memtable → publication → (sync).
//!
//! Thread safety: the order lock covers seqno assignment, the journal append and the choice of the
//! memtable, so that all three agree on one order; insertion runs outside it, in parallel.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvfs_store::{Batch, Durability, Op, Position, Result, StoreError};

use super::inner::Inner;
use super::merges::full_is_false;
use super::options::Background;
use super::throttle::{self, Debt, SEALED_MAX};
use super::view::{Sealed, View};
use crate::compaction::picker;
use crate::journal::{AppendError, CommitMark};
use crate::memtable::MemTable;
use crate::zone::Budget;

/// Longest wait for one step of background progress before looking again.
const PROGRESS_WAIT_MAX: Duration = Duration::from_millis(200);

impl Inner {
    pub(crate) fn apply(&self, batch: &Batch, durability: Durability) -> Result<Position> {
        self.check_accepting()?;
        batch.check_limits()?;
        self.keyspaces.check(batch)?;
        if batch.is_empty() {
            return Ok(self.position());
        }
        self.admit(batch)?;
        let last = self.apply_admitted(batch, None)?;
        self.finish_write(last, durability)?;
        Ok(last)
    }

    /// Makes `batch` the commit of a transaction, whose space is spoken for. Nothing has happened when this fails, but
    /// for [`StoreError::Failed`].
    pub(crate) fn commit_batch(&self, batch: &Batch, mark: &CommitMark) -> Result<Position> {
        self.admit_bytes(0, budget_of(batch))?;
        self.wait_for_room()?;
        self.apply_admitted(batch, Some(mark))
    }

    /// Waits as long as a commit of so many bytes has to, so that [`Inner::commit_batch`] need not: others wait
    /// for that.
    pub(crate) fn wait_to_commit(&self, payload_bytes: u64) -> Result<()> {
        self.wait_for_room()?;
        self.pay_debt(payload_bytes);
        self.wait_for_room()
    }

    /// What follows a write at `last`: rotation, and the sync if there is to be one.
    pub(crate) fn finish_write(&self, last: Position, durability: Durability) -> Result<()> {
        if self.view().active.bytes() >= self.options.memtable_bytes {
            self.seal_if(|active| active.bytes() >= self.options.memtable_bytes);
        }
        if durability == Durability::Synced {
            self.sync(last)?;
        }
        Ok(())
    }

    /// Orders, journals, inserts and publishes; the batch is visible when this returns.
    fn apply_admitted(&self, batch: &Batch, mark: Option<&CommitMark>) -> Result<Position> {
        let count = batch.len() as u64;
        let kinds = self.keyspaces.kinds_of(batch)?;
        let journal = self.journal()?;
        let (base, table, ticket, order) = loop {
            let mut order = self.order.lock();
            let base = order.next_seqno;
            let appended = match mark {
                Some(mark) => journal.append_commit(base, batch, mark),
                None => journal.append(base, batch),
            };
            match appended {
                Ok(_) => {
                    order.next_seqno += count;
                    let table = Arc::clone(&self.view().active);
                    let ticket = self.publisher.begin(base, count);
                    break (base, table, ticket, order);
                }
                Err(AppendError::AreaFull) => {
                    drop(order);
                    self.make_journal_space()?;
                }
                Err(AppendError::Store(error)) => return self.health.observe(Err(error)),
            }
        };
        let writing = table.begin_write();
        drop(order);
        table.apply(batch, base, kinds);
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
        Ok(Position(last))
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

    /// Waits until the batch may come in: space for its own flush, room in memory, its share of the
    /// debt paid.
    fn admit(&self, batch: &Batch) -> Result<()> {
        self.allow_wishes(batch)?;
        self.admit_space(batch)?;
        self.wait_for_room()?;
        self.pay_debt(batch.payload_bytes() as u64);
        Ok(())
    }

    pub(crate) fn admit_space(&self, batch: &Batch) -> Result<()> {
        self.admit_bytes(batch.payload_bytes() as u64, budget_of(batch))
    }

    /// Waits for nothing; tries to make space for `bytes` of payload when there is none.
    fn admit_bytes(&self, bytes: u64, budget: Budget) -> Result<()> {
        if self.has_space(bytes, budget) {
            return Ok(());
        }
        // Deleted data takes space until a merge drops it: reclaim before saying "full".
        if self.reclaim_wanted() {
            // A pass that ran out of space half-way may have freed enough.
            full_is_false(self.reclaim())?;
            if self.has_space(bytes, budget) {
                return Ok(());
            }
        }
        // What was there before a transaction is worth less than what comes now.
        if self.give_up_undo()? {
            full_is_false(self.reclaim())?;
            if self.has_space(bytes, budget) {
                return Ok(());
            }
        }
        Err(StoreError::Full)
    }

    fn has_space(&self, bytes: u64, budget: Budget) -> bool {
        let unflushed = self.view().memtable_bytes() + self.transactions.bytes_private();
        // Rounded-up sectors, indexes and filters of the future runs.
        let needed = (unflushed + bytes) / 16 * 17 + self.flush_slack_bytes();
        self.ctx.zones.free_bytes(budget) >= needed
    }

    pub(crate) fn wait_for_room(&self) -> Result<()> {
        loop {
            let seen = self.progress.rings();
            if self.view().sealed.len() < SEALED_MAX {
                return Ok(());
            }
            self.health.check()?;
            match self.options.background {
                Background::Manual => {
                    self.flush_oldest()?;
                }
                Background::Threads => {
                    self.progress.wait_after(seen, PROGRESS_WAIT_MAX);
                    self.check_flush_space()?;
                }
            }
        }
    }

    /// `Full` when flushes find no space and reclaiming does not help: waiting would not end.
    fn check_flush_space(&self) -> Result<()> {
        if !self.flush_is_full.load(Ordering::Acquire) {
            return Ok(());
        }
        full_is_false(self.reclaim())?;
        if self.flush_is_full.load(Ordering::Acquire) && self.give_up_undo()? {
            full_is_false(self.reclaim())?;
        }
        if self.flush_is_full.load(Ordering::Acquire) { Err(StoreError::Full) } else { Ok(()) }
    }

    fn pay_debt(&self, payload_bytes: u64) {
        if self.options.background == Background::Manual {
            return;
        }
        let debt = Debt {
            sealed: self.view().sealed.len(),
            compaction_bytes: self.compaction_debt_bytes.load(Ordering::Relaxed),
            compaction_bytes_full: self.options.memtable_bytes * 16,
            flush_rate: self.counters.flush_rate(),
        };
        let delay = throttle::delay(payload_bytes, debt);
        // Below the resolution of a timed wait a delay would cost more than it asks for.
        if delay >= Duration::from_micros(200) {
            self.counters.note_delay(delay);
            let seen = self.progress.rings();
            self.progress.wait_after(seen, delay);
        }
    }

    /// Seals and flushes until the journal has retired something.
    pub(crate) fn make_journal_space(&self) -> Result<()> {
        self.health.check()?;
        let seen = self.progress.rings();
        let journal = self.journal()?;
        let tail = journal.tail();
        // Also an empty table, when all others are in runs: a tail that was taken while a group was open lies
        // before that group, and nothing else would ever move it on.
        let is_behind = || self.view().sealed.is_empty() && journal.tail() < journal.head();
        self.seal_if(|active| active.bytes() > 0 || is_behind());
        match self.options.background {
            Background::Manual => self.flush_oldest().map(drop),
            Background::Threads => {
                self.work.ring();
                if journal.tail() == tail {
                    self.progress.wait_after(seen, PROGRESS_WAIT_MAX);
                    self.check_flush_space()?;
                }
                Ok(())
            }
        }
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

    /// Recomputes what throttling goes by.
    pub(crate) fn update_debt(&self) {
        let view = self.view();
        let debt = view.version.keyspaces().map(|(_, runs)| {
            let bytes: Vec<u64> = runs.iter().map(|run| run.data_bytes()).collect();
            picker::debt_bytes(&bytes, &self.options.merge)
        });
        self.compaction_debt_bytes.store(debt.sum(), Ordering::Relaxed);
    }
}

/// Most payload of a batch that counts as deleting (bytes): an unlink also writes times and counters.
const DELETING_BYTES_MAX: usize = 64 << 10;

/// Deleting may dip into the reserve: it must work on a full store.
fn budget_of(batch: &Batch) -> Budget {
    let deletes = batch.ops().iter().any(|op| matches!(op, Op::Delete { .. } | Op::DeleteRange { .. }));
    if deletes && batch.payload_bytes() <= DELETING_BYTES_MAX { Budget::Reserve } else { Budget::Ordinary }
}
