//! Names whose nodes are kept: what a kernel's cache of dentries is to a mount.
//!
//! Purpose: a front end without such a cache looks up each component of each path, so a lookup must cost no
//! read of the store. Kept names keep their nodes in the table, and these the directories above them.
//!
//! Thread safety: one lock for the changes of each bucket, and below it one for each slot, a leaf of the
//! order of locks: both are held for a few instructions, never across anything else. What is found needs that
//! of its slot alone.
//!
//! Invariants:
//! * An operation that changes an entry must hold its name exclusively, and have called
//!   [`NameCache::begin_change`] since it has it; it calls [`NameCache::end_change`] when the nodes are up to
//!   date. In between the name is not kept.
//! * A name is kept only if no change in its bucket was under way, begun or ended since before its row was
//!   read ([`Unkept`]): a lookup takes no latch.
//! * A listing keeps what it has read only if no change at all was under way when it began, and none has
//!   begun since ([`Listed`]).
//! * What a commit changes is in none of these: a name that was kept before one is not answered after it.
//! * Each name that is kept has one reference of its node, which is given back through the table.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kvfs_locks::{Mutex, class};

use super::Node;

/// Names whose hashes lead to the same bucket, at most.
const NAMES_PER_BUCKET: usize = 8;

/// Buckets that are made together, when the first of them is needed.
const BUCKETS_PER_SEGMENT: usize = 16;

/// Memory of the table of nodes for which there is room for one name: about twice what it and its node take
/// (bytes).
const NODE_BYTES_PER_NAME: u64 = 1024;

/// Longest name that lies in its slot (bytes).
const SHORT_LEN_MAX: usize = 22;

/// A name: most are short, and are compared without another access to memory.
enum KeptName {
    Short { len: u8, bytes: [u8; SHORT_LEN_MAX] },
    Long(Box<[u8]>),
}

impl KeptName {
    fn new(name: &[u8]) -> Self {
        let mut bytes = [0; SHORT_LEN_MAX];
        match bytes.get_mut(..name.len()) {
            Some(short) => {
                short.copy_from_slice(name);
                Self::Short { len: name.len() as u8, bytes }
            }
            None => Self::Long(name.into()),
        }
    }

    fn is(&self, name: &[u8]) -> bool {
        match self {
            Self::Short { len, bytes } => bytes[..usize::from(*len)] == *name,
            Self::Long(own) => **own == *name,
        }
    }
}

struct Kept {
    directory: u64,
    /// [`NameCache::commits`] when it was read.
    commits: u64,
    name: KeptName,
    node: Arc<Node>,
}

impl Kept {
    fn is(&self, directory: u64, name: &[u8]) -> bool {
        self.directory == directory && self.name.is(name)
    }
}

/// Room for one name: one line of a processor's cache, which a search reads in one go with those of the other
/// slots.
#[repr(align(64))]
#[derive(Default)]
struct Slot {
    /// A part of the hash; 0: nothing is kept. Changes only under the lock of the bucket's changes.
    tag: AtomicU32,
    /// Set by use, cleared by the search for what gives way.
    is_used: AtomicBool,
    kept: Mutex<Option<Kept>, class::FsNodeNamesKept>,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    fn is_free(&self) -> bool {
        self.tag.load(Ordering::Relaxed) == 0
    }

    /// Whether a commit has come since it was read.
    fn is_outdated(&self, commits: u64) -> bool {
        self.kept.lock().as_ref().is_some_and(|kept| kept.commits != commits)
    }

    /// The caller must hold the lock of the bucket's changes.
    fn take(&self) -> Option<Arc<Node>> {
        self.tag.store(0, Ordering::Relaxed);
        self.kept.lock().take().map(|kept| kept.node)
    }
}

/// Whether what is kept changes, and may be kept.
#[derive(Default)]
struct Changes {
    /// Under way.
    changing: u32,
    /// That have begun.
    begun: u64,
    /// Where the search for what gives way goes on.
    hand: usize,
}

#[derive(Default)]
struct Bucket {
    slots: [Slot; NAMES_PER_BUCKET],
    /// Comes before the slots' own locks. What is found needs it not.
    changes: Mutex<Changes, class::FsNodeNamesChanges>,
}

/// All buckets.
struct Buckets {
    /// A power of two.
    count: usize,
    segments: Box<[OnceLock<Box<[Bucket]>>]>,
}

