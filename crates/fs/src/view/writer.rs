//! How changes of rows reach a view, and the nodes that stand for them.
//!
//! Thread safety: any number of threads; a plain value of references. Invariant: a node is told of a change
//! when the batch that holds it has been applied, and of none that was refused. The caller must hold the
//! names of what is changed.

use std::borrow::Cow;
use std::sync::Arc;

use kvfs_store::{Batch, BlockClone, Position};

use super::Origin;
use crate::node::{Node, NodeTable, Pin};
use crate::schema::{Keyspaces, RowPatch, TimePatch};
use crate::{FileSystem, Result, Timestamp};

/// Applies batches to a view, and tells its nodes.
#[derive(Clone, Copy)]
pub(crate) struct NodeWriter<'v> {
    origin: &'v Origin,
    nodes: &'v NodeTable,
    keyspaces: Keyspaces,
    /// They go with each batch.
    clones: &'v [BlockClone],
    /// Access times wait for the next change of their row.
    is_lazytime: bool,
}

impl FileSystem {
    /// What changes rows and nodes of this view.
    pub(crate) fn writer(&self) -> NodeWriter<'_> {
        NodeWriter {
            origin: &self.origin,
            nodes: &self.nodes,
            keyspaces: self.keyspaces,
            clones: &[],
            is_lazytime: self.options.lazytime,
        }
    }
}

impl<'v> NodeWriter<'v> {
    /// The view that is changed.
    pub(crate) fn origin(&self) -> &'v Origin {
        self.origin
    }

    /// The same, of which each batch comes with these clones.
    pub(crate) fn cloning(self, clones: &'v [BlockClone]) -> Self {
        Self { clones, ..self }
    }

    /// Applies the batch.
    pub(crate) fn apply(&self, batch: Batch) -> Result<Position> {
        self.origin.apply_with_clones(batch, self.keyspaces.data, self.clones)
    }

    /// Applies the batch and the patch of the node's row, and tells the node.
    pub(crate) fn apply_to_node(
        &self,
        mut batch: Batch,
        node: &Pin<'_>,
        patch: &RowPatch,
    ) -> Result<Position> {
        let patch = self.stage_patch(&mut batch, node, patch);
        let position = self.apply(batch)?;
        self.tell_node(node, &patch, position);
        Ok(position)
    }

    /// Adds the patch of the node's row to the batch, and with it the access time that waits, if one does.
    /// Returns what the node is to be told.
    pub(crate) fn stage_patch<'p>(
        &self,
        batch: &mut Batch,
        node: &Pin<'_>,
        patch: &'p RowPatch,
    ) -> Cow<'p, RowPatch> {
        let patch = match self.lazy_time_for(node, patch) {
            Some(atime) => Cow::Owned(RowPatch { atime: Some(TimePatch::Max(atime)), ..patch.clone() }),
            None => Cow::Borrowed(patch),
        };
        debug_assert!(!node.is_rowless(), "inode {} has got no row to be changed", node.inode);
        self.stage(batch, node, &patch);
        patch
    }

    /// Adds a patch of the node's row to the batch, and nothing else.
    pub(crate) fn stage(&self, batch: &mut Batch, node: &Node, patch: &RowPatch) {
        let (keyspace, key) = node.row_address(&self.keyspaces);
        batch.merge(keyspace, key, patch.encode(node.inode));
    }

    /// Gives back the reference of an access time that waited.
    pub(crate) fn release(&self, node: &Arc<Node>) {
        self.nodes.release(node, 1);
    }

    /// Tells the node of a patch that was applied.
    pub(crate) fn tell_node(&self, node: &Pin<'_>, patch: &RowPatch, position: Position) {
        let mut state = node.state();
        state.update(patch, position);
        let was_waiting = patch.atime == Some(TimePatch::Max(state.header.atime))
            && std::mem::take(&mut state.is_atime_pending);
        if patch.content.is_some() {
            self.nodes.drop_content_locked(&mut state);
        }
        drop(state);
        if was_waiting {
            self.nodes.release(node, 1);
        }
    }

    /// The access time of the node that waits, to go with `patch` of its row. `None`: none waits, or the
    /// patch sets it.
    fn lazy_time_for(&self, node: &Node, patch: &RowPatch) -> Option<Timestamp> {
        if !self.is_lazytime || patch.atime.is_some() {
            return None;
        }
        let state = node.state();
        state.is_atime_pending.then_some(state.header.atime)
    }
}
