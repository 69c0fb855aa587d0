//! One node.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use kvfs_locks::{Mutex, MutexGuard, class};
use kvfs_store::{Keyspace, Position};

use super::NodeTable;
use crate::dir::CookieTable;
use crate::schema::{Header, Keyspaces, Placement, RowPatch, inode_key};
use crate::xattr::XattrUsage;
use crate::{Attr, FileType, Result};

/// Where an inode's name and row are.
pub(crate) enum Location {
    /// The root directory.
    Root,
    /// A file with one name, whose row is the dentry row; or a directory.
    Entry {
        /// Directory that holds the name. Holds one reference of it, given back by the table.
        parent: Arc<Node>,
        /// Name.
        name: Box<[u8]>,
    },
    /// A file with several names (or which once had several): the row is under its own subtree.
    Own,
    /// No name: the row is in `orphans`.
    Orphan,
    /// No name and no row: all that is left of the inode is this node. [`Orphans::give_row`] makes it an
    /// orphan with a row before anything of it changes.
    ///
    /// [`Orphans::give_row`]: crate::orphan::Orphans::give_row
    Rowless {
        /// Inline content. Never changes.
        content: Bytes,
    },
    /// A directory that was reached by its number: it has a name, which has not been looked up. What is above
    /// it stands in its header.
    Unnamed,
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => write!(f, "root"),
            Self::Entry { parent, name } => write!(f, "{}/{}", parent.inode, name.escape_ascii()),
            Self::Own => write!(f, "own row"),
            Self::Orphan => write!(f, "orphan"),
            Self::Rowless { .. } => write!(f, "orphan without a row"),
            Self::Unnamed => write!(f, "unnamed"),
        }
    }
}

/// What of a node was read under a lock, in views that lock what they read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Verified(u8);

impl Verified {
    /// All but the counters of a directory.
    pub(crate) const ATTRIBUTES: Self = Self(1);
    /// What changes with a directory's entries.
    pub(crate) const COUNTERS: Self = Self(2);

    pub(crate) fn has(self, part: Self) -> bool {
        self.0 & part.0 != 0
    }

    pub(crate) fn insert(&mut self, part: Self) {
        self.0 |= part.0;
    }
}

/// What changes. Its first field is what lookups read.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct NodeState {
    /// Attributes as last committed.
    pub(crate) header: Header,
    /// Place.
    pub(crate) location: Location,
    /// Inline content, kept for the read that usually follows a lookup.
    pub(crate) content: Option<Bytes>,
    /// An fsync must wait for this position.
    pub(crate) changed_at: Position,
    /// What the extended attributes come to, where that is known.
    pub(crate) xattr_usage: Option<XattrUsage>,
    /// Whether the row changed since the node came into the table.
    pub(crate) modified: bool,
    /// Whether the access time is newer than the row's, and the node queued for writing it: then one
    /// reference is this flag's, and whatever clears it gives that back. Never of an orphan, whose times
    /// nothing will read.
    pub(crate) is_atime_pending: bool,
    /// Whether a commit has moved the end of the file since the front end was told of it.
    pub(crate) is_end_moved: bool,
    /// Whether the file was given to another user by other ways than the front end that decides by what it
    /// knows of owners: a commit, or another front end.
    pub(crate) is_given_away: bool,
    /// Nothing on the main line, where rows change only through nodes.
    pub(crate) verified: Verified,
    /// Whether it is known to have no capabilities.
    pub(crate) absence: Absence,
}

/// What a node knows of an extended attribute that the file does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Absence {
    is_known: bool,
    /// Number of changes after which nothing was known; wraps.
    changes: u32,
}

impl Absence {
    /// Whether it is known.
    pub(crate) fn is_known(self) -> bool {
        self.is_known
    }

    /// The store was asked when this was `as_of`, and had none.
    pub(crate) fn learn(&mut self, as_of: Self) {
        // Else one may have come since.
        self.is_known = self.changes == as_of.changes;
    }

    /// One may have come.
    pub(crate) fn forget(&mut self) {
        *self = Self { is_known: false, changes: self.changes.wrapping_add(1) };
    }
}

impl NodeState {
    /// Of a node that is made of a row.
    pub(super) fn new(
        header: Header,
        location: Location,
        content: Option<Bytes>,
        changed_at: Position,
    ) -> Self {
        Self {
            header,
            location,
            content,
            changed_at,
            xattr_usage: None,
            modified: false,
            is_atime_pending: false,
            is_end_moved: false,
            is_given_away: false,
            verified: Verified::default(),
            absence: Absence::default(),
        }
    }

    /// Whether the last name is gone.
    pub(crate) fn is_orphan(&self) -> bool {
        matches!(self.location, Location::Orphan | Location::Rowless { .. })
    }

