//! The commit of a transaction's view: one state machine. All transitions are here.
//!
//! ```text
//!        FrozenView dropped      PreparedCommit, PlannedCommit dropped
//!      +----------------------+--------------------------+
//!      v                      |                          |
//!     Open --- freeze ---> Frozen -- prepare --> Closed -+- begin, commit ---> Ended
//!      |                      |                                                  ^
//!      +-- abort,             +-- abort ---------------------------------------->|
//!          commit_unwritten ---------------------------------------------------->+
//! ```
//!
//! | state | what is admitted | its locks | held by | left by |
//! |---|---|---|---|---|
//! | `Open` | every operation | active: may be doomed | – | [`TxnView::freeze`], [`TxnView::abort`], [`TxnView::commit_unwritten`] |
//! | `Frozen` | content that the kernel writes out | active | [`FrozenView`] | [`FrozenView::prepare`], [`TxnView::abort`]; dropping it opens the view again |
//! | `Closed` | nothing | committing: doomed by dirty pages in their way; active while the turn is waited for; decided right before the store commits: by nothing | [`PreparedCommit`], [`PlannedCommit`] | [`PlannedCommit::commit`]; dropping either opens the view again |
//! | `Ended` | nothing, for good | released | – | – |
//!
//! A step of a commit consumes the state that it leaves, so none is left out or taken twice, and a commit
//! that fails anywhere, also in a front end, leaves the view open: it can be tried again, unless the
//! transaction is doomed.
//!
//! The front end talks with its kernel between the steps: in `Frozen` the dirty pages of the view's own files
//! come in; in `Closed` commits take turns from [`PreparedCommit::begin`] on, behind all that takes long of a
//! large one, and the dirty pages come in that the main line has of the files in [`CommitPlan`], which meet
//! the transaction's locks: a conflict. After the commit the kernel forgets what [`Invalidations`] names, the
//! committer waits for the device where that was asked for ([`Committed::harden`]), and is answered
//! (`fuse/bridge/commit.rs`).
//!
//! Thread safety: any number of threads; an operation must hold what [`TxnView::admit`] returns until it is
//! done, and a transition waits for those. Invariants: `Closed` is left for `Ended` after a commit only, so
//! an abort never takes back what is being committed; the locks are released only when the main line's nodes
//! are up to date.

mod names;
mod phase;
#[cfg(test)]
mod tests;

pub use names::ManyNames;
pub(super) use names::{Name, name_of};
pub(crate) use phase::{CommitPhase, Phase};

use std::sync::Arc;

use kvfs_locks::{RwLockWriteGuard, class};
use kvfs_store::progress::{self, Unit};
use kvfs_store::{Durability, Position};
use kvfs_txn::DoomReason;

use super::TxnView;
use super::publish::bring_in;
use super::untold::Telling;
use crate::fair_lock::ReadGuard;
use crate::node::{Behind, Touched};
use crate::{FsError, NodeId, Result};

/// What the front end does before the commit point.
#[derive(Debug, Default)]
pub struct CommitPlan {
    /// Files whose content the transaction changed, but for those that it made: of those that the main line
    /// knows ([`crate::NodeTable::knows`]) its kernel may have pages, which are to be written out; the others
    /// it may come to know before the commit.
    pub contents: Vec<NodeId>,
}

/// A commit that took place.
#[derive(Debug)]
#[must_use = "a power cut takes it, unless it is hardened"]
pub struct Committed {
    /// What the kernel must forget, in any case.
    pub invalidations: Invalidations,
    /// To be dropped when it has. `None`: it was.
    pub telling: Option<Telling>,
    position: Position,
    txn: Arc<TxnView>,
}

impl Committed {
    /// Waits until it survives a power cut, where `durability` asks for that: nothing else waits for it.
    /// Returns where in the history it is.
    ///
    /// # Errors
    /// `CommittedOnly`.
    pub fn harden(self, durability: Durability) -> Result<Position> {
        if durability == Durability::Synced {
            let synced = self.txn.main.store.sync(self.position);
            synced.map_err(|error| FsError::CommittedOnly(Arc::new(error)))?;
        }
        Ok(self.position)
    }
}

