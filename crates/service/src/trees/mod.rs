//! Operations on whole trees: each is done wholly or not at all, in a transaction of its own, or in the view
//! of one that is open.
//!
//! A caller other than root may remove what `rm -r` by its hand would: it must be allowed to search the way
//! there, to list and change each directory that is not empty, and in sticky directories, to remove the
//! entry. For that the tree is looked through; root's goes in constant time. What may be cloned, and whose
//! the clone is, is said in [`clones`].
//!
//! Purpose: one entrance for all front ends. [`Trees`] is that of the main line, [`change_view`] that of the
//! view of a transaction or a branch; both take a [`TreeCaller`] and [`TreeOperation`]s, and a new operation
//! is a new kind of those, with what [`carry_out_in`] does for it.
//!
//! Thread safety: for threads that may block. Not atomic with what follows, as no check of a path is.

mod clones;
mod rights;

use std::sync::Arc;

use kvfs_fs::{
    Cloned, DetachedTrees, FileSystem, FsError, Invalidations, KnownNode, NodeId, Owner, TreeError, TxnId,
    remove_tree,
};

use crate::caller::Caller;
use crate::error::{Result, ServiceError};
use crate::served::{ServedStore, begin_as, carry_out, or_nothing};
use crate::transactions::Transactions;

pub use clones::{ClonedTree, clone_tree};
use rights::{Rights, SEARCH, WRITE};
pub use rights::{TreeCaller, Waiter};

/// Names, parted by slashes, from a directory on; with a slash in front, from the root of the view. No
/// symbolic link is followed, and `.` and `..` are no names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreePath<'p> {
    /// A directory that the caller has open.
    pub from: NodeId,
    /// The names.
    pub path: &'p [u8],
}

