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

mod acl;
mod attr;
pub mod check;
mod dir;
mod error;
mod file;
mod filesystem;
mod keys;
mod namespace;
mod node;
mod orphan;
mod quota;
pub mod repair;
mod schema;
pub mod transfer;
mod types;
mod view;
mod xattr;

pub use acl::AclKind;
pub use error::{FsError, Result};
pub use filesystem::FileSystem;
pub use keys::{KEYSPACE_NAME_LEN_MAX, KeyChange, KeyspaceEntry, KeyspaceOwner};
/// A place in the store's history, as [`FileSystem::sync`] takes it; what front ends say of transactions.
pub use kvfs_store::{Durability, Isolation, Position, TxnId, TxnStats};
/// What stops a transaction, and what there is to list of locks and transactions.
pub use kvfs_txn::{
    Doom, DoomReason, LockInfo, LockNameBuf, LockPage, LockPlace, LockStats, Rival, Ticket, TxnInfo,
    WaiterInfo,
};
pub use quota::{GRACE_SECONDS, Limits, Project, QuotaKind, QuotaLine, Usage};
pub use schema::KEYSPACES;
pub use types::{
    Append, AtimePolicy, Attr, Caller, DirEntry, Entry, FILE_SIZE_MAX, FallocateMode, FileType, Fill,
    INODE_MAX, LINK_MAX, MkfsOptions, MountOptions, NAME_LEN_MAX, NodeId, NodeStats, PruneCandidate,
    RenameMode, SYMLINK_LEN_MAX, SeekKind, SetAttr, SetTime, StatFs, Timestamp, WriteFlags, Written,
    XATTR_LEN_MAX, XATTR_NAME_LEN_MAX, XattrMode, settled,
};
pub use view::{
    BeginOptions, BranchInfo, CommitPlan, Committed, DiffKind, Difference, Invalidations, Obstacle, Owner,
    Restored, TakenBack, owner_of_note,
};
pub use xattr::{COMPRESSION_ATTRIBUTE, PROJECT_ATTRIBUTE};

/// Largest inline threshold that `mkfs` accepts (bytes).
pub const INLINE_LEN_LIMIT: u32 = 65536;
