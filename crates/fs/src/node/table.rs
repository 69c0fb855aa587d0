//! The table of nodes.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kvfs_locks::{Mutex, RwLock, RwLockWriteGuard, class};
use kvfs_store::Position;

use super::contents::KeptContents;
use super::dead::{Dead, DeadQueue};
use super::names::{Listed, NameCache, Search, Unkept};
use super::settling::{Behind, Settling, Touched};
use super::{DirectoryPart, Location, Node, NodeState, Pin};
use crate::fair_lock::ReadGuard;
use crate::file::ContentWatches;
use crate::schema::Header;
use crate::{FileType, NodeId, NodeStats, PruneCandidate};

/// Directories between a node and the root, at most, of which a path is told.
const DEPTH_MAX: usize = 512;

const SHARDS: usize = 64;

/// Memory of a node without its name: the node, its counts, its slot in the map.
const NODE_BYTES: usize = size_of::<Node>() + 2 * size_of::<usize>() + 2 * size_of::<(u64, Arc<Node>)>();

/// Nodes with cached content per shard, at most; bounds the queue, whose entries may be out of date.
const CONTENT_QUEUE_LEN: usize = 4096;

/// Inode numbers are nearly sequential: a multiplication spreads them well.
#[derive(Default)]
pub(crate) struct InodeHasher(u64);

impl Hasher for InodeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<u64, Arc<Node>, BuildHasherDefault<InodeHasher>>,
    /// Nodes that were given content, oldest first.
    content_queue: VecDeque<u64>,
}

#[repr(align(128))]
#[derive(Default)]
struct PaddedShard {
    shard: RwLock<Shard, class::FsNodeTableShard>,
    content_bytes: AtomicU64,
}

/// What a row says about an inode.
pub(crate) struct Intern<'a> {
    /// Attributes.
    pub(crate) header: Header,
    /// Place; built only when the node is new.
    pub(crate) location: &'a dyn Fn() -> Location,
    /// Directories: the rest.
    pub(crate) directory: Option<Box<DirectoryPart>>,
    /// Inline content to keep, copied.
    pub(crate) content: &'a [u8],
    /// What an fsync must wait for.
    pub(crate) changed_at: Position,
}

/// See [`NodeTable::change_name`].
pub(crate) struct NameChange<'t> {
    names: &'t NameCache,
    hash: u64,
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        self.names.end_change(self.hash);
    }
}

/// All nodes of a view.
pub struct NodeTable {
    /// Inode of the view's root.
    root: u64,
    shards: Box<[PaddedShard]>,
    /// Number of changed nodes that left the table, and twice the number of commits that were published.
    epoch: AtomicU64,
    /// Held exclusively while a commit becomes visible; see [`NodeTable::publish`].
    publishing: RwLock<(), class::FsNodeTablePublishing>,
    settling: Settling,
    nodes: AtomicU64,
    bytes: AtomicU64,
    /// Next shard to sweep.
    hand: AtomicUsize,
    /// Orphans that have no node in the table, to be reaped.
    dead: DeadQueue,
    /// Nodes that were found changed, where the store is written to elsewhere.
    renewed: Mutex<Vec<u64>, class::FsNodeTableRenewed>,
    node_bytes_max: u64,
    /// See [`NodeTable::share_ends`].
    are_ends_shared: AtomicBool,
    pub(super) contents: KeptContents,
    names: NameCache,
    pub(crate) watches: ContentWatches,
    /// Why nothing may be answered from it any more.
    lost: OnceLock<String>,
}

impl NodeTable {
    /// Of a view whose root is the directory `root`.
    pub(crate) fn new(root: u64, node_bytes_max: u64, content_bytes_max: u64) -> Self {
        Self {
            root,
            shards: (0..SHARDS).map(|_| PaddedShard::default()).collect(),
            epoch: AtomicU64::new(0),
            publishing: RwLock::new(()),
            settling: Settling::new(),
            nodes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            hand: AtomicUsize::new(0),
            dead: DeadQueue::default(),
            renewed: Mutex::default(),
            node_bytes_max,
            are_ends_shared: AtomicBool::new(false),
            contents: KeptContents::new(content_bytes_max),
            names: NameCache::default(),
            watches: ContentWatches::default(),
            lost: OnceLock::new(),
        }
    }

    /// The directory that the view shows as its root: [`NodeId::ROOT`], but in a branch of one directory.
    pub fn root(&self) -> NodeId {
        NodeId(self.root)
    }

