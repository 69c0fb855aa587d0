//! Where a view's reads come from and its batches go, and how its operations take names.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvfs_kv::KeyspaceTable;
use kvfs_store::clock::Clock;
use kvfs_store::{Batch, Durability, Isolation, Position, Read, Snapshot, Store, StoreError};
use kvfs_txn::{Admission, Guard, LockName, Party, Want};
use parking_lot::Mutex;

use super::TxnView;
use super::authors::{Author, Authors};
use super::idle::OpenViews;
use super::phase::Phase;
use crate::fair_lock::ReadGuard;
use crate::namespace::attribute_wants;
use crate::quota::SharedQuotas;
use crate::snapshots::Snapshots;
use crate::{Caller, FileSystem, FsError, NodeId, Result};

/// What all views of a file system have in common.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) admission: Arc<Admission>,
    /// Views of the transactions that are open.
    pub(crate) open: OpenViews,
    /// Who has changed what on the main line lately.
    pub(crate) authors: Authors,
    /// Inode numbers that the superblock has reserved and no directory has taken.
    pub(crate) inodes: Mutex<Range<u64>>,
    pub(crate) keyspaces: KeyspaceTable,
    /// Held from the look at a branch's name to its first checkpoint.
    pub(crate) naming_branches: Mutex<()>,
    pub(crate) snapshots: Snapshots,
    /// What users and groups have; the gate of [`crate::quota`].
    pub(crate) quotas: SharedQuotas,
    /// Whether the superblock record says so. Written with `inodes` held.
    pub(crate) has_quotas: AtomicBool,
    /// The same of projects.
    pub(crate) has_projects: AtomicBool,
}

/// What a view sees and changes.
pub(crate) enum Origin {
    /// The newest committed state.
    Main,
    /// A transaction's private state.
    Txn(Box<TxnView>),
    /// One position, read-only.
    Snapshot(Arc<dyn Snapshot>),
}

impl Origin {
    /// As [`FileSystem::position`].
    pub(crate) fn position(&self, store: &dyn Store) -> Position {
        match self {
            Self::Main => store.position(),
            Self::Txn(_) | Self::Snapshot(_) => Position::default(),
        }
    }
}

/// The names that an operation has taken. Latches are given back on drop; a transaction's locks stay.
pub(crate) struct Names<'f> {
    fs: &'f FileSystem,
    guard: Guard<'f>,
    /// Of an operation on the main line while a transaction is open.
    author: Option<Author>,
    /// Keeps the transaction from being frozen while the operation is under way.
    _admitted: Option<ReadGuard<'f, Phase>>,
}

impl Names<'_> {
    /// Takes further names, found by reading under those that are held.
    pub(crate) fn try_extend(&mut self, wants: &[Want<'_>]) -> Result<()> {
        let fs = self.fs;
        self.guard.try_extend(wants, |want| fs.is_shared(&want.name))?;
        if let Some(author) = &mut self.author {
            author.extend(wants);
        }
        fs.verify(wants)
    }
}

impl Drop for Names<'_> {
    fn drop(&mut self) {
        // Before the latches are given back: what comes next is another operation's.
        if let Some(author) = self.author.take() {
            self.fs.shared.authors.note(author, self.fs.store.position().0);
        }
    }
}

impl FileSystem {
    /// Whether this is the main line.
    pub(crate) fn is_main(&self) -> bool {
        matches!(self.origin, Origin::Main)
    }

    /// Reads of this view.
    pub(crate) fn read_view(&self) -> &dyn Read {
        match &self.origin {
            Origin::Main => &*self.store,
            Origin::Txn(view) => &*view.txn,
            Origin::Snapshot(snapshot) => &**snapshot,
        }
    }

    /// The position that an fsync of what is visible now must wait for. In a transaction nothing: its
    /// commit is what makes it durable.
    pub(crate) fn position(&self) -> Position {
        self.origin.position(&*self.store)
    }

    /// Applies a batch to the view, wholly or not at all.
    pub(crate) fn apply(&self, batch: Batch) -> Result<Position> {
        match &self.origin {
            Origin::Main => Ok(self.store.apply(batch, Durability::Buffered)?),
            Origin::Txn(view) => match view.txn.apply(batch) {
                Ok(()) => Ok(Position::default()),
                Err(StoreError::Conflict { changed }) => Err(view.conflict(&changed)),
                Err(error) => Err(error.into()),
            },
            Origin::Snapshot(_) => Err(FsError::ReadOnly),
        }
    }

    /// Whether the view is that of a transaction that locks what it reads.
    pub fn locks_reads(&self) -> bool {
        matches!(&self.origin, Origin::Txn(view) if view.txn.isolation() == Isolation::Serializable)
    }

