//! How a batch becomes changes of the database: what the database knows is passed on, the rest is resolved on
//! what was there before.
//!
//! Thread safety: one thread, which holds the order lock. Invariant: nothing is written here, so a failure
//! changes nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Batch, KeyRange, Keyspace, MergeFunction, Op, Result};

use crate::changes::{Change, Changes};
use crate::database::Database;
use crate::resolving::Resolving;
use crate::shared::Shared;
use crate::space::Space;
use crate::view::View;

/// The keyspaces of a batch.
pub(crate) struct Spaces<D: Database> {
    by_keyspace: BTreeMap<Keyspace, Arc<Space<D::Handle>>>,
}

impl<D: Database> Spaces<D> {
    /// Finds those of `batch`, and checks that its operations fit them.
    pub(crate) fn of(shared: &Shared<D>, batch: &Batch) -> Result<Self> {
        let mut by_keyspace = BTreeMap::new();
        for op in batch.ops() {
            let keyspace = op.keyspace();
            let space = match by_keyspace.entry(keyspace) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(shared.space(keyspace)?),
            };
            op.check_kind(space.kind, &space.name)?;
            match op {
                Op::Merge { .. } => drop(space.merge_function()?),
                Op::Delete { .. } | Op::DeleteRange { .. } => space.note_deleted(),
                Op::Put { .. } | Op::PutBlocks { .. } | Op::PatchBlock { .. } => {}
            }
        }
        Ok(Self { by_keyspace })
    }
}

/// What a batch comes to.
pub(crate) struct Staged<D: Database> {
    pub(crate) changes: Changes<D::Handle>,
    /// Ranges of which the database is to delete what was there before the batch, in pages. What the batch
    /// puts there is in the changes.
    pub(crate) ranges: Vec<(Arc<Space<D::Handle>>, KeyRange)>,
}

/// What the operations of a batch so far have come to, as far as later ones have to know.
#[derive(Default)]
struct Written {
    values: BTreeMap<(Keyspace, Bytes), Option<Bytes>>,
    /// Earlier than all of `values` that lie in them.
    deleted: Vec<(Keyspace, KeyRange)>,
}

impl Written {
    fn set(&mut self, keyspace: Keyspace, key: Bytes, value: Option<Bytes>) {
        self.values.insert((keyspace, key), value);
    }

    /// The keys that the batch itself has put there.
    fn delete_range(&mut self, keyspace: Keyspace, range: &KeyRange) -> Vec<Bytes> {
        let mut own = Vec::new();
        for ((of, key), value) in self.values.range_mut((keyspace, range.start.clone())..) {
            if *of != keyspace || !range.contains(key) {
                break;
            }
            if value.take().is_some() {
                own.push(key.clone());
            }
        }
        self.deleted.push((keyspace, range.clone()));
        own
    }

    /// The value of `key` after the operations so far, `below` being the one before the batch.
    fn get(
        &self,
        keyspace: Keyspace,
        key: &Bytes,
        below: impl FnOnce() -> Result<Option<Bytes>>,
    ) -> Result<Option<Bytes>> {
        if let Some(value) = self.values.get(&(keyspace, key.clone())) {
            return Ok(value.clone());
        }
        let is_deleted = self.deleted.iter().any(|(of, range)| *of == keyspace && range.contains(key));
        if is_deleted { Ok(None) } else { below() }
    }
}

/// A batch on its way.
struct Stage<'a, D: Database> {
    view: View<'a, D>,
    spaces: &'a Spaces<D>,
    staged: Staged<D>,
    written: Written,
    /// Later operations have to know what earlier ones have written.
    looks_back: bool,
}

/// What `batch` does, for the database.
pub(crate) fn stage<D: Database>(shared: &Shared<D>, spaces: &Spaces<D>, batch: Batch) -> Result<Staged<D>> {
    let mut ops = batch.ops().iter().enumerate();
    let looks_back = batch.has_patches()
        || ops.any(|(at, op)| {
            matches!(op, Op::Merge { .. }) || (at > 0 && matches!(op, Op::DeleteRange { .. }))
        });
    let staged = Staged { changes: Changes::default(), ranges: Vec::new() };
    let mut stage =
        Stage { view: View::newest(shared), spaces, staged, written: Written::default(), looks_back };
    stage.staged.changes.changes.reserve(batch.len());
    for op in batch.into_ops() {
        stage.add(op)?;
    }
    Ok(stage.staged)
}

impl<D: Database> Resolving for Stage<'_, D> {
    fn set(&mut self, keyspace: Keyspace, key: Bytes, value: Option<Bytes>) {
        let space = Arc::clone(&self.spaces.by_keyspace[&keyspace]);
        if self.looks_back {
            self.written.set(keyspace, key.clone(), value.clone());
        }
        self.staged.changes.changes.push(match value {
            Some(value) => Change::Put { space, key, value },
            None => Change::Delete { space, key },
        });
    }

    fn current(&self, keyspace: Keyspace, key: &Bytes) -> Result<Option<Bytes>> {
        let space = &self.spaces.by_keyspace[&keyspace];
        self.written.get(keyspace, key, || self.view.get(space, key))
    }

    fn merge_function(&self, keyspace: Keyspace) -> Result<Arc<dyn MergeFunction>> {
        self.spaces.by_keyspace[&keyspace].merge_function()
    }

    fn delete_range(&mut self, keyspace: Keyspace, range: KeyRange) -> Result<()> {
        let space = &self.spaces.by_keyspace[&keyspace];
        let mut keys = Vec::new();
        self.view.walk(space, &range, &mut |key, _| {
            keys.push(Bytes::copy_from_slice(key));
            Ok(keys.len() <= D::KEYS_DELETED_MAX)
        })?;
        let is_long = keys.len() > D::KEYS_DELETED_MAX;
        // What the batch itself has written is in no state of the database.
        let own = if self.looks_back { self.written.delete_range(keyspace, &range) } else { Vec::new() };
        let staged = &mut self.staged;
        if is_long && D::DELETES_RANGES {
            let space = Arc::clone(space);
            staged.changes.changes.push(Change::DeleteRange { space, range });
            return Ok(());
        }
        if is_long {
            staged.ranges.push((Arc::clone(space), range));
            keys.clear();
        }
        let delete = |key| Change::Delete { space: Arc::clone(space), key };
        staged.changes.changes.extend(keys.into_iter().chain(own).map(delete));
        Ok(())
    }
}
