//! The engines under test, behind one trait: a file for each.
//!
//! Thread safety: an engine belongs to one thread; what it does in the background is its own.
//!
//! Invariants: none compresses; a write is in the engine's log, not synced, until [`Engine::sync`] returns.

mod fjall;
mod kvfs;
mod lmdb;
mod rocksdb;
mod surrealkv;

use anyhow::Result;
use std::path::Path;

/// Key and value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// What an engine is opened for.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    /// For caches and memtables together, and the kernel's cache of the store.
    pub(crate) memory_bytes: u64,
    /// All that the process may have: `memory_bytes` and what the program needs.
    pub(crate) process_bytes: u64,
    /// What is going to be written at most, without any overhead.
    pub(crate) data_bytes: u64,
    /// Values are blocks of 4 KiB, keys end in their numbers.
    pub(crate) is_blocks: bool,
}

impl Config {
    /// What engines that read and write through the kernel's cache have for caches and memtables of their
    /// own.
    fn own_bytes(&self) -> u64 {
        self.memory_bytes / 2
    }
}

/// An open store.
pub(crate) trait Engine {
    /// Atomically, where there is such a thing.
    fn write(&mut self, pairs: Vec<Pair>) -> Result<()>;

    /// The value of a key.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Visits all pairs from this key on, in order, until `visit` says no.
    fn scan(&mut self, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// From `from` to before `to`.
    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()>;

    /// Everything written before survives a power cut.
    fn sync(&mut self) -> Result<()>;

    /// Ends it in order.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One of them.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Opens the store in a directory, and makes it when there is none.
    pub(crate) open: fn(&Path, &Config) -> Result<Box<dyn Engine>>,
}

/// In the order of the tables.
pub(crate) const KINDS: &[Kind] = &[kvfs::KIND, rocksdb::KIND, fjall::KIND, surrealkv::KIND, lmdb::KIND];

/// For engines without such an operation: finds what is there and deletes it key by key.
fn keys_of(engine: &mut dyn Engine, from: &[u8], to: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    engine.scan(from, &mut |key, _| {
        let is_inside = key < to;
        if is_inside {
            keys.push(key.to_vec());
        }
        is_inside
    })?;
    Ok(keys)
}
