//! File-system semantics over any [`kvfs_store::Store`].
//!
//! Purpose: [`FileSystem`] offers one call for each operation of a Linux file system, by node id, so that a
//! FUSE bridge is a translation without policy. Directories, files and attributes are rows of the store's
//! keyspaces (see `schema`); every operation that changes something is one batch.
//!
//! Thread safety: everything is `&self`; any number of threads. No lock is held across I/O waits for
//! others: an operation that meets another one's names returns [`FsError::Parked`] and is called again.
//!
//! Invariants: an operation that fails left no trace; the directory tree stays a tree.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use kvfs_fs::{Caller, FileSystem, MkfsOptions, MountOptions, NodeId, WriteFlags};
//! use kvfs_store::clock::SystemClock;
//! use kvfs_store::{Store, model::ModelStore};
//!
//! // Any store will do: this one is in memory, `kvfs_kvdb::Db` is on a device.
//! let store: Arc<dyn Store> = Arc::new(ModelStore::new());
//! let clock = Arc::new(SystemClock::new());
//! FileSystem::mkfs(&store, &*clock, &MkfsOptions::default())?;
//! let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default())?);
//!
//! let root = Caller::default();
//! let (file, _) = fs.create(&root, NodeId::ROOT, b"greeting", 0o644, true)?;
//! fs.write(&root, file.node, 0, "hello".into(), WriteFlags::default())?;
//! fs.sync(fs.sync_target_all()?)?;
//! let mut buffer = [0; 16];
//! assert_eq!(fs.read(&root, file.node, 0, &mut buffer)?, 5);
//! fs.forget(file.node, 1);
//! # Ok(())
//! # }
//! ```

mod acl;
mod attr;
mod byte_ranges;
pub mod check;
mod cloning;
pub mod copy;
mod detached;
mod dir;
mod error;
mod fair_lock;
mod file;
mod filesystem;
mod inode_ranges;
mod namespace;
mod node;
pub mod operations;
mod orphan;
mod packing;
mod provenance;
mod quota;
pub mod repair;
mod scan;
mod schema;
mod snapshots;
mod superblock;
mod tiers;
pub mod transfer;
mod types;
mod view;
mod waits;
mod xattr;

pub use acl::AclKind;
pub use attr::Credentials;
pub use byte_ranges::ByteRanges;
pub use cloning::{CloneRights, Cloned, clone_tree};
pub use detached::{DetachedStats, DetachedTrees, Pause, StaleOfTrees};
pub use error::{FsError, Result};
pub use file::{
    AccessCount, AccessPattern, ChangedBeside, ContentObserver, ContentWatch, ContentWatcher, FileAccesses,
    StretchAccesses, hole_of_seek, watch_content, write_pages,
};
pub use filesystem::FileSystem;
/// A place in the store's history, as [`FileSystem::sync`] takes it; what front ends say of transactions.
pub use kvfs_store::{Durability, Isolation, Position, TxnId, TxnStats};
/// What stops a transaction, and what there is to list of locks and transactions.
pub use kvfs_txn::{
    Admission, Doom, DoomReason, LockInfo, LockNameBuf, LockPage, LockPlace, LockStats, Rival, Ticket,
    TxnInfo, WaiterInfo,
};
pub use namespace::{
    FoundByNames, TreeError, TreeRights, look_through, remove_found, remove_tree, rename_found,
};
pub use node::{HeldNode, KnownNode, NodeTable};
pub use orphan::Orphans;
pub use quota::{GRACE_SECONDS, Limits, Project, QuotaKind, QuotaLine, Quotas, Usage};
pub use schema::{BranchRoot, KEYSPACES};
pub use snapshots::{SNAPSHOTS_MAX, Snapshots};
pub use superblock::{inline_len_max, set_inline_len_max};
pub(crate) use types::MODE_BITS;
pub use types::{
    Append, AtimePolicy, Attr, Caller, DirEntry, Entry, FILE_SIZE_MAX, FallocateMode, FileType, Fill,
    INODE_MAX, LINK_MAX, MkfsOptions, MountOptions, NAME_LEN_MAX, NodeId, NodeStats, PruneCandidate,
    RenameMode, SYMLINK_LEN_MAX, SeekKind, SetAttr, SetTime, StatFs, Timestamp, WriteFlags, Written,
    XATTR_BYTES_MAX, XATTR_LEN_MAX, XATTR_NAME_LEN_MAX, XattrMode,
};
pub use view::{
    Area, AsFsError, BRANCHES_MAX, BeginOptions, BranchInfo, Branches, ChangedNames, CommitPlan, Committed,
    DiffKind, DiffStream, Difference, Effects, FACTS_VALUE_LEN_MAX, Facts, FrozenView, Invalidations,
    LockWords, ManyNames, Obstacle, Owner, Planned, PlannedCommit, PreparedCommit, Restored, Selection,
    TakenBack, Telling, TxnView, Undo, UntoldNames, UserLocks, begin_merge, begin_merge_preferring, diff,
    follows, hide_unreadable, hold_state, is_read_only, merge_into_parent, name_processes, open_branch,
    owner_of_note, renew_cached, restore, restore_paths, show_newer, show_snapshot, take_renewed,
    undo_points, untold_names,
};
pub use waits::{Waits, settled, settled_by, settled_for};
pub use xattr::{ACCESSES_ATTRIBUTE, COMPRESSION_ATTRIBUTE, PROJECT_ATTRIBUTE, TIER_ATTRIBUTE};

/// Largest inline threshold that `mkfs` accepts (bytes).
pub const INLINE_LEN_LIMIT: u32 = 65536;
