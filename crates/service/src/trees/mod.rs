//! Removing whole trees, each with all that is below it: all of them in one transaction, or nothing.
//!
//! A caller other than root may remove what `rm -r` by its hand would: it must be allowed to search the way there, to list and change each
//! directory that is not empty, and in sticky directories, to remove the entry. For that the tree is looked through; root's goes in
//! constant time.
//!
//! Thread safety: for threads that may block. Not atomic with what follows, as no check of a path is.

use kvfs_fs::{
    Attr, DetachedTrees, FileSystem, FsError, KnownNode, NodeId, RemovalRights, TreeError, TxnId, remove_tree,
};

use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::served::{ServedStore, begin_for, or_nothing};

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

const STICKY: u32 = 0o1000;

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

/// What a user other than root may do to a view.
struct Rights<'v> {
    view: &'v FileSystem,
    caller: &'v Caller,
    user: kvfs_fs::Caller,
    groups: Vec<u32>,
}

impl<'v> Rights<'v> {
    fn new(view: &'v FileSystem, caller: &'v Caller) -> Self {
        let user = kvfs_fs::Caller {
            uid: caller.uid,
            gid: caller.gid(),
            pid: caller.pid,
            keeps_atime: true,
            ..kvfs_fs::Caller::default()
        };
        Self { view, caller, user, groups: caller.groups() }
    }

    fn check(&self, node: NodeId, attr: &Attr, access: u32) -> Result<(), FsError> {
        if self.caller.uid == 0 {
            return Ok(());
        }
        self.view.check_access(&self.user, &self.groups, node, attr, access)
    }
}

impl RemovalRights for Rights<'_> {
    fn is_everything(&self) -> bool {
        self.caller.uid == 0
    }

    fn depends_on_entries(&self, directory: &Attr) -> bool {
        directory.mode & STICKY != 0 && self.caller.uid != directory.uid
    }

    fn check_directory(&self, directory: NodeId, attr: &Attr) -> Result<(), FsError> {
        if !self.caller.is_there() {
            return Err(FsError::Busy("the caller has gone"));
        }
        self.check(directory, attr, READ | WRITE | SEARCH)
    }

    fn check_entry(&self, directory: &Attr, entry: &Attr) -> Result<(), FsError> {
        let uid = self.caller.uid;
        if uid == 0 || uid == entry.uid || !self.depends_on_entries(directory) {
            return Ok(());
        }
        Err(FsError::NotPermitted("it is another user's, in a sticky directory"))
    }
}

/// The trees of an open store.
#[derive(Clone, Copy)]
pub struct Trees<'s>(ServedStore<'s>);

impl<'s> Trees<'s> {
    /// Those of this store.
    pub fn of(store: &ServedStore<'s>) -> Self {
        Self(*store)
    }

    /// Removes what these paths lead to, with all that is below, in one transaction, durably; the space comes back behind it. Paths are from the root of the store, and no
    /// symbolic link in them is followed.
    ///
    /// # Errors
    /// One of them leads nowhere, or is the root; the caller may not; as a commit. Nothing was removed then.
    pub fn remove(&self, caller: &Caller, paths: &[Vec<u8>]) -> Result<RemovedTrees> {
        DetachedTrees::of(self.0.fs).prepare()?;
        let mut refusal = None;
        let label = paths.first().map(|path| String::from_utf8_lossy(path).into_owned()).unwrap_or_default();
        let removed = self.0.carry_out(&begin_for(caller, format!("rm -r {label}")), |view| {
            let rights = Rights::new(view, caller);
            for path in paths {
                remove(&rights, path).map_err(|TreeError { below, error }| {
                    refusal = Some(refused(path, &below, &error));
                    *error
                })?;
            }
            Ok(())
        });
        let txn = match (removed, refusal) {
            (Err(_), Some(refusal)) => return Err(refusal),
            (removed, _) => or_nothing(removed, "nothing was removed")?,
        };
        let trees = paths.len() as u64;
        tracing::info!(trees, %txn, "trees removed");
        Ok(RemovedTrees { txn, trees, is_kept: self.0.is_kept(txn) })
    }
}

fn remove(rights: &Rights<'_>, path: &[u8]) -> Result<(), TreeError> {
    let failed = |error| TreeError { below: Vec::new(), error: Box::new(error) };
    let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
    let Some((last, above)) = names.split_last() else {
        return Err(failed(FsError::Busy("the root of a store is not removed")));
    };
    let parent = directory_at(rights, above).map_err(failed)?;
    remove_tree(rights.view, &rights.user, (parent.node(), last), rights)
}

/// The directory that `names` lead to, which is to be changed.
fn directory_at<'v>(rights: &Rights<'v>, names: &[&[u8]]) -> Result<KnownNode<'v>, FsError> {
    let mut at = KnownNode::root(rights.view);
    for depth in 0..=names.len() {
        let access = if depth == names.len() { WRITE | SEARCH } else { SEARCH };
        rights.check(at.node(), &at.attr(&rights.user)?, access)?;
        if let Some(name) = names.get(depth) {
            at = kvfs_fs::settled_for(&rights.user, |caller| at.lookup(caller, name))?;
        }
    }
    Ok(at)
}

fn refused(path: &[u8], below: &[u8], error: &FsError) -> ServiceError {
    let mut place = String::from_utf8_lossy(path).into_owned();
    if !below.is_empty() {
        place = format!("{place}/{}", String::from_utf8_lossy(below));
    }
    let kind = match error {
        FsError::AccessDenied(_) | FsError::NotPermitted(_) => ErrorKind::Denied,
        error => ServiceError::from(error.clone()).kind(),
    };
    ServiceError::new(kind, format!("{place}: {error}; nothing was removed"))
}

#[cfg(test)]
mod tests;