    /// From now on every operation fails: what the nodes say is not what the store holds.
    pub(crate) fn lose(&self, reason: &str) {
        tracing::error!(reason, "the file system serves nothing any more; mount it again");
        let _ = self.lost.set(reason.to_owned());
    }

    /// Why every operation fails until the next mount; `None`: the nodes say what the store holds.
    pub fn failure(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    fn shard(&self, inode: u64) -> &PaddedShard {
        // Groups of 16 neighbours share a shard, so that a listing touches few locks.
        &self.shards[(inode >> 4) as usize % SHARDS]
    }

    /// Read this before reading a row that is to become a node. Waits while a commit becomes visible.
    pub(crate) fn epoch(&self) -> u64 {
        let _published = self.publishing.read();
        self.epoch.load(Ordering::Acquire)
    }

    /// See [`Settling::read`].
    pub(crate) fn settled(&self, node: &Pin<'_>) -> ReadGuard<'_, (), class::FsNodeSettlingAppearing> {
        self.settling.read(node)
    }

    /// Waits for reads that are under way. The caller must hold it over [`NodeTable::publish`] of what brings
    /// no node up to date.
    #[track_caller]
    pub(crate) fn settle(&self) -> RwLockWriteGuard<'_, (), class::FsNodeSettlingAppearing> {
        self.settling.appear()
    }

    /// Before a walk over what a commit is going to change. Call [`NodeTable::get`] for each.
    pub(crate) fn begin_walk(&self) -> Touched {
        Touched::new(self.epoch.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// [`NodeTable::publish`] of a commit that changes, of the nodes from before the walk, those that are
    /// `touched`. The caller must drop what is returned when the nodes hold its changes.
    pub(crate) fn publish_behind<T, E>(
        &self,
        touched: Touched,
        commit: impl FnOnce() -> Result<T, E>,
    ) -> Result<(T, u64, Behind<'_>), E> {
        let publish = || {
            let (published, epoch) = self.publish(commit);
            Ok((published?, epoch))
        };
        let ((published, epoch), behind) = self.settling.appear_behind(touched, publish)?;
        Ok((published, epoch, behind))
    }

    /// Makes a commit visible by `commit`, so that a row is known to be from before or after it: a row that
    /// was read before, and has not become a node before, never becomes one. Returns the epoch of now: nodes
    /// that are older hold the state before the commit.
    pub(crate) fn publish<T>(&self, commit: impl FnOnce() -> T) -> (T, u64) {
        let _publishing = self.publishing.write();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.names.note_commit();
        let published = commit();
        self.names.note_commit();
        (published, self.epoch.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// The node, if it is known.
    pub(crate) fn get(&self, inode: u64) -> Option<Pin<'_>> {
        let shard = self.shard(inode).shard.read();
        let node = shard.nodes.get(&inode)?;
        Some(self.pin(node))
    }

    /// From now on names that were looked up are kept, with their nodes: for a front end without a cache.
    /// [`crate::FileSystem::housekeep`] drops those that no longer hold, [`NodeTable::forget_names`] all.
    pub fn keep_names(&self) {
        self.names.start(self.node_bytes_max);
    }

    /// From now on not one front end alone moves the ends of files: what it takes for the end of one may be
    /// old ([`crate::Append::KnownEnd`]).
    pub fn share_ends(&self) {
        self.are_ends_shared.store(true, Ordering::SeqCst);
    }

    pub(crate) fn are_ends_shared(&self) -> bool {
        self.are_ends_shared.load(Ordering::SeqCst)
    }

    /// Keeps no more of the names that were looked up. O(names kept).
    pub fn forget_names(&self) {
        self.release_all(self.names.sweep(true));
    }

    /// Lets go of names that commits may have changed. O(names kept) after a commit.
    pub(crate) fn sweep_names(&self) {
        self.release_all(self.names.sweep(false));
    }

    /// The node of a name that is kept; else what [`NodeTable::keep_name`] is told, read before its row.
    pub(crate) fn named(&self, directory: u64, name: &[u8]) -> Result<Pin<'_>, Option<Unkept>> {
        match self.names.find(directory, name) {
            Search::Kept(node) => Ok(Pin::of(self, node)),
            Search::Unkept(unkept) => Err(unkept),
        }
    }

    /// Keeps a name whose row was read after `unkept`.
    pub(crate) fn keep_name(&self, unkept: Unkept, directory: u64, name: &[u8], node: &Pin<'_>) {
        if let Some(old) = self.names.keep(unkept, directory, name, node, self.has_room(0)) {
            self.release(&old, 1);
        }
    }

    /// Before the rows of a directory are read, whose names are to be kept. `None`: they can't be.
    pub(crate) fn begin_listing(&self) -> Option<Listed> {
        self.names.begin_listing()
    }

    /// Keeps a name that was listed.
    pub(crate) fn keep_listed(&self, listed: Listed, directory: u64, name: &[u8], node: &Pin<'_>) {
        if let Some(old) = self.names.keep_listed(listed, directory, name, node, self.has_room(0)) {
            self.release(&old, 1);
        }
    }

    /// How often names in this known directory were looked up; 0 where none are kept.
    pub fn lookups_in(&self, directory: NodeId) -> u64 {
        let node = self.get(directory.0);
        node.and_then(|node| Some(node.directory.as_ref()?.lookups.load(Ordering::Relaxed))).unwrap_or(0)
    }

    /// An entry is about to be changed by an operation that holds its name exclusively: it is not kept until
    /// the value is dropped, which is when the nodes must be up to date.
    pub(crate) fn change_name(&self, directory: u64, name: &[u8]) -> Option<NameChange<'_>> {
        let (hash, old) = self.names.begin_change(directory, name)?;
        let change = NameChange { names: &self.names, hash };
        if let Some(old) = old {
            self.release(&old, 1);
        }
        Some(change)
    }

    fn release_all(&self, nodes: Vec<Arc<Node>>) {
        for node in nodes {
            self.release(&node, 1);
        }
    }

    /// What hangs on a node that the caller pins takes another number of bytes than before.
    pub(crate) fn note_resized(&self, bytes_before: usize, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes_before as u64, Ordering::Relaxed);
    }

    /// The node is in the table: the caller has a reference, or the lock of its shard.
    pub(crate) fn pin(&self, node: &Arc<Node>) -> Pin<'_> {
        node.references.fetch_add(1, Ordering::Relaxed);
        if !node.recently_used.load(Ordering::Relaxed) {
            node.recently_used.store(true, Ordering::Relaxed);
        }
        Pin::of(self, Arc::clone(node))
    }

