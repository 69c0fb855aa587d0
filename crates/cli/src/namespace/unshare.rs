//! The one system call without a safe wrapper: leaving the namespaces of the parent.
#![expect(unsafe_code, reason = "rustix has no safe form of unshare")]

use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Namespaces that can be left.
const NAMESPACES: UnshareFlags = UnshareFlags::NEWUSER.union(UnshareFlags::NEWNS);

pub(super) fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    let namespaces = flags.intersection(NAMESPACES);
    // SAFETY: what is dangerous is a table of descriptors of its own (`CLONE_FILES`), which isn't among them.
    unsafe { unshare_unsafe(namespaces) }
}
