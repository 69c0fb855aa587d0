//! Locks that a user takes explicitly: on ranges of keys, on parts of a file, on the names in a directory.
//!
//! They are the locks that operations take, so they conflict with those, are shown, waited for and timed out
//! like them, and go when the transaction ends. At snapshot level they make of "unchanged since the snapshot"
//! a promise for the rest of the transaction: what another party did change after the snapshot is a conflict
//! at once.
//!
//! Thread safety: as [`FileSystem`]. Invariant: at snapshot level, what is locked is as the snapshot shows
//! it, or the transaction is doomed.

use kvfs_store::{BLOCK_BYTES, Isolation, KeyRange, Keyspace, Records};
use kvfs_txn::LockName;

use super::locker::{Locker, OUTSIDE};
use crate::schema::{Placement, TOUCH_CONTENT, block_prefix};
use crate::{Caller, FileSystem, FileType, FsError, NodeId, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Takes locks that a user asks for, in the view of a transaction.
pub struct UserLocks<'v>(Locker<'v>);

impl FileSystem {
    /// What takes the locks that a user asks for.
    pub fn user_locks(&self) -> UserLocks<'_> {
        UserLocks(self.locker())
    }
}

impl UserLocks<'_> {
    /// Locks the keys in `range`, those that don't exist included, until the transaction ends: shared (no
    /// other party changes them) or exclusively (nor locks them).
    ///
    /// # Errors
    /// `Parked`; `Canceled`, where another party has changed one of them after the snapshot; `Invalid`
    /// outside of a transaction.
    pub fn keys(
        &self,
        caller: &Caller,
        keyspace: Keyspace,
        range: &KeyRange,
        is_exclusive: bool,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let name = LockName::Keys { keyspace, start: &range.start, end: range.end.as_deref() };
        self.0.lock_by_user(caller, name, is_exclusive)?;
        self.expect_unchanged(keyspace, Records::Range(range.clone()))
    }

    /// Locks `len` bytes of a file from `offset` on (0: to the end, and what is appended), in whole blocks of
    /// 4 KiB.
    ///
    /// # Errors
    /// As [`Self::keys`]; `Invalid` for what is no regular file.
    pub fn file(
        &self,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        len: u64,
        is_exclusive: bool,
    ) -> Result<()> {
        let node = self.0.pin(node)?;
        if node.kind != FileType::Regular {
            return Err(FsError::Invalid("only regular files and directories are locked"));
        }
        let first = offset / BLOCK;
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len).div_ceil(BLOCK) };
        let name = LockName::Blocks { inode: node.inode, first, end };
        self.0.lock_by_user(caller, name, is_exclusive)?;
        let prefix = block_prefix(node.inode).to_vec().into();
        self.expect_unchanged(self.0.keyspaces.data, Records::Blocks { prefix, first, count: end - first })?;
        // The content of a small file is in its row.
        let (keyspace, key) = node.row_address(&self.0.keyspaces);
        self.expect_unchanged(keyspace, Records::Key { key, touch: TOUCH_CONTENT })
    }

    /// Locks all names in a directory, those that don't exist included; what is below its subdirectories is
    /// not concerned.
    ///
    /// # Errors
    /// As [`Self::keys`]; `NotDirectory`.
    pub fn entries(&self, caller: &Caller, node: NodeId, is_exclusive: bool) -> Result<()> {
        let node = self.0.pin(node)?;
        if node.kind != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        self.0.lock_by_user(caller, LockName::Entries { directory: node.inode }, is_exclusive)?;
        let rows = Placement::own_subtree(node.inode).entries_after(b"");
        self.expect_unchanged(self.0.keyspaces.meta, Records::Range(rows))
    }

    /// Refuses if these records were changed after the snapshot. The caller must hold their lock, so that
    /// they stay unchanged.
    fn expect_unchanged(&self, keyspace: Keyspace, records: Records) -> Result<()> {
        let view = self.0.origin.txn().ok_or(OUTSIDE)?;
        if view.txn.isolation() != Isolation::Snapshot {
            return Ok(());
        }
        match view.txn.changed_since_snapshot(keyspace, &[records])? {
            Some(changed) => Err(view.conflict(&changed)),
            None => Ok(()),
        }
    }
}
