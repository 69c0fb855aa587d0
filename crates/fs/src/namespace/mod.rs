//! Names: looking up, creating, removing, renaming, linking.
//!
//! Each operation takes the names it knows, reads under them, takes the names it discovered, reads what
//! those protect, and applies one batch. When names are not free it returns with everything released.

mod create;
mod link;
mod lookup;
mod remove;
mod rename;
mod resolve;
mod tree;

use kvfs_txn::{Fields, LockName, Want};

pub(crate) use lookup::{attribute_wants, find};
pub use remove::remove_found;
pub(crate) use remove::{Remover, removal_wants};
pub use rename::{FoundByNames, rename_found};
pub(crate) use resolve::Resolver;
pub use tree::{TreeError, TreeRights, look_through, remove_tree};

/// What a change of entries needs of the directory.
pub(crate) fn entry_wants(directory: u64, name: &[u8]) -> [Want<'_>; 3] {
    let [counters, placement] = directory_wants(directory);
    [entry_want(directory, name), counters, placement]
}

fn entry_want(directory: u64, name: &[u8]) -> Want<'_> {
    Want::exclusive(LockName::Entry { directory, name })
}

/// The same, whatever the entry is.
fn directory_wants<'a>(directory: u64) -> [Want<'a>; 2] {
    [Want::increment(LockName::Counters { directory }), Want::shared(LockName::Placement { directory })]
}

/// What moving or removing a file's row needs: everything that is stored in it.
pub(crate) fn row_wants<'a>(inode: u64) -> [Want<'a>; 2] {
    [
        Want::exclusive(LockName::Attributes { inode, fields: Fields::ALL }),
        Want::exclusive(LockName::Blocks { inode, first: 0, end: u64::MAX }),
    ]
}

/// What removing a directory needs.
fn directory_removal_wants<'a>(directory: u64) -> [Want<'a>; 3] {
    [
        Want::exclusive(LockName::Attributes { inode: directory, fields: Fields::ALL }),
        Want::exclusive(LockName::Counters { directory }),
        Want::exclusive(LockName::Identity { directory }),
    ]
}
