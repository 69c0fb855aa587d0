//! Snapshots, and entries: the part of an iterator that lies in a range of a keyspace.
//!
//! Thread safety: snapshots are immutable; of entries one thread at a time.

use std::sync::Arc;

use kvfs_engine_common::Entries;
use kvfs_store::{KeyRange, Keyspace, Result};

use crate::error::of_leveldb;
use crate::keys::{PREFIX_BYTES, first, join, prefix, prefix_behind};
use crate::sys::{RawDb, RawIterator, RawSnapshot};

/// See `kvfs_engine_common`.
pub struct LevelSnapshot(pub(crate) Arc<RawSnapshot>);

/// See the module.
pub struct LevelEntries {
    iterator: RawIterator,
    /// The first key that may be in the range, and the first one behind it, with their prefixes.
    start: Vec<u8>,
    end: Vec<u8>,
    prefix: [u8; PREFIX_BYTES],
}

impl LevelEntries {
    pub(crate) fn new(
        db: &Arc<RawDb>,
        at: Option<&LevelSnapshot>,
        keyspace: Keyspace,
        range: &KeyRange,
    ) -> Self {
        let prefix = prefix(keyspace);
        let end = range.end.as_ref();
        Self {
            iterator: RawIterator::new(db, at.map(|at| &at.0)),
            // Not the fence.
            start: if range.start.is_empty() { first(keyspace) } else { join(prefix, &range.start) },
            end: end.map_or_else(|| prefix_behind(keyspace).to_vec(), |end| join(prefix, end)),
            prefix,
        }
    }
}

/// Moves an iterator from what a search has found to the key before it.
fn step_back(iterator: &mut RawIterator) {
    if iterator.is_valid() {
        iterator.prev();
    } else if iterator.check().is_ok() {
        iterator.seek_to_last();
    }
}

impl Entries for LevelEntries {
    fn first(&mut self) {
        self.iterator.seek(&self.start);
    }

    fn last(&mut self) {
        self.iterator.seek(&self.end);
        step_back(&mut self.iterator);
    }

    fn next(&mut self) {
        self.iterator.next();
    }

    fn prev(&mut self) {
        self.iterator.prev();
    }

    fn seek(&mut self, key: &[u8]) {
        self.iterator.seek(&join(self.prefix, key));
    }

    fn seek_back(&mut self, key: &[u8]) {
        let key = join(self.prefix, key);
        self.iterator.seek(&key);
        if self.iterator.key() != Some(&key) {
            step_back(&mut self.iterator);
        }
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let key = self.iterator.key()?;
        let is_inside = key >= &self.start[..] && key < &self.end[..];
        if is_inside { Some((&key[PREFIX_BYTES..], self.iterator.value()?)) } else { None }
    }

    fn check(&self) -> Result<()> {
        self.iterator.check().map_err(|error| of_leveldb("walking over keys", &error))
    }
}
