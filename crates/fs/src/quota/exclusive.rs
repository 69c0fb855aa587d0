//! How many of the bytes that a user, a group or a project has are its alone.
//!
//! Purpose: a clone counts as a copy, but refers to the bytes of what it was made of. What would come free
//! without an owner is its usage, less the blocks that files of others refer to as well, less what its own
//! files refer to once more than needed. Only the engine knows which blocks are shared
//! ([`Snapshot::each_shared`]); it tells inodes, whose owners their rows tell. Rows are not found by inodes,
//! so a first walk tells which inodes share anything, one pass of all rows tells their owners, and a second
//! walk adds up.
//!
//! Thread safety: as [`FileSystem`](crate::FileSystem): all of it reads one snapshot and holds no lock.
//! Memory: for each inode that shares blocks its number and that of its owner, 20 to 40 bytes in a table, and
//! 60 while that grows; it is charged to nothing.

use std::collections::HashMap;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{BLOCK_BYTES, Read, Snapshot};

use super::count::{BEING_COUNTED, each_header};
use super::record::{self, Part, key};
use super::{QUOTAS_ARE_OFF, QuotaKind, QuotaLine, Quotas, Usage, state_of};
use crate::schema::{Header, Keyspaces};
use crate::{FsError, Result};

/// Where the store can only be read, its count does not go on.
const NOT_COUNTED: FsError = FsError::Invalid(
    "what the files have is not counted to the end; mount the store writable, which counts it",
);

/// What was counted is not written where the store has no space for it.
const COUNT_WAITS: FsError = FsError::Busy(
    "what the files have was counted, which waits for space in the store; remove something first",
);

/// Of an inode whose row was not found: it is on its way to be removed, and nothing of any user's.
const NO_OWNER: u32 = u32::MAX;

/// Bytes that count in usage, and would not come free.
type NotFreed = HashMap<(QuotaKind, u32), u64>;

impl Quotas {
    /// Adds to each line which of its bytes would come free if all that is counted for it were removed:
    /// those that no file of another user (group, project) refers to, each once. The usage becomes that of
    /// the same moment. Of the newest state alone: snapshots, transactions and branches hold what they hold.
    /// Reads the engine's indexes; and where anything is shared, all rows once, and the indexes again.
    ///
    /// # Errors
    /// `Invalid` while quotas are off, and where they were not counted to the end and the store is only read;
    /// `Busy` while they are counted, or the count waits for space; store errors.
    pub fn tell_exclusive(&self, lines: &mut [QuotaLine]) -> Result<()> {
        progress::check_wanted()?;
        let quotas = self.counted.read().clone().ok_or(QUOTAS_ARE_OFF)?;
        let keyspace = quotas.keyspace;
        // Before the snapshot, which may be older than the end of a count.
        let is_counted = quotas.accounts.is_counted();
        let snapshot = self.store.snapshot()?;
        match state_of(&*snapshot, keyspace)? {
            None => return Err(QUOTAS_ARE_OFF),
            Some(false) if self.is_read_only => return Err(NOT_COUNTED),
            Some(false) if is_counted => return Err(COUNT_WAITS),
            Some(false) => return Err(BEING_COUNTED),
            Some(true) => {}
        }
        let not_freed = not_freed(&*snapshot, &self.keyspaces)?;
        for line in lines {
            let usage = snapshot.get(keyspace, &key(line.kind, line.id, Part::Usage))?;
            line.usage = usage.map_or(Ok(Usage::default()), |bytes| record::decode_usage(&bytes))?;
            let not_freed = not_freed.get(&(line.kind, line.id)).copied().unwrap_or(0);
            line.bytes_exclusive = Some(line.usage.bytes.saturating_sub_unsigned(not_freed));
        }
        Ok(())
    }
}

/// Walks until the owners of all inodes that share blocks were known from the beginning: in the second walk,
/// unless that tells other inodes than the first one.
fn not_freed(snapshot: &dyn Snapshot, keyspaces: &Keyspaces) -> Result<NotFreed> {
    let mut sharing = Sharing::default();
    loop {
        snapshot.each_shared(keyspaces.data, &mut |blocks, prefixes| {
            progress::check_wanted()?;
            sharing.add(blocks, prefixes);
            Ok(())
        })?;
        if !sharing.has_new {
            return Ok(sharing.not_freed);
        }
        sharing.find_owners(snapshot, keyspaces)?;
    }
}

