//! Whole trees, each in one step.

use std::sync::atomic::Ordering;

use kvfs_fs::{FileType, FsError, TxnId};
use kvfs_service::{ErrorKind, ServiceError, TreeCaller, TreeOperation, Trees, Waiter, change_view};
use rustix::io::Errno;

use super::{Process, Scope};
use crate::error::{PosixError, Result};
use crate::place::Place;

impl Process {
    /// Removes a name, and a directory with all that is below: all of it or nothing, and for user 0 in constant time. Others may where they
    /// could remove each name. The space comes back in the background. Outside of transactions it is one of its own, durable when this
    /// returns, and its number is returned; in a transaction it is a part of that.
    ///
    /// # Errors
    /// ENOENT, EACCES, EPERM, with the path of what is in the way in the message; EINVAL: it ends in `.`; ENOTEMPTY: in `..`; EBUSY: the root; ENOTDIR;
    /// ECANCELED; EROFS.
    pub fn remove_tree<'a>(&self, place: impl Into<Place<'a>>) -> Result<Option<TxnId>> {
        let (directory, name, found, is_slashed) = self.scope.removable(place.into())?;
        let found = found.ok_or(FsError::NotFound)?;
        if is_slashed && found.attr.kind != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        let (fs, from, operation) = (self.scope.fs(), directory.held.node(), TreeOperation::Remove(&name));
        self.scope.check_removal(&directory, Some(&found))?;
        let caller = TreeCaller::new(self.scope.caller(), self.scope.actor.groups().to_vec(), &self.scope);
        if fs.txn().is_some() {
            let changes = change_view(fs, &caller, from, &operation)?;
            self.scope.shared.tell_all(changes);
            return Ok(None);
        }
        let transactions = self.scope.shared.transactions();
        Ok(Some(Trees::new(fs, transactions).change(&caller, from, &[operation])?.0))
    }
}

impl Waiter for Scope {
    fn is_there(&self) -> bool {
        !self.is_interrupted.load(Ordering::SeqCst)
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
