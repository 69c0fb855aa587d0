//! What a front end knows of detached trees, and what is not so any more.
//!
//! Thread safety: a plain value.

use std::collections::BTreeSet;

use crate::node::{NodeTable, Pin};
use crate::{NodeId, PruneCandidate};

/// Names that a front end has not asked for yet, at most: it forgets the others by itself, some time.
const STALE_MAX: usize = 1 << 17;

/// What the removal of detached trees has made stale of what a front end knows.
#[derive(Debug, Default)]
pub struct StaleOfTrees {
    /// Nodes that have lost a name: as long as they are known, files live on.
    pub gone: Vec<PruneCandidate>,
    /// Those of them that have another name: their attributes have changed.
    pub linked: BTreeSet<NodeId>,
    /// Directories that have lost names: their listings and attributes have changed.
    pub emptied: BTreeSet<NodeId>,
}

impl StaleOfTrees {
    /// Names of the directory have gone, each with what it led to.
    pub(super) fn note<'n>(
        &mut self,
        nodes: &NodeTable,
        directory: u64,
        gone: impl Iterator<Item = (&'n [u8], u64)>,
    ) {
        let is_known = nodes.get(directory).as_ref().is_some_and(Pin::is_looked_up);
        if is_known && self.emptied.len() < STALE_MAX {
            self.emptied.insert(NodeId(directory));
        }
        for (name, inode) in gone.take(STALE_MAX.saturating_sub(self.gone.len())) {
            let Some(node) = nodes.get(inode).filter(Pin::is_looked_up) else { continue };
            if !node.is_orphan() {
                self.linked.insert(NodeId(inode));
            }
            let link = Some((NodeId(directory), name.into()));
            self.gone.push(PruneCandidate { node: NodeId(inode), link });
        }
    }
}
