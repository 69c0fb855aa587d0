//! Inodes in memory.
//!
//! Thread safety: the table is sharded; an inode has one lock. Operations on two directories lock them in the
//! order of their numbers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_fuse::abi::Attr;
use parking_lot::{Mutex, RwLock};

/// Shards of the inode table.
const SHARDS: usize = 64;

/// Bytes of a chunk of file data.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// What an inode holds.
pub(crate) enum Content {
    /// Names to node and position in the listing, and back.
    Directory(Directory),
    /// Data in chunks by number; a missing or short chunk reads as zeros.
    File(BTreeMap<u64, Vec<u8>>),
    /// Target of a symbolic link.
    Symlink(Box<[u8]>),
    /// A device, pipe or socket.
    Special,
}

/// Entries of a directory. Positions only grow, so listings stay valid under change.
#[derive(Default)]
pub(crate) struct Directory {
    by_name: HashMap<Arc<[u8]>, (u64, u64)>,
    by_position: BTreeMap<u64, (Arc<[u8]>, u64, u32)>,
    next_position: u64,
}

/// Position of the first entry; those before are "." and "..".
pub(crate) const FIRST_POSITION: u64 = 3;

impl Directory {
    pub(crate) fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|&(node, _)| node)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(crate) fn insert(&mut self, name: &[u8], node: u64, mode: u32) {
        self.remove(name);
        let position = self.next_position + FIRST_POSITION;
        self.next_position += 1;
        let name: Arc<[u8]> = name.into();
        self.by_name.insert(Arc::clone(&name), (node, position));
        self.by_position.insert(position, (name, node, mode >> 12));
    }

    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let (node, position) = self.by_name.remove(name)?;
        self.by_position.remove(&position);
        Some(node)
    }

    /// Entries from `position` on: position, name, node, type.
    pub(crate) fn from(&self, position: u64) -> impl Iterator<Item = (u64, &[u8], u64, u32)> {
        self.by_position.range(position..).map(|(&at, (name, node, kind))| (at, &name[..], *node, *kind))
    }
}

/// What an inode's lock protects.
pub(crate) struct State {
    pub(crate) attr: Attr,
    pub(crate) lookups: u64,
    /// For directories.
    pub(crate) parent: u64,
    pub(crate) content: Content,
}

pub(crate) type Inode = Arc<Mutex<State>>;

/// All inodes.
pub(crate) struct Table {
    shards: Vec<RwLock<HashMap<u64, Inode>>>,
    next: AtomicU64,
}

impl Table {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, next: AtomicU64::new(2) }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn shard(&self, node: u64) -> &RwLock<HashMap<u64, Inode>> {
        &self.shards[node as usize % SHARDS]
    }

    pub(crate) fn get(&self, node: u64) -> Option<Inode> {
        self.shard(node).read().get(&node).cloned()
    }

    pub(crate) fn insert(&self, node: u64, inode: Inode) {
        self.shard(node).write().insert(node, inode);
    }

    pub(crate) fn remove(&self, node: u64) {
        self.shard(node).write().remove(&node);
    }

    /// Number of inodes.
    pub(crate) fn count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64).sum()
    }
}
