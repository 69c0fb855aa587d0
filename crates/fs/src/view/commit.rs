//! The commit of a transaction's view.
//!
//! Steps, of which the front end interleaves its talks with the kernel: [`FileSystem::freeze`]; the dirty pages
//! of the view's own files come in; [`FileSystem::commit_plan`]; the dirty pages that the main line has of
//! those files come in, and meet the transaction's locks, which is a conflict; [`FileSystem::commit`]; the
//! kernel forgets what [`Invalidations`] names; the committer is answered.

use std::sync::Arc;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{Durability, Position};

use super::TxnView;
use super::txn::Phase;
use crate::{FileSystem, FsError, NodeId, Result};

/// What the front end does before the commit point.
#[derive(Debug, Default)]
pub struct CommitPlan {
    /// Files whose content the transaction changed, but for those that it made: of those that the main line knows
    /// ([`FileSystem::knows`]) its kernel may have pages, which are to be written out; the others it may come to know
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

impl FileSystem {
    /// Closes the view for everything but writes of file content, which the kernel may still owe. Waits for
    /// operations that are under way; they never wait themselves.
    ///
    /// # Errors
    /// `Canceled`, `Stale`: there is nothing to commit.
    pub fn freeze(&self) -> Result<()> {
        let view = self.committing_view()?;
        view.check_alive()?;
        let mut phase = view.phase.write();
        match *phase {
            Phase::Open => *phase = Phase::Frozen,
            Phase::Frozen | Phase::Closed => {
                return Err(FsError::Invalid("the transaction is being committed already"));
            }
            Phase::Ended => return Err(FsError::ViewEnded(view.txn.id())),
        }
        Ok(())
    }

    /// Opens a frozen view again: its commit failed and can be tried again later.
    pub fn thaw(&self) {
        let Some(view) = self.txn_view() else { return };
        let mut phase = view.phase.write();
        if matches!(*phase, Phase::Frozen | Phase::Closed) {
            *phase = Phase::Open;
            if let Some(Err(doom)) = view.locks.as_ref().map(|locks| locks.undecide()) {
                tracing::debug!(%doom, "opened again, but doomed");
            }
        }
    }

    /// What to do before [`Self::commit`]. The transaction's locks now answer main-line writes of these files
    /// with the transaction's doom, and nothing more is written in a frozen view.
    ///
    /// # Errors
    /// `Canceled`; store errors.
    pub fn commit_plan(&self) -> Result<CommitPlan> {
        let view = self.committing_view()?;
        view.lock_owner()?.begin_commit().map_err(FsError::Canceled)?;
        {
            // Writes that are under way are waited for; later ones would be a part of what is committed, but
            // not of what the main line hears of.
            let mut phase = view.phase.write();
            if *phase != Phase::Frozen {
                return Err(FsError::Invalid("a view is frozen before its commit"));
            }
            *phase = Phase::Closed;
        }
        // What takes long comes before anybody has to wait.
        view.txn.prepare()?;
        progress::stage("committing", Unit::Items, 0);
        self.changed_contents(view)
    }

    /// Commits a view after [`Self::commit_plan`]: all its changes appear on the main line at once, at one point of the history.
    /// `appeared` is called when they have. With [`Durability::Synced`] they survive a power cut when this returns,
    /// unless [`Committed::durable`] says otherwise.
    ///
    /// # Errors
    /// `Canceled`: somebody was in the way, and nothing happened. `QuotaExceeded`, `ProjectFull`, `NoSpace` and other store errors: nothing
    /// happened, and it can be tried again after [`Self::thaw`].
    pub fn commit(&self, durability: Durability, appeared: impl FnOnce()) -> Result<Committed> {
        let view = self.committing_view()?;
        if *view.phase.read() != Phase::Closed {
            return Err(FsError::Invalid("a commit is planned first"));
        }
        let locks = view.lock_owner()?;
        let set = self.write_set(view)?;
        let gate = self.gate();
        let charged = self.charge_commit(&gate, view, locks.traits().owner.uid)?;
        let refund = |_: &_| self.refund_commit(&gate, &charged);
        locks.decide().map_err(FsError::Canceled).inspect_err(refund)?;
        let nodes = &view.main.nodes;
        let settling = nodes.settle();
        let (published, epoch) = nodes.publish(|| view.txn.commit(Durability::Buffered));
        let position = published.inspect_err(|_| self.refund_commit(&gate, &charged))?;
        let brought_in = view.main.bring_in(set, position, epoch);
        drop(settling);
        *view.phase.write() = Phase::Ended;
        if let Err(error) = &brought_in {
            // The commit stands, and the table of nodes is behind it: nothing may be answered from it.
            let id = view.txn.id();
            view.main.lose(&format!("transaction {id} was committed, but reading it back failed: {error}"));
        }
        appeared();
        let synced = if durability == Durability::Synced { self.store.sync(position) } else { Ok(()) };
        locks.end();
        let durable = synced.map_err(|error| FsError::CommittedOnly(Arc::new(error)));
        Ok(Committed { position, durable, invalidations: brought_in? })
    }

    /// Commits a transaction that has changed nothing: its locks go, and that is all. Waits for nobody, so a thread
    /// that others wait for may call it. `None`: nothing happened; it has changed something, or is being used, or
    /// can't be committed, and the ordinary way does what there is to do. O(locks).
    pub fn commit_unwritten(&self) -> Option<Position> {
        let view = self.txn_view()?;
        // Whoever writes has the phase, so nothing comes in between the look and the end.
        let mut phase = view.phase.try_write()?;
        let is_unwritten = view.branch.get().is_none() && view.txn.stats().operations == 0;
        let locks = view.locks.as_ref().filter(|_| *phase == Phase::Open && is_unwritten)?;
        // From here on nobody dooms it; the error of one that is doomed tells nothing that is not kept.
        locks.begin_commit().and_then(|()| locks.decide()).ok()?;
        let Ok(position) = view.txn.commit(Durability::Buffered) else {
            // It was decided, so it can't have been doomed.
            let _ = locks.undecide();
            return None;
        };
        *phase = Phase::Ended;
        drop(phase);
        locks.end();
        Some(position)
    }

    fn committing_view(&self) -> Result<&TxnView> {
        self.txn_view().ok_or(FsError::Invalid("only transactions are committed"))
    }
}
