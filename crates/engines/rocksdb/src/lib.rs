//! The engine `rocksdb`: the store of kvfs on the library of that name.
//!
//! Purpose: what `kvfs_engine_common` needs of a database. Keyspaces are column families; a batch is one
//! `WriteBatch`, so it is atomic, and durable as the write-ahead log is. Its merge operator can't be used: it
//! has to be known before a database is opened, which may run it at once, while kvfs names its merge
//! functions afterwards; and what it resolves to can't be "no such key". A range delete of few keys becomes
//! deletes of keys: each range tombstone slows all reads down until a compaction has it.
//!
//! Thread safety: shared by all threads; `RocksDB` has its own locks. Invariant: a database is closed when
//! the last snapshot and iterator has gone, and its directory given back after it. Without the feature
//! `librocksdb` this crate is empty.
#![cfg(feature = "librocksdb")]

mod database;
mod error;
mod options;
mod reads;

pub use database::Rocks;

/// A store on `RocksDB`.
pub type RocksStore = kvfs_engine_common::DatabaseStore<Rocks>;
