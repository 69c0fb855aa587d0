//! Who asks for an operation on a tree, and what that user may do to it.
//!
//! Thread safety: plain values; a [`Waiter`] is used by the thread that does the operation.

use kvfs_fs::{Attr, FileSystem, FsError, NodeId, Ticket, TreeRights, settled_by};

use crate::caller::Caller;

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const SEARCH: u32 = 1;

const STICKY: u32 = 0o1000;

/// Whether the caller of an operation that may take long still waits for it.
pub trait Waiter {
    /// Asked from time to time; false ends the operation.
    fn is_there(&self) -> bool;

    /// Waits until the operation is worth trying again. False: the caller does not wait any more, and the
    /// ticket was cancelled.
    fn wait(&self, ticket: &Ticket) -> bool {
        ticket.wait();
        true
    }
}

impl Waiter for Caller {
    fn is_there(&self) -> bool {
        Self::is_there(self)
    }
}

/// On whose behalf an operation on trees is done.
pub struct TreeCaller<'w> {
    pub(super) user: kvfs_fs::Caller,
    pub(super) groups: Vec<u32>,
    pub(super) waiter: &'w dyn Waiter,
}

impl<'w> TreeCaller<'w> {
    /// A user, with all groups, its own among them.
    pub fn new(user: &kvfs_fs::Caller, groups: Vec<u32>, waiter: &'w dyn Waiter) -> Self {
        let user = kvfs_fs::Caller { keeps_atime: true, ticket: None, ..user.clone() };
        Self { user, groups, waiter }
    }

    /// A process, as its connection tells.
    pub fn of(caller: &'w Caller) -> Self {
        let user = kvfs_fs::Caller {
            uid: caller.uid,
            gid: caller.gid(),
            pid: caller.pid,
            ..kvfs_fs::Caller::default()
        };
        Self::new(&user, caller.groups(), caller)
    }
}

/// What a caller may do to a view.
pub(super) struct Rights<'v> {
    pub(super) view: &'v FileSystem,
    pub(super) caller: &'v TreeCaller<'v>,
    /// The view is changed by this operation alone.
    pub(super) is_alone: bool,
}

impl Rights<'_> {
    pub(super) fn check(&self, node: NodeId, attr: &Attr, access: u32) -> Result<(), FsError> {
        let TreeCaller { user, groups, .. } = self.caller;
        if user.uid == 0 { Ok(()) } else { self.view.check_access(user, groups, node, attr, access) }
    }

    /// Whether the caller still waits for what is being done.
    pub(super) fn is_wanted(&self) -> bool {
        self.caller.waiter.is_there()
    }

    pub(super) fn settled<T>(
        &self,
        operation: impl FnMut(&kvfs_fs::Caller) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        settled_by(&self.caller.user, |ticket| self.wait(ticket), operation)
    }
}

impl TreeRights for Rights<'_> {
    fn is_everything(&self) -> bool {
        self.caller.user.uid == 0
    }

    fn depends_on_entries(&self, directory: &Attr) -> bool {
        directory.mode & STICKY != 0 && self.caller.user.uid != directory.uid
    }

    fn check_directory(&self, directory: NodeId, attr: &Attr) -> Result<(), FsError> {
        if !self.is_wanted() {
            return Err(FsError::Interrupted);
        }
        self.check(directory, attr, READ | WRITE | SEARCH)
    }

    fn check_entry(&self, directory: &Attr, entry: &Attr) -> Result<(), FsError> {
        let uid = self.caller.user.uid;
        if uid == 0 || uid == entry.uid || !self.depends_on_entries(directory) {
            return Ok(());
        }
        Err(FsError::NotPermitted("it is another user's, in a sticky directory"))
    }

    fn wait(&self, ticket: &Ticket) -> bool {
        self.caller.waiter.wait(ticket)
    }
}