impl<'p> TreePath<'p> {
    /// From the root of the store on.
    pub fn of_store(path: &'p [u8]) -> Self {
        Self { from: NodeId::ROOT, path }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeOperation<'p> {
    /// Removes what is at the path, with all that is below. The space comes back behind it.
    Remove(TreePath<'p>),
    /// Makes what is at `source`, with all that is below, a second time, at `target`.
    Clone {
        /// What is cloned.
        source: TreePath<'p>,
        /// Where nothing is yet.
        target: TreePath<'p>,
    },
}

impl TreeOperation<'_> {
    /// What the transaction of its own is called.
    fn label(&self) -> String {
        match self {
            Self::Remove(at) => format!("rm -r {}", String::from_utf8_lossy(at.path)),
            Self::Clone { target, .. } => format!("clone {}", String::from_utf8_lossy(target.path)),
        }
    }

    /// Behind a path in a message, where a transaction of its own ended with it.
    fn nothing(&self) -> &'static str {
        match self {
            Self::Remove(_) => "nothing was removed",
            Self::Clone { .. } => "nothing was cloned",
        }
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

    /// Does all of `operations` in one transaction, durably; says which, and what all clones came to. What
    /// the kernel keeps of mapped files is written out before anything is cloned.
    ///
    /// # Errors
    /// [`ServiceError::At`]: a path leads nowhere, or to the root; the caller may not; it does not wait any
    /// more. As a commit. Nothing was changed then.
    pub fn change(
        &self,
        caller: &TreeCaller<'_>,
        operations: &[TreeOperation<'_>],
    ) -> Result<(TxnId, Cloned)> {
        let is_removal = |operation: &TreeOperation<'_>| matches!(operation, TreeOperation::Remove(_));
        if operations.iter().any(is_removal) {
            DetachedTrees::of(self.fs).prepare()?;
        }
        if let Some(transactions) = self.transactions.filter(|_| !operations.iter().all(is_removal)) {
            // What is in mapped files comes along.
            transactions.flush_main_line()?;
        }
        let name = operations.first().map(TreeOperation::label).unwrap_or_default();
        let nothing = operations.first().map_or("nothing was done", TreeOperation::nothing);
        let owner = Owner { uid: caller.user.uid, pid: caller.user.pid, name };
        let (mut refusal, mut cloned) = (None, Cloned::default());
        let changed = carry_out(self.fs, self.transactions, &begin_as(owner), |view| {
            for operation in operations {
                let done =
                    carry_out_in(view, caller, operation, true).map_err(|Refused { place, error }| {
                        refusal = Some(explained(view, &place, &error, Some(operation.nothing())));
                        *error
                    })?;
                cloned.names += done.cloned.names;
                cloned.bytes += done.cloned.bytes;
            }
            Ok(())
        });
        match (changed, refusal) {
            (Err(_), Some(refusal)) => Err(refusal),
            (changed, _) => Ok((or_nothing(changed, nothing)?, cloned)),
        }
    }
}

/// Removes what these paths lead to, from the root of the store, as [`Trees::change`] does.
///
/// # Errors
/// As there.
pub fn remove_trees(store: &ServedStore<'_>, caller: &Caller, paths: &[Vec<u8>]) -> Result<RemovedTrees> {
    let removals: Vec<_> = paths.iter().map(|path| TreeOperation::Remove(TreePath::of_store(path))).collect();
    let (txn, _) = Trees::of(store).change(&TreeCaller::of(caller), &removals)?;
    let trees = paths.len() as u64;
    tracing::info!(trees, %txn, "trees removed");
    Ok(RemovedTrees { txn, trees, is_kept: store.is_kept(txn) })
}

/// Does `operation` in the view of an open transaction, or of a branch, whose end decides what becomes of it.
/// Returns what other front ends of the view must forget before the caller is answered.
///
/// # Errors
/// [`ServiceError::At`], as [`Trees::change`]; nothing was changed then, but as [`remove_tree`] says.
pub fn change_view(
    view: &FileSystem,
    caller: &TreeCaller<'_>,
    operation: &TreeOperation<'_>,
) -> Result<Invalidations> {
    let done = carry_out_in(view, caller, operation, false);
    done.map(|done| done.invalidations)
        .map_err(|Refused { place, error }| explained(view, &place, &error, None))
}

/// What an operation came to.
struct Done {
    invalidations: Invalidations,
    cloned: Cloned,
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
    operation: &TreeOperation<'_>,
    is_alone: bool,
) -> Result<Done, Refused> {
    let rights = Rights { view, caller, is_alone };
    match *operation {
        TreeOperation::Remove(at) => {
            let invalidations = remove(&rights, at).map_err(|error| Refused::at(at, error))?;
            Ok(Done { invalidations, cloned: Cloned::default() })
        }
        TreeOperation::Clone { source, target } => clones::clone_in(&rights, source, target),
    }
}

impl Refused {
    /// At a path, or below it.
    fn at(at: TreePath<'_>, TreeError { below, error }: TreeError) -> Self {
        let place = if below.is_empty() { at.path.to_vec() } else { [at.path, b"/", &below].concat() };
        Self { place, error }
    }
}

fn remove(rights: &Rights<'_>, at: TreePath<'_>) -> Result<Invalidations, TreeError> {
    let failed = |error| TreeError { below: Vec::new(), error: Box::new(error) };
    let root = FsError::Busy("the root of a store is not removed");
    let (last, above) = split(at.path, root).map_err(failed)?;
    let parent = directory_at(rights, at, &above, WRITE | SEARCH).map_err(failed)?;
    remove_tree(rights.view, &rights.caller.user, (parent.node(), last), rights)
}

/// The last name of a path, and those above it. Else `NotFound`, or of the root what is given.
fn split(path: &[u8], of_root: FsError) -> Result<(&[u8], Vec<&[u8]>), FsError> {
    let mut names: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
    match names.pop() {
        Some(last) => Ok((last, names)),
        None if path.is_empty() => Err(FsError::NotFound),
        None => Err(of_root),
    }
}

/// The directory that `names` of `path` lead to, in which the caller needs the access `last`.
fn directory_at<'v>(
    rights: &Rights<'v>,
    TreePath { from, path }: TreePath<'_>,
    names: &[&[u8]],
    last: u32,
) -> Result<KnownNode<'v>, FsError> {
    let mut at = match path.first() {
        Some(b'/') => KnownNode::root(rights.view),
        _ => KnownNode::of_directory(rights.view, from)?,
    };
    for depth in 0..=names.len() {
        let access = if depth == names.len() { last } else { SEARCH };
        let attr = rights.settled(|caller| at.attr(caller))?;
        rights.settled(|_| rights.check(at.node(), &attr, access))?;
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
