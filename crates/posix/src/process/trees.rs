//! Whole trees, each in one step.

use kvfs_fs::{FileType, FsError, Ticket, TxnId};
use kvfs_service::{
    ErrorKind, ServiceError, TreeCaller, TreeOperation, TreePath, Trees, Waiter, change_view,
};
use rustix::io::Errno;

use super::{Process, Scope};
use crate::error::{PosixError, Result};
use crate::place::Place;
use crate::walk::End;

/// The trees that a process may change, in the view that it sees.
#[derive(Debug, Clone, Copy)]
pub struct ProcessTrees<'p> {
    scope: &'p Scope,
}

impl<'p> ProcessTrees<'p> {
    /// Those of `process`.
    pub fn of(process: &'p Process) -> Self {
        Self { scope: &process.scope }
    }

    /// Removes a name, and a directory with all that is below: all of it or nothing, and for user 0 in
    /// constant time. Others may where they could remove each name. The space comes back in the background.
    /// Outside of transactions it is one of its own, durable when this returns, and its number is returned;
    /// in a transaction it is a part of that.
    ///
    /// # Errors
    /// ENOENT, EACCES, EPERM, with the path of what is in the way in the message; EINVAL: it ends in `.`;
    /// ENOTEMPTY: in `..`; EBUSY: the root; ENOTDIR; ECANCELED; EROFS.
    pub fn remove<'a>(&self, place: impl Into<Place<'a>>) -> Result<Option<TxnId>> {
        let (directory, name, found, is_slashed) = self.scope.removable(place.into())?;
        let found = found.ok_or(FsError::NotFound)?;
        if is_slashed && found.attr.kind != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        self.scope.check_removal(&directory, &found)?;
        let at = TreePath { from: directory.held.node(), path: &name };
        self.change(TreeOperation::Remove(at))
    }

    /// Makes what is at `source`, with all that is below, a second time, at `target`, where nothing is yet:
    /// all of it or nothing. Content is not copied: both refer to the same bytes until they are overwritten.
    /// Takes time and space for the names. Users other than 0 may where they could read all of it; what they
    /// clone is theirs. A symbolic link is cloned itself. Transactions as for [`Self::remove`].
    ///
    /// # Errors
    /// EEXIST; ENOENT, EACCES, EPERM, with the path of what is in the way in the message; EINVAL: the root,
    /// or the target lies in the source; ENOTDIR; ENOSPC; EDQUOT; ECANCELED; EROFS.
    pub fn clone_to<'a, 'b>(
        &self,
        source: impl Into<Place<'a>>,
        target: impl Into<Place<'b>>,
    ) -> Result<Option<TxnId>> {
        let (directory, name, found, is_slashed) =
            self.scope.walk(source.into(), End::Name)?.named(Errno::INVAL)?;
        let kind = found.ok_or(FsError::NotFound)?.attr.kind;
        if is_slashed && kind != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        let (new_directory, new_name) =
            self.scope.place_of_new(target.into(), kind == FileType::Directory)?;
        let source = TreePath { from: directory.held.node(), path: &name };
        let target = TreePath { from: new_directory.held.node(), path: &new_name };
        self.change(TreeOperation::Clone { source, target })
    }

    /// Returns the transaction of its own.
    fn change(self, operation: TreeOperation<'_>) -> Result<Option<TxnId>> {
        let (scope, fs) = (self.scope, self.scope.fs());
        let caller = TreeCaller::new(scope.caller(), scope.actor.groups().to_vec(), scope);
        if fs.txn().is_some() {
            let changes = change_view(fs, &caller, &operation)?;
            scope.shared.tell_all(changes);
            return Ok(None);
        }
        let transactions = scope.shared.transactions();
        Ok(Some(Trees::new(fs, transactions).change(&caller, &[operation])?.0))
    }
}

impl Waiter for Scope {
    fn is_there(&self) -> bool {
        !self.waits().are_over()
    }

    fn wait(&self, ticket: &Ticket) -> bool {
        self.waits().wait(ticket)
    }
}

impl From<ServiceError> for PosixError {
    fn from(error: ServiceError) -> Self {
        let errno = match (error.of_file_system(), error.kind()) {
            (Some(error), _) => Errno::from_raw_os_error(error.errno()),
            (None, ErrorKind::Denied) => Errno::ACCESS,
            (None, ErrorKind::InUse) => Errno::BUSY,
            (None, ErrorKind::NoSpace) => Errno::NOSPC,
            (None, ErrorKind::Conflict) => Errno::CANCELED,
            (None, ErrorKind::NotMounted) => Errno::NODEV,
            _ => Errno::IO,
        };
        Self::Explained { errno, message: error.to_string().into() }
    }
}
