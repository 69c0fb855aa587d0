//! What was written between two pinned positions.
//!
//! Purpose: entries of `SlateDB` have the sequence number that they were written with, so a walk over both
//! states side by side finds what was written in between without comparing values. Tables do not tell which
//! sequence numbers are in them: the walk reads both states within the range that is asked for.
//!
//! Thread safety: pins by a short lock; each walk belongs to one walker. Invariant: outside of the ranges
//! both states have the same entries.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use kvfs_store::{ChangedRanges, KEY_LEN_MAX, KeyRange, Keyspace, Result, Seqno, Snapshot, TrackChanges};
use slatedb::{DbIterator, IterationOrder, KeyValue};

use crate::keys;
use crate::pin::Pin;
use crate::space::Space;
use crate::store::SlateStore;

/// A scan asks for so much at once (bytes).
const READ_AHEAD_BYTES: usize = 1 << 20;

/// So many keys that were written are one range.
const RANGE_KEYS_MAX: usize = 1024;

/// The positions that callers hold.
#[derive(Default)]
pub(crate) struct Pins {
    known: Mutex<Vec<Weak<Pin>>, class::EngineSlatedbPins>,
}

impl Pins {
    pub(crate) fn add(&self, pin: Pin) -> Arc<Pin> {
        let pin = Arc::new(pin);
        let mut known = self.known.lock();
        known.retain(|known| known.strong_count() > 0);
        known.push(Arc::downgrade(&pin));
        pin
    }

    fn find(&self, seqno: Seqno) -> Option<Pin> {
        let known: Vec<_> = self.known.lock().iter().filter_map(Weak::upgrade).collect();
        known.iter().find(|pin| pin.seqno() == seqno).map(|pin| Pin::clone(pin))
    }
}

/// One state.
struct Side {
    // Before the snapshot that it walks over.
    scan: DbIterator,
    head: Option<KeyValue>,
    pin: Pin,
}

impl Side {
    fn new(pin: Pin, space: &Space, range: &KeyRange) -> Result<Self> {
        let bounds = keys::bounds(space.number, range);
        let mut scan = pin.view().scan(bounds, IterationOrder::Ascending, READ_AHEAD_BYTES)?;
        let head = pin.view().next(space, &mut scan)?;
        Ok(Self { scan, head, pin })
    }

    fn step(&mut self, space: &Space) -> Result<()> {
        self.head = self.pin.view().next(space, &mut self.scan)?;
        Ok(())
    }
}

/// What a walk over both states has passed.
enum Passed {
    Unchanged,
    /// Its key.
    Written(Bytes),
}

/// See the module.
struct Changes {
    older: Side,
    newer: Side,
    space: Arc<Space>,
}

impl Changes {
    /// Moves past the next key that one side has at least.
    fn step(&mut self) -> Result<Option<Passed>> {
        let order = match (&self.older.head, &self.newer.head) {
            (None, None) => return Ok(None),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(older), Some(newer)) => older.key.cmp(&newer.key),
        };
        let older = self.older.head.as_ref().filter(|_| order.is_le());
        let newer = self.newer.head.as_ref().filter(|_| order.is_ge());
        let is_same = older.map(|entry| entry.seq) == newer.map(|entry| entry.seq);
        let key =
            older.or(newer).filter(|_| !is_same).map(|entry| Bytes::copy_from_slice(keys::inner(&entry.key)));
        if order.is_le() {
            self.older.step(&self.space)?;
        }
        if order.is_ge() {
            self.newer.step(&self.space)?;
        }
        Ok(Some(key.map_or(Passed::Unchanged, Passed::Written)))
    }
}

impl ChangedRanges for Changes {
    fn next(&mut self) -> Result<Option<KeyRange>> {
        // Neighbours that were all written are one range, up to a bound: who sends it in parts asks anew for
        // the rest, each time.
        let mut range: Option<(Bytes, Bytes)> = None;
        let mut keys_left = RANGE_KEYS_MAX;
        while keys_left > 0
            && let Some(passed) = self.step()?
        {
            keys_left -= usize::from(matches!(passed, Passed::Written(_)));
            match (passed, &mut range) {
                (Passed::Written(key), Some((_, last))) => *last = key,
                (Passed::Written(key), None) => range = Some((key.clone(), key)),
                (Passed::Unchanged, Some(_)) => break,
                (Passed::Unchanged, None) => {}
            }
        }
        Ok(range.map(|(first, last)| KeyRange::new(first, [&last[..], b"\0"].concat())))
    }
}

/// All of a range, or nothing.
struct Whole(Option<KeyRange>);

impl ChangedRanges for Whole {
    fn next(&mut self) -> Result<Option<KeyRange>> {
        Ok(self.0.take())
    }
}

impl TrackChanges for SlateStore {
    fn changed_ranges(
        &self,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Result<Box<dyn ChangedRanges>> {
        let space = self.shared().space(keyspace)?;
        if older >= newer || range.is_empty() {
            return Ok(Box::new(Whole(None)));
        }
        let pins = &self.shared().pins;
        let (Some(older), Some(newer)) = (pins.find(older), pins.find(newer)) else {
            // Nothing is known of it, and no key is longer.
            let end = range.end.unwrap_or_else(|| vec![u8::MAX; KEY_LEN_MAX + 1].into());
            return Ok(Box::new(Whole(Some(KeyRange::new(range.start, end)))));
        };
        let (older, newer) = (Side::new(older, &space, &range)?, Side::new(newer, &space, &range)?);
        Ok(Box::new(Changes { older, newer, space }))
    }
}
