//! Snapshots, and entries, which are iterators of `RocksDB`.
//!
//! Thread safety: snapshots are immutable; of entries one thread at a time. Invariant: a snapshot goes before
//! its database, an iterator before both.

use std::sync::Arc;

use kvfs_engine_common::Entries;
use kvfs_store::Result;
use rocksdb::{DBRawIteratorWithThreadMode, SnapshotWithThreadMode};
use self_cell::self_cell;

use crate::database::{Db, Rocks};
use crate::error::of_rocksdb;

type DbSnapshot<'a> = SnapshotWithThreadMode<'a, Db>;
type DbIterator<'a> = DBRawIteratorWithThreadMode<'a, Db>;

self_cell!(
    /// A snapshot with the database that it is of.
    pub struct RocksSnapshot {
        owner: Arc<Rocks>,
        #[covariant]
        dependent: DbSnapshot,
    }
);

impl RocksSnapshot {
    pub(crate) fn newest(rocks: &Arc<Rocks>) -> Self {
        Self::new(Arc::clone(rocks), |rocks| rocks.db.snapshot())
    }
}

/// What an iterator reads.
pub struct Source {
    pub(crate) rocks: Arc<Rocks>,
    pub(crate) at: Option<Arc<RocksSnapshot>>,
}

self_cell!(
    /// See the module.
    pub struct RocksEntries {
        owner: Source,
        #[covariant]
        dependent: DbIterator,
    }
);

impl Entries for RocksEntries {
    fn first(&mut self) {
        self.with_dependent_mut(|_, iterator| iterator.seek_to_first());
    }

    fn last(&mut self) {
        self.with_dependent_mut(|_, iterator| iterator.seek_to_last());
    }

    fn next(&mut self) {
        self.with_dependent_mut(|_, iterator| iterator.next());
    }

    fn prev(&mut self) {
        self.with_dependent_mut(|_, iterator| iterator.prev());
    }

    fn seek(&mut self, key: &[u8]) {
        self.with_dependent_mut(|_, iterator| iterator.seek(key));
    }

    fn seek_back(&mut self, key: &[u8]) {
        self.with_dependent_mut(|_, iterator| iterator.seek_for_prev(key));
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.borrow_dependent().item()
    }

    fn check(&self) -> Result<()> {
        self.borrow_dependent().status().map_err(|error| of_rocksdb("walking over keys", &error))
    }
}
