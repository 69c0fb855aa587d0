//! The order of writes: seqnos, the journal's records and the choice of the memtable agree on it.
//!
//! Thread safety: any thread. The order lock comes before the ledger's and the view's; it is never held
//! across a wait.
//!
//! Invariant: a seqno is in the active memtable if it is at or above `active_from`, and in older layers else.

pub(crate) mod log;

use std::sync::Arc;

use kvfs_locks::{Mutex, MutexGuard, class};
use kvfs_store::{Result, Seqno, StoreError};

use crate::journal::Lsn;
use crate::layers::view::{Sealed, View};
use crate::live::LiveSet;
use crate::memtable::MemTable;
use crate::order::log::Log;
use crate::runtime::Runtime;
use crate::version::Edit;

/// What the order lock protects.
pub(crate) struct Order {
    pub(crate) next_seqno: Seqno,
    /// The first seqno that the active memtable can hold.
    pub(crate) active_from: Seqno,
}

/// See the module.
pub(crate) struct Sequencer {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) live: Arc<LiveSet>,
    pub(crate) log: Arc<Log>,
    order: Mutex<Order, class::KvdbOrder>,
}

impl Sequencer {
    /// Of the next write.
    pub(crate) fn new(live: &Arc<LiveSet>, log: &Arc<Log>, order: Order) -> Self {
        let (runtime, live, log) = (Arc::clone(&live.runtime), Arc::clone(live), Arc::clone(log));
        Self { runtime, live, log, order: Mutex::new(order) }
    }

    /// The caller gives out the next seqnos; no other write is ordered meanwhile.
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Order, class::KvdbOrder> {
        self.order.lock()
    }

    /// Takes back what is announced of the journal alone, when that is empty. The store is being closed.
    pub(crate) fn withdraw_features_of_journal(&self) -> Result<()> {
        // A writer that appends anything of it looks at what is announced under this lock; what is in the
        // journal counts, whether or not its runs are there already.
        let order = self.order.lock();
        let is_used = || Ok(self.log.journal()?.used_bytes() > 0);
        self.live.withdraw_features_of_journal(is_used, || drop(order))
    }

    /// The log goes on at the start of its area if it holds nothing and ends behind `beyond` bytes of it;
    /// says whether it does.
    ///
    /// # Errors
    /// `Full`, when the manifest has no space for it; nothing has happened then.
    pub(crate) fn restart_journal(&self, beyond: u64) -> Result<bool> {
        let journal = self.log.journal()?;
        let _order = self.order.lock();
        // A layer that waits for its flush names a place in the log.
        if !self.live.view().sealed.is_empty() || journal.head().0 % journal.area_bytes() <= beyond {
            return Ok(false);
        }
        let Some(start) = journal.next_start() else { return Ok(false) };
        let seqno = self.live.flushed_seqno();
        self.live.install(vec![Edit::JournalTail { lsn: start, seqno }], &[], &[], |view| view)?;
        journal.restart(start);
        tracing::debug!(lsn = start.0, "the journal begins anew");
        Ok(true)
    }

    /// Before the store is closed, when everything is in runs: the next opening's log begins where there is
    /// space already.
    pub(crate) fn tidy_journal(&self) -> Result<()> {
        match self.restart_journal(self.runtime.options.journal_part_bytes) {
            Err(StoreError::Full) => Ok(()),
            done => done.map(drop),
        }
    }

    /// The active memtable as a sealed layer, and one to take its place; `None` when no seqno was given to
    /// it. `next_lsn`: of the group with the first record that is not in it.
    pub(crate) fn rotate(&self, order: &mut Order, next_lsn: Lsn) -> Option<(Sealed, Arc<MemTable>)> {
        if order.next_seqno == order.active_from {
            return None;
        }
        let last_seqno = order.next_seqno - 1;
        let sealed = Sealed::table(Arc::clone(&self.live.view().active), next_lsn, last_seqno);
        Some((sealed, Arc::new(self.runtime.new_memtable())))
    }

    /// As [`Self::seal_if`], while memory has room for another sealed layer: for callers that do not flush it
    /// at once.
    pub(crate) fn seal_if_room(&self, wanted: impl Fn(&MemTable) -> bool) {
        self.seal_if(|active| self.live.has_room_for_layer() && wanted(active));
    }

    /// Makes the active memtable a sealed one when `wanted` says so under the order lock.
    pub(crate) fn seal_if(&self, wanted: impl Fn(&MemTable) -> bool) {
        let Ok(journal) = self.log.journal() else { return };
        let mut order = self.order.lock();
        let view = self.live.view();
        if !wanted(&view.active) {
            return;
        }
        let sealed = Sealed::table(Arc::clone(&view.active), journal.head(), order.next_seqno - 1);
        order.active_from = order.next_seqno;
        let active = Arc::new(self.runtime.new_memtable());
        self.live.replace_view(|view| View {
            active,
            sealed: std::iter::once(sealed).chain(view.sealed.iter().cloned()).collect(),
            version: Arc::clone(&view.version),
        });
        drop(order);
        // The caches evict by themselves only when something is put in: without readers, growing memtables
        // would come on top of full ones.
        self.runtime.ctx.pages.shrink();
        self.runtime.ctx.cache.shrink_to(self.runtime.ctx.accountant.cache_budget());
        self.runtime.work.notify();
    }
}
