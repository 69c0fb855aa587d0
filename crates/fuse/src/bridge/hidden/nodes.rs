//! The nodes of the hidden directory that the kernel knows.
//!
//! The nodes of one user may be as many as all users leave free, so that none ever meets a full table for
//! another's sake; those of root, all that are left.
//!
//! Thread safety: one short lock. Invariants: a node lives while its lookup count is above zero, the hidden
//! directory itself for ever; a folder that the kernel knows is one node, of the user that looked it up
//! first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::FileType;
use kvfs_locks::{Mutex, class};
use rustix::io::Errno;

use super::{Folder, Prepare};
use crate::bridge::ids;

/// Number of the hidden directory itself.
const ROOT: u64 = 1;

/// Content of all files together that the kernel may know (bytes): each open file has its own.
const CONTENT_BYTES_MAX: usize = 4 << 20;

/// Nodes that the kernel may know.
const NODES_MAX: usize = 1 << 16;

const ROOT_UID: u32 = 0;

/// What a node is.
#[derive(Clone)]
pub(super) enum What {
    Folder(Arc<dyn Folder>),
    File(Bytes),
    Link(Bytes, Option<Prepare>),
}

impl What {
    pub(super) fn kind(&self) -> FileType {
        match self {
            Self::Folder(_) => FileType::Directory,
            Self::File(_) => FileType::Regular,
            Self::Link(..) => FileType::Symlink,
        }
    }

    pub(super) fn content(&self) -> &[u8] {
        match self {
            Self::Folder(_) => b"",
            Self::File(content) | Self::Link(content, _) => content,
        }
    }
}

/// A node, as it is answered.
#[derive(Clone)]
pub(super) struct HiddenNode {
    pub(super) what: What,
    /// Below the hidden directory; empty for that.
    pub(super) path: Arc<[u8]>,
    pub(super) uid: u32,
}

struct Live {
    node: HiddenNode,
    lookups: u64,
    /// The user that counts for it.
    user: u32,
}

/// What nodes come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    nodes: usize,
    content_bytes: usize,
}

impl Held {
    const MAX: Self = Self { nodes: NODES_MAX, content_bytes: CONTENT_BYTES_MAX };

    fn of(node: &HiddenNode) -> Self {
        Self { nodes: 1, content_bytes: node.what.content().len() }
    }

    fn with(self, more: Self) -> Self {
        Self { nodes: self.nodes + more.nodes, content_bytes: self.content_bytes + more.content_bytes }
    }

    fn without(self, less: Self) -> Self {
        Self { nodes: self.nodes - less.nodes, content_bytes: self.content_bytes - less.content_bytes }
    }

    fn is_within(self, max: Self) -> bool {
        self.nodes <= max.nodes && self.content_bytes <= max.content_bytes
    }
}

struct State {
    next: u64,
    live: HashMap<u64, Live>,
    folders: HashMap<Arc<[u8]>, u64>,
    /// By all users.
    held: Held,
    users: HashMap<u32, Held>,
}

impl State {
    fn check_room(&self, user: u32, more: Held) -> Result<(), Errno> {
        if !self.held.with(more).is_within(Held::MAX) {
            return Err(Errno::NFILE);
        }
        let own = self.users.get(&user).copied().unwrap_or_default();
        let is_in_share = self.held.with(own).with(more).is_within(Held::MAX);
        if user == ROOT_UID || is_in_share { Ok(()) } else { Err(Errno::MFILE) }
    }
}

/// See the module.
pub(super) struct Nodes(Mutex<State, class::FuseBridgeHiddenNodes>);

impl Nodes {
    /// The hidden directory is known.
    pub(super) fn new(root: Arc<dyn Folder>, uid: u32) -> Self {
        let node = HiddenNode { what: What::Folder(root), path: Arc::from(&b""[..]), uid };
        let live = HashMap::from([(ROOT, Live { node, lookups: 1, user: uid })]);
        let (folders, users) = (HashMap::new(), HashMap::new());
        Self(Mutex::new(State { next: ROOT + 1, live, folders, held: Held::default(), users }))
    }

    /// Id of the hidden directory itself.
    pub(super) fn root() -> u64 {
        ids::hidden(ROOT)
    }

    pub(super) fn get(&self, node: u64) -> Option<HiddenNode> {
        self.0.lock().live.get(&ids::inode(node)).map(|live| live.node.clone())
    }

    /// Counts a lookup of `node` by `user`, under an id that may be new; returns the id.
    ///
    /// # Errors
    /// `MFILE`: the user has too many; `NFILE`: all users together have.
    pub(super) fn count(&self, user: u32, node: HiddenNode) -> Result<u64, Errno> {
        let mut state = self.0.lock();
        if let (What::Folder(_), Some(&number)) = (&node.what, state.folders.get(&node.path))
            && let Some(live) = state.live.get_mut(&number)
        {
            live.lookups += 1;
            return Ok(ids::hidden(number));
        }
        let more = Held::of(&node);
        state.check_room(user, more)?;
        state.held = state.held.with(more);
        let own = state.users.entry(user).or_default();
        *own = own.with(more);
        let number = state.next;
        state.next += 1;
        if let What::Folder(_) = node.what {
            state.folders.insert(Arc::clone(&node.path), number);
        }
        state.live.insert(number, Live { node, lookups: 1, user });
        Ok(ids::hidden(number))
    }

