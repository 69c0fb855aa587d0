//! The view of a transaction: its beginning, and what it is. Its end is in `commit`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use kvfs_locks::{Mutex, class};
use kvfs_store::{
    ChangeCursor, Changed, Isolation, KeyRange, Keyspace, Records, Snapshot, SnapshotInfo, StoreError, Txn,
    TxnId, TxnOptions, TxnStats,
};
use kvfs_txn::{Doom, DoomReason, Fields, LockName, LockNameBuf, LockOwner, Rival, TxnTraits};

use super::branch::Opened;
use super::commit::CommitPhase;
use super::merge::changed_outside;
use super::paths::Paths;
use super::undo::{author, note_of};
use super::{Created, Origin};
use crate::detached::DetachedTrees;
use crate::fair_lock::FairLock;
use crate::file::ChangedContent;
use crate::quota::Pending;
use crate::schema::{BranchRecord, Keyspaces, Placement, ROOT_INODE, Row, TOUCH_PARENT};
use crate::types::ShownPrivileges;
use crate::{FileSystem, FsError, NodeId, Result};

pub use kvfs_txn::Owner;

/// A transaction's nodes may take this part of what the main line's may.
pub(super) const TXN_NODE_SHARE: u64 = 4;

/// The same for the view of a snapshot, of which front ends keep a handful.
const SNAPSHOT_NODE_SHARE: u64 = 16;

/// How to begin a transaction; by default with snapshot isolation, of no known process, for as long as it
/// takes.
#[derive(Debug, Clone, Default)]
pub struct BeginOptions {
    /// What it sees of others.
    pub isolation: Isolation,
    /// A nice value: of two transactions in each other's way the one with the greater number gives way.
    pub priority: i32,
    /// It is given up when it takes longer.
    pub timeout: Option<Duration>,
    /// It is given up when it goes without an operation for longer; `None`: as
    /// [`crate::MountOptions::txn_idle`] says. [`Duration::MAX`]: it may idle for good.
    pub idle_max: Option<Duration>,
    /// Longest wait for a lock.
    pub lock_wait_max: Option<Duration>,
    /// Shown to others that meet it.
    pub owner: Owner,
}

/// The transaction of a view, or the branch that is worked in: what it has beside the file system that it
/// shows, and what becomes of it. Its phase and its locks say how far it is.
pub struct TxnView {
    pub(crate) txn: Arc<dyn Txn>,
    /// `None`: a branch that is worked in, whose operations take no locks.
    pub(crate) locks: Option<Arc<LockOwner>>,
    /// A branch, which is not aborted when its view goes: it goes back to its checkpoint.
    pub(crate) branch: OnceLock<BranchRecord>,
    pub(crate) main: Arc<FileSystem>,
    pub(super) keyspaces: Keyspaces,
    pub(crate) created: Created,
    pub(crate) changed_content: Arc<ChangedContent>,
    pub(super) phase: CommitPhase,
    /// Shared by operations of several batches while they are under way: no commit and no checkpoint goes
    /// through their middle.
    pub(super) long_operations: FairLock<(), class::FsViewTxnLongOperations>,
    /// What it has changed of quotas.
    pub(crate) pending_usage: Pending,
    /// So many of its operations led to the branch of it that is brought into it, if one is.
    pub(super) parted_at: OnceLock<u64>,
    /// Where a branch has written, as far as it was asked for.
    pub(super) written: Mutex<BTreeMap<Keyspace, Arc<Vec<KeyRange>>>, class::FsViewTxnWritten>,
    /// See [`super::Shared::views`].
    pub(super) counted: Arc<()>,
    /// It brings back what was: no limit and no border of a project keeps it.
    pub(super) restores: AtomicBool,
}

impl fmt::Debug for TxnView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxnView")
            .field("id", &self.id())
            .field("phase", &self.phase.now())
            .finish_non_exhaustive()
    }
}

impl TxnView {
    /// Its number.
    pub fn id(&self) -> TxnId {
        self.txn.id()
    }

    /// Its sizes.
    pub fn stats(&self) -> TxnStats {
        self.txn.stats()
    }

    /// Whether it locks what it reads.
    pub fn locks_reads(&self) -> bool {
        self.txn.isolation() == Isolation::Serializable
    }

    /// Why it can't go on, if it can't.
    pub fn doom(&self) -> Option<Doom> {
        self.locks.as_ref()?.doomed()
    }

    /// It gives way, in the middle of its commit, to process `pid`, which writes to `node` on the main line
    /// and can't wait. Without effect once its commit is decided.
    pub fn give_way(&self, pid: u32, node: NodeId) {
        if let Some(locks) = &self.locks {
            let name = LockName::Blocks { inode: node.0, first: 0, end: u64::MAX };
            locks.doom_late(Doom {
                reason: DoomReason::Conflict,
                rival: Some(Rival::Main { pid }),
                name: Some(name.into()),
            });
        }
    }

    /// Whether it is that of a restore.
    pub(crate) fn restores(&self) -> bool {
        self.restores.load(Ordering::Relaxed)
    }

    /// From now on it is that of a restore.
    pub(super) fn begin_restore(&self) {
        self.restores.store(true, Ordering::Relaxed);
    }

