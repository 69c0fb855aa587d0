//! The engine `slatedb`: the store of kvfs in object storage, on the library `SlateDB`.
//!
//! Purpose: everything is one database of `SlateDB` below a prefix of a bucket. A keyspace is a number before
//! each key; a batch is one batch of `SlateDB`, whose sequence number the seqno of kvfs is a part of. What
//! `SlateDB` lacks is made of what it has:
//!
//! * Merge records and patches of blocks are resolved when they are written, under the order of batches.
//! * A range delete of more than a few keys is one record (`ranges.rs`): what is older and lies in the range
//!   is hidden from readers from then on, and deleted key by key in the background (`reaper.rs`).
//! * Cursors are scans; one that turns round begins a new scan.
//!
//! It lets a second writer in at once, and fences the first: here, one that is alive is asked for first
//! (`holder.rs`).
//!
//! `SlateDB` is asynchronous: each store has a runtime of its own for its requests and its background work.
//! Calls are driven on the thread of the caller, which may belong to any runtime or none.
//!
//! Long runs of blocks go to objects of their own, once, and the database refers to them (`segments`).
//!
//! A named snapshot is a checkpoint of `SlateDB` (`named.rs`). It has no transactions or undo.
//!
//! While object storage does not answer, requests are made again and again (`observed.rs`); calls that need
//! it wait up to a limit, fail, and may be made again: nothing is taken back, and what was written becomes
//! durable when the storage answers.
//!
//! Thread safety: shared by all threads. Batches take their turn on the order lock; readers take none of ours
//! but short ones. Syncs are shared: one task makes durable what all of them wait for.
//!
//! Invariants: a batch is durable when object storage has acknowledged it; a store that has failed a write or
//! sync for good, or that another mount has taken over, takes no more. Without the feature `client` this
//! crate is empty.
#![cfg(feature = "client")]

mod ahead;
mod backlog;
mod cache;
mod changes;
mod claim;
mod cursor;
mod error;
mod flusher;
mod follower;
mod forward;
mod health;
mod holder;
mod journal;
mod keys;
mod label;
mod meta;
mod named;
mod observed;
mod options;
mod pace;
mod pin;
mod ranges;
mod reaper;
mod retention;
mod runtime;
mod segments;
mod shared;
mod space;
mod stage;
mod stats;
mod store;
mod traffic;
mod verify;
mod view;
mod wait_limit;
mod weighed;
mod write;

pub use kvfs_objects::ObjectPlace;

pub use holder::{Claimant, LEASES};
pub use journal::JournalOptions;
pub use options::{SegmentOptions, SlateOptions, TIMEOUTS};
pub use store::SlateStore;

/// What a service of one's own is made of, for [`SlateStore::open_over`].
#[doc(hidden)]
pub mod seam {
    pub use {async_trait, futures, object_store, slatedb, tokio};
}
