//! The cursor: an iterator of `RocksDB` at a snapshot.
//!
//! Thread safety: one thread at a time. Invariant: the iterator stands on the entry that is shown, and is moved from there alone.

use bytes::Bytes;
use kvfs_store::{Cursor, KeyRange, Keyspace, Result, StoreError};
use self_cell::self_cell;

use crate::error::of_rocksdb;
use crate::pin::Pin;
use crate::view::DbIterator;

self_cell!(
    /// An iterator with the snapshot that it walks over.
    struct Walk {
        owner: Pin,
        #[covariant]
        dependent: DbIterator,
    }
);

/// Where the cursor stands.
enum Place {
    /// Before the first move, or behind one that failed.
    Fresh,
    /// Before the first entry of the range.
    Before,
    /// On an entry.
    On(Bytes, Bytes),
    /// Beyond the last entry of the range.
    Beyond,
}

/// What an iterator does.
#[derive(Clone, Copy)]
enum Move<'k> {
    First,
    Last,
    Next,
    Prev,
    To(&'k [u8]),
    BackTo(&'k [u8]),
}

/// See the module.
pub(crate) struct RocksCursor {
    /// `None`: nothing can lie in the range.
    walk: Option<Walk>,
    range: KeyRange,
    place: Place,
}

impl RocksCursor {
    pub(crate) fn new(pin: Pin, keyspace: Keyspace, range: KeyRange) -> Result<Self> {
        let space = pin.view().shared.space(keyspace)?;
        let make = |pin| Walk::try_new(pin, |pin| pin.view().iterator(&space, &range));
        let walk = (!range.is_empty()).then(|| make(pin)).transpose()?;
        Ok(Self { walk, range, place: Place::Fresh })
    }

    /// Moves the iterator; where nothing is, the cursor stands at `end`.
    fn step(&mut self, end: Place, go: Move<'_>) -> Result<()> {
        self.place = Place::Fresh;
        let Some(walk) = &mut self.walk else {
            self.place = end;
            return Ok(());
        };
        self.place = walk.with_dependent_mut(|_, iterator| {
            match go {
                Move::First => iterator.seek_to_first(),
                Move::Last => iterator.seek_to_last(),
                Move::Next => iterator.next(),
                Move::Prev => iterator.prev(),
                Move::To(key) => iterator.seek(key),
                Move::BackTo(key) => iterator.seek_for_prev(key),
            }
            if let Some((key, value)) = iterator.item() {
                return Ok(Place::On(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            }
            iterator.status().map_err(|error| of_rocksdb("walking over keys", &error))?;
            Ok::<_, StoreError>(end)
        })?;
        Ok(())
    }
}

impl Cursor for RocksCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        if key <= &self.range.start[..] {
            return self.first();
        }
        self.step(Place::Beyond, Move::To(key))
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        if self.range.end.as_ref().is_some_and(|end| key >= &end[..]) {
            return self.last();
        }
        self.step(Place::Before, Move::BackTo(key))
    }

    fn first(&mut self) -> Result<()> {
        self.step(Place::Beyond, Move::First)
    }

    fn last(&mut self) -> Result<()> {
        self.step(Place::Before, Move::Last)
    }

    fn next(&mut self) -> Result<()> {
        match self.place {
            Place::Fresh | Place::Before => self.first(),
            Place::On(..) => self.step(Place::Beyond, Move::Next),
            Place::Beyond => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        match self.place {
            Place::Fresh | Place::Beyond => self.last(),
            Place::On(..) => self.step(Place::Before, Move::Prev),
            Place::Before => Ok(()),
        }
    }

    fn entry(&self) -> Option<(&[u8], &Bytes)> {
        match &self.place {
            Place::On(key, value) => Some((key, value)),
            Place::Fresh | Place::Before | Place::Beyond => None,
        }
    }
}
