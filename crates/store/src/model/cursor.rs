//! The cursor: it pins a position and looks its next entry up at each move, so that it holds no
//! lock in between.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::snapshot::Pin;
use super::table::Table;
use crate::{Cursor, KeyRange, Result};

/// Where the cursor stands.
enum Place {
    /// Before the first move.
    Fresh,
    /// Before the first entry of the range.
    Before,
    /// On an entry.
    On(Bytes, Bytes),
    /// Beyond the last entry of the range.
    Beyond,
}

/// A walk over a range at one position.
pub(super) struct ModelCursor {
    table: Arc<Table>,
    pin: Pin,
    range: KeyRange,
    place: Place,
}

impl ModelCursor {
    pub(super) fn new(table: Arc<Table>, pin: Pin, range: KeyRange) -> Self {
        Self { table, pin, range, place: Place::Fresh }
    }

    fn forward(&mut self, lower: Bound<&[u8]>) {
        self.place = match self.table.entry_after(&self.range, lower, self.pin.at()) {
            Some((key, value)) => Place::On(key, value),
            None => Place::Beyond,
        };
    }

    fn back(&mut self, upper: Bound<&[u8]>) {
        self.place = match self.table.entry_before(&self.range, upper, self.pin.at()) {
            Some((key, value)) => Place::On(key, value),
            None => Place::Before,
        };
    }
}

impl Cursor for ModelCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.forward(Bound::Included(key));
        Ok(())
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        self.back(Bound::Included(key));
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        self.forward(Bound::Unbounded);
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.back(Bound::Unbounded);
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.place, Place::Beyond) {
            Place::Fresh | Place::Before => self.forward(Bound::Unbounded),
            Place::On(key, _) => self.forward(Bound::Excluded(&key)),
            Place::Beyond => {}
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.place, Place::Before) {
            Place::Fresh | Place::Beyond => self.back(Bound::Unbounded),
            Place::On(key, _) => self.back(Bound::Excluded(&key)),
            Place::Before => {}
        }
        Ok(())
    }

    fn entry(&self) -> Option<(&[u8], &Bytes)> {
        match &self.place {
            Place::On(key, value) => Some((key, value)),
            Place::Fresh | Place::Before | Place::Beyond => None,
        }
    }
}
