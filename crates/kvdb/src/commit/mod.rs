//! When a commit becomes visible, and which old positions readers still need.
//!
//! Purpose: [`Publisher`] advances the visible watermark over commits in their order, however their
//! writers finish. [`SnapshotTracker`] knows the pinned positions, between which merges may thin out
//! versions. [`PrivateWrites`] are what a transaction has written so far, in memory and, beyond its share of
//! that, in [`PrivateRuns`].
//!
//! Thread safety: the first two are shared by all threads.

mod net;
mod private;
#[cfg_attr(test, expect(dead_code, reason = "the scheduled copy asks tickets for their seqnos"))]
mod publisher;
mod snapshots;
mod spilled;
mod sync;

pub(crate) use private::{OwnWrites, PRIVATE, PrivateWrites};
pub(crate) use publisher::{Publisher, Ticket};
pub(crate) use snapshots::{SnapshotPin, SnapshotTracker};
pub(crate) use spilled::{PrivateRuns, Spill};

/// The publisher once more, on primitives whose schedule a test decides.
#[cfg(test)]
mod scheduled {
    #[allow(clippy::duplicate_mod, reason = "on other primitives it is another module")]
    #[path = "../publisher.rs"]
    mod publisher;
    mod sync;
    mod tests;
}
