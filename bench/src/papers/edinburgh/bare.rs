//! Calls of an engine that is a store by itself, done again.
//!
//! Thread safety: belongs to one thread.

use anyhow::{Result, ensure};
use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Batch, Cursor, Durability, ExtentKind, KeyRange, Keyspace, Store};
use std::ops::Range;

/// How a cursor is moved.
#[derive(Clone)]
pub(crate) enum Move {
    First,
    Last,
    Next,
    Prev,
    Seek(Bytes),
    SeekBack(Bytes),
}

impl Move {
    pub(crate) fn apply(&self, cursor: &mut dyn Cursor) -> kvfs_store::Result<()> {
        match self {
            Self::First => cursor.first(),
            Self::Last => cursor.last(),
            Self::Next => cursor.next(),
            Self::Prev => cursor.prev(),
            Self::Seek(key) => cursor.seek(key),
            Self::SeekBack(key) => cursor.seek_back(key),
        }
    }
}

/// A call.
pub(crate) enum Call {
    Get(Keyspace, Bytes),
    MultiGet(Keyspace, Vec<Bytes>),
    Walk(Keyspace, KeyRange, Vec<Move>),
    ReadBlocks(Keyspace, Bytes, u64, usize),
    NextExtent(Keyspace, Bytes, Range<u64>, ExtentKind),
    Apply(Batch, Durability),
    Sync,
}

/// Does all of them. A batch is copied before, as one that the library makes is new.
pub(crate) fn replay(store: &dyn Store, calls: &[Call]) -> Result<()> {
    for call in calls {
        match call {
            Call::Get(keyspace, key) => drop(store.get(*keyspace, key)?),
            Call::MultiGet(keyspace, keys) => {
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                store.multi_get(*keyspace, &keys)?;
            }
            Call::Walk(keyspace, range, moves) => {
                let mut cursor = store.cursor(*keyspace, range.clone())?;
                moves.iter().try_for_each(|go| go.apply(&mut *cursor))?;
            }
            Call::ReadBlocks(keyspace, prefix, first, len) => {
                ensure!(len.is_multiple_of(BLOCK_BYTES), "{len} bytes are no blocks");
                let mut buffer = vec![0; *len];
                store.read_blocks(*keyspace, prefix, *first, &mut buffer)?;
            }
            Call::NextExtent(keyspace, prefix, blocks, kind) => {
                store.next_extent(*keyspace, prefix, blocks.clone(), *kind)?;
            }
            Call::Apply(batch, durability) => drop(store.apply(batch.clone(), *durability)?),
            Call::Sync => store.sync(store.position())?,
        }
    }
    Ok(())
}
