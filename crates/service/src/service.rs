//! A store while this process has it open: what front ends share.
//!
//! Thread safety: shared by all connections; closing waits for the operations in progress. Invariant: a
//! transaction is served without the lock of the store, so that closing can wait for the transactions
//! themselves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use kvfs_fs::{Difference, Durability, FileSystem, TxnId};
use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::StoreError;

use crate::authority::{authorize_server, authorize_user_of, masters};
use crate::branches::Branches;
use crate::caller::Caller;
use crate::comparisons::{Compared, Comparison, Comparisons};
use crate::defrag::DefragGate;
use crate::engine::Engine;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{HealthLine, HeldLines, TraceLine};
use crate::lock_log::LockWatch;
use crate::operations::Operations;
use crate::served::ServedStore;
use crate::snapshots::Streams;
use crate::transactions::Transactions;
use crate::undo::UndoLimits;

/// A store that was opened.
pub struct Opened {
    /// Its main line.
    pub fs: Arc<FileSystem>,
    /// What is below.
    pub engine: Box<dyn Engine>,
    /// How many of its committed transactions can be taken back.
    pub undo: UndoLimits,
}

/// What a commit has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOutcome {
    /// Whether it has changed anything, as far as is known.
    pub has_changes: bool,
    /// Whether it can be taken back.
    pub is_kept: bool,
}

/// What becomes of open transactions when the store is unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// They are in the way.
    IfNoneIsOpen,
    /// They are aborted.
    Abort,
    /// They become branches.
    Keep,
}

/// See the module.
pub struct Service {
    /// `None`: closed.
    store: RwLock<Option<Opened>, class::ServiceServiceStore>,
    /// No mount shows it any more, or its daemon was told to end.
    is_ending: AtomicBool,
    comparisons: Comparisons,
    /// The streams that are being made.
    pub streams: Streams,
    operations: Arc<Operations>,
    defrag: DefragGate,
    /// Kept beside the store, whose lock may be what hangs.
    masters: [u32; 3],
    locks: Arc<LockWatch>,
    /// Held during a check.
    checks: Mutex<(), class::ServiceServiceChecks>,
    /// From when it is mounted.
    mounted: OnceLock<(Arc<Transactions>, Arc<Branches>)>,
}

impl Service {
    /// Of a store that is not mounted, or not yet.
    pub fn new(store: Opened) -> Self {
        let operations = Arc::new(Operations::default());
        operations.watch(&store.fs);
        Self {
            operations,
            masters: masters(&store.fs),
            locks: Arc::default(),
            store: RwLock::new(Some(store)),
            is_ending: AtomicBool::new(false),
            comparisons: Comparisons::default(),
            streams: Streams::default(),
            defrag: DefragGate::default(),
            checks: Mutex::default(),
            mounted: OnceLock::new(),
        }
    }

    /// From now on transactions are served, too, and branches mounted. A store is mounted once.
    pub fn serve_transactions(&self, transactions: &Arc<Transactions>, branches: &Arc<Branches>) {
        let _ = self.mounted.set((Arc::clone(transactions), Arc::clone(branches)));
    }

