//! Branches: writable views that last. Each is a checkpointed transaction of the store with a name.
//!
//! Purpose: a branch is opened as a view, worked in for as long as needed, suspended, opened again after a
//! restart, and one day merged ([`super::begin_merge`]) or deleted. It takes no locks, so that it is in no
//! other party's way and none dooms it; what others have done meanwhile is looked at when it is merged. A
//! branch of one directory is a branch whose view has that as its root: nothing leads from there to what is
//! outside. A branch of a branch begins as that one is then ([`super::fork`]).
//!
//! Thread safety: as [`FileSystem`]; making a branch takes turns.
//!
//! Invariants:
//! * an open branch goes back to its last checkpoint when its view ends or is dropped, also by a crash;
//! * inodes of a branch from its record's `inode_from` on were made in it: the number was not reserved when
//!   its snapshot was taken, and is given once.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use crate::types::ShownPrivileges;
use kvfs_locks::{Mutex, class};
use kvfs_store::{
    CheckpointInfo, Isolation, Keyspace, Read, Store, StoreError, Txn, TxnId, TxnOptions, check_snapshot_name,
};
use kvfs_txn::LockOwner;

use super::commit::CommitPhase;
use super::fork::leftovers;
use super::txn::{TXN_NODE_SHARE, TxnView};
use super::{Created, Origin, Paths};
use crate::detached::DetachedTrees;
use crate::fair_lock::FairLock;
use crate::quota::{Pending, Quotas};
use crate::schema::{BranchRecord, BranchRoot, Placement, ROOT_INODE, Row};
use crate::superblock::LiveSuperblock;
use crate::{FileSystem, FsError, INODE_MAX, Result};

/// Branches of a store. Each pins its snapshot, and is looked at when the store is opened.
pub const BRANCHES_MAX: usize = 1000;

/// Longest path of a directory that there may be a branch of (bytes): its record holds it.
const ROOT_PATH_LEN_MAX: usize = 3700;

/// A branch that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchInfo {
    /// Unique in the store.
    pub name: String,
    /// The transaction that it is.
    pub id: TxnId,
    /// Its owner.
    pub uid: u32,
    /// When it was made (since 1970-01-01 UTC).
    pub created: Duration,
    /// Written in it up to its last checkpoint (bytes).
    pub bytes: u64,
    /// A view of it is open.
    pub is_open: bool,
    /// The directory that it is a branch of; `None`: of everything.
    pub root: Option<BranchRoot>,
    /// The branch that it is a branch of; `None`: of the main line.
    pub parent: Option<TxnId>,
}

/// What kind of transaction's view to open.
pub(super) struct Opened {
    pub(super) txn: Arc<dyn Txn>,
    pub(super) locks: Option<Arc<LockOwner>>,
    pub(super) branch: Option<BranchRecord>,
    /// What it has changed so far.
    pub(super) pending_usage: Pending,
}

/// The branches of a store. All views have the same; what makes one of a view is about the view that was
/// asked for it.
pub struct Branches<'v> {
    pub(super) main: &'v FileSystem,
    pub(super) origin: &'v Origin,
    pub(super) store: &'v dyn Store,
    pub(super) superblock: &'v LiveSuperblock,
    quotas: &'v Quotas,
    pub(super) naming: &'v Mutex<(), class::FsViewOriginNamingBranches>,
    meta: Keyspace,
    is_read_only: bool,
}