/// Whose the inodes are that share blocks, and what came of a walk so far.
#[derive(Default)]
struct Sharing {
    /// The number of the owner of each inode, or [`NO_OWNER`].
    inodes: HashMap<u64, u32>,
    owners: Owners,
    /// There are inodes whose rows have not been looked for: the sums are too low.
    has_new: bool,
    not_freed: NotFreed,
}

impl Sharing {
    fn add(&mut self, blocks: u64, prefixes: &[&[u8]]) {
        let Self { inodes, owners, has_new, not_freed } = self;
        let inode_of = |prefix: &&[u8]| <[u8; 8]>::try_from(*prefix).map(u64::from_be_bytes).ok();
        let number_of = |inode: u64| {
            *inodes.entry(inode).or_insert_with(|| {
                *has_new = true;
                NO_OWNER
            })
        };
        let numbers = prefixes.iter().filter_map(inode_of).map(number_of);
        let mut numbers: Vec<u32> = numbers.filter(|&number| number != NO_OWNER).collect();
        numbers.sort_unstable();
        let same_owner = numbers.chunk_by(|number, next| number == next);
        let references: Vec<(&Owner, u64)> =
            same_owner.map(|same| (&owners.all[same[0] as usize], same.len() as u64)).collect();
        let bytes = blocks.saturating_mul(BLOCK_BYTES as u64);
        for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
            add_not_freed(not_freed, kind, &references, bytes);
        }
    }

    /// Looks for the owners of all inodes, for a walk that begins anew.
    fn find_owners(&mut self, read: &dyn Read, keyspaces: &Keyspaces) -> Result<()> {
        self.not_freed.clear();
        self.has_new = false;
        progress::stage("looking for owners", Unit::Items, 0);
        each_header(read, keyspaces, &|_| {}, |header| {
            if let Some(number) = self.inodes.get_mut(&header.inode) {
                *number = self.owners.number(Owner::of(header));
            }
        })
    }
}

/// All owners of inodes that share blocks, numbered.
#[derive(Default)]
struct Owners {
    all: Vec<Owner>,
    numbers: HashMap<Owner, u32>,
}

impl Owners {
    fn number(&mut self, owner: Owner) -> u32 {
        *self.numbers.entry(owner).or_insert_with(|| {
            self.all.push(owner);
            (self.all.len() - 1) as u32
        })
    }
}

/// For what an inode counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    user: u32,
    group: u32,
    /// 0: for none.
    project: u32,
}

impl Owner {
    fn of(header: &Header) -> Self {
        Self { user: header.uid, group: header.gid, project: header.project }
    }

    fn id(&self, kind: QuotaKind) -> u32 {
        match kind {
            QuotaKind::User => self.user,
            QuotaKind::Group => self.group,
            QuotaKind::Project => self.project,
        }
    }
}

