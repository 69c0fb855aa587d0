//! Cloning trees and files.
//!
//! A caller other than root may clone what `cp -a` by its hand would: all that is below must be readable for
//! it. What is another user's becomes its own, without set-id bits, capabilities and labels; devices are
//! refused.

use kvfs_fs::{Attr, CloneRights, Cloned, FileType, FsError, KnownNode, NodeId, Ticket, TreeError, TxnId};

use super::rights::{READ, Rights, SEARCH, TreeCaller, WRITE};
use super::{Done, Refused, TreeOperation, TreePath, Trees, directory_at, split};
use crate::caller::Caller;
use crate::error::Result;
use crate::served::ServedStore;

/// The directory in the root of a mount that no listing shows.
const HIDDEN_NAME: &[u8] = b".kvfs";

/// What was cloned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClonedTree {
    /// By this transaction.
    pub txn: TxnId,
    /// What it came to.
    pub cloned: Cloned,
    /// Whether the transaction can be taken back.
    pub is_kept: bool,
}

/// Clones what the path `source` leads to, to `target`; paths are from the root of the store. As
/// [`Trees::change`] does.
///
/// # Errors
/// As there.
pub fn clone_tree(
    store: &ServedStore<'_>,
    caller: &Caller,
    source: &[u8],
    target: &[u8],
) -> Result<ClonedTree> {
    let (source, target) = (TreePath::of_store(source), TreePath::of_store(target));
    let operation = TreeOperation::Clone { source, target };
    let (txn, cloned) = Trees::of(store).change(&TreeCaller::of(caller), &[operation])?;
    tracing::info!(names = cloned.names, %txn, "a tree cloned");
    Ok(ClonedTree { txn, cloned, is_kept: store.is_kept(txn) })
}

impl CloneRights for Rights<'_> {
    fn is_everything(&self) -> bool {
        self.caller.user.uid == 0
    }

    fn check_source(&self, node: NodeId, attr: &Attr) -> Result<(), FsError> {
        if !self.is_wanted() {
            return Err(FsError::Interrupted);
        }
        match attr.kind {
            FileType::Regular => self.check(node, attr, READ),
            FileType::Directory => self.check(node, attr, READ | SEARCH),
            FileType::CharDevice | FileType::BlockDevice if self.caller.user.uid != 0 => {
                Err(FsError::NotPermitted("only root makes devices"))
            }
            _ => Ok(()),
        }
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        let user = &self.caller.user;
        if user.uid == 0 {
            return (attr.uid, attr.gid);
        }
        let gid = if self.caller.groups.contains(&attr.gid) { attr.gid } else { user.gid };
        (user.uid, gid)
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }

    fn wait(&self, ticket: &Ticket) -> bool {
        self.caller.waiter.wait(ticket)
    }
}

fn refused_at(place: TreePath<'_>) -> impl Fn(FsError) -> Refused {
    move |error| Refused::at(place, TreeError { below: Vec::new(), error: Box::new(error) })
}

/// As [`super::carry_out_in`].
pub(super) fn clone_in(
    rights: &Rights<'_>,
    source: TreePath<'_>,
    target: TreePath<'_>,
) -> Result<Done, Refused> {
    let root = || FsError::Invalid("the root of a store is neither cloned nor made");
    let (name, above) = split(source.path, root()).map_err(refused_at(source))?;
    let parent = directory_at(rights, source, &above, SEARCH).map_err(refused_at(source))?;
    let (new_name, above) = split(target.path, root()).map_err(refused_at(target))?;
    let new_parent = directory_at(rights, target, &above, WRITE | SEARCH).map_err(refused_at(target))?;
    if new_name == HIDDEN_NAME && new_parent.node() == KnownNode::root(rights.view).node() {
        return Err(refused_at(target)(FsError::NotPermitted("that name is the hidden directory's")));
    }
    let (old, new) = ((parent.node(), name), (new_parent.node(), new_name));
    let done = kvfs_fs::clone_tree(rights.view, &rights.caller.user, old, new, rights);
    let (cloned, invalidations) = done.map_err(|error| {
        let is_of_target = matches!(*error.error, FsError::Exists | FsError::NameTooLong { .. });
        Refused::at(if is_of_target { target } else { source }, error)
    })?;
    Ok(Done { invalidations, cloned })
}