    /// Records a committed change.
    pub(crate) fn update(&mut self, patch: &RowPatch, position: Position) {
        patch.apply(&mut self.header);
        if patch.flags.is_some() {
            // Setting an extended attribute sets a flag.
            self.absence.forget();
        }
        self.touched(position);
    }

    /// Records that something about the inode changed.
    pub(crate) fn touched(&mut self, position: Position) {
        self.changed_at = self.changed_at.max(position);
        self.modified = true;
    }
}

/// See [`DirectoryPart::was_large`].
const NAMES_REMOVED_MIN: u64 = 100;

/// What directories have in addition.
pub(crate) struct DirectoryPart {
    /// Where the rows of the entries are.
    pub(crate) placement: Placement,
    /// Inode numbers set aside for files of this directory, so that files created together lie together.
    inode_group: Mutex<Range<u64>, class::FsNodeStateInodeGroup>,
    /// Offsets given out by listings.
    pub(crate) cookies: Mutex<CookieTable, class::FsNodeStateCookies>,
    /// See [`NodeTable::lookups_in`].
    pub(crate) lookups: AtomicU64,
    /// See [`DirectoryPart::note_removed`].
    names_removed: AtomicU64,
    /// See [`DirectoryPart::set_withheld`].
    withheld_from: AtomicU32,
}

impl DirectoryPart {
    pub(crate) fn new(placement: Placement) -> Self {
        Self {
            placement,
            inode_group: Mutex::new(0..0),
            cookies: Mutex::default(),
            lookups: AtomicU64::new(0),
            names_removed: AtomicU64::new(0),
            withheld_from: AtomicU32::new(0),
        }
    }

    /// So many names have been removed from it.
    pub(crate) fn note_removed(&self, names: u64) {
        self.names_removed.fetch_add(names, Ordering::Relaxed);
    }

    /// Files of it came without their nodes when this program listed it.
    pub(crate) fn set_withheld(&self, pid: u32) {
        self.withheld_from.store(pid, Ordering::Relaxed);
    }

    /// The last program that [`Self::set_withheld`] was told of, once.
    pub(crate) fn take_withheld(&self) -> Option<u32> {
        let is_set = self.withheld_from.load(Ordering::Relaxed) != 0;
        is_set.then(|| self.withheld_from.swap(0, Ordering::Relaxed)).filter(|&pid| pid != 0)
    }

    /// Whether so many names have been removed, as far as is remembered, that one range delete is worth more
    /// than it costs.
    pub(crate) fn was_large(&self) -> bool {
        self.names_removed.load(Ordering::Relaxed) >= NAMES_REMOVED_MIN
    }

    /// An inode number that was never used, for what is made in the directory. `take_group` gives more of
    /// them.
    pub(crate) fn next_inode(&self, take_group: impl FnOnce() -> Result<Range<u64>>) -> Result<u64> {
        let mut group = self.inode_group.lock();
        if group.is_empty() {
            *group = take_group()?;
        }
        let inode = group.start;
        group.start += 1;
        Ok(inode)
    }

    /// Memory that is held (bytes).
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.cookies.lock().memory_bytes()
    }
}

/// A node. Reached through a [`Pin`], or through the location of a child. In this order in memory: what a
/// lookup needs of a node that no cache of the processor has lies together, and its counts and its lock in
/// one line.
#[repr(C)]
pub(crate) struct Node {
    /// Lookups + operations + children.
    pub(super) references: AtomicU64,
    pub(super) state: Mutex<NodeState, class::FsNodeStateState>,
    /// How often the front end was told of the node, less what it forgot.
    pub(super) lookups: AtomicU64,
    /// Inode number; the node id.
    pub(crate) inode: u64,
    /// Epoch of the table when the node came in.
    pub(super) interned_at: u64,
    /// Directories only.
    pub(crate) directory: Option<Box<DirectoryPart>>,
    /// Kind; never changes.
    pub(crate) kind: FileType,
    /// Set by use, cleared by the sweep for prune candidates.
    pub(super) recently_used: AtomicBool,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("inode", &self.inode).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Node {
    /// The state. Don't hold it across store accesses or while locking anything else.
    #[track_caller]
    pub(crate) fn state(&self) -> MutexGuard<'_, NodeState, class::FsNodeStateState> {
        self.state.lock()
    }

    /// A copy of the attributes as stored.
    pub(crate) fn header(&self) -> Header {
        self.state.lock().header
    }

    /// The attributes that users see.
    pub(crate) fn attr(&self) -> Attr {
        self.header().attr()
    }

