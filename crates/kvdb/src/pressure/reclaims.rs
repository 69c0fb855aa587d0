//! What is known of the passes over all runs: whether another one may find anything.
//!
//! Thread safety: atomics, which order nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvfs_store::Seqno;

/// No pass knew of anything.
pub(crate) const NEVER: Seqno = 0;

/// What is known of the passes so far.
#[derive(Debug, Default)]
pub(crate) struct ReclaimState {
    /// The last operation that the last pass knew of: another one pays only after something changed. Deletions may go further
    /// than one for ordinary writes that has failed, which is not meant.
    pub(crate) seqno: AtomicU64,
    /// As `seqno`, of the last pass for ordinary writes, whatever came of it.
    pub(crate) seqno_of_writers: AtomicU64,
    /// As `seqno`, of the last pass of any kind, as long as a reader holds what was there before one.
    pub(crate) seqno_while_read: AtomicU64,
    /// As `seqno`, of the last pass at leisure.
    pub(crate) seqno_of_background: AtomicU64,
    /// The last one found no space for its merges.
    pub(crate) is_stuck: AtomicBool,
    /// Operations that ordinary writes on a full store wait for before the next one.
    pub(crate) pause: AtomicU64,
    /// A pass at leisure is emptying zones.
    pub(crate) is_emptying: AtomicBool,
    /// Passes that have ended, and how many of them had when a writer last waited in vain for readers of what they have freed.
    pub(crate) passes_ended: AtomicU64,
    reader_timeouts: AtomicU64,
}

impl ReclaimState {
    /// Something that is no batch has left garbage.
    pub(crate) fn note_garbage(&self) {
        let known = [&self.seqno, &self.seqno_while_read, &self.seqno_of_writers, &self.seqno_of_background];
        for seqno in known {
            seqno.store(NEVER, Ordering::Release);
        }
    }

    /// Passes that have ended.
    pub(crate) fn passes_ended(&self) -> u64 {
        self.passes_ended.load(Ordering::Acquire)
    }

    /// Readers of what the passes before `passes_ended` was this have freed are no longer waited for.
    pub(crate) fn record_reader_timeout(&self, passes_ended: u64) {
        self.reader_timeouts.fetch_max(passes_ended, Ordering::AcqRel);
    }

    /// Whether a writer was refused since the last pass because of readers that read on.
    pub(crate) fn had_reader_timeout(&self) -> bool {
        let passes_ended = self.passes_ended();
        passes_ended > 0 && self.reader_timeouts.load(Ordering::Acquire) == passes_ended
    }
}
