//! How files and directories are laid out in the keyspaces of a store.
//!
//! | keyspace | kind | key | value |
//! |---|---|---|---|
//! | `meta` | tuple, merged | subtree u64be ‖ label ‖ 00 ‖ name | row |
//! | `data` | block | inode u64be ‖ block number u64be | 4 KiB |
//! | `xattr` | tuple | inode u64be ‖ name | value |
//! | `orphans` | tuple, merged | inode u64be | row |
//!
//! `(label, "")` is the *own row* of an inode: a directory's attributes and counters, or the row of a file
//! with several names. Other names are *dentry rows*: a file's attributes and inline content, a reference to
//! a directory, or a link to an inode's own row. Subtree 0 holds the file system's own records: its
//! superblock, the owners of the users' keyspaces, and where received snapshots come from. A directory (or a
//! file with several names) that is its own subtree has its inode number as subtree.
//!
//! Keys are big-endian, so that they sort; everything in values is little-endian.

mod branch;
mod key;
mod patch;
mod received;
mod row;
mod superblock;

#[cfg(test)]
mod tests;

pub use branch::BranchRoot;
pub(crate) use branch::{BranchRecord, Fork};
pub(crate) use key::{
    DETACHED_INODE, NAMELESS_INODES, Placement, ROOT_INODE, block_prefix, check_name, inode_key,
    is_keyspace_key, keyspace_records, parse_inode_key, parse_private_key, parse_received_key, private_key,
    private_keys, received_key, received_keys, receiving_key, rows, superblock_key, xattr_key,
};
pub(crate) use patch::{
    BitsPatch, ContentPatch, NumberPatch, RowMerge, RowPatch, TOUCH_CONTENT, TOUCH_COUNTERS, TOUCH_PARENT,
    TimePatch,
};
pub(crate) use received::{
    Receiving, decode_private, decode_received, decode_receiving, encode_private, encode_received,
    encode_receiving,
};
pub(crate) use row::{Header, Row, RowFlags, encode_directory_link, encode_inode_link, encode_row};
pub(crate) use superblock::{Superblock, check_inline_len_max};

use std::sync::Arc;

use kvfs_store::{Keyspace, KeyspaceKind, Store};

use crate::Result;

/// Names of the keyspaces that belong to the file system; changing them by other ways breaks files.
pub const KEYSPACES: [&str; 4] = ["meta", "data", "xattr", "orphans"];

/// The open keyspaces of a file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keyspaces {
    /// Rows.
    pub(crate) meta: Keyspace,
    /// Content of files beyond the inline threshold.
    pub(crate) data: Keyspace,
    /// Extended attributes.
    pub(crate) xattr: Keyspace,
    /// Rows of inodes without a name.
    pub(crate) orphans: Keyspace,
}

impl Keyspaces {
    /// Opens (and creates where missing) the keyspaces.
    pub(crate) fn open(store: &dyn Store) -> Result<Self> {
        let merge = || -> Option<Arc<dyn kvfs_store::MergeFunction>> { Some(Arc::new(RowMerge)) };
        let [meta, data, xattr, orphans] = KEYSPACES;
        Ok(Self {
            meta: store.open_keyspace(meta, KeyspaceKind::Tuple, merge())?,
            data: store.open_keyspace(data, KeyspaceKind::Block, None)?,
            xattr: store.open_keyspace(xattr, KeyspaceKind::Tuple, None)?,
            orphans: store.open_keyspace(orphans, KeyspaceKind::Tuple, merge())?,
        })
    }
}