/// These bytes, to which files of these owners refer, so often each: without one that has all of these files
/// they would come free, once; without one of several they would not.
fn add_not_freed(not_freed: &mut NotFreed, kind: QuotaKind, references: &[(&Owner, u64)], bytes: u64) {
    let mut ids: Vec<(u32, u64)> = references.iter().map(|(owner, times)| (owner.id(kind), *times)).collect();
    ids.sort_unstable();
    let is_of_one = ids.first().map(|(id, _)| id) == ids.last().map(|(id, _)| id);
    for same in ids.chunk_by(|(id, _), (next, _)| id == next) {
        let id = same[0].0;
        if (kind, id) == (QuotaKind::Project, 0) {
            continue;
        }
        let times = same.iter().map(|(_, times)| times).sum::<u64>() - u64::from(is_of_one);
        *not_freed.entry((kind, id)).or_default() += bytes.saturating_mul(times);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kvfs_store::clock::ManualClock;
    use kvfs_store::model::ModelStore;
    use kvfs_store::{Cursor, EachShared, KeyRange, Keyspace, Seqno, Store};

    use super::*;
    use crate::{Caller, FileSystem, MkfsOptions, MountOptions, NodeId};

    const BLOCK: u64 = BLOCK_BYTES as u64;

    /// Of an engine that shares as the test says.
    struct Shares {
        inner: Arc<dyn Snapshot>,
        meta: Keyspace,
        /// How many blocks which inodes share.
        sets: Vec<(u64, Vec<u64>)>,
        walks: AtomicUsize,
        passes_of_rows: AtomicUsize,
    }

    impl Read for Shares {
        kvfs_store::pass_on!(inner: get, multi_get, read_blocks, next_extent);

        fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> kvfs_store::Result<Box<dyn Cursor>> {
            self.passes_of_rows.fetch_add(usize::from(keyspace == self.meta), Ordering::Relaxed);
            self.inner.cursor(keyspace, range)
        }
    }

    impl Snapshot for Shares {
        fn seqno(&self) -> Seqno {
            self.inner.seqno()
        }

        fn each_shared(&self, _: Keyspace, each: EachShared<'_>) -> kvfs_store::Result<()> {
            self.walks.fetch_add(1, Ordering::Relaxed);
            for (blocks, inodes) in &self.sets {
                let prefixes: Vec<[u8; 8]> = inodes.iter().map(|inode| inode.to_be_bytes()).collect();
                let prefixes: Vec<&[u8]> = prefixes.iter().map(|prefix| &prefix[..]).collect();
                each(*blocks, &prefixes)?;
            }
            Ok(())
        }
    }

    /// With two files of user 1 and one of user 2, all of group 9.
    fn made() -> (FileSystem, [u64; 3]) {
        let store: Arc<dyn Store> = Arc::new(ModelStore::new());
        let clock = Arc::new(ManualClock::default());
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("is made");
        let fs = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
        let file = |name: &str, uid: u32| {
            let caller = Caller { uid, gid: 9, ..Caller::default() };
            fs.create(&caller, NodeId::ROOT, name.as_bytes(), 0o644, true).expect("is made").0.node.0
        };
        let files = [file("a", 1), file("b", 1), file("c", 2)];
        (fs, files)
    }

    /// What is not freed, and how many walks and passes of all rows that took.
    fn told(fs: &FileSystem, sets: Vec<(u64, Vec<u64>)>) -> (NotFreed, usize, usize) {
        let inner = fs.store.snapshot().expect("pins");
        let (walks, passes_of_rows) = Default::default();
        let shares = Shares { inner, meta: fs.keyspaces.meta, sets, walks, passes_of_rows };
        let sums = not_freed(&shares, &fs.keyspaces).expect("is counted");
        (sums, shares.walks.into_inner(), shares.passes_of_rows.into_inner())
    }

    #[test]
    fn shared_bytes_are_freed_once_without_their_only_owner_and_not_without_one_of_several() {
        let (fs, [a, b, c]) = made();
        let gone = c + 100;
        let sets = [
            (3, vec![a, b]),
            (5, vec![a, c]),
            (2, vec![c, a]),
            (7, vec![b, b, c]),
            (11, vec![c, gone]),
            (1, vec![gone, gone]),
        ];
        let expected: NotFreed = [
            ((QuotaKind::User, 1), (3 + 5 + 2 + 2 * 7) * BLOCK),
            ((QuotaKind::User, 2), (5 + 2 + 7) * BLOCK),
            ((QuotaKind::Group, 9), (3 + 5 + 2 + 2 * 7) * BLOCK),
        ]
        .into();
        assert_eq!(told(&fs, sets.to_vec()), (expected, 2, 1));
        assert_eq!(told(&fs, Vec::new()), (NotFreed::new(), 1, 0), "nothing is shared");
    }

    #[test]
    fn clones_with_an_overwritten_place_each_take_one_pass_of_rows() {
        const CLONES: u64 = 2200;
        let (fs, [a, b, c]) = made();
        let inodes: Vec<u64> = [a, b, c].into_iter().chain((3..CLONES).map(|number| c + number)).collect();
        let without = |one: &u64| inodes.iter().copied().filter(|inode| inode != one).collect();
        let sets = inodes.iter().map(|one| (1, without(one))).collect();
        let expected: NotFreed = [
            ((QuotaKind::User, 1), (2 * CLONES - 3) * BLOCK),
            ((QuotaKind::User, 2), (CLONES - 1) * BLOCK),
            ((QuotaKind::Group, 9), (2 * CLONES - 3) * BLOCK),
        ]
        .into();
        assert_eq!(told(&fs, sets), (expected, 2, 1));
    }
}
