//! How much of what was written is not durable yet.
//!
//! Thread safety: atomics. Invariant: bytes are counted once their batch is visible, so a sync of the newest
//! visible position covers all that were counted before it was looked at.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Default)]
pub(crate) struct Unsynced {
    written: AtomicU64,
    synced: AtomicU64,
}

impl Unsynced {
    /// A batch of so many bytes is visible.
    pub(crate) fn note_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::AcqRel);
    }

    /// What was written until now: for [`Self::note_synced`], to be read before the position that is synced.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// All that was written when [`Self::written`] gave this is durable.
    pub(crate) fn note_synced(&self, written: u64) {
        self.synced.fetch_max(written, Ordering::AcqRel);
    }

    /// What is not durable (bytes); what callers have synced themselves may be counted still.
    pub(crate) fn bytes(&self) -> u64 {
        // In this order: what is counted as durable was counted as written before.
        let synced = self.synced.load(Ordering::Acquire);
        self.written().saturating_sub(synced)
    }
}
