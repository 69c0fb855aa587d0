//! Integration tests of the store seam, run on the reference model.
#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod atomicity;
mod blocks;
mod cursors;
mod limits;
mod tuples;

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::model::ModelStore;
use kvfs_store::{
    Batch, Durability, KeyRange, Keyspace, KeyspaceKind, MergeFunction, Position, Read, Result, Store,
    StoreError,
};

/// Appends operands to the value; the operand `!` removes the key, `?` is corrupt.
struct Append;

impl MergeFunction for Append {
    fn resolve(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        let mut value = base.map(<[u8]>::to_vec);
        for &operand in operands {
            match operand {
                b"!" => value = None,
                b"?" => return Err(StoreError::corrupt("operand", "unknown")),
                _ => value.get_or_insert_default().extend_from_slice(operand),
            }
        }
        Ok(value.map(Bytes::from))
    }

    fn fold(&self, _key: &[u8], _older: &[u8], _newer: &[u8]) -> Option<Bytes> {
        None
    }
}

/// A store with two tuple keyspaces (the first merges) and one of blocks.
struct Fixture {
    store: ModelStore,
    merging: Keyspace,
    plain: Keyspace,
    blocks: Keyspace,
}

impl Fixture {
    fn new() -> Self {
        Self::over(ModelStore::new())
    }

    fn over(store: ModelStore) -> Self {
        let merging = store.open_keyspace("merging", KeyspaceKind::Tuple, Some(Arc::new(Append))).unwrap();
        let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
        let blocks = store.open_keyspace("blocks", KeyspaceKind::Block, None).unwrap();
        Self { store, merging, plain, blocks }
    }

    fn try_apply(&self, fill: impl FnOnce(&mut Batch)) -> Result<Position> {
        let mut batch = Batch::new();
        fill(&mut batch);
        self.store.apply(batch, Durability::Buffered)
    }

    fn apply(&self, fill: impl FnOnce(&mut Batch)) -> Position {
        self.try_apply(fill).unwrap()
    }

    fn put(&self, key: &'static str, value: &'static str) -> Position {
        self.apply(|batch| batch.put(self.plain, key, value))
    }

    fn stat(&self, name: &str) -> u64 {
        let stats = self.store.stats();
        stats.iter().find(|(n, _)| n == name).map(|(_, value)| *value).unwrap()
    }
}

fn text(value: Option<Bytes>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Keys and values of a keyspace as text, in order.
fn listing(read: &dyn Read, keyspace: Keyspace) -> Vec<(String, String)> {
    let mut cursor = read.cursor(keyspace, KeyRange::all()).unwrap();
    let mut entries = Vec::new();
    cursor.first().unwrap();
    while let Some((key, value)) = cursor.entry() {
        entries.push((String::from_utf8(key.to_vec()).unwrap(), String::from_utf8(value.to_vec()).unwrap()));
        cursor.next().unwrap();
    }
    entries
}