    /// Whether the node came into the table before `epoch`.
    pub(crate) fn is_older_than(&self, epoch: u64) -> bool {
        self.interned_at < epoch
    }

    /// Records a committed change.
    pub(crate) fn update(&self, patch: &RowPatch, position: Position) {
        self.state.lock().update(patch, position);
    }

    /// Keeps the node in the table until the reference is given back. The caller has a pin.
    pub(crate) fn keep(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }

    /// The place `name` in this directory, for a child. The caller has a reference.
    pub(crate) fn entry(self: &Arc<Self>, name: &[u8]) -> Location {
        self.keep();
        Location::Entry { parent: Arc::clone(self), name: name.into() }
    }

    /// Whether the last name is gone.
    pub(crate) fn is_orphan(&self) -> bool {
        self.state.lock().is_orphan()
    }

    /// Whether it is an orphan without a row. Stable under any latch on the inode's attributes.
    pub(crate) fn is_rowless(&self) -> bool {
        matches!(self.state.lock().location, Location::Rowless { .. })
    }

    /// The inline content, where it is in memory.
    fn known_content(&self) -> Option<Bytes> {
        let state = self.state.lock();
        match &state.location {
            Location::Rowless { content } => Some(content.clone()),
            _ => state.content.clone(),
        }
    }

    /// Whether it is a directory whose name isn't known.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.directory.is_some() && matches!(self.state.lock().location, Location::Unnamed)
    }

    /// Keyspace and key of the row that holds the attributes, or would hold them. Stable under any latch on
    /// the inode's attributes.
    pub(crate) fn row_address(&self, keyspaces: &Keyspaces) -> (Keyspace, Bytes) {
        let state = self.state.lock();
        match (&state.location, &self.directory) {
            (Location::Orphan | Location::Rowless { .. }, _) => (keyspaces.orphans, inode_key(self.inode)),
            (_, Some(directory)) => (keyspaces.meta, directory.placement.own_key()),
            (Location::Entry { parent, name }, None) => match &parent.directory {
                Some(directory) => (keyspaces.meta, directory.placement.key(name)),
                None => unreachable!("only directories are parents"),
            },
            (Location::Own | Location::Root | Location::Unnamed, None) => {
                (keyspaces.meta, Placement::own_subtree(self.inode).own_key())
            }
        }
    }

    /// Inode of the parent directory, where the node has exactly one name.
    pub(crate) fn parent_inode(&self) -> Option<u64> {
        match &self.state.lock().location {
            Location::Entry { parent, .. } => Some(parent.inode),
            _ => None,
        }
    }

    /// Inode of the parent directory and the name, where the node has exactly one.
    pub(crate) fn link(&self) -> Option<(Arc<Node>, Box<[u8]>)> {
        match &self.state.lock().location {
            Location::Entry { parent, name } => Some((Arc::clone(parent), name.clone())),
            _ => None,
        }
    }
}

/// A node that stays in the table as long as this value lives.
pub(crate) struct Pin<'t> {
    table: &'t NodeTable,
    /// `None`: [`Pin::into_held`] has taken it.
    node: Option<Arc<Node>>,
}

impl Deref for Pin<'_> {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        match &self.node {
            Some(node) => node,
            None => unreachable!("what takes it takes the pin"),
        }
    }
}

impl<'t> Pin<'t> {
    /// Takes over one reference of the node.
    pub(super) fn of(table: &'t NodeTable, node: Arc<Node>) -> Self {
        Self { table, node: Some(node) }
    }

    /// That of the node.
    pub(crate) fn table(&self) -> &'t NodeTable {
        self.table
    }

    /// The node, with one reference that the caller must give back.
    pub(super) fn into_held(mut self) -> Arc<Node> {
        match self.node.take() {
            Some(node) => node,
            None => unreachable!("what takes it takes the pin"),
        }
    }

    /// Whether a front end knows it.
    pub(crate) fn is_looked_up(&self) -> bool {
        self.lookups.load(Ordering::Relaxed) > 0
    }

    /// Counts one lookup by the front end.
    pub(crate) fn count_lookup(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
        self.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// The inline content, which is about to be read, where it is in memory.
    pub(crate) fn content_to_read(&self) -> Option<Bytes> {
        self.table.contents.note_read();
        self.known_content()
    }

    /// Moves the node; the place it had gives back its reference of the parent.
    pub(crate) fn relocate(&self, location: Location) {
        self.table.relocate(self, location);
    }

    /// Gives a directory that was reached by number its name, which was read after `epoch`.
    pub(crate) fn name(&self, place: Location, epoch: u64) {
        self.table.name(self, place, epoch);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        if let Some(node) = &self.node {
            self.table.release(node, 1);
        }
    }
}
