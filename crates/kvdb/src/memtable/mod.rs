//! The write buffer, and the types that carry a read through the layers of a keyspace.
//!
//! Purpose: a [`MemTable`] holds the newest records of all keyspaces until they are flushed into
//! runs. [`Lookup`] (one key) and [`BlockFill`] (consecutive blocks) are what a reader takes from
//! layer to layer, newest first; [`TombstoneSet`] answers which range tombstone lies over a key.
//!
//! Thread safety: a memtable is read and written by many threads at once; `Lookup` and `BlockFill`
//! belong to one reader; a `TombstoneSet` is immutable.

mod arena;
mod changes;
mod fill;
mod folds;
mod growing;
mod growth;
mod iter;
mod keyspace;
mod lookup;
mod merge;
mod patch;
mod patched;
mod search;
mod skiplist;
mod table;
mod tombstones;
mod writers;

pub(crate) use changes::{ChangeVisitor, ChangeWalk};
pub(crate) use fill::{BlockFill, BlockState, block_key, first_block_at_or_after, split_block_key};
pub(crate) use growth::space_of;
pub(crate) use lookup::Lookup;
#[cfg(test)]
pub(crate) use lookup::Outcome;
pub(crate) use merge::Merger;
pub(crate) use search::BlockSearch;
pub(crate) use table::MemTable;
pub(crate) use tombstones::{Fragment, RangeTombstone, TombstoneSet};
pub(crate) use writers::{WriteGuard, Writers};

/// The value of a block that is there, but can't be read. No other block has an empty one.
static UNREADABLE: bytes::Bytes = bytes::Bytes::new();

#[cfg(test)]
pub(crate) mod testing;