    /// The known node of that inode, or a new one made of a row that was read after `epoch`. `None`: the
    /// row may be out of date; read again. A row that no other thread can know yet has no `epoch`.
    pub(crate) fn intern(&self, row: Intern<'_>, epoch: Option<u64>) -> Option<Pin<'_>> {
        let inode = row.header.inode;
        let padded = self.shard(inode);
        let mut guard = padded.shard.write();
        let shard = &mut *guard;
        let slot = match shard.nodes.entry(inode) {
            MapEntry::Occupied(known) => return Some(self.pin(known.get())),
            MapEntry::Vacant(slot) => slot,
        };
        let now = self.epoch.load(Ordering::Acquire);
        if epoch.is_some_and(|epoch| epoch != now) {
            return None;
        }
        let location = (row.location)();
        let content = self.admit_content(padded, row.content);
        self.nodes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(node_bytes(&location, row.directory.as_deref()), Ordering::Relaxed);
        let keeps_content = content.is_some();
        let state = NodeState::new(row.header, location, content, row.changed_at);
        let node = Arc::new(Node {
            inode,
            kind: row.header.kind,
            interned_at: now,
            references: AtomicU64::new(1),
            lookups: AtomicU64::new(0),
            recently_used: AtomicBool::new(true),
            state: Mutex::new(state),
            directory: row.directory,
        });
        slot.insert(Arc::clone(&node));
        if keeps_content {
            self.queue_content(padded, shard, inode);
        }
        Some(Pin::of(self, node))
    }

    fn admit_content(&self, padded: &PaddedShard, content: &[u8]) -> Option<Bytes> {
        self.contents.admits(content.len()).then(|| {
            padded.content_bytes.fetch_add(content.len() as u64, Ordering::Relaxed);
            Bytes::copy_from_slice(content)
        })
    }

    fn queue_content(&self, padded: &PaddedShard, shard: &mut Shard, inode: u64) {
        shard.content_queue.push_back(inode);
        let bytes_max = self.contents.bytes_max / SHARDS as u64;
        while shard.content_queue.len() > CONTENT_QUEUE_LEN
            || (padded.content_bytes.load(Ordering::Relaxed) > bytes_max && shard.content_queue.len() > 1)
        {
            let Some(oldest) = shard.content_queue.pop_front() else { break };
            if let Some(node) = shard.nodes.get(&oldest) {
                self.drop_content(node);
            }
        }
    }

    /// Forgets cached content: it was read, or is out of date.
    pub(crate) fn drop_content(&self, node: &Node) {
        self.drop_content_locked(&mut node.state.lock());
    }

    /// As [`Self::drop_content`], under the node's state lock.
    pub(crate) fn drop_content_locked(&self, state: &mut NodeState) {
        if let Some(content) = state.content.take() {
            let padded = self.shard(state.header.inode);
            padded.content_bytes.fetch_sub(content.len() as u64, Ordering::Relaxed);
        }
    }

    /// Moves a node; see [`Pin::relocate`]. The access time of an orphan waits no longer: it must not keep
    /// the node, whose end may be what makes room for writing times.
    pub(super) fn relocate(&self, node: &Arc<Node>, location: Location) {
        let new_bytes = node_bytes(&location, None);
        let (old, was_waiting) = {
            let mut state = node.state.lock();
            let old = std::mem::replace(&mut state.location, location);
            (old, state.is_orphan() && std::mem::take(&mut state.is_atime_pending))
        };
        if was_waiting {
            self.release(node, 1);
        }
        self.bytes.fetch_add(new_bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(node_bytes(&old, None), Ordering::Relaxed);
        if let Location::Entry { parent, .. } = old {
            self.release(&parent, 1);
        }
    }

    /// Gives a directory that was reached by number its name, unless it got one meanwhile.
    pub(super) fn name(&self, node: &Arc<Node>, place: Location, epoch: u64) {
        let bytes = node_bytes(&place, None);
        let mut state = node.state.lock();
        let is_current = epoch == self.epoch.load(Ordering::Acquire);
        if is_current && matches!(state.location, Location::Unnamed) {
            state.location = place;
            self.bytes.fetch_add(bytes - node_bytes(&Location::Unnamed, None), Ordering::Relaxed);
            return;
        }
        drop(state);
        if let Location::Entry { parent, .. } = place {
            self.release(&parent, 1);
        }
    }

    /// Gives back lookups of the front end, at most those that it had: the node stays for others.
    pub(crate) fn forget(&self, inode: u64, count: u64) {
        let Some(pin) = self.get(inode) else {
            tracing::error!(inode, count, "lookups of an unknown node were given back");
            return;
        };
        let mut lookups = pin.lookups.load(Ordering::Relaxed);
        loop {
            let taken = lookups.min(count);
            if taken < count {
                tracing::error!(inode, count, lookups, "more lookups were given back than there were");
            }
            match pin.lookups.compare_exchange_weak(
                lookups,
                lookups - taken,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return self.release(&pin, taken),
                Err(now) => lookups = now,
            }
        }
    }

    /// Gives back references; the last one removes the node, and so on up the tree.
    pub(crate) fn release(&self, node: &Arc<Node>, count: u64) {
        if count == 0 || node.references.fetch_sub(count, Ordering::AcqRel) != count {
            return;
        }
        let mut next = self.remove(node);
        while let Some(parent) = next {
            let last = parent.references.fetch_sub(1, Ordering::AcqRel) == 1;
            next = if last { self.remove(&parent) } else { None };
        }
    }

    /// Removes a node without references; returns its parent, one of whose references is to be given back.
    fn remove(&self, node: &Arc<Node>) -> Option<Arc<Node>> {
        let mut shard = self.shard(node.inode).shard.write();
        // Another thread may have found it in the meantime, or removed it before.
        let is_current = shard.nodes.get(&node.inode).is_some_and(|current| Arc::ptr_eq(current, node));
        if !is_current || node.references.load(Ordering::Acquire) != 0 {
            return None;
        }
        shard.nodes.remove(&node.inode);
        let mut state = node.state.lock();
        if state.modified {
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
        drop(shard);
        self.drop_content_locked(&mut state);
        self.nodes.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(node_bytes(&state.location, node.directory.as_deref()), Ordering::Relaxed);
        match std::mem::replace(&mut state.location, Location::Root) {
            Location::Entry { parent, .. } => Some(parent),
            Location::Orphan => {
                self.dead.push(&Dead { orphans: vec![state.header], ..Dead::default() });
                None
            }
            Location::Root | Location::Own | Location::Unnamed | Location::Rowless { .. } => None,
        }
    }

    /// Whether the table, within its bound, may hold so many bytes more that can't leave it.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) + bytes as u64 <= self.node_bytes_max
    }

    /// The path from the root, where every node on it is known.
    pub(crate) fn path_of(&self, inode: u64) -> Option<Vec<u8>> {
        let mut parts = Vec::new();
        let mut node = Arc::clone(&*self.get(inode)?);
        while node.inode != self.root {
            if parts.len() >= DEPTH_MAX {
                return None;
            }
            let (parent, name) = node.link()?;
            parts.push(name);
            node = parent;
        }
        if parts.is_empty() {
            return Some(b"/".to_vec());
        }
        Some(parts.iter().rev().flat_map(|name| [b"/", &name[..]].concat()).collect())
    }

    /// Orphans that have no node in the table, and wait to be reaped.
    pub(crate) fn dead(&self) -> &DeadQueue {
        &self.dead
    }

    /// The node was found changed by something other than an operation here.
    pub(crate) fn note_renewed(&self, inode: u64) {
        self.renewed.lock().push(inode);
    }

    /// Those that were found so since the last call, some of them more than once.
    pub(crate) fn take_renewed(&self) -> Vec<u64> {
        std::mem::take(&mut self.renewed.lock())
    }

    /// Nodes that the kernel should forget: those that it alone holds and that were not used since the last
    /// sweep; none within [`crate::MountOptions::node_bytes_max`]. Cheap when there is nothing to do.
    pub fn prune_candidates(&self, count_max: usize) -> Vec<PruneCandidate> {
        let mut found = Vec::new();
        for _ in 0..2 * SHARDS {
            let over = self.bytes.load(Ordering::Relaxed).saturating_sub(self.node_bytes_max);
            let wanted = (over as usize / NODE_BYTES + usize::from(over > 0)).min(count_max);
            if found.len() >= wanted {
                break;
            }
            let hand = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let shard = self.shards[hand].shard.read();
            for node in shard.nodes.values() {
                if found.len() >= wanted {
                    break;
                }
                let lookups = node.lookups.load(Ordering::Relaxed);
                let idle = lookups > 0 && node.references.load(Ordering::Relaxed) == lookups;
                if idle && !node.recently_used.swap(false, Ordering::Relaxed) {
                    let link = node.link().map(|(parent, name)| (NodeId(parent.inode), name));
                    found.push(PruneCandidate { node: NodeId(node.inode), link });
                }
            }
        }
        found
    }

    /// Whether the front end knows this file, and so may have pages of it.
    pub fn knows(&self, node: NodeId) -> bool {
        self.get(node.0).is_some()
    }

    /// Files that the front end knows and may have pages of: of one without content as well, where it keeps
    /// what is written. O(nodes).
    pub fn cached_files(&self) -> Vec<NodeId> {
        let mut found = Vec::new();
        for padded in &self.shards {
            for node in padded.shard.read().nodes.values() {
                let is_known = node.lookups.load(Ordering::Relaxed) > 0;
                if is_known && node.kind == FileType::Regular {
                    found.push(NodeId(node.inode));
                }
            }
        }
        found
    }

    /// Figures of the table.
    pub fn stats(&self) -> NodeStats {
        let content_bytes = self.shards.iter().map(|shard| shard.content_bytes.load(Ordering::Relaxed)).sum();
        NodeStats {
            nodes: self.nodes.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed) + content_bytes,
            content_bytes,
            orphans_queued: self.dead.len() as u64,
        }
    }
}

impl Drop for NodeTable {
    /// Nodes let go of their parents while the table still holds those: else the last one of a deep tree
    /// would drop all above it, by recursion.
    fn drop(&mut self) {
        for shard in &self.shards {
            for node in shard.shard.read().nodes.values() {
                node.state.lock().location = Location::Root;
            }
        }
    }
}

fn node_bytes(location: &Location, directory: Option<&DirectoryPart>) -> u64 {
    let location_bytes = match location {
        Location::Entry { name, .. } => name.len().next_multiple_of(16),
        Location::Rowless { content } => content.len().next_multiple_of(16),
        _ => 0,
    };
    (NODE_BYTES + directory.map_or(0, DirectoryPart::memory_bytes) + location_bytes) as u64
}
