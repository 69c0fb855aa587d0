//! A walk over a keyspace through private writes, both ways.
//!
//! Thread safety: one thread at a time. Invariant: on an entry, the cursor below stands at the first key that
//! is not before it, or, where the walk has come from behind, at the last key that is not behind it.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::overlay::resolved;
use super::{Space, WriteSet, Written};
use crate::{Cursor, KeyRange, Result};

/// Where the cursor stands.
enum Place {
    /// Before the first move, or after one that failed.
    Nowhere,
    /// Before the first entry.
    Before,
    /// Where the cursor below stands.
    Below,
    /// On a private entry.
    Own(Bytes, Bytes),
    /// Beyond the last entry.
    Beyond,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Back,
}

/// See the module.
pub(super) struct OverlayCursor {
    below: Box<dyn Cursor>,
    space: Arc<Space>,
    own: WriteSet,
    range: KeyRange,
    place: Place,
    /// How it has come to its place.
    way: Way,
}

impl OverlayCursor {
    pub(super) fn new(below: Box<dyn Cursor>, space: Arc<Space>, own: WriteSet, range: KeyRange) -> Self {
        Self { below, space, own, range, place: Place::Nowhere, way: Way::Forward }
    }

    fn key_below(&self) -> Option<&[u8]> {
        self.below.entry().map(|(key, _)| key)
    }

    /// Takes the cursor below over `key`, if it stands there.
    fn pass(&mut self, key: &[u8], way: Way) -> Result<()> {
        if self.key_below() != Some(key) {
            return Ok(());
        }
        match way {
            Way::Forward => self.below.next(),
            Way::Back => self.below.prev(),
        }
    }

    /// To the nearest entry from `from` on. The cursor below stands where no key between is passed over.
    fn settle(&mut self, from: Bound<Bytes>, way: Way) -> Result<()> {
        self.way = way;
        self.place = Place::Nowhere;
        let mut from = from;
        loop {
            let own = self.own_entry(&from, way);
            let own_comes_first = match (&own, self.key_below()) {
                (None, None) => {
                    self.place = if way == Way::Forward { Place::Beyond } else { Place::Before };
                    return Ok(());
                }
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((key, _)), Some(below)) => match way {
                    Way::Forward => &key[..] <= below,
                    Way::Back => &key[..] >= below,
                },
            };
            let Some((key, written)) = own.filter(|_| own_comes_first) else {
                if self.skip_deleted(way)? {
                    continue;
                }
                self.place = Place::Below;
                return Ok(());
            };
            let value = match written {
                Written::Value(value) => Some(value),
                Written::Deleted => None,
                Written::Operands(operands) => {
                    let base = self.below.entry().filter(|(below, _)| *below == key).map(|(_, value)| value);
                    resolved(&self.space, &key, base.map(|base| &base[..]), &operands)?
                }
            };
            if let Some(value) = value {
                self.place = Place::Own(key, value);
                return Ok(());
            }
            self.pass(&key, way)?;
            from = Bound::Excluded(key);
        }
    }

    /// The nearest private entry in the range from `from` on.
    fn own_entry(&self, from: &Bound<Bytes>, way: Way) -> Option<(Bytes, Written)> {
        let start = Bound::Included(&self.range.start[..]);
        let end = self.range.end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
        let from = from.as_ref().map(|key| &key[..]);
        let found = match (way, from) {
            (Way::Forward, Bound::Unbounded) => self.own.entry_from(start, end),
            (Way::Forward, from) => self.own.entry_from(from, end),
            (Way::Back, Bound::Unbounded) => self.own.entry_to(start, end),
            (Way::Back, from) => self.own.entry_to(start, from),
        };
        found.map(|(key, written)| (key.clone(), written.clone()))
    }

    /// Takes the cursor below out of a deleted range; false: it stands in none.
    fn skip_deleted(&mut self, way: Way) -> Result<bool> {
        let deleted = self.key_below().and_then(|key| self.own.deleted_around(key));
        let Some((start, end)) = deleted.map(|(start, end)| (start.clone(), end.clone())) else {
            return Ok(false);
        };
        match way {
            // There is none behind it.
            Way::Forward if self.range.end.as_ref().is_some_and(|range_end| end >= *range_end) => {
                self.below.last()?;
                self.below.next()?;
            }
            Way::Forward => self.below.seek(&end)?,
            Way::Back if start <= self.range.start => {
                self.below.first()?;
                self.below.prev()?;
            }
            Way::Back => {
                self.below.seek_back(&start)?;
                self.pass(&start, way)?;
            }
        }
        Ok(true)
    }

    /// From an entry to the next one that way; `key` is that of a private one.
    fn step(&mut self, key: Option<Bytes>, way: Way) -> Result<()> {
        let from = if let Some(key) = key {
            if self.way != way {
                match way {
                    Way::Forward => self.below.seek(&key)?,
                    Way::Back => self.below.seek_back(&key)?,
                }
            }
            self.pass(&key, way)?;
            key
        } else {
            let Some(key) = self.key_below().map(Bytes::copy_from_slice) else { return Ok(()) };
            match way {
                Way::Forward => self.below.next()?,
                Way::Back => self.below.prev()?,
            }
            key
        };
        self.settle(Bound::Excluded(from), way)
    }
}

impl Cursor for OverlayCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.place = Place::Nowhere;
        let key = key.max(&self.range.start[..]);
        let from = Bound::Included(Bytes::copy_from_slice(key));
        self.below.seek(key)?;
        self.settle(from, Way::Forward)
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        self.place = Place::Nowhere;
        self.below.seek_back(key)?;
        let from = match &self.range.end {
            Some(end) if key >= &end[..] => Bound::Excluded(end.clone()),
            _ => Bound::Included(Bytes::copy_from_slice(key)),
        };
        self.settle(from, Way::Back)
    }

    fn first(&mut self) -> Result<()> {
        self.place = Place::Nowhere;
        self.below.first()?;
        self.settle(Bound::Unbounded, Way::Forward)
    }

    fn last(&mut self) -> Result<()> {
        self.place = Place::Nowhere;
        self.below.last()?;
        self.settle(Bound::Unbounded, Way::Back)
    }

    fn next(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.place, Place::Nowhere) {
            Place::Nowhere | Place::Before => self.first(),
            Place::Below => self.step(None, Way::Forward),
            Place::Own(key, _) => self.step(Some(key), Way::Forward),
            Place::Beyond => {
                self.place = Place::Beyond;
                Ok(())
            }
        }
    }

    fn prev(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.place, Place::Nowhere) {
            Place::Nowhere | Place::Beyond => self.last(),
            Place::Below => self.step(None, Way::Back),
            Place::Own(key, _) => self.step(Some(key), Way::Back),
            Place::Before => {
                self.place = Place::Before;
                Ok(())
            }
        }
    }

    fn entry(&self) -> Option<(&[u8], &Bytes)> {
        match &self.place {
            Place::Own(key, value) => Some((key, value)),
            Place::Below => self.below.entry(),
            Place::Nowhere | Place::Before | Place::Beyond => None,
        }
    }
}
