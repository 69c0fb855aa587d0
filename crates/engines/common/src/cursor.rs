//! The cursor: entries of the database, with what the trait says about ends.
//!
//! Thread safety: one thread at a time. Invariant: the entries stand on the one that is shown, and are moved
//! from there alone.

use bytes::Bytes;
use kvfs_store::{Cursor, KeyRange, Keyspace, Result};

use crate::database::{Database, Entries};
use crate::view::View;

/// Where the cursor stands.
enum Place {
    /// Before the first move, or behind one that failed.
    Fresh,
    /// Before the first entry of the range.
    Before,
    /// On an entry with this value.
    On(Bytes),
    /// Beyond the last entry of the range.
    Beyond,
}

/// See the module.
pub(crate) struct StoreCursor<E> {
    /// `None`: nothing can lie in the range.
    entries: Option<E>,
    range: KeyRange,
    place: Place,
}

impl<E: Entries> StoreCursor<E> {
    pub(crate) fn new<D>(view: &View<'_, D>, keyspace: Keyspace, range: KeyRange) -> Result<Self>
    where
        D: Database<Entries = E>,
    {
        let space = view.shared.space(keyspace)?;
        let entries = (!range.is_empty()).then(|| view.entries(&space, &range)).transpose()?;
        Ok(Self { entries, range, place: Place::Fresh })
    }

    /// Moves the entries; where nothing is, the cursor stands at `end`.
    fn step(&mut self, end: Place, go: impl FnOnce(&mut E)) -> Result<()> {
        self.place = Place::Fresh;
        let Some(entries) = &mut self.entries else {
            self.place = end;
            return Ok(());
        };
        go(entries);
        self.place = if let Some((_, value)) = entries.entry() {
            Place::On(Bytes::copy_from_slice(value))
        } else {
            entries.check()?;
            end
        };
        Ok(())
    }
}

impl<E: Entries> Cursor for StoreCursor<E> {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        if key <= &self.range.start[..] {
            return self.first();
        }
        if self.range.end.as_ref().is_some_and(|end| key >= &end[..]) {
            self.place = Place::Beyond;
            return Ok(());
        }
        self.step(Place::Beyond, |entries| entries.seek(key))
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        if self.range.end.as_ref().is_some_and(|end| key >= &end[..]) {
            return self.last();
        }
        if key < &self.range.start[..] {
            self.place = Place::Before;
            return Ok(());
        }
        self.step(Place::Before, |entries| entries.seek_back(key))
    }

    fn first(&mut self) -> Result<()> {
        self.step(Place::Beyond, Entries::first)
    }

    fn last(&mut self) -> Result<()> {
        self.step(Place::Before, Entries::last)
    }

    fn next(&mut self) -> Result<()> {
        match self.place {
            Place::Fresh | Place::Before => self.first(),
            Place::On(_) => self.step(Place::Beyond, Entries::next),
            Place::Beyond => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        match self.place {
            Place::Fresh | Place::Beyond => self.last(),
            Place::On(_) => self.step(Place::Before, Entries::prev),
            Place::Before => Ok(()),
        }
    }

    fn entry(&self) -> Option<(&[u8], &Bytes)> {
        let Place::On(value) = &self.place else { return None };
        let (key, _) = self.entries.as_ref()?.entry()?;
        Some((key, value))
    }
}