    /// The owner of its locks, for its commit.
    pub(super) fn lock_owner(&self) -> Result<&Arc<LockOwner>> {
        self.locks.as_ref().ok_or(FsError::Invalid("a branch holds no locks, and is merged, not committed"))
    }

    /// Makes sure that these directories have the same parents as in the snapshot.
    pub(crate) fn expect_unmoved(&self, meta: Keyspace, directories: &[u64]) -> Result<()> {
        if self.txn.isolation() != Isolation::Snapshot || self.locks.is_none() {
            return Ok(());
        }
        let own_row =
            |&inode: &u64| Records::Key { key: Placement::own_subtree(inode).own_key(), touch: TOUCH_PARENT };
        let records: Vec<Records> = directories.iter().map(own_row).collect();
        match self.txn.changed_since_snapshot(meta, &records)? {
            Some(changed) => Err(self.conflict(&changed)),
            None => Ok(()),
        }
    }

    /// Refuses a directory of a tree that was detached before the transaction began: the removal of that tree
    /// looks at the main line alone.
    pub(crate) fn expect_attached(&self, directory: u64) -> Result<()> {
        let base = self.main.view_of(self.txn.base()?)?;
        match Paths::new(base).detached_tree(directory)? {
            Some(_) => Err(FsError::NotFound),
            None => Ok(()),
        }
    }

    /// How far a branch of a branch had come when it was made.
    fn forked_at(&self) -> Option<u64> {
        self.branch.get()?.fork.map(|fork| fork.operations)
    }

    /// What it has changed: a branch of a branch, since it was made.
    pub(super) fn changes(&self, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        Ok(match self.forked_at() {
            None => self.txn.changes(keyspace)?,
            Some(operations) => self.txn.changes_after(operations, keyspace)?,
        })
    }

    /// What it has changed that a branch of it which is brought into it has not ([`Self::note_brought_in`]).
    pub(super) fn changes_apart(&self, keyspace: Keyspace) -> Result<Box<dyn ChangeCursor>> {
        Ok(match self.parted_at.get() {
            None => self.changes(keyspace)?,
            Some(&operations) => self.txn.changes_after(operations, keyspace)?,
        })
    }

    /// A branch of this one is brought into it from here on: what it is compared with is the state in which
    /// they parted.
    pub(super) fn note_brought_in(&self, branch: &Self) {
        let _ = branch.forked_at().map(|operations| self.parted_at.set(operations));
    }

    /// What its changes are changes of: the main line of now; of a branch of a branch, what that was when it
    /// was made.
    pub(super) fn changed_state(&self) -> Result<Arc<FileSystem>> {
        match self.forked_at() {
            None => Ok(Arc::clone(&self.main)),
            Some(operations) => self.main.view_of(self.txn.as_of(operations)?),
        }
    }

    /// A change that concerns `records`, by others since it began: of the main line; while a branch of a
    /// branch is brought into that one, of that one.
    pub(super) fn changed_by_others(
        &self,
        keyspace: Keyspace,
        records: &[Records],
    ) -> Result<Option<Changed>> {
        match (self.forked_at(), self.main.origin.txn()) {
            (None, _) => Ok(self.txn.changed_since_snapshot(keyspace, records)?),
            (Some(operations), Some(parent)) => {
                Ok(parent.txn.changed_after(operations, keyspace, records)?)
            }
            (Some(_), None) => Err(FsError::Invalid("a branch of a branch is compared with that one")),
        }
    }

    /// How a refusal tells of a change at `place` that [`Self::changed_by_others`] has found.
    pub(super) fn tell_outside(&self, place: &str, changed: &Changed) -> String {
        let parent = self.forked_at().and(self.main.origin.txn());
        parent
            .and_then(|parent| parent.tell_changed(place))
            .unwrap_or_else(|| changed_outside(place, author(&*self.main.store, changed.seqno)))
    }

    /// How a refusal tells of a change at `place` in this branch to one of its branches.
    pub(super) fn tell_changed(&self, place: &str) -> Option<String> {
        let name = &self.branch.get()?.name;
        Some(format!("{place} was changed outside of the branch, in branch \"{name}\""))
    }

    /// What a record is to users.
    pub(super) fn name_of(&self, changed: &Changed) -> LockNameBuf {
        let Changed { keyspace, key, .. } = changed;
        let number = |bytes: &[u8]| bytes.first_chunk().map(|chunk| u64::from_be_bytes(*chunk));
        let row = || match Placement::parse_key(key)? {
            (inode, b"") => Some(LockNameBuf::Attributes { inode, fields: Fields::ALL }),
            (directory, name) => Some(LockNameBuf::Entry { directory, name: Bytes::copy_from_slice(name) }),
        };
        let block = || {
            let (inode, first) = (number(key)?, number(key.get(8..)?)?);
            Some(LockNameBuf::Blocks { inode, first, end: first.saturating_add(1) })
        };
        let attributes = || Some(LockNameBuf::Attributes { inode: number(key)?, fields: Fields::ALL });
        let name = match *keyspace {
            meta if meta == self.keyspaces.meta => row(),
            data if data == self.keyspaces.data => block(),
            own if own == self.keyspaces.xattr || own == self.keyspaces.orphans => attributes(),
            own if Some(own) == self.main.shared.provenance.keyspace() => attributes(),
            _ => None,
        };
        name.unwrap_or_else(|| {
            let mut end = key.to_vec();
            end.push(0);
            LockNameBuf::Keys { keyspace: *keyspace, start: key.clone(), end: Some(end.into()) }
        })
    }