    /// Its open transactions.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn transactions(&self) -> Result<&Arc<Transactions>> {
        self.mounted.get().map(|(transactions, _)| transactions).ok_or_else(not_mounted)
    }

    /// Does `work` with the store, which is not closed before it ends; `None`: it is closed, or being closed.
    pub fn with<T>(&self, work: impl FnOnce(&ServedStore<'_>) -> T) -> Option<T> {
        Some(work(&self.served(self.store.read().as_ref()?)))
    }

    /// Whether the store and its device work; answered without a wait. `None`: it is closed, or being closed.
    pub fn health(&self) -> Option<HealthLine> {
        let store = self.store.try_read()?;
        Some(self.served(store.as_ref()?).health())
    }

    /// Which threads hold and wait for which locks in memory; answered without a wait, and without a lock.
    ///
    /// # Errors
    /// The caller may not.
    pub fn held_locks(&self, caller: &Caller) -> Result<HeldLines> {
        authorize_user_of(&self.masters, caller, "see which threads hold which locks")?;
        Ok(self.locks.lines())
    }

    /// Looks at the locks of this process.
    pub fn locks(&self) -> &Arc<LockWatch> {
        &self.locks
    }

    /// The store is on its way to be closed: transactions and branches end first, which may take long.
    pub fn begin_end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Whether it is open, and not on its way to be closed; answered without a wait.
    pub fn is_open(&self) -> bool {
        !self.is_ending.load(Ordering::Acquire) && self.store.try_read().is_some_and(|store| store.is_some())
    }

    /// The counters of now, as far as the caller may know of them; none of a closed store.
    pub fn stats(&self, caller: &Caller) -> Vec<(String, u64)> {
        self.with(|store| store.stats(caller)).unwrap_or_default()
    }

    /// What the operations of all front ends come to.
    pub fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// The next operations for a caller that has begun to [trace](ServedStore::trace) them, and how many were
    /// lost behind them: waits for some, for a moment. `None`: the store is being closed, or the caller has
    /// not begun.
    pub fn traced(&self, caller: &Caller) -> Option<(Vec<TraceLine>, u64)> {
        self.operations.traced(caller.number)
    }

    /// Commits a transaction, and tells what has come of it.
    ///
    /// # Errors
    /// As [`Transactions::commit`].
    pub fn commit(&self, caller: &Caller, id: u64, durability: Durability) -> Result<CommitOutcome> {
        let committed = self.transactions()?.commit(caller, id, durability, None)?;
        let kept = |store: &ServedStore<'_>| (store.is_kept(TxnId(id)), store.undo.keeps_any());
        let (is_kept, keeps_any) = self.with(kept).unwrap_or_default();
        // Dirty pages that came with the commit are not among the operations; where nothing is kept they may
        // be all that there was.
        Ok(CommitOutcome { has_changes: committed.operations > 0 || is_kept || !keeps_any, is_kept })
    }

    /// The store is about to be unmounted: what becomes of open transactions. Returns the names of branches
    /// that they have become.
    ///
    /// # Errors
    /// The caller may not; transactions are in the way, or a branch of which something can't be kept, in a
    /// store that accepts writes.
    pub fn leave(&self, caller: &Caller, how: Leave) -> Result<Vec<String>> {
        self.check_may_leave(caller)?;
        let Some((transactions, branches)) = self.mounted.get() else { return Ok(Vec::new()) };
        let has_failed = self.with(|store| store.engine.health().failure.is_some());
        if has_failed == Some(false) {
            branches.check_kept()?;
        }
        match how {
            Leave::Keep => return transactions.keep_all(),
            Leave::Abort => transactions.abort_all("the store is being unmounted with --abort-open"),
            Leave::IfNoneIsOpen => transactions.check_none_open("--abort-open or --checkpoint-open")?,
        }
        Ok(Vec::new())
    }

    /// Refuses a caller that may not unmount it, and so has no end to wait for.
    ///
    /// # Errors
    /// The caller may not.
    pub fn check_may_leave(&self, caller: &Caller) -> Result<()> {
        authorize_server(caller, "unmount it")
    }

    /// The next page of a comparison, as [`Comparisons::page`]. It is given up when the caller has gone, and
    /// when the store is to be closed.
    ///
    /// # Errors
    /// As there.
    pub fn compare(
        &self,
        caller: &Caller,
        what: Compared,
        bounds: (u64, usize, usize),
        begin: impl FnOnce() -> Result<Comparison>,
    ) -> Result<(Vec<Difference>, bool)> {
        self.defrag.while_wanted(caller, || self.comparisons.page(caller, what, bounds, begin))
    }

    /// The connection of this number has ended, and with it what is kept for it.
    pub fn connection_gone(&self, number: u64) {
        self.streams.forget(number);
        self.comparisons.forget(number);
        self.operations.forget_reader(number);
        if let Ok(transactions) = self.transactions() {
            transactions.line_gone(number);
        }
    }

    /// Ends and admits defragmentations.
    pub fn defrag_gate(&self) -> &DefragGate {
        &self.defrag
    }

    /// Writes everything out and gives the device back. Does nothing the second time.
    ///
    /// # Errors
    /// Store errors: it is closed all the same.
    pub fn close(&self) -> Result<(), StoreError> {
        // It is waited for.
        self.defrag.stop();
        self.operations.end_readers();
        let store = self.store.write().take();
        self.streams.clear();
        self.comparisons.clear();
        let Some(Opened { fs, engine, .. }) = store else { return Ok(()) };
        // What stays queued is found again at the next mount; it must not keep the store from closing.
        let is_read_only = engine.is_read_only();
        let tidied = if is_read_only { Ok(()) } else { fs.sync_target_all().and_then(|_| fs.housekeep()) };
        if let Err(error) = tidied {
            tracing::warn!(%error, "not everything was tidied up");
        }
        drop(fs);
        engine.close()
    }

    fn served<'s>(&'s self, store: &'s Opened) -> ServedStore<'s> {
        let mounted = self.mounted.get();
        ServedStore {
            fs: &store.fs,
            engine: &*store.engine,
            undo: store.undo,
            operations: &self.operations,
            defrag: &self.defrag,
            checks: &self.checks,
            transactions: mounted.map(|(transactions, _)| &**transactions),
            branches: mounted.map(|(_, branches)| &**branches),
        }
    }
}

/// What is answered where there is no mounted store.
pub(crate) fn not_mounted() -> ServiceError {
    ServiceError::new(ErrorKind::NotMounted, "transactions need a mounted store; run `kvfs mount` first")
}

#[cfg(test)]
mod tests;
