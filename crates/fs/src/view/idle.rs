//! Transactions without operations: on a full store they give way.
//!
//! An open transaction pins the state that it began with, and keeps what it has written. The one that has
//! been idle for longest is worth less than writes that would be refused, as what undo keeps is.
//!
//! Thread safety: as [`FileSystem`]. The list is locked for moments, alone; no view is dropped under it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::TxnId;
use kvfs_txn::{Doom, DoomReason, Rival};

use super::TxnView;
use super::commit::Phase;
use crate::detached::DetachedTrees;
use crate::{Caller, FileSystem, FsError};

/// A transaction whose newest operation is younger than this is at work.
const IDLE_MIN: Duration = Duration::from_secs(30);

/// How long an operation takes detached trees apart: they may hold nothing that it lacks, and others wait for
/// its thread.
const TREES_TIME_MAX: Duration = Duration::from_secs(3);

/// How often an operation is tried again after space was made for it.
const SPACE_TRIES_MAX: usize = 16;

/// Failures of operations, of which some are errors of the file system.
pub trait AsFsError {
    /// The error, if it is one of the file system.
    fn as_fs_error(&self) -> Option<&FsError>;
}

impl AsFsError for FsError {
    fn as_fs_error(&self) -> Option<&FsError> {
        Some(self)
    }
}

/// The views of open transactions.
#[derive(Default)]
pub(crate) struct OpenViews {
    views: Mutex<BTreeMap<TxnId, Weak<FileSystem>>, class::FsViewIdleViews>,
    /// Of `views`, for every operation of the main line: it must not take the lock.
    count: AtomicUsize,
}

impl OpenViews {
    pub(super) fn insert(&self, id: TxnId, view: &Arc<FileSystem>) {
        let mut views = self.views.lock();
        views.insert(id, Arc::downgrade(view));
        self.count.store(views.len(), Ordering::Release);
    }

    /// Called when the view is dropped.
    pub(super) fn remove(&self, id: TxnId) {
        let mut views = self.views.lock();
        views.remove(&id);
        self.count.store(views.len(), Ordering::Release);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The view of a transaction that is open.
    pub(super) fn of(&self, id: TxnId) -> Option<Arc<FileSystem>> {
        self.views.lock().get(&id).and_then(Weak::upgrade)
    }

    fn all(&self) -> Vec<Arc<FileSystem>> {
        self.views.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Ends the transactions that are doomed, `own` left out; where there are none, those half of the idle
    /// ones that have been idle for longest. True: one has ended.
    fn end_idle(&self, own: Option<TxnId>, pid: u32) -> bool {
        let mut idle: Vec<(Duration, Arc<FileSystem>)> = Vec::new();
        let mut has_ended = false;
        for view in self.all() {
            // One that brings something back is at work, also while it only compares.
            let may_end = |txn: &&TxnView| Some(txn.id()) != own && !txn.restores();
            let Some(txn) = view.txn().filter(may_end) else { continue };
            let Some(locks) = &txn.locks else { continue };
            if locks.doomed().is_some() {
                has_ended |= txn.end_doomed();
            } else if locks.idle() >= IDLE_MIN {
                idle.push((locks.idle(), view));
            }
        }
        if has_ended {
            return true;
        }
        idle.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        let count = idle.len().div_ceil(2);
        let end = |(time, view): &&(Duration, Arc<FileSystem>)| {
            view.txn().is_some_and(|txn| txn.end_for_space(*time, pid))
        };
        idle.iter().take(count).filter(end).count() > 0
    }
}

impl FileSystem {
    /// Runs `operation`; again while space that it lacks is made: detached trees go first, then orphans, then
    /// transactions that are doomed, then those half of the idle ones that have been idle for longest. May
    /// block, and works on a full store.
    ///
    /// # Errors
    /// Those of `operation`.
    pub fn with_space<T, E>(&self, caller: &Caller, operation: impl Fn() -> Result<T, E>) -> Result<T, E>
    where
        E: AsFsError,
    {
        let trees = DetachedTrees::of(self);
        let make_space = |error: &FsError| match error {
            FsError::NoSpace => {
                self.orphans().reap_for_space()
                    || self.shared.open.end_idle(self.txn().map(TxnView::id), caller.pid)
            }
            FsError::QuotaExceeded | FsError::ProjectFull => self.orphans().reap_for_space(),
            _ => false,
        };
        let began = self.shared.clock.monotonic();
        let has_time = || self.shared.clock.monotonic().saturating_sub(began) < TREES_TIME_MAX;
        let mut tries = 0;
        loop {
            match operation() {
                Err(error)
                    if error.as_fs_error().is_some_and(FsError::lacks_space)
                        && has_time()
                        && trees.remove_for_space() => {}
                Err(error) if tries < SPACE_TRIES_MAX && error.as_fs_error().is_some_and(make_space) => {
                    tries += 1;
                }
                done => return done,
            }
        }
    }
}

impl TxnView {
    /// Ends the transaction, which is doomed: nothing is left to be tried, and its owner may never abort it.
    /// False: it has ended before, or is in the middle of its commit.
    fn end_doomed(&self) -> bool {
        let has_ended = || self.phase.now() == Phase::Ended;
        if has_ended() {
            return false;
        }
        self.abort();
        has_ended()
    }

    /// Ends the transaction, which has been idle for so long, unless it is being committed.
    fn end_for_space(&self, idle: Duration, pid: u32) -> bool {
        let Some(locks) = &self.locks else { return false };
        let idle_s = u32::try_from(idle.as_secs()).unwrap_or(u32::MAX);
        let rival = Some(Rival::Main { pid });
        if !locks.doom(Doom { rival, ..Doom::new(DoomReason::Space { idle_s }) }) {
            return false;
        }
        self.abort();
        let (id, owner) = (self.txn.id(), &locks.traits().owner);
        tracing::warn!(%id, %owner, idle_s = idle.as_secs(), pid, "the store is full: idle transaction ended");
        true
    }
}
