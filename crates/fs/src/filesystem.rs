//! The file system: opening, and what all operations share.

use std::fmt;
use std::sync::{Arc, OnceLock};

use kvfs_locks::Mutex;
use kvfs_store::clock::Clock;
use kvfs_store::{Batch, Durability, Position, Store};
use kvfs_txn::{Admission, LockOptions};

use crate::attr::{AccessTimes, LazyTimes};
use crate::detached::Detached;
use crate::dir::Habits;
use crate::error::done_unless_full;
use crate::fair_lock::FairLock;
use crate::file::AccessLog;
use crate::node::NodeTable;
use crate::provenance::Provenance;
use crate::quota::{self, Quotas};
use crate::scan::Scans;
use crate::schema::{Header, Keyspaces, Placement, ROOT_INODE, Superblock, encode_row, superblock_key};
use crate::snapshots::Snapshots;
use crate::superblock::LiveSuperblock;
use crate::tiers::TierWishes;
use crate::types::ShownPrivileges;
use crate::view::{Authors, OpenViews, Origin, Processes, Shared, UntoldNames, keyspace_table};
use crate::{FileType, FsError, MkfsOptions, MountOptions, NAME_LEN_MAX, NodeId, Result, StatFs, Timestamp};

/// A view of a file system in a store: the main line, as [`FileSystem::open`] gives it, or a transaction
/// ([`FileSystem::begin`]). Share it by `Arc`.
///
/// Parking: methods return [`FsError::Parked`] when names are held by others; wait for the ticket, put it
/// into [`crate::Caller::ticket`], call again. Methods whose docs say so never park.
pub struct FileSystem {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keyspaces: Keyspaces,
    pub(crate) nodes: NodeTable,
    pub(crate) options: MountOptions,
    pub(crate) lazy_times: LazyTimes,
    pub(crate) shared: Arc<Shared>,
    pub(crate) origin: Origin,
    pub(crate) scans: Scans,
    pub(crate) habits: Habits,
    /// What the kernel is told of privileges.
    pub(crate) shows: ShownPrivileges,
    /// The store is written to elsewhere, and goes on to newer states.
    pub(crate) follows: bool,
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSystem").field("nodes", &self.nodes.stats()).finish_non_exhaustive()
    }
}

fn lock_options(options: &MountOptions) -> LockOptions {
    LockOptions { bytes_max: options.lock_bytes_max, ..LockOptions::default() }
}

impl FileSystem {
    /// Writes an empty file system into the store, durably.
    ///
    /// # Errors
    /// [`FsError::Exists`] when there is one already; store errors.
    pub fn mkfs(store: &Arc<dyn Store>, clock: &dyn Clock, options: &MkfsOptions) -> Result<()> {
        let superblock = Superblock::new(options)?;
        let keyspaces = Keyspaces::open(&**store)?;
        if store.get(keyspaces.meta, &superblock_key())?.is_some() {
            return Err(FsError::Exists);
        }
        let mut root = Header::new(ROOT_INODE, FileType::Directory, clock.wall().into());
        root.mode = options.mode & crate::MODE_BITS;
        root.uid = options.uid;
        root.gid = options.gid;
        root.nlink = 2;
        root.parent = ROOT_INODE;
        let mut batch = Batch::new();
        batch.put(keyspaces.meta, superblock_key(), superblock.encode());
        batch.put(keyspaces.meta, Placement::own_subtree(ROOT_INODE).own_key(), encode_row(&root, b""));
        store.apply(batch, Durability::Synced)?;
        Ok(())
    }

