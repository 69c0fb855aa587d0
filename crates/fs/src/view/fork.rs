//! Branches of branches: each begins as another branch is at that moment, and is brought into that one.
//!
//! Purpose: what was done in a branch is tried further in several ways, one of which is kept. A branch of a
//! branch is a fork of its checkpointed transaction ([`kvfs_store::Checkpoints::fork`]): nothing is copied,
//! both go on by themselves, and what was written first in either is told apart by the number of operations
//! that led to the fork. [`merge_into_parent`] looks at what the branch has changed since, as a merge into
//! the main line does ([`super::begin_merge`]), with the other branch in the place of the main line; then it
//! writes the same there.
//!
//! ```text
//!   main line ──●──────────────●──▶        try holds what fix has changed since the fork;
//!                ╲            ╱            it comes to the main line with try
//!       try       ●──●─────●─●
//!                     ╲   ╱
//!       fix            ●─●
//! ```
//!
//! Thread safety: as [`FileSystem`]; a merge is for threads that may block.
//!
//! Invariants:
//! * a branch that others are branches of is neither merged nor deleted: what both hold, files with the same
//!   inode numbers, comes to the main line once;
//! * a merge takes effect with one checkpoint, which names the branch that was brought in; that one is open
//!   until it is deleted after it, or, after a crash, when the file system is opened, and is listed nowhere
//!   meanwhile;
//! * the parent is open during a merge, and for a view that makes a fork: so these exclude each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{Batch, BlockClone, Change, CheckpointInfo, Compression, Keyspace, Snapshot, Txn, TxnId};

use super::branch::{BranchInfo, Branches, Opened};
use super::compare::Sides;
use super::merge::validate_alone;
use super::prefer::do_again;
use super::publish::each_change;
use super::undo::Selection;
use crate::schema::{BranchRecord, Fork};
use crate::{FileSystem, FsError, Result};

/// Operations that one batch of a merge carries.
const BATCH_OPERATIONS: usize = 1024;

/// Keys and values that one batch of a merge carries, but for the last one (bytes).
const BATCH_BYTES: usize = 4 << 20;

/// Stretches of blocks that are cloned at once.
const CLONES_MAX: usize = 4096;

/// Branches that were brought into another one, and are still there.
pub(super) fn leftovers(all: &[(CheckpointInfo, BranchRecord)]) -> BTreeSet<TxnId> {
    all.iter().filter_map(|(_, record)| record.merged).collect()
}

impl Branches<'_> {
    /// Makes a branch of the branch whose view this is, as it is now, for `uid`. Durable when this returns,
    /// as is what was done in this one.
    ///
    /// # Errors
    /// As [`Self::create`] and [`Self::checkpoint`].
    pub fn fork(&self, name: &str, uid: u32) -> Result<BranchInfo> {
        let view = self.origin.txn().ok_or(FsError::Invalid("only branches are forked"))?;
        let _turn = self.naming.lock();
        self.check_new(name)?;
        self.checkpoint()?;
        let id = view.id();
        let record = view.branch.get().ok_or(FsError::Invalid("only branches are forked"))?;
        self.store.fork(id, &|from| {
            let fork = Some(Fork { parent: id, operations: from.operations });
            // Numbers in the checkpoint were reserved before it.
            let inode_from = self.superblock.inode_next();
            let root = record.root.clone();
            BranchRecord { name: name.to_owned(), uid, inode_from, root, fork, merged: None }.encode()
        })?;
        self.get(name)
    }

    /// Refuses a branch that others are branches of. There may be one at any time, unless the caller has it
    /// open.
    ///
    /// # Errors
    /// `HasBranches`; store errors.
    pub fn expect_childless(&self, id: TxnId) -> Result<()> {
        let children = self.all().into_iter().filter(|branch| branch.parent == Some(id));
        let names: Vec<_> = children.map(|branch| branch.name).collect();
        if names.is_empty() { Ok(()) } else { Err(FsError::HasBranches { names }) }
    }

    /// Refuses a branch that is not brought to the main line. The caller has it open.
    pub(super) fn expect_mergeable(&self, branch: &FileSystem) -> Result<()> {
        let view = branch.expect_txn()?;
        if view.branch.get().is_some_and(|record| record.fork.is_some()) {
            return Err(FsError::Invalid("a branch of a branch is brought into that one"));
        }
        self.expect_childless(view.id())
    }

    /// Deletes branches whose merge was cut off after it had taken effect. What can't be deleted now is tried
    /// again at the next opening.
    pub(crate) fn end_leftovers(&self) {
        let all = self.records();
        let merged = leftovers(&all);
        for (info, record) in all.iter().filter(|(info, _)| merged.contains(&info.id)) {
            match self.store.resume(info.id) {
                Ok(rest) => rest.abort(),
                Err(error) => {
                    tracing::warn!(name = record.name, %error, "the rest of a merged branch stays");
                }
            }
        }
    }
}