/// What the main line's kernel must forget after a commit.
#[derive(Debug, Default)]
pub struct Invalidations {
    /// Attributes of these, and their pages too where it says so.
    pub nodes: Vec<(NodeId, bool)>,
    /// Names that lead elsewhere or nowhere, or that exist now.
    pub entries: Vec<(NodeId, Box<[u8]>)>,
    /// Such names from which a directory has moved away: what is known below it stays true.
    pub moved: Vec<(NodeId, Box<[u8]>)>,
    /// In the place of both, where they are too many to be held.
    pub many: Option<ManyNames>,
}

impl Invalidations {
    /// The same for another kernel side: all of it, but for the names of a commit that are too many to be
    /// held.
    #[must_use]
    pub fn held(&self) -> Self {
        let Self { nodes, entries, moved, .. } = self;
        Self { nodes: nodes.clone(), entries: entries.clone(), moved: moved.clone(), many: None }
    }
}

/// A view whose commit has begun: it takes nothing but content that the kernel still owes. When this is
/// dropped, the view opens again.
#[derive(Debug)]
#[must_use = "the view opens again when this is dropped"]
pub struct FrozenView {
    txn: Arc<TxnView>,
}

/// A commit of which all that takes long has been done. Until it begins, others may still be in its way. When
/// this is dropped, the view opens again.
#[derive(Debug)]
#[must_use = "the view opens again when this is dropped"]
pub struct PreparedCommit {
    view: FrozenView,
    plan: CommitPlan,
    touched: Touched,
}

/// A commit whose decision is all that is missing. When this is dropped, the view opens again.
#[derive(Debug)]
#[must_use = "the view opens again when this is dropped"]
pub struct PlannedCommit {
    view: FrozenView,
    plan: CommitPlan,
    touched: Touched,
}

impl FrozenView {
    /// Closes the view, and does what takes long of the commit, before any other one has to wait for it.
    /// Meanwhile a dirty page of the main line that meets the transaction's locks dooms it, and nothing else
    /// (other operations wait).
    ///
    /// # Errors
    /// `Canceled`, `Stale`; store errors.
    pub fn prepare(self) -> Result<PreparedCommit> {
        let txn = &self.txn;
        let locks = txn.lock_owner()?;
        locks.begin_commit().map_err(FsError::Canceled)?;
        txn.phase.close().map_err(|_| txn.ended())?;
        txn.txn.prepare()?;
        progress::stage("committing", Unit::Items, 0);
        let (plan, touched) = txn.plan_changes()?;
        // What holds up the commit whose turn it is may wait for this one, which must be free to give way.
        locks.undecide().map_err(FsError::Canceled)?;
        locks.touch();
        Ok(PreparedCommit { view: self, plan, touched })
    }

    /// For a commit that takes no turns with others.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn plan(self) -> Result<PlannedCommit> {
        self.prepare()?.begin()
    }
}

impl PreparedCommit {
    /// From now on a dirty page of the main line that meets the transaction's locks dooms it (other
    /// operations wait). O(waiting operations).
    ///
    /// # Errors
    /// `Canceled`: another party was in the way since.
    pub fn begin(self) -> Result<PlannedCommit> {
        let Self { view, plan, touched } = self;
        view.txn.lock_owner()?.begin_commit().map_err(FsError::Canceled)?;
        Ok(PlannedCommit { view, plan, touched })
    }
}

impl Drop for FrozenView {
    fn drop(&mut self) {
        let TxnView { phase, locks, .. } = &*self.txn;
        phase.reopen(|| {
            if let Some(Err(doom)) = locks.as_ref().map(|locks| locks.undecide()) {
                tracing::debug!(%doom, "opened again, but doomed");
            }
        });
    }
}

