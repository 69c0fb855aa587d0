//! A store to be judged, with merge functions that show what became of operands; for the tests of each
//! engine.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{
    Batch, Durability, KeyRange, Keyspace, KeyspaceKind, MergeFunction, Position, Read, Result, Store,
    StoreError, Touch,
};

/// Appends operands to the value; the operand `!` removes the key, `?` is corrupt.
pub(crate) struct Append;

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

/// Numbers. The operand `=n` sets, `?` does nothing and touches nothing, another one is added.
pub(crate) struct Count;

impl MergeFunction for Count {
    fn resolve(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        let number = |text: &[u8]| String::from_utf8_lossy(text).parse::<u64>().unwrap();
        let mut value = base.map(number);
        for &operand in operands {
            match operand {
                b"?" => {}
                [b'=', set @ ..] => value = Some(number(set)),
                _ => *value.get_or_insert_default() += number(operand),
            }
        }
        Ok(value.map(|value| value.to_string().into()))
    }

    fn fold(&self, _key: &[u8], _older: &[u8], _newer: &[u8]) -> Option<Bytes> {
        None
    }

    fn touch(&self, _key: &[u8], operand: &[u8]) -> Touch {
        match operand {
            b"?" => Touch::default(),
            [b'=', ..] => Touch { exclusive: 1, increment: 0 },
            _ => Touch { exclusive: 0, increment: 1 },
        }
    }
}

/// Something to judge.
pub(crate) trait Engine {
    /// Empty; the last `undo_count` transactions can be taken back.
    fn keeping(undo_count: usize) -> Arc<dyn Store>;
}

/// A store with three tuple keyspaces (two merge) and one of blocks.
pub(crate) struct Fixture<E> {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) merging: Keyspace,
    pub(crate) counting: Keyspace,
    pub(crate) plain: Keyspace,
    pub(crate) blocks: Keyspace,
    _engine: PhantomData<E>,
}

impl<E: Engine> Fixture<E> {
    pub(crate) fn new() -> Self {
        Self::keeping(0)
    }

    /// With a store of which the last `undo_count` transactions can be taken back.
    pub(crate) fn keeping(undo_count: usize) -> Self {
        Self::over(E::keeping(undo_count))
    }
}

impl<E> Fixture<E> {
    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        let merging = store.open_keyspace("merging", KeyspaceKind::Tuple, Some(Arc::new(Append))).unwrap();
        let counting = store.open_keyspace("counting", KeyspaceKind::Tuple, Some(Arc::new(Count))).unwrap();
        let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
        let blocks = store.open_keyspace("blocks", KeyspaceKind::Block, None).unwrap();
        Self { store, merging, counting, plain, blocks, _engine: PhantomData }
    }

    pub(crate) fn try_apply(&self, fill: impl FnOnce(&mut Batch)) -> Result<Position> {
        let mut batch = Batch::new();
        fill(&mut batch);
        self.store.apply(batch, Durability::Buffered)
    }

    pub(crate) fn apply(&self, fill: impl FnOnce(&mut Batch)) -> Position {
        self.try_apply(fill).unwrap()
    }

    pub(crate) fn put(&self, key: &'static str, value: &'static str) -> Position {
        self.apply(|batch| batch.put(self.plain, key, value))
    }

    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = self.store.stats();
        stats.iter().find(|(n, _)| n == name).map(|(_, value)| *value).unwrap()
    }
}

pub(crate) fn text(value: Option<Bytes>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Keys and values of a keyspace as text, in order.
pub(crate) fn listing(read: &dyn Read, keyspace: Keyspace) -> Vec<(String, String)> {
    let mut cursor = read.cursor(keyspace, KeyRange::all()).unwrap();
    let mut entries = Vec::new();
    cursor.first().unwrap();
    while let Some((key, value)) = cursor.entry() {
        entries.push((String::from_utf8(key.to_vec()).unwrap(), String::from_utf8(value.to_vec()).unwrap()));
        cursor.next().unwrap();
    }
    entries
}