/// Brings what `branch`, one of another branch, has changed since it was made into that one, durably and at
/// once, and deletes it: these two, whatever has their names by now. Neither may be open. A merge that fails
/// has changed nothing. With a `selection` it is done once more there by operations, as
/// [`crate::begin_merge_preferring`] does on the main line, in whose place the other branch is. O(what both
/// have changed since).
///
/// # Errors
/// [`FsError::MergeRefused`] with what is in the way; `HasBranches`; `Invalid` for a branch of the main line;
/// as [`FileSystem::open_branch`], for both.
pub fn merge_into_parent(
    main: &Arc<FileSystem>,
    branch: &BranchInfo,
    selection: Option<&Selection>,
) -> Result<()> {
    let branches = main.branches();
    let into = Opened::resume(main, &branches.parent(branch)?, |_, _| None)?.into_view(main)?;
    let from = Opened::resume(main, branch, |_, _| None)?.into_view(&into)?;
    let (view, child) = (into.expect_txn()?, from.expect_txn()?);
    let record = view.branch.get().ok_or(FsError::NotFound)?;
    branches.expect_childless(child.id())?;
    match selection {
        None => {
            validate_alone(&from)?;
            progress::stage("bringing in what the branch has changed", Unit::Items, 0);
            bring_in(&from, &into)?;
        }
        Some(selection) => {
            view.note_brought_in(child);
            let sides = Sides { before: &from, after: &*child.changed_state()? };
            let tell = |place: &str, _| view.tell_changed(place).unwrap_or_default();
            do_again(sides, &into, selection, tell)?;
        }
    }
    view.txn.checkpoint(&BranchRecord { merged: Some(child.id()), ..record.clone() }.encode())?;
    child.txn.abort();
    Ok(())
}

impl Branches<'_> {
    /// The branch that `branch` is one of.
    ///
    /// # Errors
    /// `NotFound`; `Invalid`: it is one of the main line.
    pub fn parent(&self, branch: &BranchInfo) -> Result<BranchInfo> {
        let parent = branch.parent.ok_or(FsError::Invalid("the branch is one of the main line"))?;
        self.all().into_iter().find(|branch| branch.id == parent).ok_or(FsError::NotFound)
    }
}

/// Writes all that a branch has changed into its parent.
fn bring_in(from: &FileSystem, into: &FileSystem) -> Result<()> {
    let (view, parent) = (from.expect_txn()?, into.expect_txn()?);
    let now = view.txn.as_of(view.stats().operations)?;
    for info in from.store.keyspaces() {
        let keyspace = info.keyspace;
        let mut writing =
            Writing { txn: &*parent.txn, from: &*now, keyspace, batch: Batch::new(), clones: Vec::new() };
        each_change(view.changes(keyspace)?, |change| writing.take(change))?;
        writing.finish()?;
    }
    Ok(())
}

/// Changes of one keyspace on their way into a transaction.
struct Writing<'t> {
    txn: &'t dyn Txn,
    from: &'t dyn Snapshot,
    keyspace: Keyspace,
    batch: Batch,
    clones: Vec<BlockClone>,
}

impl Writing<'_> {
    fn take(&mut self, change: Change) -> Result<()> {
        let keyspace = self.keyspace;
        match change {
            Change::Put { key, value } => self.batch.put(keyspace, key, value),
            Change::Delete { key } => self.batch.delete(keyspace, key),
            Change::DeleteRange { start, end } => self.batch.delete_range(keyspace, start, end),
            Change::Merge { key, operands } => {
                for operand in operands {
                    self.batch.merge(keyspace, key.clone(), operand);
                }
            }
            Change::Blocks { prefix, first, count } => self.clones.push(BlockClone {
                source: prefix.clone(),
                first,
                count,
                target: prefix,
                target_first: first,
                compression: Compression::default(),
            }),
        }
        let is_much = self.batch.len() >= BATCH_OPERATIONS || self.batch.payload_bytes() >= BATCH_BYTES;
        if is_much || self.clones.len() >= CLONES_MAX { self.finish() } else { Ok(()) }
    }

    /// A range is told of before the blocks in it that were written after it was deleted.
    fn finish(&mut self) -> Result<()> {
        let batch = std::mem::replace(&mut self.batch, Batch::new());
        if !batch.is_empty() {
            self.txn.apply(batch)?;
        }
        let clones = std::mem::take(&mut self.clones);
        if !clones.is_empty() {
            self.txn.clone_blocks_of(self.from, self.keyspace, &clones)?;
        }
        Ok(())
    }
}