impl PlannedCommit {
    /// What the front end does before the commit.
    pub fn plan(&self) -> &CommitPlan {
        &self.plan
    }

    /// Commits: all changes of the view appear on the main line at once, at one point of the history.
    /// `appeared` is called when they have. After a failure it is dropped before the view opens again.
    ///
    /// # Errors
    /// `Canceled`: another party was in the way. `QuotaExceeded`, `ProjectFull`, `NoSpace` and other store
    /// errors. Nothing happened; after the latter it can be tried again.
    pub fn commit(self, appeared: impl FnOnce()) -> Result<Committed> {
        let Self { view, touched, .. } = self;
        let txn = Arc::clone(&view.txn);
        let (position, invalidations, telling) = txn.publish(touched, appeared)?;
        Ok(Committed { invalidations, telling: Some(telling), position, txn })
    }
}

/// A commit behind its point, which stands whatever happens. When this is dropped, its locks go.
struct PastPoint<'t> {
    view: &'t TxnView,
    /// `None`: it has appeared.
    behind: Option<Behind<'t>>,
    /// Why the nodes of the main line are not up to date with it.
    problem: Option<String>,
}

impl PastPoint<'_> {
    /// It appears, or nothing is answered any more from nodes that are behind it. The view has ended.
    fn appear(&mut self) {
        if let Some(problem) = self.problem.take() {
            let id = self.view.txn.id();
            let reason = format!("transaction {id} was committed, but reading it back failed: {problem}");
            self.view.main.nodes.lose(&reason);
        }
        self.behind = None;
        self.view.phase.end();
    }
}

impl Drop for PastPoint<'_> {
    fn drop(&mut self) {
        self.appear();
        if let Some(locks) = &self.view.locks {
            locks.end();
        }
    }
}

