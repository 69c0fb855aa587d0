//! Operations on whole trees: each is done wholly or not at all, in a transaction of its own, or in the view of one that is open.
//!
//! A caller other than root may remove what `rm -r` by its hand would: it must be allowed to search the way there, to list and change each
//! directory that is not empty, and in sticky directories, to remove the entry. For that the tree is looked through; root's goes in
//! constant time.
//!
//! Purpose: one entrance for all front ends. [`Trees`] is that of the main line, [`change_view`] that of the view of a transaction or a branch;
//! both take a [`TreeCaller`] and [`TreeOperation`]s, and a new operation is a new kind of those, with what [`carry_out_in`] does for it.
//!
//! Thread safety: for threads that may block. Not atomic with what follows, as no check of a path is.

mod rights;

use std::sync::Arc;

use kvfs_fs::{
    DetachedTrees, FileSystem, FsError, Invalidations, KnownNode, NodeId, Owner, TreeError, TxnId,
    remove_tree,
};

use crate::caller::Caller;
use crate::error::{Result, ServiceError};
use crate::served::{ServedStore, begin_as, carry_out, or_nothing};
use crate::transactions::Transactions;

use rights::{Rights, SEARCH, WRITE};
pub use rights::{TreeCaller, Waiter};

/// Behind a path in a message, where a transaction of its own ended with it.
const NOTHING: &str = "nothing was removed";

/// What is to be done. Paths are names, parted by slashes; one that begins with a slash is from the root of the view, any other from the
/// directory that comes with it. No symbolic link is followed, and `.` and `..` are no names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeOperation<'p> {
    /// Removes what is at the path, with all that is below. The space comes back behind it.
    Remove(&'p [u8]),
}

impl TreeOperation<'_> {
    /// What the transaction of its own is called.
    fn label(&self) -> String {
        let Self::Remove(path) = self;
        format!("rm -r {}", String::from_utf8_lossy(path))
    }
}

/// Trees that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedTrees {
    /// By this transaction.
    pub txn: TxnId,
    /// How many.
    pub trees: u64,
    /// Whether the transaction can be taken back.
    pub is_kept: bool,
}

/// The trees of the main line.
#[derive(Clone, Copy)]
pub struct Trees<'s> {
    fs: &'s Arc<FileSystem>,
    transactions: Option<&'s Transactions>,
}

impl<'s> Trees<'s> {
    /// Those of this store.
    pub fn of(store: &ServedStore<'s>) -> Self {
        Self::new(store.fs, store.transactions)
    }

    /// Those of a main line. `transactions`: those of a store that is mounted or served.
    pub fn new(fs: &'s Arc<FileSystem>, transactions: Option<&'s Transactions>) -> Self {
        Self { fs, transactions }
    }