    /// Takes all names or none, for an operation that changes something.
    pub(crate) fn latch(&self, caller: &Caller, wants: &[Want<'_>]) -> Result<Names<'_>> {
        self.latch_in(caller, wants, Phase::Open, Party::Main { pid: caller.pid })
    }

    /// As [`Self::latch`], for a write of file content: it is admitted until the view has been committed,
    /// because the kernel writes dirty pages out during the commit.
    pub(crate) fn latch_to_write(
        &self,
        caller: &Caller,
        wants: &[Want<'_>],
        is_writeback: bool,
    ) -> Result<Names<'_>> {
        let pid = caller.pid;
        let on_main = if is_writeback { Party::Launder { pid } } else { Party::Main { pid } };
        self.latch_in(caller, wants, Phase::Frozen, on_main)
    }

    fn latch_in<'f>(
        &'f self,
        caller: &Caller,
        wants: &[Want<'_>],
        phase_max: Phase,
        on_main: Party<'f>,
    ) -> Result<Names<'f>> {
        self.verify_root(caller)?;
        let again = caller.ticket.as_ref();
        let (party, admitted) = match &self.origin {
            Origin::Txn(view) => {
                let party = view.locks.as_ref().map_or(Party::Reader, |locks| Party::Txn(locks));
                (party, Some(view.admit(phase_max)?))
            }
            Origin::Main => (on_main, None),
            Origin::Snapshot(_) => return Err(FsError::ReadOnly),
        };
        let guard =
            self.shared.admission.try_acquire(party, wants, |want| self.is_shared(&want.name), again)?;
        let is_noted = self.is_main() && self.shared.open.len() > 0;
        let author = is_noted.then(|| Author::new(caller.pid, self.store.position().0, wants));
        let names = Names { fs: self, guard, author, _admitted: admitted };
        self.verify(wants)?;
        Ok(names)
    }

    /// Takes all names or none, for an operation that only reads: others' operations wait, but no
    /// transaction does, unless this is one that locks what it reads.
    pub(crate) fn latch_to_read(&self, caller: &Caller, wants: &[Want<'_>]) -> Result<Names<'_>> {
        self.verify_root(caller)?;
        self.latch_to_read_below(caller, wants)
    }

    fn latch_to_read_below(&self, caller: &Caller, wants: &[Want<'_>]) -> Result<Names<'_>> {
        let again = caller.ticket.as_ref();
        let (party, lock) = match &self.origin {
            Origin::Txn(view) if self.locks_reads() => {
                view.locks.as_ref().map_or((Party::Reader, false), |locks| (Party::Txn(locks), true))
            }
            _ => (Party::Reader, false),
        };
        let lock = |want: &Want<'_>| lock && self.is_shared(&want.name);
        let guard = self.shared.admission.try_acquire(party, wants, lock, again)?;
        let names = Names { fs: self, guard, author: None, _admitted: None };
        self.verify(wants)?;
        Ok(names)
    }

    /// An operation must call this before it answers what it has read, in a view that locks what it reads: a doom
    /// gives the locks back at once, and what was read since may not fit what was read before.
    pub(crate) fn confirm_read(&self) -> Result<()> {
        if self.locks_reads() { self.check_alive() } else { Ok(()) }
    }

    /// Whether the view still answers: of a transaction, neither ended nor doomed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.txn_view().map_or(Ok(()), TxnView::check_alive)
    }

    /// Locks what is about to be read, in a view that does. Keeps no latch.
    pub(crate) fn lock_read(&self, caller: &Caller, wants: &[Want<'_>]) -> Result<()> {
        if self.locks_reads() { self.latch_to_read(caller, wants).map(drop) } else { Ok(()) }
    }

    /// The root is known without having been looked up, so before anything else.
    fn verify_root(&self, caller: &Caller) -> Result<()> {
        if !self.locks_reads() || self.is_verified(NodeId::ROOT) {
            return Ok(());
        }
        self.latch_to_read_below(caller, &attribute_wants(NodeId::ROOT.0)).map(drop)
    }

    /// Whether a party outside of this transaction can mean the same by the name.
    pub(super) fn is_shared(&self, name: &LockName<'_>) -> bool {
        let Origin::Txn(view) = &self.origin else { return true };
        match *name {
            LockName::Entry { directory, .. }
            | LockName::Entries { directory }
            | LockName::Identity { directory }
            | LockName::Counters { directory }
            | LockName::Placement { directory } => !view.created.contains(directory),
            LockName::Attributes { inode, .. } | LockName::Blocks { inode, .. } => {
                !view.created.contains(inode)
            }
            LockName::Keys { .. } => true,
        }
    }
}