    pub(super) fn forget(&self, node: u64, lookups: u64) {
        let number = ids::inode(node);
        if number == ROOT {
            return;
        }
        let mut state = self.0.lock();
        let Some(live) = state.live.get_mut(&number) else { return };
        live.lookups = live.lookups.saturating_sub(lookups);
        if live.lookups > 0 {
            return;
        }
        let gone = state.live.remove(&number);
        let Some(Live { node, user, .. }) = gone else { return };
        let less = Held::of(&node);
        state.held = state.held.without(less);
        if let Entry::Occupied(mut own) = state.users.entry(user) {
            *own.get_mut() = own.get().without(less);
            if *own.get() == Held::default() {
                own.remove();
            }
        }
        if let What::Folder(_) = node.what {
            state.folders.remove(&node.path);
        }
        drop(state);
    }

    /// How many there are beside the hidden directory itself.
    pub(super) fn len(&self) -> usize {
        self.0.lock().live.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::{Item, Name};

    #[derive(Debug)]
    struct Empty;

    impl Folder for Empty {
        fn list(&self, _: u32) -> Vec<Name> {
            Vec::new()
        }

        fn find(&self, _: u32, _: &[u8]) -> Result<Option<Item>, kvfs_fs::FsError> {
            Ok(None)
        }
    }

    fn file(content: &[u8]) -> HiddenNode {
        let what = What::File(Bytes::copy_from_slice(content));
        HiddenNode { what, path: Arc::from(&b"file"[..]), uid: 0 }
    }

    #[test]
    fn folders_keep_their_node_and_files_have_one_for_each_lookup() {
        let nodes = Nodes::new(Arc::new(Empty), 0);
        let folder =
            HiddenNode { what: What::Folder(Arc::new(Empty)), path: Arc::from(&b"folder"[..]), uid: 0 };
        let first = nodes.count(0, folder.clone()).expect("counts");
        assert_eq!(nodes.count(0, folder.clone()), Ok(first));
        let (one, two) =
            (nodes.count(0, file(b"one")).expect("counts"), nodes.count(0, file(b"two")).expect("counts"));
        assert_ne!(one, two);
        assert_eq!(nodes.get(one).expect("is known").what.content(), b"one");
        nodes.forget(first, 1);
        assert!(nodes.get(first).is_some());
        nodes.forget(first, 1);
        nodes.forget(one, 1);
        assert!(nodes.get(first).is_none() && nodes.get(one).is_none());
        assert_ne!(nodes.count(0, folder), Ok(first), "the kernel has forgotten the former");
        assert_eq!(nodes.len(), 2);
        nodes.forget(Nodes::root(), 100);
        assert!(nodes.get(Nodes::root()).is_some());
    }

    #[test]
    fn what_open_files_hold_is_bounded_and_comes_back() {
        let nodes = Nodes::new(Arc::new(Empty), 0);
        let content = vec![7; CONTENT_BYTES_MAX / 4];
        let held: Vec<u64> = (0..4).map(|_| nodes.count(0, file(&content)).expect("counts")).collect();
        assert_eq!(nodes.count(0, file(b"x")), Err(Errno::NFILE));
        nodes.forget(held[0], 1);
        assert!(nodes.count(0, file(b"x")).is_ok());
    }

    #[test]
    fn user_with_its_share_of_hidden_nodes_is_refused_and_no_other_one() {
        let nodes = Nodes::new(Arc::new(Empty), 0);
        let take_all = |user: u32, content: &[u8]| {
            let mut held = Vec::new();
            loop {
                match nodes.count(user, file(content)) {
                    Ok(id) => held.push(id),
                    Err(errno) => return (held, errno),
                }
            }
        };
        for content in [Vec::new(), vec![7; CONTENT_BYTES_MAX / 64]] {
            let max = if content.is_empty() { NODES_MAX } else { 64 };
            let mut all = Vec::new();
            for (user, share) in [(1000, max / 2), (1001, max / 4), (1002, max / 8)] {
                let (held, errno) = take_all(user, &content);
                assert_eq!((held.len(), errno), (share, Errno::MFILE), "user {user}");
                all.push(held);
            }
            let (held, errno) = take_all(ROOT_UID, &content);
            assert_eq!((held.len(), errno), (max / 8, Errno::NFILE), "root has what is left");
            all.push(held);
            all.concat().into_iter().for_each(|id| nodes.forget(id, 1));
            assert_eq!((nodes.len(), nodes.0.lock().users.len()), (0, 0));
        }
    }
}
