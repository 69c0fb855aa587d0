//! Stores on databases of keys and values.
//!
//! Purpose: whatever a database that knows keys, values, atomic writes and snapshots has to be given to be a
//! store of kvfs, once. What tells one database from another is [`Database`], which is one page; the store on
//! it is [`DatabaseStore`].
//!
//! * Merge records and patches of blocks are resolved when they are written, under the order of batches.
//! * Blocks are values of 4 KiB under the prefix and the big-endian number.
//! * Ranges of few keys are deleted key by key, in the batch. What is longer, a database that can't delete
//!   ranges deletes in pages, behind a redo record that makes the batch atomic (`paged.rs`).
//! * Seqnos are counted here, and written with each batch.
//! * Syncs are shared: the thread that waits for the lock of one finds its batch durable.
//! * Writes are refused before the database meets the end of the file system (`room.rs`).
//!
//! Thread safety: shared by all threads. Batches take their turn on the order lock; readers take none of ours
//! but that of the list of keyspaces, and where ranges are deleted in pages that of the state to be read
//! meanwhile.
//!
//! Invariants: the seqno in the database is that of the newest batch; a database that has failed a write or
//! sync takes no more.

mod changes;
mod cursor;
mod database;
mod held;
mod paged;
mod pin;
mod reclaim;
mod resolving;
mod room;
mod shared;
mod space;
mod stage;
mod store;
mod syncer;
mod view;

pub use changes::{Change, Changes};
pub use database::{Database, DatabaseOptions, Entries, Reserve};
pub use resolving::Resolving;
pub use room::file_system_bytes;
pub use space::Space;
pub use store::DatabaseStore;
pub use syncer::Syncer;
