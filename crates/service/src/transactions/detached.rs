//! Views of users whose kernel side must not be trusted (docs/decisions/public-sockets.md).
//!
//! Thread safety: for threads that may block.

use std::os::fd::OwnedFd;

use super::Transactions;
use super::entry::ServedView;
use crate::caller::Caller;
use crate::error::Result;

impl Transactions {
    /// Makes a mount of the view, for its owner to attach. Where the transaction is not a command's
    /// (`kvfs txn run`), all of its mounts are of the one that the daemon has below the store's directory.
    /// The kernel side is this process's, so what it says of ids and permissions is true, whatever its owner
    /// is allowed.
    ///
    /// # Errors
    /// There is no such transaction of the caller's; the view can't be mounted.
    pub fn mount_detached(&self, caller: &Caller, id: u64) -> Result<OwnedFd> {
        self.main.check_files()?;
        if !Self::of(&self.state.lock(), caller, id)?.is_run() {
            self.path(caller, id)?;
            return self.main.mounts.copy_view(id);
        }
        let (view, slot) = self.view_without_mount(caller, id)?;
        let (device, mount) = self.main.mounts.mount_detached(view, caller.uid)?;
        self.install_view_mount(id, ServedView::new(mount, slot))?;
        Ok(device)
    }
}
