//! Where a view's reads come from and its batches go.
//!
//! Thread safety: any number of threads. Invariant: of the three kinds of views this alone knows which one it
//! is.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use kvfs_kv::KeyspaceTable;
use kvfs_locks::{Mutex, class};
use kvfs_store::blocks::block_key;
use kvfs_store::clock::Clock;
use kvfs_store::{
    Batch, BlockClone, Durability, Keyspace, Position, Read, Seqno, Snapshot, Store, copy_blocks,
};
use kvfs_txn::{Admission, LockName};

use super::TxnView;
use super::authors::Authors;
use super::idle::OpenViews;
use super::processes::Processes;
use super::untold::UntoldNames;
use crate::attr::LazyTimes;
use crate::detached::Detached;
use crate::dir::Habits;
use crate::fair_lock::FairLock;
use crate::file::AccessLog;
use crate::node::NodeTable;
use crate::operations::Recorder;
use crate::provenance::Provenance;
use crate::quota::Quotas;
use crate::scan::Scans;
use crate::snapshots::Snapshots;
use crate::superblock::LiveSuperblock;
use crate::tiers::TierWishes;
use crate::types::ShownPrivileges;
use crate::{FileSystem, FsError, Result, Timestamp};

/// What all views of a file system have in common.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) admission: Arc<Admission>,
    /// Views of the transactions that are open.
    pub(crate) open: OpenViews,
    /// Every view of a transaction or branch refers to it: that counts them.
    pub(crate) views: Arc<()>,
    /// Who has changed what on the main line lately.
    pub(crate) authors: Authors,
    /// What they are called.
    pub(crate) processes: Processes,
    pub(crate) untold: Arc<UntoldNames>,
    pub(crate) superblock: Arc<LiveSuperblock>,
    pub(crate) keyspaces: KeyspaceTable,
    /// Held from the look at a branch's name to its first checkpoint.
    pub(crate) naming_branches: Mutex<(), class::FsViewOriginNamingBranches>,
    pub(crate) snapshots: Snapshots,
    pub(crate) quotas: Quotas,
    /// Is told of operations by front ends.
    pub(crate) recorder: OnceLock<Arc<dyn Recorder>>,
    pub(crate) tiers: TierWishes,
    pub(crate) provenance: Provenance,
    /// How files were read and written.
    pub(crate) accesses: AccessLog,
    pub(crate) detached: Detached,
    /// See [`super::hold_state`].
    pub(crate) shown: FairLock<(), class::FsViewFollowShown>,
}

impl Shared {
    /// The time of now, as files get it.
    pub(crate) fn time(&self) -> Timestamp {
        self.clock.wall().into()
    }
}

/// What a view sees and changes.
pub(crate) enum Origin {
    /// The newest committed state.
    Main(Arc<dyn Store>),
    /// A transaction's private state.
    Txn(Arc<TxnView>),
    /// One position, read-only.
    Snapshot(Arc<dyn Snapshot>),
}

impl Origin {
    /// Another view of the same file system, with nodes of its own that may take a `share`-th part of what
    /// those of the main line may. It knows its root, the directory with this inode.
    pub(super) fn open_view(
        self,
        main: &FileSystem,
        root: u64,
        share: u64,
        shows: ShownPrivileges,
    ) -> Result<Arc<FileSystem>> {
        let options = main.options;
        let fs = Arc::new(FileSystem {
            store: Arc::clone(&main.store),
            keyspaces: main.keyspaces,
            nodes: NodeTable::new(root, options.node_bytes_max / share, options.content_bytes_max / share),
            options,
            lazy_times: LazyTimes::new(&options, false, Arc::clone(&main.shared.clock)),
            shared: Arc::clone(&main.shared),
            origin: self,
            scans: Scans::default(),
            habits: Habits::default(),
            shows,
            follows: false,
        });
        if let Some(view) = fs.origin.txn() {
            fs.nodes.watches.remember(&view.changed_content);
        }
        fs.resolver().install_root()?;
        Ok(fs)
    }

    /// Whether a block can be changed in part without being read. A transaction reads it, and so do some
    /// engines.
    pub(crate) fn patches_blindly(&self) -> bool {
        matches!(self, Self::Main(store) if store.capabilities().blind_patches)
    }

    /// Whether this is the main line.
    pub(crate) fn is_main(&self) -> bool {
        matches!(self, Self::Main(_))
    }

    /// Refuses what only the main line does.
    pub(crate) fn expect_main(&self) -> Result<()> {
        if self.is_main() {
            Ok(())
        } else {
            Err(FsError::NotSupported("transactions inside of transactions or snapshots"))
        }
    }

    /// The transaction or branch, if it is one.
    pub(crate) fn txn(&self) -> Option<&TxnView> {
        match self {
            Self::Txn(view) => Some(view),
            Self::Main(_) | Self::Snapshot(_) => None,
        }
    }

