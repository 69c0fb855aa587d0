//! The file system's own record while it is open: which inode numbers are reserved, and what the store is
//! declared to hold.
//!
//! Thread safety: any number of threads; one lock, held while the record is written. Invariants: a
//! reservation reaches the store before any number of it does, and what survives a crash is a prefix of the
//! history: so no number is given out twice. What an older kvfs must not change is declared before it is
//! there.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kvfs_locks::{Mutex, class};
use kvfs_store::{Batch, Durability, Keyspace, Store};

use crate::schema::{Superblock, check_inline_len_max, superblock_key};
use crate::{FileSystem, FsError, INODE_MAX, Result};

/// Inode numbers that the superblock reserves at once.
const INODES_RESERVED: u64 = 4096;

/// Inode numbers that a directory takes at once, so that its files' data lie together.
const INODE_GROUP: u64 = 32;

/// The superblock record of an open file system. All views have the same.
pub(crate) struct LiveSuperblock {
    store: Arc<dyn Store>,
    meta: Keyspace,
    /// As the record says, for every write to look at.
    inline_len_max: AtomicU32,
    state: Mutex<State, class::FsSuperblockState>,
}

struct State {
    /// As it is in the store.
    record: Superblock,
    /// From here on, reserved numbers have not been given out.
    inode_free: u64,
}

impl LiveSuperblock {
    /// `record` is what the store holds in `meta`.
    pub(crate) fn new(store: &Arc<dyn Store>, meta: Keyspace, record: Superblock) -> Self {
        let state = Mutex::new(State { record, inode_free: record.inode_next });
        let inline_len_max = AtomicU32::new(record.inline_len_max);
        Self { store: Arc::clone(store), meta, inline_len_max, state }
    }

    /// Inode numbers that were never used.
    pub(crate) fn take_group(&self) -> Result<Range<u64>> {
        let mut state = self.state.lock();
        if state.inode_free == state.record.inode_next {
            let inode_next = state.inode_free + INODES_RESERVED;
            if inode_next > INODE_MAX {
                return Err(FsError::NoSpace);
            }
            // On the main line also for a transaction, which may come to nothing.
            let record = Superblock { inode_next, ..state.record };
            self.put(&mut state, record, Batch::new())?;
        }
        let group = state.inode_free..(state.inode_free + INODE_GROUP).min(state.record.inode_next);
        state.inode_free = group.end;
        Ok(group)
    }

    /// Every number from here on is unused, also by open transactions.
    pub(crate) fn inode_next(&self) -> u64 {
        self.state.lock().record.inode_next
    }

    /// Largest content that a write leaves in the row (bytes).
    pub(crate) fn inline_len_max(&self) -> u32 {
        self.inline_len_max.load(Ordering::Relaxed)
    }

    fn set_inline_len_max(&self, inline_len_max: u32) -> Result<()> {
        let mut state = self.state.lock();
        let record = Superblock { inline_len_max, ..state.record };
        self.put(&mut state, record, Batch::new())?;
        self.inline_len_max.store(inline_len_max, Ordering::Relaxed);
        Ok(())
    }

    /// From now on a kvfs that knows no projects refuses the store.
    pub(crate) fn declare_projects(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.record.has_projects {
            return Ok(());
        }
        // On the main line also for a transaction, whose rows come later.
        let record = Superblock { has_projects: true, ..state.record };
        self.put(&mut state, record, Batch::new())
    }

    /// Applies the batch that turns quotas on. From now on a kvfs that knows no quotas refuses the store.
    pub(crate) fn declare_quotas(&self, batch: Batch) -> Result<()> {
        let mut state = self.state.lock();
        let record = Superblock { has_quotas: true, ..state.record };
        self.put(&mut state, record, batch)
    }

    fn put(&self, state: &mut State, record: Superblock, mut batch: Batch) -> Result<()> {
        batch.put(self.meta, superblock_key(), record.encode());
        self.store.apply(batch, Durability::Buffered)?;
        state.record = record;
        Ok(())
    }
}

/// Largest content of a file that a write leaves in its row (bytes).
pub fn inline_len_max(fs: &FileSystem) -> u32 {
    fs.shared.superblock.inline_len_max()
}

/// From now on, in every view, a write leaves at most so much content in the row (bytes); 0: none. Durable
/// when this returns. Content that is there stays where it is until its file is written again. O(1).
///
/// # Errors
/// `Invalid`: more than [`crate::INLINE_LEN_LIMIT`]; `ReadOnly`; store errors.
pub fn set_inline_len_max(fs: &FileSystem, bytes: u32) -> Result<()> {
    fs.origin.expect_main()?;
    fs.locker().check_writable()?;
    check_inline_len_max(bytes)?;
    fs.shared.superblock.set_inline_len_max(bytes)?;
    fs.sync(fs.store.position())
}

#[cfg(test)]
mod tests {
    use kvfs_store::model::ModelStore;

    use super::*;
    use crate::MkfsOptions;
    use crate::schema::Keyspaces;

    fn open(store: &Arc<dyn Store>) -> LiveSuperblock {
        let meta = Keyspaces::open(&**store).unwrap().meta;
        let record = match store.get(meta, &superblock_key()).unwrap() {
            Some(bytes) => Superblock::decode(&bytes).unwrap(),
            None => Superblock::new(&MkfsOptions::default()).unwrap(),
        };
        LiveSuperblock::new(store, meta, record)
    }

    #[test]
    fn inode_numbers_are_reserved_before_they_are_given_and_never_given_twice() {
        let store: Arc<dyn Store> = Arc::new(ModelStore::new());
        let mut end = 0;
        for _ in 0..3 {
            let superblock = open(&store);
            for _ in 0..=INODES_RESERVED / INODE_GROUP {
                let group = superblock.take_group().unwrap();
                assert!(end <= group.start && group.start < group.end);
                end = group.end;
                assert!(end <= superblock.inode_next());
                assert_eq!(superblock.inode_next(), open(&store).inode_next());
            }
        }
    }

    #[test]
    fn what_is_declared_is_kept_and_changes_no_reservation() {
        let store: Arc<dyn Store> = Arc::new(ModelStore::new());
        let superblock = open(&store);
        superblock.take_group().unwrap();
        superblock.declare_projects().unwrap();
        superblock.declare_quotas(Batch::new()).unwrap();
        superblock.take_group().unwrap();
        let record = open(&store).state.into_inner().record;
        assert!(record.has_projects && record.has_quotas);
        assert_eq!(record.inode_next, superblock.inode_next());
    }
}
