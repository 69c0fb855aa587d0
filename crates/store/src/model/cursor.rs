//! The cursor: it pins a position and looks its next entry up at each move, so that it holds no
//! lock in between.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::private::Layers;
use super::snapshot::Pin;
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
    layers: Layers,
    _pin: Arc<Pin>,
    range: KeyRange,
    place: Place,
}

impl ModelCursor {
    pub(super) fn new(layers: Layers, pin: Arc<Pin>, range: KeyRange) -> Self {
        Self { layers, _pin: pin, range, place: Place::Fresh }
    }

    fn forward(&mut self, lower: Bound<&[u8]>) -> Result<()> {
        self.place = Place::Fresh;
        self.place = match self.layers.entry_after(&self.range, lower)? {
            Some((key, value)) => Place::On(key, value),
            None => Place::Beyond,
        };
        Ok(())
    }

    fn back(&mut self, upper: Bound<&[u8]>) -> Result<()> {
        self.place = Place::Fresh;
        self.place = match self.layers.entry_before(&self.range, upper)? {
            Some((key, value)) => Place::On(key, value),
            None => Place::Before,
        };
        Ok(())
    }
}

impl Cursor for ModelCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.forward(Bound::Included(key))
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        self.back(Bound::Included(key))
    }

    fn first(&mut self) -> Result<()> {
        self.forward(Bound::Unbounded)
    }

    fn last(&mut self) -> Result<()> {
        self.back(Bound::Unbounded)
    }

    fn next(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.place, Place::Beyond) {
            Place::Fresh | Place::Before => self.forward(Bound::Unbounded),
            Place::On(key, _) => self.forward(Bound::Excluded(&key)),
            Place::Beyond => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.place, Place::Before) {
            Place::Fresh | Place::Beyond => self.back(Bound::Unbounded),
            Place::On(key, _) => self.back(Bound::Excluded(&key)),
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
