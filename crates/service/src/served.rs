//! An open store, as operations on it see it: mounted, or opened by the process that asks.
//!
//! Thread safety: shared references, for threads that may block. Invariant: each operation checks the rights
//! of its caller itself, so a front end needs no rule of its own.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{BeginOptions, Durability, FileSystem, FsError, Owner, TxnId, TxnView};
use kvfs_locks::{Mutex, class};

use crate::branches::Branches;
use crate::caller::Caller;
use crate::defrag::DefragGate;
use crate::engine::Engine;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::operations::Operations;
use crate::service::not_mounted;
use crate::transactions::Transactions;
use crate::undo::UndoLimits;

/// An open transaction that is in the way of a restore or an undo is waited for so long, rather than for
/// people.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// See the module. Each operation is a method: those on snapshots in `snapshots`, and so on.
#[derive(Clone, Copy)]
pub struct ServedStore<'s> {
    /// Its main line.
    pub fs: &'s Arc<FileSystem>,
    /// What is below it.
    pub engine: &'s dyn Engine,
    /// What its operations come to.
    pub operations: &'s Operations,
    /// Admits its defragmentations.
    pub defrag: &'s DefragGate,
    /// Held during a check.
    pub checks: &'s Mutex<(), class::ServiceServiceChecks>,
    /// How many of its committed transactions can be taken back.
    pub undo: UndoLimits,
    /// Its open transactions; `None`: it is not mounted.
    pub transactions: Option<&'s Transactions>,
    /// Its mounted branches; `None`: it is not mounted.
    pub branches: Option<&'s Branches>,
}

impl<'s> ServedStore<'s> {
    /// The open transactions of a mounted store.
    ///
    /// # Errors
    /// `NotMounted`.
    pub fn transactions(&self) -> Result<&'s Transactions> {
        self.transactions.ok_or_else(not_mounted)
    }

    /// Has the kernel write out its dirty pages where the store is mounted: always, or only those that it
    /// keeps of ordinary writes.
    pub(crate) fn flush_main_line(&self, always: bool) -> Result<()> {
        match self.transactions {
            Some(transactions) if always || transactions.is_writeback() => transactions.flush_main_line(),
            _ => Ok(()),
        }
    }

    /// Does `work` in a transaction of its own, and commits it, durably. Every user of a mount sees it when
    /// this returns.
    pub(crate) fn carry_out(
        &self,
        options: &BeginOptions,
        work: impl FnOnce(&FileSystem) -> Result<(), FsError>,
    ) -> Result<TxnId> {
        carry_out(self.fs, self.transactions, options, work)
    }
}

/// As [`ServedStore::carry_out`]. `transactions`: those of a store that is mounted or served.
pub(crate) fn carry_out(
    fs: &Arc<FileSystem>,
    transactions: Option<&Transactions>,
    options: &BeginOptions,
    work: impl FnOnce(&FileSystem) -> Result<(), FsError>,
) -> Result<TxnId> {
    if let Some(transactions) = transactions {
        return transactions.carry_out(options, work);
    }
    let view = fs.begin(options)?;
    work(&view)?;
    commit_unseen(&view)?;
    Ok(view.txn().map_or(TxnId(0), TxnView::id))
}

/// Commits a view, durably, where no kernel has to hear of it.
pub(crate) fn commit_unseen(view: &Arc<FileSystem>) -> Result<(), FsError> {
    view.expect_txn()?.freeze()?.plan()?.commit(|| ())?.harden(Durability::Synced).map(drop)
}

/// How a transaction begins in which one operation of the caller's is carried out.
pub(crate) fn begin_for(caller: &Caller, name: String) -> BeginOptions {
    begin_as(Owner { uid: caller.uid, pid: caller.pid, name })
}

/// The same, by its owner. It is at work until its end, also while it only compares: that is no idle time.
pub(crate) fn begin_as(owner: Owner) -> BeginOptions {
    let idle_max = Some(Duration::MAX);
    BeginOptions { lock_wait_max: Some(LOCK_WAIT_MAX), idle_max, owner, ..BeginOptions::default() }
}

/// What a full store says to an operation that changed nothing: `nothing` says so.
pub(crate) fn or_nothing<T>(done: Result<T>, nothing: &str) -> Result<T> {
    done.map_err(|error| match error.kind() {
        ErrorKind::NoSpace => ServiceError::new(ErrorKind::NoSpace, format!("{error}; {nothing}")),
        _ => error,
    })
}
