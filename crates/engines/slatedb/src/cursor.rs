//! The cursor: scans at a snapshot, one for as long as it goes one way.
//!
//! Thread safety: one thread at a time. Invariant: the scan, if there is one, has given the entry that is
//! shown last, and those that are taken, which come next.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Cursor, KeyRange, Keyspace, KeyspaceKind, Result};
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
    /// Entries of the scan behind the place, of a keyspace of blocks: what they refer to is read together.
    coming: VecDeque<(Bytes, Bytes)>,
    /// How many are taken from the scan at a time.
    taken: usize,
}

/// Entries that are taken from a scan at a time, at most: four MiB of blocks, as one request brings.
const TAKEN_MAX: usize = 1024;

impl SlateCursor {
    pub(crate) fn new(pin: Pin, keyspace: Keyspace, range: KeyRange) -> Result<Self> {
        let space = pin.shared().space(keyspace)?;
        let (place, coming) = (Place::Fresh, VecDeque::new());
        Ok(Self { scan: None, pin, space, range, place, coming, taken: 1 })
    }

    /// Stands on the next entry of the scan, or where there is none at its end.
    fn step(&mut self) -> Result<()> {
        self.place = Place::Fresh;
        if self.coming.is_empty()
            && let Err(error) = self.take()
        {
            (self.scan, self.coming) = (None, VecDeque::new());
            return Err(error);
        }
        let Some((order, _)) = &self.scan else { return Ok(()) };
        self.place = match (self.coming.pop_front(), order) {
            (Some((key, mut value)), _) => {
                // It is, unless others that were taken with it can't be read.
                if let Err(error) = self.pin.view().resolve(&self.space, [&mut value]) {
                    (self.scan, self.coming) = (None, VecDeque::new());
                    return Err(error);
                }
                Place::On(key, value)
            }
            (None, IterationOrder::Ascending) => Place::Beyond,
            (None, IterationOrder::Descending) => Place::Before,
        };
        if !matches!(self.place, Place::On(..)) {
            self.scan = None;
        }
        Ok(())
    }

    /// Takes the next entries from the scan: one, or of blocks more each time.
    fn take(&mut self) -> Result<()> {
        let Some((_, scan)) = &mut self.scan else { return Ok(()) };
        let view = self.pin.view();
        while self.coming.len() < self.taken
            && let Some(entry) = view.next(&self.space, scan)?
        {
            // Copies: the originals keep blocks alive that they are parts of.
            let copy = Bytes::copy_from_slice;
            self.coming.push_back((copy(keys::inner(&entry.key)), copy(&entry.value)));
        }
        // What can't be read is told where it comes.
        let _ = view.resolve(&self.space, self.coming.iter_mut().map(|(_, value)| value));
        if self.space.kind == KeyspaceKind::Block {
            self.taken = (self.taken * 2).min(TAKEN_MAX);
        }
        Ok(())
    }

    /// Stands on the first entry of a new scan.
    fn begin(&mut self, order: IterationOrder, bounds: Bounds) -> Result<()> {
        (self.place, self.scan) = (Place::Fresh, None);
        (self.coming, self.taken) = (VecDeque::new(), 1);
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