impl Branches<'_> {
    /// Makes a branch of the main line as it is now, for `uid`. Durable when this returns.
    ///
    /// # Errors
    /// `Exists`; `TooMany`; `Invalid` for a name that is no single component of a path; `NotSupported` by an
    /// engine without checkpoints, and inside of transactions; `ReadOnly`; store errors.
    pub fn create(&self, name: &str, uid: u32) -> Result<BranchInfo> {
        self.create_of(name, uid, b"/", None)
    }

    /// As [`Self::create`], of the directory to which `path` leads, from the root of the store, and as it is
    /// in a named snapshot, where one is named: a merge looks for what was changed since that.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`; the store's `NoSnapshot`; `Invalid` for a path with `..`, or too long a
    /// one; as [`Self::create`].
    pub fn create_of(&self, name: &str, uid: u32, path: &[u8], snapshot: Option<&str>) -> Result<BranchInfo> {
        self.origin.expect_main()?;
        if self.is_read_only {
            return Err(FsError::ReadOnly);
        }
        DetachedTrees::of(self.main).prepare_for_views();
        let _turn = self.naming.lock();
        self.check_new(name)?;
        let _gate = self.quotas.hold();
        let txn = match snapshot {
            Some(snapshot) => self.store.begin_at(snapshot)?,
            None => self.store.begin(TxnOptions { isolation: Isolation::Snapshot })?,
        };
        let root = self.find_directory(&*txn, path)?;
        self.put_name(&*txn, name, uid, root)?;
        // Not by its last handle, which another thread may have for a moment.
        txn.suspend();
        self.get(name)
    }

    /// Whether there may be one more branch, with this name.
    pub(super) fn check_new(&self, name: &str) -> Result<()> {
        check_snapshot_name(name)
            .map_err(|_| FsError::Invalid("the name of a branch is one component of a path"))?;
        let branches = self.all();
        if branches.iter().any(|branch| branch.name == name) {
            return Err(FsError::Exists);
        }
        if branches.len() >= BRANCHES_MAX {
            let remedy = "merge some with `kvfs branch merge`, or delete them with `kvfs branch delete`";
            return Err(FsError::TooMany { what: "branches", count_max: BRANCHES_MAX, remedy });
        }
        Ok(())
    }

    /// The directory to which `path` leads; `None`: the root.
    fn find_directory(&self, read: &dyn Read, path: &[u8]) -> Result<Option<BranchRoot>> {
        let (mut inode, mut placement) = (ROOT_INODE, Placement::own_subtree(ROOT_INODE));
        let mut found = Vec::new();
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                return Err(FsError::Invalid("the path of a branch's directory is one without \"..\""));
            }
            let key = placement.key(name);
            let bytes = read.get(self.meta, &key)?.ok_or(FsError::NotFound)?;
            let Row::Directory { inode: below, placement: of_below } = Row::decode(&key, &bytes)? else {
                return Err(FsError::NotDirectory);
            };
            (inode, placement) = (below, of_below);
            found.push(b'/');
            found.extend_from_slice(name);
        }
        if found.len() > ROOT_PATH_LEN_MAX {
            return Err(FsError::Invalid("the path of a branch's directory is one of at most 3700 bytes"));
        }
        Ok((inode != ROOT_INODE).then_some(BranchRoot { inode, path: found }))
    }

    /// Where the directory of a branch is on the main line of now; `None`: it was removed. O(n) in the
    /// entries of each directory above it, where it was moved.
    ///
    /// # Errors
    /// Store errors.
    pub fn place_now(&self, root: &BranchRoot) -> Result<Option<Vec<u8>>> {
        let main = self.main.txn().map_or(self.main, |view| &view.main);
        let at_its_path = self.find_directory(main.origin.read(), &root.path);
        if at_its_path.is_ok_and(|found| found.is_some_and(|found| found.inode == root.inode)) {
            return Ok(Some(root.path.clone()));
        }
        if !main.rows().has_own(root.inode)? {
            return Ok(None);
        }
        let (mut paths, place) = (Paths::new(main), (root.inode, Bytes::new()));
        if paths.is_detached(&place)? { Ok(None) } else { paths.path(&place).map(Some) }
    }

    /// Makes the first checkpoint of a branch. Its snapshot has been taken: numbers that are reserved later
    /// are not in it.
    fn put_name(
        &self,
        txn: &dyn Txn,
        name: &str,
        uid: u32,
        root: Option<BranchRoot>,
    ) -> Result<BranchRecord> {
        let inode_from = self.superblock.inode_next();
        let name = name.to_owned();
        let record = BranchRecord { name, uid, inode_from, root, fork: None, merged: None };
        txn.checkpoint(&record.encode())?;
        Ok(record)
    }

    /// The branches, oldest first.
    pub fn all(&self) -> Vec<BranchInfo> {
        let mut all = self.records();
        let merged = leftovers(&all);
        all.retain(|(info, _)| !merged.contains(&info.id));
        all.into_iter().map(|(info, record)| branch_info(&info, record)).collect()
    }

    /// What is kept of the branch with this number.
    pub(super) fn record_of(&self, id: TxnId) -> Option<BranchRecord> {
        let all = self.records();
        let is_left = leftovers(&all).contains(&id);
        all.into_iter().find(|(info, _)| info.id == id && !is_left).map(|(_, record)| record)
    }

    /// What is kept of each.
    pub(super) fn records(&self) -> Vec<(CheckpointInfo, BranchRecord)> {
        let all = self.store.checkpointed().into_iter();
        all.filter_map(|info| BranchRecord::decode(&info.owner).map(|record| (info, record))).collect()
    }

    /// The branch `name`.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn get(&self, name: &str) -> Result<BranchInfo> {
        self.all().into_iter().find(|branch| branch.name == name).ok_or(FsError::NotFound)
    }

    /// Makes what was done so far in this view of a branch survive; each operation wholly or not at all.
    /// O(what was written since the last one).
    ///
    /// # Errors
    /// Not a branch; `Stale`; `Busy`: an operation of several batches is under way; `NoSpace` and other store
    /// errors: the former checkpoint stays.
    pub fn checkpoint(&self) -> Result<()> {
        let view = self.origin.txn().ok_or(FsError::Invalid("only branches are checkpointed"))?;
        let record = view.branch.get().ok_or(FsError::Invalid("only branches are checkpointed"))?;
        view.check_alive()?;
        let _between = view.between_long_operations()?;
        Ok(view.txn.checkpoint(&record.encode())?)
    }

    /// Makes this open transaction a branch with this name: it can be gone on with after a restart. Its locks
    /// go with the view, which the caller drops; what others do from then on is looked at when it is merged.
    ///
    /// # Errors
    /// `NotSupported` for a serializable transaction, which could not know that its reads still hold;
    /// `Canceled`; `Exists`; as [`Self::create`].
    pub fn keep(&self, name: &str, uid: u32) -> Result<BranchInfo> {
        let view = self.origin.txn().ok_or(FsError::Invalid("only transactions become branches"))?;
        view.check_alive()?;
        if view.txn.isolation() != Isolation::Snapshot {
            return Err(FsError::NotSupported("branches of serializable transactions"));
        }
        let _turn = self.naming.lock();
        self.check_new(name)?;
        // Numbers that it was given before may be below the next one that is reserved: then they count as not
        // its own, which costs locks at the merge and nothing else.
        let record = self.put_name(&*view.txn, name, uid, None)?;
        let _ = view.branch.set(record);
        self.get(name)
    }

    /// Drops this branch and frees its space, also where others have its name by now. No view of it may be
    /// open.
    ///
    /// # Errors
    /// `HasBranches`; as [`FileSystem::open_branch`].
    pub fn delete(&self, branch: &BranchInfo) -> Result<()> {
        let (txn, _) = self.resume(branch)?;
        // No view that could have another one made is open.
        self.expect_childless(branch.id).inspect_err(|_| txn.suspend())?;
        txn.abort();
        Ok(())
    }

    /// The branch as its last checkpoint holds it, and what is kept of it: this one, whatever has its name by
    /// now.
    fn resume(&self, branch: &BranchInfo) -> Result<(Arc<dyn Txn>, BranchRecord)> {
        let txn = self.store.resume(branch.id).map_err(|error| match error {
            StoreError::NoCheckpoint(_) => FsError::NotFound,
            error => error.into(),
        })?;
        // Asked for now that it is open: it may have been merged into another branch meanwhile.
        let Some(record) = self.record_of(branch.id) else {
            txn.suspend();
            return Err(FsError::NotFound);
        };
        Ok((txn, record))
    }

    /// As [`Self::delete`], of the branch whose view this is, which has kept others out since it was known to
    /// have no branches.
    ///
    /// # Errors
    /// `Invalid`: it is none.
    pub fn delete_open(&self) -> Result<()> {
        let view = self.origin.txn().filter(|view| view.branch.get().is_some());
        view.ok_or(FsError::Invalid("only branches are deleted"))?.txn.abort();
        Ok(())
    }
}

