//! Names whose nodes are kept: what a kernel's cache of dentries is to a mount.
//!
//! Purpose: a front end without such a cache looks up each component of each path, so a lookup must cost no read of the
//! store. Kept names keep their nodes in the table, and these the directories above them.
//!
//! Thread safety: one lock for each bucket, a leaf of the order of locks: held for a few instructions, never across
//! anything else.
//!
//! Invariants:
//! * An operation that changes an entry must hold its name exclusively, and have called [`NameCache::begin_change`] since it has it;
//!   it calls [`NameCache::end_change`] when the nodes are up to date. In between the name is not kept.
//! * A name is kept only if no change in its bucket was under way, begun or ended since before its row was read
//!   ([`Unkept`]): a lookup takes no latch.
//! * A listing keeps what it has read only if no change at all was under way when it began, and none has begun since ([`Listed`]).
//! * What a commit changes is in none of these: a name that was kept before one is not answered after it.
//! * Each name that is kept has one reference of its node, which is given back through the table.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Node;

/// Names that share a lock, at most.
const NAMES_PER_BUCKET: usize = 8;

/// Memory of the table of nodes for which there is room for one name: about twice what it and its node take (bytes).
const NODE_BYTES_PER_NAME: u64 = 1024;

struct Kept {
    directory: u64,
    /// [`NameCache::commits`] when it was read.
    commits: u64,
    name: Box<[u8]>,
    node: Arc<Node>,
    /// Set by use, cleared by the search for what gives way.
    is_used: bool,
}

#[repr(align(128))]
#[derive(Default)]
struct PaddedBucket(Mutex<Bucket>);

#[derive(Default)]
struct Bucket {
    /// Of `names`, in their order: next to the lock, because most of what a search looks at is not what it is for.
    hashes: [u64; NAMES_PER_BUCKET],
    names: Vec<Kept>,
    /// Changes that are under way.
    changing: u32,
    /// Changes that have begun.
    begun: u64,
    /// Where the search for what gives way goes on.
    hand: usize,
}

/// A name that was not kept, before its row is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unkept {
    hash: u64,
    begun: u64,
    commits: u64,
}

/// The beginning of a listing, before its rows are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed {
    begun: u64,
    commits: u64,
}

/// What is known of a name.
pub(crate) enum Search {
    /// It leads to this node; the caller has got a reference.
    Kept(Arc<Node>),
    /// `None`: it can't be kept.
    Unkept(Option<Unkept>),
}

/// See the module. Keeps nothing until [`NameCache::start`].
#[derive(Default)]
pub(crate) struct NameCache {
    buckets: OnceLock<Box<[PaddedBucket]>>,
    hasher: RandomState,
    /// Changes of all names that have begun, and that have ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Twice the number of commits, and one more while one becomes visible.
    commits: AtomicU64,
    /// `commits` at the last sweep.
    swept: AtomicU64,
}

impl NameCache {
    /// From now on names are kept, as many as fit beside a table of nodes of this size.
    pub(super) fn start(&self, node_bytes_max: u64) {
        self.buckets.get_or_init(|| {
            let names = (node_bytes_max / NODE_BYTES_PER_NAME) as usize;
            let buckets = (names / NAMES_PER_BUCKET).max(1).next_power_of_two();
            (0..buckets).map(|_| PaddedBucket::default()).collect()
        });
    }

    fn bucket(&self, hash: u64) -> Option<&Mutex<Bucket>> {
        let buckets = self.buckets.get()?;
        Some(&buckets[hash as usize & (buckets.len() - 1)].0)
    }

    /// What `name` in `directory` leads to.
    pub(super) fn find(&self, directory: u64, name: &[u8]) -> Search {
        if self.buckets.get().is_none() {
            return Search::Unkept(None);
        }
        let hash = self.hasher.hash_one((directory, name));
        let Some(bucket) = self.bucket(hash) else { return Search::Unkept(None) };
        let mut bucket = bucket.lock();
        let commits = self.commits.load(Ordering::Acquire);
        if !commits.is_multiple_of(2) {
            return Search::Unkept(None);
        }
        if let Some(place) = bucket.place(hash, directory, name)
            && bucket.names[place].commits == commits
        {
            let kept = &mut bucket.names[place];
            kept.is_used = true;
            kept.node.keep();
            return Search::Kept(Arc::clone(&kept.node));
        }
        let can_be_kept = bucket.changing == 0;
        Search::Unkept(can_be_kept.then_some(Unkept { hash, begun: bucket.begun, commits }))
    }

    /// Before the rows of a directory are read, whose names [`Self::keep_listed`] is to keep. `None`: they can't be.
    pub(super) fn begin_listing(&self) -> Option<Listed> {
        self.buckets.get()?;
        let commits = self.commits.load(Ordering::Acquire);
        // In this order: what has ended had begun.
        let ended = self.ended.load(Ordering::Acquire);
        let begun = self.begun.load(Ordering::Acquire);
        (begun == ended && commits.is_multiple_of(2)).then_some(Listed { begun, commits })
    }

