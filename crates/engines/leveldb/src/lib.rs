//! The engine `leveldb`: the store of kvfs on the library of that name.
//!
//! Purpose: what `kvfs_engine_common` needs of a database, by `LevelDB`'s C API (`sys`). All keyspaces are in
//! its one: a key begins with the number of the keyspace (`keys.rs`). What `LevelDB` lacks:
//!
//! * Ranges are deleted key by key, long ones in pages (`kvfs_engine_common`).
//! * A sync of its own reaches only the log that is written to, not the one before, whose memtable may be on
//!   its way to a table; `logs.rs` syncs all that are there.
//! * After a power cut it would go on behind a hole in a log, with batches whose predecessors are lost: what
//!   is behind the first hole is cut off before the database is opened (`recovery.rs`).
//! * It opens no database for reading alone: it replays the log, and writes.
//!
//! Thread safety: shared by all threads; `LevelDB` has its own locks. Invariants: a database is closed when
//! the last snapshot and iterator has gone, and its directory given back after it; opened are only logs
//! without a hole. Without the feature `libleveldb` this crate is empty.
#![cfg(feature = "libleveldb")]

mod database;
mod error;
mod keys;
mod logs;
mod reads;
mod records;
mod recovery;
mod sys;

pub use database::Level;

/// A store on `LevelDB`.
pub type LevelStore = kvfs_engine_common::DatabaseStore<Level>;