impl TxnView {
    /// Lets an operation in, and keeps the phase until it is done.
    pub(super) fn admit(&self, phase_max: Phase) -> Result<ReadGuard<'_, Phase, class::FsViewCommitPhase>> {
        self.check_alive()?;
        self.phase.admit(phase_max).ok_or_else(|| self.ended())
    }

    /// Keeps the view open for what is done without its user; `None`: it is not.
    pub(crate) fn stay_open(&self) -> Option<ReadGuard<'_, Phase, class::FsViewCommitPhase>> {
        self.phase.admit(Phase::Open)
    }

    /// `Stale` after the end, `Canceled` after a doom. Called by each operation of the view, and by none that
    /// happens without its user: so it tells when the transaction was used.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.phase.now() == Phase::Ended {
            return Err(self.ended());
        }
        let Some(locks) = &self.locks else { return Ok(()) };
        locks.touch();
        locks.doomed().map_or(Ok(()), |doom| Err(FsError::Canceled(doom)))
    }

    /// What an operation gets after the end: the doom that came before it, if one did.
    pub(super) fn ended(&self) -> FsError {
        match self.doom() {
            Some(doom) if doom.reason != DoomReason::Ended => FsError::Canceled(doom),
            _ => FsError::ViewEnded(self.txn.id()),
        }
    }

    /// Whether nothing is left to be tried: it was committed, aborted or doomed.
    pub fn is_over(&self) -> bool {
        self.phase.now() == Phase::Ended || self.doom().is_some()
    }

    /// `Open` → `Frozen`: begins the commit. Waits for operations that are under way; they never wait
    /// themselves.
    ///
    /// # Errors
    /// `Canceled`, `Stale`: there is nothing to commit. `Invalid`: its commit is under way. `Busy`: an
    /// operation of several batches is.
    pub fn freeze(self: &Arc<Self>) -> Result<FrozenView> {
        self.check_alive()?;
        // Before the phase changes: nothing is turned away for a commit that is refused. None begins from
        // here on until the view is frozen, and then none is admitted.
        let _between = self.between_long_operations()?;
        self.phase.freeze().map_err(|phase| match phase {
            Phase::Ended => self.ended(),
            _ => FsError::Invalid("the transaction is being committed already"),
        })?;
        Ok(FrozenView { txn: Arc::clone(self) })
    }

    /// Keeps the view from being committed and checkpointed until what is returned is dropped. Waits for a
    /// checkpoint.
    ///
    /// # Errors
    /// It is being committed, or over.
    pub(crate) fn begin_long_operation(&self) -> Result<ReadGuard<'_, (), class::FsViewTxnLongOperations>> {
        let under_way = self.long_operations.read();
        self.admit(Phase::Open).map(|_| under_way)
    }

    /// Waits for the operations of several batches that are under way. The caller must not carry out one
    /// itself.
    pub fn await_long_operations(&self) {
        drop(self.long_operations.write());
    }

    /// Until what is returned is dropped, no operation of several batches begins.
    ///
    /// # Errors
    /// `Busy`: one is under way, or another caller keeps them away.
    pub(super) fn between_long_operations(
        &self,
    ) -> Result<RwLockWriteGuard<'_, (), class::FsViewTxnLongOperations>> {
        self.long_operations
            .try_write()
            .ok_or(FsError::Busy("a clone, a checkpoint or a commit is under way there"))
    }

    /// `Closed` → `Ended`; see [`PlannedCommit::commit`].
    fn publish(
        &self,
        touched: Touched,
        appeared: impl FnOnce(),
    ) -> Result<(Position, Invalidations, Telling)> {
        let locks = self.lock_owner()?;
        let set = self.write_set()?;
        let gate = self.main.gate();
        let charged = gate.charge_commit(self, locks.traits().owner.uid)?;
        let refund = |_: &_| gate.refund_commit(&charged);
        locks.decide().map_err(FsError::Canceled).inspect_err(refund)?;
        let nodes = &self.main.nodes;
        let published = nodes.publish_behind(touched, || self.txn.commit(Durability::Buffered));
        let (position, epoch, behind) = published.inspect_err(|_| gate.refund_commit(&charged))?;
        let mut past_point =
            PastPoint { view: self, behind: Some(behind), problem: Some("a panic".to_owned()) };
        // Behind the commit point nothing is given up.
        let brought_in = progress::while_wanted(|| true, || bring_in(&self.main, set, position, epoch));
        past_point.problem = brought_in.as_ref().err().map(ToString::to_string);
        past_point.appear();
        appeared();
        let told = brought_in.map(|changes| {
            let telling = self.main.shared.untold.begin(&changes);
            (position, changes, telling)
        });
        drop(past_point);
        told
    }

    /// `Open`, `Frozen` → `Ended`. Drops the transaction: nothing of it ever happened. Without effect on one
    /// that has ended or is `Closed`. A branch goes back to its last checkpoint, and can be opened again
    /// while this view is held.
    pub fn abort(&self) {
        if !self.phase.end_early() {
            return;
        }
        self.txn.suspend();
        if let Some(locks) = &self.locks {
            locks.end();
        }
    }

    /// `Open` → `Ended`. Commits a transaction that has changed nothing: its locks go, and that is all. Waits
    /// for no other thread, so a thread that others wait for may call it. `None`: nothing happened; it has
    /// changed something, or is being used, or can't be committed, and the ordinary way does what there is to
    /// do. O(locks).
    pub fn commit_unwritten(&self) -> Option<Position> {
        let locks = self.locks.as_ref()?;
        let position = self.phase.end_unwritten(|| {
            if self.branch.get().is_some() || self.txn.stats().operations != 0 {
                return None;
            }
            // From here on nothing dooms it; the error of one that is doomed tells nothing that is not kept.
            locks.begin_commit().and_then(|()| locks.decide()).ok()?;
            let Ok(position) = self.txn.commit(Durability::Buffered) else {
                // It was decided, so it can't have been doomed.
                let _ = locks.undecide();
                return None;
            };
            Some(position)
        })?;
        locks.end();
        Some(position)
    }
}
