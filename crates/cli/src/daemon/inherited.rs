//! What the caller had open stays the caller's: locks, pipes that end when the last process closes them,
//! files of mounts.
#![expect(unsafe_code, reason = "descriptors of the caller's have no owner in this process")]

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};

/// Programs that this process runs from now on get none of the descriptors behind the standard ones. While no
/// other thread is there.
///
/// # Errors
/// The descriptors of this process can't be listed.
pub(super) fn keep_from_children() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let number: Option<RawFd> = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|&number| number > 2) else { continue };
        // SAFETY: it was listed, and no other thread is there that could close it; it is used for this one
        // call alone.
        let listed = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(listed, FdFlags::CLOEXEC)?;
    }
    Ok(())
}