    /// Opens the file system of the store, and reaps what a crash left behind. This needs no space: what is
    /// to be written and finds none is left to [`FileSystem::housekeep`].
    ///
    /// # Errors
    /// [`FsError::Format`] when there is none, or one of another version; store errors.
    pub fn open(store: Arc<dyn Store>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<Self> {
        let keyspaces = Keyspaces::open(&*store)?;
        let quota_keyspace = quota::find_keyspace(&*store)?;
        let superblock = store
            .get(keyspaces.meta, &superblock_key())?
            .ok_or_else(|| FsError::Format("the store holds no file system; run `kvfs mkfs` first".into()))?;
        let record = Superblock::decode(&superblock)?;
        let superblock = Arc::new(LiveSuperblock::new(&store, keyspaces.meta, record));
        let admission = Arc::new(Admission::new(Arc::clone(&clock), lock_options(&options)));
        let quotas = Quotas::new(&store, keyspaces, &clock, &admission, &superblock, options.read_only);
        let fs = Self {
            keyspaces,
            nodes: NodeTable::new(ROOT_INODE, options.node_bytes_max, options.content_bytes_max),
            options,
            lazy_times: LazyTimes::new(&options, true, Arc::clone(&clock)),
            shared: Arc::new(Shared {
                admission,
                untold: Arc::new(UntoldNames::new(Arc::clone(&clock))),
                clock,
                open: OpenViews::default(),
                views: Arc::default(),
                authors: Authors::default(),
                processes: Processes::default(),
                superblock,
                keyspaces: keyspace_table(&store, &keyspaces),
                naming_branches: Mutex::default(),
                snapshots: Snapshots::read(&store, keyspaces.meta, &options)?,
                quotas,
                recorder: OnceLock::new(),
                tiers: TierWishes::open(&store, &keyspaces)?,
                provenance: Provenance::open(&store)?,
                accesses: AccessLog::default(),
                detached: Detached::default(),
                shown: FairLock::new(()),
            }),
            origin: Origin::Main(Arc::clone(&store)),
            scans: Scans::default(),
            habits: Habits::default(),
            shows: ShownPrivileges::Everything,
            follows: store.follow().is_some(),
            store,
        };
        fs.resolver().install_root()?;
        if !options.read_only {
            // Before anything is written: it names the state that is there.
            fs.snapshots().finish_receive()?;
        }
        if let Some(keyspace) = quota_keyspace.filter(|_| record.has_quotas) {
            fs.quotas().open(keyspace)?;
        }
        if !options.read_only {
            fs.branches().end_leftovers();
            fs.orphans().queue_leftovers()?;
            if !done_unless_full(fs.orphans().reap_all())? {
                tracing::warn!("orphans are not removed before there is space in the store");
            }
            if !fs.quotas().write_count()? {
                tracing::warn!(
                    "what was counted for quotas is not written before there is space in the store"
                );
            }
        }
        Ok(fs)
    }

    /// Waits until everything at or below `position` survives a power cut. Call it where blocking is fine.
    ///
    /// # Errors
    /// Store errors; a failed sync is sticky.
    pub fn sync(&self, position: Position) -> Result<()> {
        Ok(self.store.sync(position)?)
    }

    /// The store underneath (to wait for a [`Position`] elsewhere: `store().sync(position)`).
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Capacity and use.
    pub fn statfs(&self) -> StatFs {
        let space = self.store.space();
        let block = kvfs_store::BLOCK_BYTES as u64;
        StatFs {
            block_bytes: kvfs_store::BLOCK_BYTES as u32,
            blocks: space.capacity_bytes / block,
            blocks_free: space.capacity_bytes.saturating_sub(space.used_bytes) / block,
            blocks_available: space.available_bytes / block,
            files: 0,
            files_free: 0,
            name_len_max: NAME_LEN_MAX as u32,
        }
    }

    /// What `fsync`, `fdatasync` and `fsyncdir` of `node` must wait for, its lazily kept access time
    /// included: call `store().sync(position)` wherever blocking is fine, then answer. Never parks.
    ///
    /// # Errors
    /// `Stale`; store errors.
    pub fn sync_target(&self, node: NodeId) -> Result<Position> {
        let node = self.locker().pin(node)?;
        if self.options.lazytime {
            AccessTimes::new(self).write_one(&node)?;
        }
        Ok(node.state().changed_at)
    }

    /// What `syncfs`, `sync` and unmounting must wait for. Writes lazily kept access times. Never parks.
    ///
    /// # Errors
    /// Store errors.
    pub fn sync_target_all(&self) -> Result<Position> {
        if !self.options.read_only {
            // They wait until there is room again, and what was written is to be durable all the same.
            done_unless_full(AccessTimes::new(self).write_all())?;
        }
        Ok(self.origin.position())
    }

    /// The nodes that a front end knows in this view.
    pub fn nodes(&self) -> &NodeTable {
        &self.nodes
    }

    /// Whether there are access-control lists: [`MountOptions::acls`].
    pub fn has_acls(&self) -> bool {
        self.options.acls
    }

    /// The time of now, as files get it.
    pub fn time(&self) -> Timestamp {
        self.shared.time()
    }
}