    /// As [`Self::keep`], for a name that was listed.
    pub(super) fn keep_listed(
        &self,
        listed: Listed,
        directory: u64,
        name: &[u8],
        node: &Arc<Node>,
        has_room: bool,
    ) -> Option<Arc<Node>> {
        let hash = self.hasher.hash_one((directory, name));
        let begun = {
            let bucket = self.bucket(hash)?.lock();
            // A change of this name counts before it has the lock: it is seen here, or finds what is kept.
            if self.begun.load(Ordering::Acquire) != listed.begun {
                return None;
            }
            bucket.begun
        };
        self.keep(Unkept { hash, begun, commits: listed.commits }, directory, name, node, has_room)
    }

    /// Whether names are kept.
    pub(super) fn is_on(&self) -> bool {
        self.buckets.get().is_some()
    }

    /// Keeps a name that was read after `unkept`, unless it may have changed since. The caller has a reference of the node,
    /// gets another one for `Some` node that gives way, and must give that back. Without `has_room` none is added, only replaced.
    pub(super) fn keep(
        &self,
        unkept: Unkept,
        directory: u64,
        name: &[u8],
        node: &Arc<Node>,
        has_room: bool,
    ) -> Option<Arc<Node>> {
        let Unkept { hash, begun, commits } = unkept;
        let mut bucket = self.bucket(hash)?.lock();
        let is_current =
            bucket.changing == 0 && bucket.begun == begun && self.commits.load(Ordering::Acquire) == commits;
        if !is_current {
            return None;
        }
        let count = bucket.names.len();
        let place = match bucket.place(hash, directory, name) {
            Some(place) => place,
            None if has_room && count < NAMES_PER_BUCKET => count,
            None if count == 0 => return None,
            None => bucket.give_way(commits),
        };
        node.keep();
        let kept = Kept { directory, commits, name: name.into(), node: Arc::clone(node), is_used: false };
        bucket.hashes[place] = hash;
        if place < count {
            return Some(std::mem::replace(&mut bucket.names[place], kept).node);
        }
        bucket.names.push(kept);
        None
    }

    /// The entry is about to be changed. What was kept of it, whose reference the caller must give back, and what
    /// [`Self::end_change`] is told; `None`: nothing is ever kept.
    pub(super) fn begin_change(&self, directory: u64, name: &[u8]) -> Option<(u64, Option<Arc<Node>>)> {
        self.buckets.get()?;
        let hash = self.hasher.hash_one((directory, name));
        self.begun.fetch_add(1, Ordering::AcqRel);
        let mut bucket = self.bucket(hash)?.lock();
        bucket.changing += 1;
        bucket.begun += 1;
        let known = bucket.place(hash, directory, name);
        Some((hash, known.map(|place| bucket.take(place))))
    }

    /// The change has happened, or not.
    pub(super) fn end_change(&self, hash: u64) {
        if let Some(bucket) = self.bucket(hash) {
            bucket.lock().changing -= 1;
            self.ended.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A commit is about to become visible, or has: to be called before and after it.
    pub(super) fn note_commit(&self) {
        self.commits.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes out what will not be answered any more, or everything. O(names kept), where commits have come since the last time.
    pub(super) fn sweep(&self, is_all: bool) -> Vec<Arc<Node>> {
        let commits = self.commits.load(Ordering::Acquire);
        let is_due = self.swept.swap(commits, Ordering::AcqRel) != commits || is_all;
        let Some(buckets) = self.buckets.get().filter(|_| is_due) else { return Vec::new() };
        let mut swept = Vec::new();
        for bucket in buckets {
            let mut bucket = bucket.0.lock();
            for place in (0..bucket.names.len()).rev() {
                if is_all || bucket.names[place].commits != commits {
                    swept.push(bucket.take(place));
                }
            }
        }
        swept
    }
}

impl Bucket {
    fn place(&self, hash: u64, directory: u64, name: &[u8]) -> Option<usize> {
        let is_it = |kept: &Kept| kept.directory == directory && *kept.name == *name;
        let mut same = self.hashes.iter().zip(&self.names).map(|(known, kept)| *known == hash && is_it(kept));
        same.position(|is_it| is_it)
    }

    fn take(&mut self, place: usize) -> Arc<Node> {
        let last = self.names.len() - 1;
        self.hashes[place] = self.hashes[last];
        self.names.swap_remove(place).node
    }

    /// Which one gives way to another: out of date, or not used since the search came by. There is at least one.
    fn give_way(&mut self, commits: u64) -> usize {
        loop {
            let place = self.hand % self.names.len();
            self.hand = place + 1;
            let kept = &mut self.names[place];
            if !std::mem::take(&mut kept.is_used) || kept.commits != commits {
                return place;
            }
        }
    }
}
