//! The keyspaces that every simulated store has.

use std::sync::Arc;

use kvfs_store::{Batch, Keyspace, KeyspaceKind, MergeFunction, Op, Result, Store};

use crate::merge::{Append, Sum};

/// Index into [`SPACES`]; operations carry it in place of a store's handle.
pub type SpaceIndex = u32;

/// Which merge function a keyspace has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// None: merges are refused.
    None,
    /// [`Append`].
    Append,
    /// [`Sum`].
    Sum,
}

/// One keyspace.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// Name in the store.
    pub name: &'static str,
    /// Layout.
    pub kind: KeyspaceKind,
    /// Merge function.
    pub merge: Merge,
}

/// Names, kinds and merge functions.
pub const SPACES: [Space; 5] = [
    Space { name: "rows", kind: KeyspaceKind::Tuple, merge: Merge::Append },
    Space { name: "data", kind: KeyspaceKind::Block, merge: Merge::None },
    Space { name: "plain", kind: KeyspaceKind::Tuple, merge: Merge::None },
    Space { name: "counters", kind: KeyspaceKind::Tuple, merge: Merge::Sum },
    Space { name: "more-data", kind: KeyspaceKind::Block, merge: Merge::None },
];

/// A store's handles of [`SPACES`], in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handles([Keyspace; SPACES.len()]);

impl Handles {
    /// Opens (or creates) all keyspaces of `store`.
    ///
    /// # Errors
    /// Those of [`Store::open_keyspace`].
    pub fn open(store: &dyn Store) -> Result<Self> {
        let mut handles = [Keyspace(0); SPACES.len()];
        for (handle, space) in handles.iter_mut().zip(SPACES) {
            let merge: Option<Arc<dyn MergeFunction>> = match space.merge {
                Merge::None => None,
                Merge::Append => Some(Arc::new(Append)),
                Merge::Sum => Some(Arc::new(Sum)),
            };
            *handle = store.open_keyspace(space.name, space.kind, merge)?;
        }
        Ok(Self(handles))
    }

    /// The handle of one keyspace.
    pub fn get(&self, space: SpaceIndex) -> Keyspace {
        self.0[space as usize]
    }

    /// A batch of `ops`, whose keyspaces are indices, for this store.
    pub fn batch(&self, ops: &[Op]) -> Batch {
        let mut batch = Batch::new();
        for op in ops {
            let mut op = op.clone();
            let (Op::Put { keyspace, .. }
            | Op::Delete { keyspace, .. }
            | Op::DeleteRange { keyspace, .. }
            | Op::Merge { keyspace, .. }
            | Op::PutBlocks { keyspace, .. }
            | Op::PatchBlock { keyspace, .. }) = &mut op;
            *keyspace = self.get(keyspace.0);
            batch.push(op);
        }
        batch
    }
}
