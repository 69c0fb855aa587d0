//! Keys.

use bytes::Bytes;
use kvfs_store::KeyRange;

use crate::{FsError, INODE_MAX, NAME_LEN_MAX, Result};

/// Inode of the root directory.
pub(crate) const ROOT_INODE: u64 = 1;

/// Inode of the directory of detached trees, which is made when it is first needed and has no name.
pub(crate) const DETACHED_INODE: u64 = 2;

/// Directories that no name leads to.
pub(crate) const NAMELESS_INODES: [u64; 2] = [ROOT_INODE, DETACHED_INODE];

/// Subtree of the file system's own records.
const SUBTREE_SYSTEM: u64 = 0;

/// Separates the label from the name. Labels are sequences of `01 ‖ varint`, so a directory's own row and
/// entries (00) sort before those of its subdirectories (01).
const LABEL_END: u8 = 0;

/// Where the rows of a directory are: given at `mkdir`, changed only by a mover.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Placement {
    /// Subtree.
    pub(crate) subtree: u64,
    /// Path of inodes inside the subtree; empty for its root. Always empty as long as every directory is
    /// its own subtree.
    pub(crate) label: Bytes,
}

impl Placement {
    /// An inode that is its own subtree.
    pub(crate) fn own_subtree(inode: u64) -> Self {
        Self { subtree: inode, label: Bytes::new() }
    }

    /// Key of the own row (`name` empty) or of a dentry row.
    pub(crate) fn key(&self, name: &[u8]) -> Bytes {
        let mut key = Vec::with_capacity(9 + self.label.len() + name.len());
        key.extend_from_slice(&self.subtree.to_be_bytes());
        key.extend_from_slice(&self.label);
        key.push(LABEL_END);
        key.extend_from_slice(name);
        key.into()
    }

    /// Key of the own row.
    pub(crate) fn own_key(&self) -> Bytes {
        self.key(b"")
    }

    /// The directory (or inode with an own row) and the name that a key is about; `None` for the file
    /// system's own records and for what is no key.
    pub(crate) fn parse_key(key: &[u8]) -> Option<(u64, &[u8])> {
        let (subtree, rest) = key.split_first_chunk::<8>()?;
        let subtree = u64::from_be_bytes(*subtree);
        // Labels are empty: every directory is its own subtree.
        let (&label_end, name) = rest.split_first()?;
        (is_inode(subtree) && label_end == LABEL_END).then_some((subtree, name))
    }

    /// Length of the part of the keys before the name.
    pub(crate) fn prefix_len(&self) -> usize {
        8 + self.label.len() + 1
    }

    /// The keys of all entries with names greater than `after` (empty: all entries, without the own row).
    pub(crate) fn entries_after(&self, after: &[u8]) -> KeyRange {
        let mut start = self.key(after).to_vec();
        start.push(0);
        // A name never is empty and never holds a zero byte, so this is the successor of `after` and
        // comes before every greater name.
        let mut end = self.key(b"").to_vec();
        end.pop();
        end.push(LABEL_END + 1);
        KeyRange::new(start, end)
    }
}

/// Checks the name of an entry: one that is to be created, removed or renamed, or that stands in a key.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => return Err(FsError::NotFound),
        b"." | b".." => return Err(FsError::Invalid("`.` and `..` can't be created, removed or renamed")),
        _ => {}
    }
    if name.len() > NAME_LEN_MAX {
        return Err(FsError::NameTooLong { len: name.len(), len_max: NAME_LEN_MAX });
    }
    if name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(FsError::Invalid("names hold neither `/` nor zero bytes"));
    }
    Ok(())
}

/// Whether a file or directory may have the number: front ends have their own use for the bits above.
pub(crate) fn is_inode(number: u64) -> bool {
    (SUBTREE_SYSTEM + 1..INODE_MAX).contains(&number)
}

/// Key in `orphans`, and prefix in `data`.
pub(crate) fn inode_key(inode: u64) -> Bytes {
    Bytes::copy_from_slice(&inode.to_be_bytes())
}

/// The inode that a key of `orphans` is about.
pub(crate) fn parse_inode_key(key: &[u8]) -> Result<u64> {
    key.try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| FsError::corrupt(format!("orphan {}", key.escape_ascii()), "the key is no inode number"))
}

/// Prefix of a file's blocks.
pub(crate) fn block_prefix(inode: u64) -> [u8; 8] {
    inode.to_be_bytes()
}

/// Key of an extended attribute.
pub(crate) fn xattr_key(inode: u64, name: &[u8]) -> Bytes {
    let mut key = Vec::with_capacity(8 + name.len());
    key.extend_from_slice(&inode.to_be_bytes());
    key.extend_from_slice(name);
    key.into()
}

/// Key of the superblock record in `meta`.
pub(crate) fn superblock_key() -> Bytes {
    system_key(b"superblock")
}

/// What the names of records of users' keyspaces begin with, in subtree 0 of `meta`.
const KEYSPACE_PREFIX: &[u8] = b"keyspace/";

/// What the names of records of received snapshots begin with, in subtree 0 of `meta`.
const RECEIVED_PREFIX: &[u8] = b"received/";

/// What the names of records of private snapshots begin with, in subtree 0 of `meta`.
const PRIVATE_PREFIX: &[u8] = b"private/";

fn system_key(name: &[u8]) -> Bytes {
    Placement { subtree: SUBTREE_SYSTEM, label: Bytes::new() }.key(name)
}

/// What the keys of the records of users' keyspaces in `meta` begin with; a name follows.
pub(crate) fn keyspace_records() -> Bytes {
    system_key(KEYSPACE_PREFIX)
}

/// Whether `key` is that of a record of a user's keyspace.
pub(crate) fn is_keyspace_key(key: &[u8]) -> bool {
    key.starts_with(&system_key(KEYSPACE_PREFIX))
}

/// Key of the record in `meta` that says where the snapshot of that name was made.
pub(crate) fn received_key(name: &str) -> Bytes {
    system_key(&[RECEIVED_PREFIX, name.as_bytes()].concat())
}

/// The keys of all records of received snapshots.
pub(crate) fn received_keys() -> KeyRange {
    KeyRange::prefix(&system_key(RECEIVED_PREFIX))
}

/// The name of the snapshot that a key of [`received_key`] is about.
pub(crate) fn parse_received_key(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&system_key(RECEIVED_PREFIX)[..])?).ok()
}

/// Key of the record in `meta` that makes the snapshot of that name private.
pub(crate) fn private_key(name: &str) -> Bytes {
    system_key(&[PRIVATE_PREFIX, name.as_bytes()].concat())
}

/// The keys of all records of private snapshots.
pub(crate) fn private_keys() -> KeyRange {
    KeyRange::prefix(&system_key(PRIVATE_PREFIX))
}

/// The name of the snapshot that a key of [`private_key`] is about.
pub(crate) fn parse_private_key(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&system_key(PRIVATE_PREFIX)[..])?).ok()
}

/// Key of the record in `meta` of a received snapshot that still waits for its name.
pub(crate) fn receiving_key() -> Bytes {
    system_key(b"receiving")
}

/// The keys of all rows: everything in `meta` but the file system's own records.
pub(crate) fn rows() -> KeyRange {
    KeyRange { start: inode_key(SUBTREE_SYSTEM + 1), end: None }
}
