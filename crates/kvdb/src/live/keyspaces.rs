//! The open keyspaces: names, kinds and merge functions by number.
//!
//! Thread safety: read by every operation, written only when a keyspace is made or opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_locks::{RwLock, class};
use kvfs_store::{
    Batch, Compression, KEY_LEN_MAX, Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction, Op, Result,
    StoreError,
};

use crate::format::TUPLE_BLOCK_BYTES_MAX;
use crate::memtable::Merger;
use crate::version::{KeyspaceState, ManifestState};

/// One keyspace.
#[derive(Clone)]
pub(crate) struct KeyspaceMeta {
    pub(crate) name: Arc<str>,
    pub(crate) kind: KeyspaceKind,
    pub(crate) merger: Merger,
    /// How values are to be stored.
    pub(crate) compression: Compression,
    has_function: bool,
}

impl KeyspaceMeta {
    pub(crate) fn new(name: &str, kind: KeyspaceKind, function: Option<Arc<dyn MergeFunction>>) -> Self {
        let name: Arc<str> = name.into();
        let has_function = function.is_some();
        let merger = match kind {
            KeyspaceKind::Tuple => Merger::new(Arc::clone(&name), function),
            KeyspaceKind::Block => Merger::of_blocks(Arc::clone(&name)),
        };
        Self { merger, name, kind, compression: Compression::None, has_function }
    }

    /// The same, stored otherwise.
    pub(crate) fn stored_as(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }
}

/// What a commit made of a value and its merges may be longer than what may be written. No block has more.
const FOLDED_LEN_MAX: usize = TUPLE_BLOCK_BYTES_MAX;

/// All keyspaces of a store.
#[derive(Default)]
pub(crate) struct Keyspaces {
    by_id: RwLock<BTreeMap<u32, KeyspaceMeta>, class::KvdbLiveKeyspacesById>,
}

impl Keyspaces {
    pub(crate) fn insert(&self, id: u32, meta: KeyspaceMeta) {
        self.by_id.write().insert(id, meta);
    }

    pub(crate) fn get(&self, id: u32) -> Result<KeyspaceMeta> {
        self.by_id.read().get(&id).cloned().ok_or_else(|| StoreError::NoKeyspace(format!("number {id}")))
    }

    pub(crate) fn set_compression(&self, id: u32, compression: Compression) {
        if let Some(meta) = self.by_id.write().get_mut(&id) {
            meta.compression = compression;
        }
    }

    /// Those that the manifest names, without merge functions yet.
    pub(crate) fn of(state: &ManifestState) -> Self {
        let meta = |keyspace: &KeyspaceState| {
            KeyspaceMeta::new(&keyspace.name, keyspace.kind, None).stored_as(keyspace.compression)
        };
        let by_id = state.keyspaces.iter().map(|(&id, keyspace)| (id, meta(keyspace))).collect();
        Self { by_id: RwLock::new(by_id) }
    }

    pub(crate) fn kind(&self, id: u32) -> Result<KeyspaceKind> {
        let known = self.by_id.read().get(&id).map(|meta| meta.kind);
        known.ok_or_else(|| StoreError::NoKeyspace(format!("number {id}")))
    }

    pub(crate) fn find(&self, name: &str) -> Option<(u32, KeyspaceMeta)> {
        let by_id = self.by_id.read();
        by_id.iter().find(|(_, meta)| *meta.name == *name).map(|(&id, meta)| (id, meta.clone()))
    }

    pub(crate) fn list(&self) -> Vec<KeyspaceInfo> {
        let info = |(&id, meta): (&u32, &KeyspaceMeta)| KeyspaceInfo {
            keyspace: Keyspace(id),
            name: meta.name.to_string(),
            kind: meta.kind,
        };
        let mut list: Vec<_> = self.by_id.read().iter().map(info).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    /// A number that no keyspace has.
    pub(crate) fn next_id(&self) -> u32 {
        self.by_id.read().last_key_value().map_or(1, |(&id, _)| id + 1)
    }

    /// The kind of every keyspace that the batch touches.
    pub(crate) fn kinds_of(&self, batch: &Batch) -> Result<impl Fn(Keyspace) -> KeyspaceKind + use<>> {
        let by_id = self.by_id.read();
        let mut kinds: Vec<(u32, KeyspaceKind)> = Vec::new();
        for op in batch.ops() {
            let id = op.keyspace().0;
            if !kinds.iter().any(|&(known, _)| known == id) {
                let meta = by_id.get(&id).ok_or_else(|| StoreError::NoKeyspace(format!("number {id}")))?;
                kinds.push((id, meta.kind));
            }
        }
        let kind_of =
            move |keyspace: Keyspace| kinds.iter().find(|(id, _)| *id == keyspace.0).map(|&(_, kind)| kind);
        Ok(move |keyspace| kind_of(keyspace).unwrap_or(KeyspaceKind::Tuple))
    }

    /// Refuses operations of the journal that no writer can have been allowed. Merge functions are not known
    /// yet, and of blocks that are not where they were bound nothing is left.
    pub(crate) fn check_replayed(&self, batch: &Batch) -> Result<()> {
        self.check_each(batch, |op, meta| {
            check_shape(op, meta)?;
            match op.check_limits() {
                Err(StoreError::BlockShape { len: 0, .. }) => Ok(()),
                Err(StoreError::ValueTooLong { len, .. }) if len <= FOLDED_LEN_MAX => Ok(()),
                // A commit deletes a block as the range up to the next key.
                Err(StoreError::KeyTooLong { len, .. })
                    if len == KEY_LEN_MAX + 1 && matches!(op, Op::DeleteRange { .. }) =>
                {
                    Ok(())
                }
                checked => checked,
            }
        })
    }

    /// Refuses operations that do not fit the kind of their keyspace.
    pub(crate) fn check(&self, batch: &Batch) -> Result<()> {
        self.check_each(batch, check_op)
    }

    fn check_each(&self, batch: &Batch, check: impl Fn(&Op, &KeyspaceMeta) -> Result<()>) -> Result<()> {
        let by_id = self.by_id.read();
        batch.ops().iter().try_for_each(|op| {
            let id = op.keyspace().0;
            let meta = by_id.get(&id).ok_or_else(|| StoreError::NoKeyspace(format!("number {id}")))?;
            check(op, meta)
        })
    }
}

fn check_op(op: &Op, meta: &KeyspaceMeta) -> Result<()> {
    check_shape(op, meta)?;
    match op {
        Op::Merge { .. } if !meta.has_function => Err(StoreError::NoMergeFunction(meta.name.to_string())),
        _ => Ok(()),
    }
}

fn check_shape(op: &Op, meta: &KeyspaceMeta) -> Result<()> {
    op.check_kind(meta.kind, &meta.name)?;
    match op {
        Op::Delete { key, .. } if meta.kind == KeyspaceKind::Block && key.len() < 8 => {
            Err(StoreError::wrong_kind("delete of a key without a block number", &*meta.name, meta.kind))
        }
        _ => Ok(()),
    }
}