    /// Reads of the view.
    pub(crate) fn read(&self) -> &dyn Read {
        match self {
            Self::Main(store) => &**store,
            Self::Txn(view) => &*view.txn,
            Self::Snapshot(snapshot) => &**snapshot,
        }
    }

    /// The position that an fsync of what is visible now must wait for. In a transaction nothing: its
    /// commit is what makes it durable.
    pub(crate) fn position(&self) -> Position {
        match self {
            Self::Main(store) => store.position(),
            Self::Txn(_) | Self::Snapshot(_) => Position::default(),
        }
    }

    /// Inode numbers that were never used, for what the view makes.
    pub(crate) fn take_inodes(&self, shared: &Shared) -> Result<Range<u64>> {
        let group = shared.superblock.take_group()?;
        if let Some(view) = self.txn() {
            view.created.insert(&group);
        }
        Ok(group)
    }

    /// Applies a batch to the view, wholly or not at all.
    pub(crate) fn apply(&self, batch: Batch) -> Result<Position> {
        match self {
            Self::Main(store) => Ok(store.apply(batch, Durability::Buffered)?),
            Self::Txn(view) => view.outcome(view.txn.apply(batch)).map(|()| Position::default()),
            Self::Snapshot(_) => Err(FsError::ReadOnly),
        }
    }

    /// Clones blocks in the view of a transaction, as [`kvfs_store::Txn::clone_blocks`].
    pub(crate) fn clone_blocks(&self, data: Keyspace, clones: &[BlockClone]) -> Result<()> {
        let Self::Txn(view) = self else {
            return Err(FsError::Invalid("blocks are cloned in a transaction"));
        };
        view.outcome(view.txn.clone_blocks(data, clones))
    }

    /// Has blocks that another view sees in the view of a transaction: clones of a snapshot's
    /// ([`kvfs_store::Txn::clone_blocks_of`]), copies of a transaction's.
    pub(super) fn clone_blocks_of(&self, other: &Self, data: Keyspace, clones: &[BlockClone]) -> Result<()> {
        let Self::Txn(view) = self else {
            return Err(FsError::Invalid("blocks are cloned in a transaction"));
        };
        view.outcome(match other {
            Self::Snapshot(then) => view.txn.clone_blocks_of(&**then, data, clones),
            other => clones.iter().try_for_each(|clone| copy_blocks(&*view.txn, other.read(), data, clone)),
        })
    }

    /// Applies a batch and clones of blocks, whose targets are absent and which come before it, to the view:
    /// wholly or not at all.
    pub(crate) fn apply_with_clones(
        &self,
        batch: Batch,
        data: Keyspace,
        clones: &[BlockClone],
    ) -> Result<Position> {
        match (self, clones) {
            (_, []) => self.apply(batch),
            (Self::Main(store), _) => match store.transactions() {
                Some(transactions) => Ok(transactions.apply_with_clones(batch, data, clones)?),
                None => Err(FsError::NotSupported("clones of blocks")),
            },
            (Self::Txn(_) | Self::Snapshot(_), _) => {
                let done = self.clone_blocks(data, clones).and_then(|()| self.apply(batch));
                if done.is_err() {
                    let mut absent = Batch::new();
                    for BlockClone { target, target_first, count, .. } in clones {
                        let end = target_first.saturating_add(*count);
                        absent.delete_range(data, block_key(target, *target_first), block_key(target, end));
                    }
                    self.apply(absent)?;
                }
                done
            }
        }
    }

    /// Whether the view is that of a transaction that locks what it reads.
    pub(crate) fn locks_reads(&self) -> bool {
        self.txn().is_some_and(TxnView::locks_reads)
    }

    /// Whether the view is that of a restore.
    pub(crate) fn restores(&self) -> bool {
        self.txn().is_some_and(TxnView::restores)
    }

    /// Whether the view still answers: of a transaction, neither ended nor doomed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.txn().map_or(Ok(()), TxnView::check_alive)
    }

    /// An operation must call this before it answers what it has read, in a view that locks what it reads: a
    /// doom gives the locks back at once, and what was read since may not fit what was read before.
    pub(crate) fn confirm_read(&self) -> Result<()> {
        if self.locks_reads() { self.check_alive() } else { Ok(()) }
    }

    /// The position that the view reads, if it stays the same.
    pub(super) fn pinned(&self) -> Result<Seqno> {
        match self {
            Self::Snapshot(snapshot) => Ok(snapshot.seqno()),
            Self::Txn(view) if !self.locks_reads() => Ok(view.txn.snapshot_seqno()),
            Self::Txn(_) | Self::Main(_) => Err(FsError::Invalid("only snapshots are compared")),
        }
    }

    /// Whether this is a branch.
    pub(crate) fn is_branch(&self) -> bool {
        self.txn().is_some_and(|view| view.branch.get().is_some())
    }

    /// Whether a party outside of this transaction can mean the same by the name.
    pub(super) fn is_shared(&self, name: &LockName<'_>) -> bool {
        let Some(view) = self.txn() else { return true };
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
