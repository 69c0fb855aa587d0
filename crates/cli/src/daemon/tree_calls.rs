//! Operations on trees by ioctl(2) on the main line, in the view of a transaction, and on a branch.
//! `docs/CALLS.md` is their manual.
//!
//! Thread safety: called by threads that may block.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use kvfs_fs::{Invalidations, Ticket};
use kvfs_fuse::bridge::{ViewCall, ViewCallHandler};
use kvfs_fuse::dispatch::Ioctl;
use kvfs_rpc::ioctl::{self, TreeCall};
use kvfs_service::{
    ErrorKind, Result, Service, ServiceError, TreeCaller, TreeOperation, TreePath, Trees, Waiter, change_view,
};
use rustix::io::Errno;

use super::control_handler::errno;

/// The handler of the mount that `service` serves, and of its views.
pub(super) fn handler(service: &Arc<Service>) -> Arc<dyn ViewCallHandler> {
    Arc::new(ToTrees(Arc::downgrade(service)))
}

/// Weak, because the transactions lead to the bridge that asks here.
struct ToTrees(Weak<Service>);

/// The process behind a call.
struct OfCall<'c>(&'c ViewCall<'c>);

impl Waiter for OfCall<'_> {
    fn is_there(&self) -> bool {
        self.0.is_wanted()
    }

    fn wait(&self, ticket: &Ticket) -> bool {
        self.0.wait(ticket)
    }
}

impl ToTrees {
    /// Returns the number of the transaction of its own, and what the kernel side must forget.
    fn change(&self, call: &ViewCall<'_>, argument: &TreeCall) -> Result<(u64, Invalidations)> {
        let waiter = OfCall(call);
        let caller = TreeCaller::new(&call.caller, call.groups(), &waiter);
        let [path, other] = [&argument.path, &argument.other].map(|path| TreePath { from: call.node, path });
        let operation = match argument.operation {
            ioctl::TreeOperation::Remove => TreeOperation::Remove(path),
            ioctl::TreeOperation::Clone => TreeOperation::Clone { source: path, target: other },
        };
        if call.fs.txn().is_some() {
            return Ok((0, change_view(call.fs, &caller, &operation)?));
        }
        let closing = || ServiceError::new(ErrorKind::NotMounted, "the store is being unmounted");
        let service = self.0.upgrade().ok_or_else(closing)?;
        let trees = Trees::new(call.fs, Some(service.transactions()?));
        // Its commit tells the kernel.
        Ok((trees.change(&caller, &[operation])?.0.0, Invalidations::default()))
    }
}

impl ViewCallHandler for ToTrees {
    fn is_ours(&self, command: u32) -> bool {
        command == ioctl::TREE
    }

    fn announces(&self, name: &[u8]) -> bool {
        name == ioctl::TREE_ANNOUNCEMENT.as_bytes()
    }

    fn carry_out(&self, call: &ViewCall<'_>) -> Result<(Ioctl, Invalidations), Errno> {
        let argument = TreeCall::from_bytes(call.argument).ok_or(Errno::INVAL)?;
        if [&argument.path, &argument.other].iter().any(|path| path.first() == Some(&b'/')) {
            // From where the caller is, and no further: it may see a part of the mount alone.
            return Err(Errno::INVAL);
        }
        let (result, answer, changes) = match self.change(call, &argument) {
            Ok((id, changes)) => (0, TreeCall { id, ..argument }, changes),
            // As a failure with an argument, which an error alone would not carry.
            Err(error) => {
                let answer = TreeCall { text: error.to_string(), ..argument };
                (-errno(&error).raw_os_error(), answer, Invalidations::default())
            }
        };
        Ok((Ioctl { result, data: Bytes::copy_from_slice(&answer.answered()) }, changes))
    }
}
