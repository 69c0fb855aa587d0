//! Pinned positions.
//!
//! Thread safety: one short lock.
//! Invariants: a pin that [`SnapshotTracker::pin_newest`] gives is at or above the watermark that any
//! earlier [`SnapshotTracker::boundaries`] call could have seen, so a merge of published records that
//! asked for boundaries before the pin keeps what the pin needs: the newest of them.

use std::{collections::BTreeMap, sync::Arc};

use kvfs_locks::{Mutex, class};
use kvfs_store::Seqno;

use super::Publisher;

/// Counts the pins per seqno. Cheap to clone; clones share the pins.
#[derive(Debug, Clone, Default)]
pub(crate) struct SnapshotTracker {
    pins: Arc<Mutex<BTreeMap<Seqno, usize>, class::KvdbCommitSnapshotsPins>>,
}

/// Keeps a position readable until it is dropped.
#[derive(Debug)]
#[must_use = "the position is released when this is dropped"]
pub(crate) struct SnapshotPin {
    tracker: SnapshotTracker,
    seqno: Seqno,
}

impl SnapshotTracker {
    /// Nothing is pinned.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Pins `seqno`. The caller makes sure that it is still readable: it is pinned already, merges have not
    /// begun (at open), or nothing that is newer can be in runs yet.
    pub(crate) fn pin(&self, seqno: Seqno) -> SnapshotPin {
        *self.pins.lock().entry(seqno).or_insert(0) += 1;
        SnapshotPin { tracker: self.clone(), seqno }
    }

    /// Pins the visible watermark. Atomic against [`SnapshotTracker::boundaries`].
    pub(crate) fn pin_newest(&self, publisher: &Publisher) -> SnapshotPin {
        let seqno = {
            let mut pins = self.pins.lock();
            let seqno = publisher.visible();
            *pins.entry(seqno).or_insert(0) += 1;
            seqno
        };
        SnapshotPin { tracker: self.clone(), seqno }
    }

    /// The pinned seqnos, ascending, each once. A merge of records that are all published may thin
    /// out versions between these: readers that come later see at least the watermark of now.
    pub(crate) fn boundaries(&self) -> Vec<Seqno> {
        self.pins.lock().keys().copied().collect()
    }

    /// The oldest pinned seqno.
    #[cfg(test)]
    pub(crate) fn oldest(&self) -> Option<Seqno> {
        self.pins.lock().first_key_value().map(|(&seqno, _)| seqno)
    }

    /// The newest pinned seqno.
    pub(crate) fn newest(&self) -> Option<Seqno> {
        self.pins.lock().last_key_value().map(|(&seqno, _)| seqno)
    }

    /// Number of pins.
    pub(crate) fn count(&self) -> usize {
        self.pins.lock().values().sum()
    }
}

impl SnapshotPin {
    /// The pinned position.
    pub(crate) fn seqno(&self) -> Seqno {
        self.seqno
    }
}

impl Clone for SnapshotPin {
    fn clone(&self) -> Self {
        self.tracker.pin(self.seqno)
    }
}

impl Drop for SnapshotPin {
    fn drop(&mut self) {
        let mut pins = self.tracker.pins.lock();
        if let Some(count) = pins.get_mut(&self.seqno) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.seqno);
            }
        }
    }
}

#[cfg(test)]
mod tests;
