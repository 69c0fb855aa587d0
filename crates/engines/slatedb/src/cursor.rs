//! The cursor: scans at a snapshot, one for as long as it goes one way.
//!
//! Thread safety: one thread at a time. Invariant: the scan, if there is one, has given the entry that is shown last.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Cursor, KeyRange, Keyspace, Result};
use slatedb::{DbIterator, IterationOrder};

use crate::keys::{self, Bounds};
use crate::pin::Pin;
use crate::space::Space;

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

/// See the module.
pub(crate) struct SlateCursor {
    // Before the snapshot that it walks over.
    scan: Option<(IterationOrder, DbIterator)>,
    pin: Pin,
    space: Arc<Space>,
    range: KeyRange,
    place: Place,
}

impl SlateCursor {
    pub(crate) fn new(pin: Pin, keyspace: Keyspace, range: KeyRange) -> Result<Self> {
        let space = pin.shared().space(keyspace)?;
        Ok(Self { scan: None, pin, space, range, place: Place::Fresh })
    }

    /// Stands on the next entry of the scan, or where there is none at its end.
    fn step(&mut self) -> Result<()> {
        self.place = Place::Fresh;
        let Some((order, scan)) = &mut self.scan else { return Ok(()) };
        let end = match order {
            IterationOrder::Ascending => Place::Beyond,
            IterationOrder::Descending => Place::Before,
        };
        let next = self.pin.view().next(&self.space, scan);
        if !matches!(next, Ok(Some(_))) {
            self.scan = None;
        }
        self.place = next?.map_or(end, |entry| {
            // Copies: the originals keep blocks alive that they are parts of.
            let copy = Bytes::copy_from_slice;
            Place::On(copy(keys::inner(&entry.key)), copy(&entry.value))
        });
        Ok(())
    }

    /// Stands on the first entry of a new scan.
    fn begin(&mut self, order: IterationOrder, bounds: Bounds) -> Result<()> {
        self.place = Place::Fresh;
        self.scan = None;
        self.scan = Some((order, self.pin.view().scan(bounds, order, 0)?));
        self.step()
    }

    /// Forward from `start`, which replaces that of the range.
    fn forward(&mut self, start: Option<Bound<Bytes>>) -> Result<()> {
        if self.range.is_empty() {
            self.place = Place::Beyond;
            return Ok(());
        }
        let (first, end) = keys::bounds(self.space.number, &self.range);
        let start = start.unwrap_or(first);
        if is_empty(&start, &end) {
            (self.place, self.scan) = (Place::Beyond, None);
            return Ok(());
        }
        self.begin(IterationOrder::Ascending, (start, end))
    }

    /// Back from `end`, which replaces that of the range.
    fn back(&mut self, end: Option<Bound<Bytes>>) -> Result<()> {
        if self.range.is_empty() {
            self.place = Place::Before;
            return Ok(());
        }
        let (start, last) = keys::bounds(self.space.number, &self.range);
        let end = end.unwrap_or(last);
        if is_empty(&start, &end) {
            (self.place, self.scan) = (Place::Before, None);
            return Ok(());
        }
        self.begin(IterationOrder::Descending, (start, end))
    }

    fn goes_forward(&self) -> bool {
        matches!(self.scan, Some((IterationOrder::Ascending, _)))
    }

    fn goes_back(&self) -> bool {
        matches!(self.scan, Some((IterationOrder::Descending, _)))
    }

    fn full(&self, key: &[u8]) -> Bytes {
        keys::full(self.space.number, key)
    }
}

/// Whether nothing can lie between them.
fn is_empty(start: &Bound<Bytes>, end: &Bound<Bytes>) -> bool {
    match (start, end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end) | Bound::Included(end)) => {
            start >= end
        }
        _ => false,
    }
}

impl Cursor for SlateCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        if key <= &self.range.start[..] {
            return self.first();
        }
        self.forward(Some(Bound::Included(self.full(key))))
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        if self.range.end.as_ref().is_some_and(|end| key >= &end[..]) {
            return self.last();
        }
        self.back(Some(Bound::Included(self.full(key))))
    }

    fn first(&mut self) -> Result<()> {
        self.forward(None)
    }

    fn last(&mut self) -> Result<()> {
        self.back(None)
    }

    fn next(&mut self) -> Result<()> {
        match &self.place {
            Place::Fresh | Place::Before => self.first(),
            Place::On(..) if self.goes_forward() => self.step(),
            Place::On(key, _) => self.forward(Some(Bound::Excluded(self.full(key)))),
            Place::Beyond => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        match &self.place {
            Place::Fresh | Place::Beyond => self.last(),
            Place::On(..) if self.goes_back() => self.step(),
            Place::On(key, _) => self.back(Some(Bound::Excluded(self.full(key)))),
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
