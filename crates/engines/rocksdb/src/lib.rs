//! The engine `rocksdb`: the store of kvfs on the library of that name.
//!
//! Purpose: keyspaces are column families; a batch is one `WriteBatch`, so it is atomic, and durable as the write-ahead log is. What
//! `RocksDB` lacks is made of what it has:
//!
//! * Merge records are resolved when they are written, under the order of batches. An operator of `RocksDB` can't be used: it has to be
//!   known before a database is opened, which may run it at once, while kvfs names its merge functions afterwards; and what it
//!   resolves to can't be "no such key".
//! * Blocks are values of 4 KiB under the prefix and the big-endian number; patches are resolved as merge records are.
//! * A range delete of few keys becomes deletes of keys: each range tombstone slows all reads down until a compaction has it.
//! * Seqnos are counted here, and written with each batch, since a batch of `RocksDB` has other operations than one of kvfs.
//!
//! It has no transactions, named snapshots, differences or undo.
//!
//! Thread safety: shared by all threads. Batches take their turn on the order lock; readers take none of ours but that of the list
//! of keyspaces. Syncs are shared: who waits for the lock of one finds its batch durable.
//!
//! Invariants: the seqno in the column family `default` is that of the newest batch; a database that has failed a write or sync
//! takes no more. Without the feature `librocksdb` this crate is empty.
#![cfg(feature = "librocksdb")]

mod cursor;
mod error;
mod options;
mod pin;
mod room;
mod shared;
mod space;
mod stage;
mod store;
mod syncer;
mod view;

pub use options::RocksOptions;
pub use store::RocksStore;