    /// The inode whose row is the changed record, as far as it is there.
    fn inode_at(&self, changed: &Changed) -> Option<LockNameBuf> {
        if changed.keyspace != self.keyspaces.meta {
            return None;
        }
        let bytes = self.main.store.get(changed.keyspace, &changed.key).ok()??;
        let row = Row::decode(&changed.key, &bytes).ok()?;
        Some(LockNameBuf::Attributes { inode: row.inode(), fields: Fields::ALL })
    }

    /// What a change of the transaction's private state came to; a conflict dooms it.
    pub(super) fn outcome(&self, done: kvfs_store::Result<()>) -> Result<()> {
        match done {
            Err(StoreError::Conflict { changed }) => Err(self.conflict(&changed)),
            done => Ok(done?),
        }
    }

    /// Another writer was first: the transaction can't be committed any more.
    pub(super) fn conflict(&self, changed: &Changed) -> FsError {
        let name = self.name_of(changed);
        let rival = author(&*self.main.store, changed.seqno).unwrap_or_else(|| {
            let names: Vec<_> = self.inode_at(changed).into_iter().chain([name.clone()]).collect();
            Rival::Main { pid: self.main.shared.authors.find(changed.seqno, &names).unwrap_or(0) }
        });
        let name = Some(name);
        let doom = Doom { name, rival: Some(rival), ..Doom::new(DoomReason::Conflict) };
        if let Some(locks) = &self.locks {
            locks.doom(doom.clone());
        }
        FsError::Canceled(self.doom().unwrap_or(doom))
    }
}

impl FileSystem {
    /// Begins a transaction, and gives its view: everything done before on the main line is visible in it.
    ///
    /// # Errors
    /// `NotSupported` by an engine without transactions, and inside of one; `ReadOnly`; store errors.
    pub fn begin(self: &Arc<Self>, options: &BeginOptions) -> Result<Arc<Self>> {
        self.origin.expect_main()?;
        self.locker().check_writable()?;
        DetachedTrees::of(self).prepare_for_views();
        let _gate = self.gate();
        let txn = self.store.begin(TxnOptions { isolation: options.isolation })?;
        txn.describe(note_of(&options.owner));
        let id = txn.id();
        let traits = TxnTraits {
            priority: options.priority,
            timeout: options.timeout,
            idle_max: options.idle_max.or(self.options.txn_idle).filter(|&idle| idle != Duration::MAX),
            lock_wait_max: options.lock_wait_max,
            owner: options.owner.clone(),
        };
        let locks = Some(self.shared.admission.begin(id, traits));
        let view = Opened { txn, locks, branch: None, pending_usage: Pending::default() }.into_view(self)?;
        self.shared.open.insert(id, &view);
        Ok(view)
    }

    /// The state at a snapshot, read-only.
    ///
    /// # Errors
    /// Store errors.
    pub fn view_of(self: &Arc<Self>, snapshot: Arc<dyn Snapshot>) -> Result<Arc<Self>> {
        Origin::Snapshot(snapshot).open_view(
            self,
            ROOT_INODE,
            SNAPSHOT_NODE_SHARE,
            ShownPrivileges::Everything,
        )
    }

    /// The transaction or branch whose view this is.
    pub fn txn(&self) -> Option<&TxnView> {
        self.origin.txn()
    }

    /// As [`Self::txn`], to be committed.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn expect_txn(&self) -> Result<&Arc<TxnView>> {
        match &self.origin {
            Origin::Txn(view) => Ok(view),
            Origin::Main(_) | Origin::Snapshot(_) => Err(FsError::Invalid("only transactions are committed")),
        }
    }
}

/// The view of a snapshot for a kernel to show: the named one itself, and none that has got its name
/// meanwhile. What was a privilege then is none in it: set-id bits, device numbers and the capabilities of
/// files are left out.
///
/// # Errors
/// `NotFound`; store errors.
pub fn show_snapshot(main: &Arc<FileSystem>, info: &SnapshotInfo) -> Result<Arc<FileSystem>> {
    let snapshot = main.store.open_snapshot(&info.name)?;
    if snapshot.seqno() != info.position.0 {
        return Err(FsError::NotFound);
    }
    Origin::Snapshot(snapshot).open_view(main, ROOT_INODE, SNAPSHOT_NODE_SHARE, ShownPrivileges::NoPrivileges)
}

/// Whether nothing can be changed in a view: a snapshot, or all of it was opened so.
pub fn is_read_only(view: &FileSystem) -> bool {
    view.locker().check_writable().is_err()
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        if let Some(txn) = self.txn() {
            txn.abort();
            self.shared.open.remove(txn.id());
        }
    }
}