impl Opened {
    /// The branch, as its last checkpoint holds it; `locks` may give its view locks.
    ///
    /// # Errors
    /// As [`FileSystem::open_branch`].
    pub(super) fn resume(
        main: &FileSystem,
        branch: &BranchInfo,
        locks: impl FnOnce(TxnId, u32) -> Option<Arc<LockOwner>>,
    ) -> Result<Self> {
        main.origin.expect_main()?;
        main.locker().check_writable()?;
        let (txn, record) = main.branches().resume(branch)?;
        let pending_usage = main.quotas().pending_of(&*txn)?;
        let locks = locks(branch.id, record.uid);
        Ok(Self { txn, locks, branch: Some(record), pending_usage })
    }

    /// Its view.
    pub(super) fn into_view(self, main: &Arc<FileSystem>) -> Result<Arc<FileSystem>> {
        let root = self
            .branch
            .as_ref()
            .and_then(|branch| branch.root.as_ref())
            .map_or(ROOT_INODE, |root| root.inode);
        let created = Created::default();
        if let Some(branch) = &self.branch {
            created.insert(&(branch.inode_from..INODE_MAX + 1));
        }
        let is_users = self.locks.as_ref().is_some_and(|owner| owner.traits().owner.uid != 0);
        let shows = if is_users { ShownPrivileges::NoDevices } else { ShownPrivileges::Everything };
        let view = TxnView {
            locks: self.locks,
            txn: self.txn,
            branch: self.branch.map_or_else(OnceLock::new, OnceLock::from),
            main: Arc::clone(main),
            keyspaces: main.keyspaces,
            created,
            changed_content: Arc::default(),
            phase: CommitPhase::open(),
            long_operations: FairLock::new(()),
            pending_usage: self.pending_usage,
            parted_at: OnceLock::new(),
            written: Mutex::default(),
            counted: Arc::clone(&main.shared.views),
            restores: AtomicBool::new(false),
        };
        // With the k-th one that is open getting a k-th part, all together stay near one whole however many
        // there are.
        let open = Arc::strong_count(&view.counted) - 1;
        let share = TXN_NODE_SHARE * open as u64;
        Origin::Txn(Arc::new(view)).open_view(main, root, share, shows)
    }
}

