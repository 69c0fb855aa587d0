//! Names of a commit that are too many to be held: they are read from its changes once more, while the kernel
//! is told.
//!
//! Thread safety: belongs to one commit. Invariant: what is held is bounded by the nodes that the main line
//! knows.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvfs_store::{Change, ChangeCursor};

use crate::schema::Placement;
use crate::{FileSystem, NodeId, Result};

/// A directory, and a name in it.
pub(in crate::view) type Name = (NodeId, Box<[u8]>);

/// The name that a change of a row is about; `None`: it is about none.
pub(in crate::view) fn name_of(change: &Change) -> Option<(u64, &[u8])> {
    let (Change::Put { key, .. } | Change::Delete { key }) = change else { return None };
    Placement::parse_key(key).filter(|(_, name)| !name.is_empty())
}

/// See the module. Yields each name, and whether a directory has moved away from it.
pub struct ManyNames {
    main: Arc<FileSystem>,
    rows: Box<dyn ChangeCursor>,
    directories: BTreeSet<NodeId>,
    /// Where directories that have moved were.
    left: BTreeSet<Name>,
}

impl ManyNames {
    pub(in crate::view) fn new(
        main: &Arc<FileSystem>,
        rows: Box<dyn ChangeCursor>,
        directories: BTreeSet<NodeId>,
        left: BTreeSet<Name>,
    ) -> Self {
        Self { main: Arc::clone(main), rows, directories, left }
    }

    /// In which the names are.
    pub fn directories(&self) -> impl Iterator<Item = NodeId> {
        self.directories.iter().copied()
    }

    fn next_name(&mut self) -> Result<Option<Name>> {
        while let Some(change) = self.rows.next()? {
            // One that has been forgotten since, or came since, has no name of before with the kernel.
            let known = |&(directory, _): &(u64, &[u8])| self.main.nodes.get(directory).is_some();
            if let Some((directory, name)) = name_of(&change).filter(known) {
                return Ok(Some((NodeId(directory), name.into())));
            }
        }
        Ok(None)
    }
}

impl Iterator for ManyNames {
    type Item = (Name, bool);

    fn next(&mut self) -> Option<Self::Item> {
        let name = self.next_name().unwrap_or_else(|error| {
            // The kernel has names that it is not told of.
            self.main.nodes.lose(&format!("reading back the names of a commit failed: {error}"));
            None
        })?;
        let has_moved = self.left.contains(&name);
        Some((name, has_moved))
    }
}

impl std::fmt::Debug for ManyNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManyNames").field("directories", &self.directories.len()).finish_non_exhaustive()
    }
}