impl Buckets {
    fn new(count: usize) -> Self {
        let segments = count.div_ceil(BUCKETS_PER_SEGMENT);
        Self { count, segments: (0..segments).map(|_| OnceLock::new()).collect() }
    }

    fn of(&self, hash: u64) -> &Bucket {
        let place = hash as usize & (self.count - 1);
        let segment = self.segments[place / BUCKETS_PER_SEGMENT].get_or_init(|| {
            let buckets = self.count.min(BUCKETS_PER_SEGMENT);
            (0..buckets).map(|_| Bucket::default()).collect()
        });
        &segment[place % BUCKETS_PER_SEGMENT]
    }

    /// Those that were ever needed.
    fn all(&self) -> impl Iterator<Item = &Bucket> {
        self.segments.iter().filter_map(OnceLock::get).flat_map(|segment| &**segment)
    }
}

/// Where a name is kept from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// It was asked for.
    Lookup,
    /// A listing came by: it may never be asked for.
    Listing,
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
    buckets: OnceLock<Buckets>,
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
            Buckets::new((names / NAMES_PER_BUCKET).max(1).next_power_of_two())
        });
    }

    fn hash(&self, directory: u64, name: &[u8]) -> u64 {
        self.hasher.hash_one((directory, name))
    }

    /// `None`: no names are kept.
    fn bucket(&self, hash: u64) -> Option<&Bucket> {
        Some(self.buckets.get()?.of(hash))
    }

    /// What `name` in `directory` leads to.
    pub(super) fn find(&self, directory: u64, name: &[u8]) -> Search {
        if !self.is_on() {
            return Search::Unkept(None);
        }
        let hash = self.hash(directory, name);
        let Some(bucket) = self.bucket(hash) else { return Search::Unkept(None) };
        for slot in bucket.tagged(hash) {
            let kept = slot.kept.lock();
            let Some(kept) = kept.as_ref().filter(|kept| kept.is(directory, name)) else { continue };
            if kept.commits == self.commits.load(Ordering::Acquire) {
                slot.is_used.store(true, Ordering::Relaxed);
                kept.node.keep();
                return Search::Kept(Arc::clone(&kept.node));
            }
        }
        let changes = bucket.changes.lock();
        let commits = self.commits.load(Ordering::Acquire);
        let can_be_kept = changes.changing == 0 && commits.is_multiple_of(2);
        Search::Unkept(can_be_kept.then_some(Unkept { hash, begun: changes.begun, commits }))
    }

    /// Before the rows of a directory are read, whose names [`Self::keep_listed`] is to keep. `None`: they
    /// can't be.
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
        let hash = self.hash(directory, name);
        let begun = {
            let changes = self.bucket(hash)?.changes.lock();
            // A change of this name counts before it has the lock: it is seen here, or finds what is kept.
            if self.begun.load(Ordering::Acquire) != listed.begun {
                return None;
            }
            changes.begun
        };
        let unkept = Unkept { hash, begun, commits: listed.commits };
        self.keep_from(Source::Listing, unkept, (directory, name), node, has_room)
    }

    /// Whether names are kept.
    fn is_on(&self) -> bool {
        self.buckets.get().is_some()
    }

    /// Keeps a name that was read after `unkept`, unless it may have changed since. The caller has a
    /// reference of the node, gets another one for `Some` node that gives way, and must give that back.
    /// Without `has_room` none is added, only replaced.
    pub(super) fn keep(
        &self,
        unkept: Unkept,
        directory: u64,
        name: &[u8],
        node: &Arc<Node>,
        has_room: bool,
    ) -> Option<Arc<Node>> {
        self.keep_from(Source::Lookup, unkept, (directory, name), node, has_room)
    }

    fn keep_from(
        &self,
        source: Source,
        unkept: Unkept,
        (directory, name): (u64, &[u8]),
        node: &Arc<Node>,
        has_room: bool,
    ) -> Option<Arc<Node>> {
        let Unkept { hash, begun, commits } = unkept;
        let bucket = self.bucket(hash)?;
        let mut changes = bucket.changes.lock();
        let is_current = changes.changing == 0
            && changes.begun == begun
            && self.commits.load(Ordering::Acquire) == commits;
        if !is_current {
            return None;
        }
        let known = bucket.slot_of(hash, directory, name);
        let free = || bucket.slots.iter().find(|slot| slot.is_free()).filter(|_| has_room);
        let slot = known.or_else(free).or_else(|| bucket.give_way(&mut changes.hand, commits, source))?;
        node.keep();
        let kept = Kept { directory, commits, name: KeptName::new(name), node: Arc::clone(node) };
        // A listing says nothing of a name that it finds kept.
        let is_used = known.is_some() && slot.is_used.load(Ordering::Relaxed);
        slot.is_used.store(is_used || source == Source::Lookup, Ordering::Relaxed);
        slot.tag.store(tag_of(hash), Ordering::Relaxed);
        slot.kept.lock().replace(kept).map(|old| old.node)
    }

    /// The entry is about to be changed. What was kept of it, whose reference the caller must give back, and
    /// what [`Self::end_change`] is told; `None`: nothing is ever kept.
    pub(super) fn begin_change(&self, directory: u64, name: &[u8]) -> Option<(u64, Option<Arc<Node>>)> {
        self.buckets.get()?;
        let hash = self.hash(directory, name);
        self.begun.fetch_add(1, Ordering::AcqRel);
        let bucket = self.bucket(hash)?;
        let mut changes = bucket.changes.lock();
        changes.changing += 1;
        changes.begun += 1;
        Some((hash, bucket.slot_of(hash, directory, name).and_then(Slot::take)))
    }

    /// The change has happened, or not.
    pub(super) fn end_change(&self, hash: u64) {
        if let Some(bucket) = self.bucket(hash) {
            bucket.changes.lock().changing -= 1;
            self.ended.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A commit is about to become visible, or has: to be called before and after it.
    pub(super) fn note_commit(&self) {
        self.commits.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes out what will not be answered any more, or everything. O(names kept), where commits have come
    /// since the last time.
    pub(super) fn sweep(&self, is_all: bool) -> Vec<Arc<Node>> {
        let commits = self.commits.load(Ordering::Acquire);
        let is_due = self.swept.swap(commits, Ordering::AcqRel) != commits || is_all;
        let Some(buckets) = self.buckets.get().filter(|_| is_due) else { return Vec::new() };
        let mut swept = Vec::new();
        for bucket in buckets.all() {
            let _changes = bucket.changes.lock();
            let goes = |slot: &&Slot| is_all || slot.is_outdated(commits);
            swept.extend(bucket.slots.iter().filter(goes).filter_map(Slot::take));
        }
        swept
    }
}

/// What a slot says of the hash: another part than that which leads to the bucket.
fn tag_of(hash: u64) -> u32 {
    ((hash >> 32) as u32).max(1)
}

impl Bucket {
    /// The slots that may have it.
    fn tagged(&self, hash: u64) -> impl Iterator<Item = &Slot> {
        let tag = tag_of(hash);
        self.slots.iter().filter(move |slot| slot.tag.load(Ordering::Relaxed) == tag)
    }

    /// The slot that has it.
    fn slot_of(&self, hash: u64, directory: u64, name: &[u8]) -> Option<&Slot> {
        let has_it = |slot: &&Slot| slot.kept.lock().as_ref().is_some_and(|kept| kept.is(directory, name));
        self.tagged(hash).find(has_it)
    }

    /// Which one gives way to another: out of date, or not used since the search came by. What a listing
    /// brings drives out nothing that was used: where all were, one of them counts as unused from now on. The
    /// caller must hold the lock of the changes.
    fn give_way(&self, hand: &mut usize, commits: u64, source: Source) -> Option<&Slot> {
        let is_asked_for = source == Source::Lookup;
        // A lookup's first round clears what its second one finds, unless it is used in between.
        let rounds = if is_asked_for { 2 } else { 1 };
        let mut first_used = None;
        for _ in 0..rounds * NAMES_PER_BUCKET {
            let slot = &self.slots[*hand];
            *hand = (*hand + 1) % NAMES_PER_BUCKET;
            if slot.is_free() {
                continue;
            }
            if !slot.is_used.load(Ordering::Relaxed) || slot.is_outdated(commits) {
                return Some(slot);
            }
            first_used.get_or_insert(slot);
            if is_asked_for {
                slot.is_used.store(false, Ordering::Relaxed);
            }
        }
        if let Some(slot) = first_used {
            slot.is_used.store(false, Ordering::Relaxed);
            *hand = (*hand + 1) % NAMES_PER_BUCKET;
        }
        None
    }
}