impl FileSystem {
    /// The branches of the store.
    pub fn branches(&self) -> Branches<'_> {
        Branches {
            main: self,
            meta: self.keyspaces.meta,
            origin: &self.origin,
            store: &*self.store,
            superblock: &self.shared.superblock,
            quotas: &self.shared.quotas,
            naming: &self.shared.naming_branches,
            is_read_only: self.options.read_only,
        }
    }

    /// Opens the branch as its last checkpoint holds it. Its operations take no locks.
    ///
    /// # Errors
    /// `NotFound`; the store's `CheckpointOpen` (EBUSY); `ReadOnly`; store errors.
    pub fn open_branch(self: &Arc<Self>, name: &str) -> Result<Arc<Self>> {
        open_branch(self, &self.branches().get(name)?)
    }
}

/// As [`FileSystem::open_branch`], of this one, whatever has its name by now.
///
/// # Errors
/// As there.
pub fn open_branch(main: &Arc<FileSystem>, branch: &BranchInfo) -> Result<Arc<FileSystem>> {
    let view = Opened::resume(main, branch, |_, _| None)?.into_view(main)?;
    view.orphans().queue_leftovers()?;
    Ok(view)
}

fn branch_info(info: &CheckpointInfo, record: BranchRecord) -> BranchInfo {
    let BranchRecord { name, uid, root, fork, .. } = record;
    let &CheckpointInfo { id, created, bytes, is_open, .. } = info;
    BranchInfo { name, id, uid, created, bytes, is_open, root, parent: fork.map(|fork| fork.parent) }
}
