//! The commit of a transaction's view: what happens at each transition of its `phase`, whose header has the diagram.
//!
//! Steps, of which the front end interleaves its talks with the kernel: [`TxnView::freeze`]; the dirty pages
//! of the view's own files come in; [`TxnView::commit_plan`]; the dirty pages that the main line has of
//! those files come in, and meet the transaction's locks, which is a conflict; [`TxnView::commit`]; the
//! kernel forgets what [`Invalidations`] names; the committer is answered.

use std::sync::Arc;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{Durability, Position};

use super::TxnView;
use super::phase::Phase;
use super::publish::bring_in;
use crate::{FsError, NodeId, Result};

/// What the front end does before the commit point.
#[derive(Debug, Default)]
pub struct CommitPlan {
    /// Files whose content the transaction changed, but for those that it made: of those that the main line knows
    /// ([`crate::NodeTable::knows`]) its kernel may have pages, which are to be written out; the others it may come to know
    /// before the commit.
    pub contents: Vec<NodeId>,
}

/// A commit that took place.
#[derive(Debug)]
pub struct Committed {
    /// Where in the history.
    pub position: Position,
    /// Whether it is known to survive a power cut, if that was asked for.
    pub durable: Result<()>,
    /// What the kernel must forget, in any case.
    pub invalidations: Invalidations,
}

/// What the main line's kernel must forget after a commit.
#[derive(Debug, Default)]
pub struct Invalidations {
    /// Attributes of these, and their pages too where it says so.
    pub nodes: Vec<(NodeId, bool)>,
    /// Names that lead elsewhere or nowhere, or that exist now.
    pub entries: Vec<(NodeId, Box<[u8]>)>,
}

impl TxnView {
    /// Closes the view for everything but writes of file content, which the kernel may still owe. Waits for
    /// operations that are under way; they never wait themselves.
    ///
    /// # Errors
    /// `Canceled`, `Stale`: there is nothing to commit.
    pub fn freeze(&self) -> Result<()> {
        self.check_alive()?;
        self.phase.freeze().map_err(|phase| match phase {
            Phase::Ended => self.ended(),
            _ => FsError::Invalid("the transaction is being committed already"),
        })
    }

    /// Opens a frozen view again: its commit failed and can be tried again later.
    pub fn thaw(&self) {
        self.phase.reopen(|| {
            if let Some(Err(doom)) = self.locks.as_ref().map(|locks| locks.undecide()) {
                tracing::debug!(%doom, "opened again, but doomed");
            }
        });
    }

    /// What to do before [`Self::commit`]. From now on a dirty page of the main line that meets the
    /// transaction's locks dooms it (other operations wait), and nothing more is written in a frozen view.
    ///
    /// # Errors
    /// `Canceled`; store errors.
    pub fn commit_plan(&self) -> Result<CommitPlan> {
        self.lock_owner()?.begin_commit().map_err(FsError::Canceled)?;
        self.phase.close().map_err(|_| FsError::Invalid("a view is frozen before its commit"))?;
        // What takes long comes before any other thread has to wait.
        self.txn.prepare()?;
        progress::stage("committing", Unit::Items, 0);
        self.changed_contents()
    }

    /// Commits a view after [`Self::commit_plan`]: all its changes appear on the main line at once, at one point of the history.
    /// `appeared` is called when they have. With [`Durability::Synced`] they survive a power cut when this returns,
    /// unless [`Committed::durable`] says otherwise.
    ///
    /// # Errors
    /// `Canceled`: another party was in the way, and nothing happened. `QuotaExceeded`, `ProjectFull`, `NoSpace` and
    /// other store errors: nothing happened, and it can be tried again after [`Self::thaw`].
    pub fn commit(&self, durability: Durability, appeared: impl FnOnce()) -> Result<Committed> {
        if self.phase.now() != Phase::Closed {
            return Err(FsError::Invalid("a commit is planned first"));
        }
        let locks = self.lock_owner()?;
        let set = self.write_set()?;
        let gate = self.main.gate();
        let charged = gate.charge_commit(self, locks.traits().owner.uid)?;
        let refund = |_: &_| gate.refund_commit(&charged);
        locks.decide().map_err(FsError::Canceled).inspect_err(refund)?;
        let nodes = &self.main.nodes;
        let settling = nodes.settle();
        let (published, epoch) = nodes.publish(|| self.txn.commit(Durability::Buffered));
        let position = published.inspect_err(|_| gate.refund_commit(&charged))?;
        let brought_in = bring_in(&self.main, set, position, epoch);
        drop(settling);
        self.phase.end();
        if let Err(error) = &brought_in {
            // The commit stands, and the table of nodes is behind it: nothing may be answered from it.
            let id = self.txn.id();
            self.main
                .nodes
                .lose(&format!("transaction {id} was committed, but reading it back failed: {error}"));
        }
        appeared();
        let synced = if durability == Durability::Synced { self.main.store.sync(position) } else { Ok(()) };
        locks.end();
        let durable = synced.map_err(|error| FsError::CommittedOnly(Arc::new(error)));
        Ok(Committed { position, durable, invalidations: brought_in? })
    }

    /// Commits a transaction that has changed nothing: its locks go, and that is all. Waits for no other thread, so a
    /// thread that others wait for may call it. `None`: nothing happened; it has changed something, or is being used, or
    /// can't be committed, and the ordinary way does what there is to do. O(locks).
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
