//! A directory in the root that no listing shows: what the daemon has to tell, and views of snapshots.
//!
//! What is in it, and which user may see it, comes from above as [`Folder`]s; here it gets node ids and
//! answers the kernel. Nothing in it can be changed. A *file* is of the moment in which its name was looked
//! up: each lookup makes a node of its own, with content that never changes and so has a size, which is what
//! files that are opened without a message, read and mapped through the page cache need. Names of files,
//! links and snapshots are never cached, so each open(2) looks them up, for its caller. The kernel drops such
//! a node when it is open nowhere.
//!
//! Thread safety: shared by all workers; locks are held for moments, never across calls of a [`Folder`].
//! Invariants: the hidden directory and snapshots are known to the kernel by the counts kept here.

mod answers;
mod nodes;
mod views;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{FileSystem, FileType, FsError};

use nodes::Nodes;
pub(super) use views::Known;
use views::Views;

/// A hidden directory, for [`super::BridgeConfig::hidden`].
#[derive(Debug, Clone)]
pub struct HiddenDirectory {
    /// Its name in the root.
    pub name: &'static str,
    /// What is in it.
    pub root: Arc<dyn Folder>,
    /// Owner of everything whose owner isn't told.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl HiddenDirectory {
    /// Whether it has this name.
    pub(super) fn is(&self, name: &[u8]) -> bool {
        self.name.as_bytes() == name
    }
}

/// The content of a hidden directory. It is asked on worker threads, so it must not wait for anything.
pub trait Folder: fmt::Debug + Send + Sync + 'static {
    /// What user `uid` may see, in the order of [`Name::place`].
    fn list(&self, uid: u32) -> Vec<Name>;

    /// What user `uid` finds under `name`; `None`: nothing.
    ///
    /// # Errors
    /// There is something, and it can't be shown.
    fn find(&self, uid: u32, name: &[u8]) -> Result<Option<Item>, FsError>;
}

/// A line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Name.
    pub name: Box<[u8]>,
    /// Kind of file.
    pub kind: FileType,
    /// A number of its own, by which a listing goes on although others come and go.
    pub place: u64,
}

/// Something with a name.
pub enum Item {
    /// A directory, for all users.
    Folder(Arc<dyn Folder>),
    /// A file, for every user that finds it, as it is now.
    File(Bytes),
    /// A symbolic link.
    Link {
        /// Where it leads.
        target: Bytes,
        /// Owner.
        uid: u32,
    },
    /// A symbolic link to what is there only when it is needed.
    LinkOnDemand {
        /// Where it leads.
        target: Bytes,
        /// Owner.
        uid: u32,
        /// Called, on a thread that may wait, before it is answered where the link leads.
        prepare: Prepare,
    },
    /// The view of a snapshot.
    Snapshot(SnapshotItem),
}

/// Makes that there is something where a link leads.
pub type Prepare = Arc<dyn Fn() -> Result<(), FsError> + Send + Sync>;

/// How to get at a snapshot.
pub struct SnapshotItem {
    /// Unique among the snapshots of the store, for ever.
    pub id: u64,
    /// Gives its view; called when the kernel knows nothing of it yet.
    pub open: Box<dyn FnOnce() -> Result<Arc<FileSystem>, FsError> + Send>,
    /// Whether the snapshot still exists; asked now and then while its view is open.
    pub is_kept: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// The hidden directory of one bridge.
pub(super) struct Hidden {
    config: HiddenDirectory,
    nodes: Nodes,
    views: Views,
}

impl Hidden {
    pub(super) fn new(config: HiddenDirectory) -> Self {
        Self { nodes: Nodes::new(Arc::clone(&config.root), config.uid), views: Views::default(), config }
    }

    /// Whether `name` in the root is the hidden directory's.
    pub(super) fn is(&self, name: &[u8]) -> bool {
        self.config.is(name)
    }

    /// Nodes that the kernel knows beside the hidden directory itself.
    pub(super) fn nodes_count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn views(&self) -> &Views {
        &self.views
    }
}