    /// Does all of `operations` in one transaction, durably. `from`: where paths begin, a directory that the caller has open.
    ///
    /// # Errors
    /// [`ServiceError::At`]: a path leads nowhere, or to the root; the caller may not; it does not wait any more. As a commit. Nothing was
    /// changed then.
    pub fn change(
        &self,
        caller: &TreeCaller<'_>,
        from: NodeId,
        operations: &[TreeOperation<'_>],
    ) -> Result<TxnId> {
        DetachedTrees::of(self.fs).prepare()?;
        let name = operations.first().map(TreeOperation::label).unwrap_or_default();
        let owner = Owner { uid: caller.user.uid, pid: caller.user.pid, name };
        let mut refusal = None;
        let changed = carry_out(self.fs, self.transactions, &begin_as(owner), |view| {
            for operation in operations {
                carry_out_in(view, caller, from, operation).map_err(|Refused { place, error }| {
                    refusal = Some(explained(view, &place, &error, Some(NOTHING)));
                    *error
                })?;
            }
            Ok(())
        });
        match (changed, refusal) {
            (Err(_), Some(refusal)) => Err(refusal),
            (changed, _) => or_nothing(changed, NOTHING),
        }
    }
}

/// Removes what these paths lead to, from the root of the store, as [`Trees::change`] does.
///
/// # Errors
/// As there.
pub fn remove_trees(store: &ServedStore<'_>, caller: &Caller, paths: &[Vec<u8>]) -> Result<RemovedTrees> {
    let removals: Vec<_> = paths.iter().map(|path| TreeOperation::Remove(path)).collect();
    let txn = Trees::of(store).change(&TreeCaller::of(caller), NodeId::ROOT, &removals)?;
    let trees = paths.len() as u64;
    tracing::info!(trees, %txn, "trees removed");
    Ok(RemovedTrees { txn, trees, is_kept: store.is_kept(txn) })
}

/// Does `operation` in the view of an open transaction, or of a branch, whose end decides what becomes of it. `from`: where a path begins, a
/// directory that the caller has open. Returns what other front ends of the view must forget before the caller is answered.
///
/// # Errors
/// [`ServiceError::At`], as [`Trees::change`]; nothing was changed then, but as [`remove_tree`] says.
pub fn change_view(
    view: &FileSystem,
    caller: &TreeCaller<'_>,
    from: NodeId,
    operation: &TreeOperation<'_>,
) -> Result<Invalidations> {
    let done = carry_out_in(view, caller, from, operation);
    done.map_err(|Refused { place, error }| explained(view, &place, &error, None))
}

/// Why an operation was refused.
struct Refused {
    /// The path, or that of what is below.
    place: Vec<u8>,
    error: Box<FsError>,
}

fn carry_out_in(
    view: &FileSystem,
    caller: &TreeCaller<'_>,
    from: NodeId,
    operation: &TreeOperation<'_>,
) -> Result<Invalidations, Refused> {
    let rights = Rights { view, caller };
    match *operation {
        TreeOperation::Remove(path) => remove(&rights, from, path).map_err(|TreeError { below, error }| {
            let place = if below.is_empty() { path.to_vec() } else { [path, b"/", &below].concat() };
            Refused { place, error }
        }),
    }
}

fn remove(rights: &Rights<'_>, from: NodeId, path: &[u8]) -> Result<Invalidations, TreeError> {
    let failed = |error| TreeError { below: Vec::new(), error: Box::new(error) };
    let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
    let Some((last, above)) = names.split_last() else {
        return Err(failed(match path {
            [] => FsError::NotFound,
            _ => FsError::Busy("the root of a store is not removed"),
        }));
    };
    let parent = directory_at(rights, (from, path), above).map_err(failed)?;
    remove_tree(rights.view, &rights.caller.user, (parent.node(), last), rights)
}

/// The directory that `names` of `path` lead to, which is to be changed.
fn directory_at<'v>(
    rights: &Rights<'v>,
    (from, path): (NodeId, &[u8]),
    names: &[&[u8]],
) -> Result<KnownNode<'v>, FsError> {
    let mut at = match path.first() {
        Some(b'/') => KnownNode::root(rights.view),
        _ => KnownNode::of_directory(rights.view, from)?,
    };
    for depth in 0..=names.len() {
        let access = if depth == names.len() { WRITE | SEARCH } else { SEARCH };
        rights.check(at.node(), &rights.settled(|caller| at.attr(caller))?, access)?;
        if let Some(name) = names.get(depth) {
            at = rights.settled(|caller| at.lookup(caller, name))?;
        }
    }
    Ok(at)
}

fn explained(view: &FileSystem, place: &[u8], error: &FsError, outcome: Option<&str>) -> ServiceError {
    let why = match error {
        FsError::Canceled(doom) => view.lock_words().explain(doom),
        error => error.to_string(),
    };
    let outcome = outcome.map(|outcome| format!("; {outcome}")).unwrap_or_default();
    let message = format!("{}: {why}{outcome}", String::from_utf8_lossy(place));
    ServiceError::At { message, error: Box::new(error.clone()) }
}

#[cfg(test)]
mod tests;
